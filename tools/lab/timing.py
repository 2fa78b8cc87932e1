"""Times of steps and bytes of passes. The device is "cuda", or "cpu" to try a script without a GPU."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping

import torch

Step = Callable[[], object]


def synchronize(device: str = "cuda") -> None:
    """Waits until the device has nothing to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def wall_us(step: Step, steps: int, device: str = "cuda") -> float:
    """Returns the time of a step from the begin of the first to the end of the last, host and device together."""
    synchronize(device)
    if device != "cuda":
        return host_us(step, steps, device)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / steps


def host_us(step: Step, steps: int, device: str = "cuda") -> float:
    """Returns the time until the calls of a step have returned, with an empty queue before the first."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    taken = time.perf_counter() - begin
    synchronize(device)
    return taken * 1e6 / steps


def seconds_of(call: Step, device: str = "cuda") -> tuple[float, object]:
    """Returns the seconds of one call, host and device together, and what it returned."""
    synchronize(device)
    begin = time.perf_counter()
    made = call()
    synchronize(device)
    return time.perf_counter() - begin, made


def interleaved(
    steps: Mapping[str, Step], rounds: int, times: int, device: str = "cuda", begin: Step = lambda: None
) -> dict[str, list[float]]:
    """Returns the wall times of each step, in us, a round each. Rounds take turns, and begin() precedes each."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            begin()
            taken[name].append(wall_us(step, times, device))
    return taken


def medians(taken: Mapping[str, list[float]], unit: str = "us") -> str:
    """Returns the median of each, as a line that is printed."""
    return ", ".join(f"{name} {statistics.median(values):.1f} {unit}" for name, values in taken.items())


def captured(step: Step, warm: int = 3) -> tuple[torch.cuda.CUDAGraph, object]:
    """Returns a CUDA graph of a step, which has run `warm` times, and what the captured step returned."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    return graph, made


def allocated(device: str) -> int:
    """Returns the bytes of tensors on the GPU; 0 on the host."""
    synchronize(device)
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def kept_bytes(forward: Callable[[], torch.Tensor], device: str) -> int:
    """Returns what a forward pass leaves allocated for backward, its result aside; 0 on the host."""
    before = allocated(device)
    y = forward()
    taken = allocated(device) - before - y.nbytes
    del y
    return taken if device == "cuda" else 0


#: The purposes of kernels. The first pattern that a name has decides.
PURPOSES = {
    "GEMM": r"octile_gemm|nvjet|gemm|cutlass_.*_grouped|xmma|GroupGEMM|group_gemm",
    "quantise": r"octile_",
    "attention": r"flash|fmha|sdpa|attention|cudnn",
    "optimizer": r"multi_tensor_apply|adam",
    "Triton": r"^triton_",
    "rest": r"",
}


def by_purpose(kernels: Iterable) -> str:
    """Returns the milliseconds of each purpose, as a line that is printed."""
    ms = dict.fromkeys(PURPOSES, 0.0)
    for event in kernels:
        purpose = next(name for name, pattern in PURPOSES.items() if re.search(pattern, event.key, re.IGNORECASE))
        ms[purpose] += event.self_device_time_total / 1e3
    return ", ".join(f"{name} {taken:.2f}" for name, taken in ms.items())


def kernels_of(step: Step, device: str = "cuda") -> str:
    """Returns the kernels of a step, those that take most first, and what takes the host's time."""
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CPU] + [activity.CUDA] * (device == "cuda")) as told:
        step()
        synchronize(device)
    kernels = [event for event in told.key_averages() if event.device_type.name == "CUDA"]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in kernels) / 1e3
    lines = [f"{total:.2f} ms of kernels: {by_purpose(kernels)}"]
    lines += [f"{e.self_device_time_total / 1e3:8.3f} ms {e.count:5d} x {e.key[:150]}" for e in kernels[:40]]
    lines.append(told.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))
    return "\n".join(lines)


def card(device: str) -> str:
    """Returns the name of the GPU, or that there is none."""
    return torch.cuda.get_device_name() if device == "cuda" else "the host, for a trial"
