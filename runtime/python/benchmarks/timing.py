"""Times of steps, for the scripts of this folder. The device is "cuda", or "cpu" to try a script without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def synchronize(device: str) -> None:
    """Waits until the device has nothing to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def wall_us(step: Callable[[], None], steps: int, device: str = "cuda") -> float:
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


def host_us(step: Callable[[], None], steps: int, device: str = "cuda") -> float:
    """Returns the time until the calls of a step have returned, with an empty queue before the first."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    taken = time.perf_counter() - begin
    synchronize(device)
    return taken * 1e6 / steps


def interleaved(
    steps: dict[str, Callable[[], None]], rounds: int, times: int, device: str = "cuda"
) -> dict[str, list[float]]:
    """Returns the wall times of each step, in us, a round each. Rounds of all steps take turns."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            taken[name].append(wall_us(step, times, device))
    return taken


def card(device: str) -> str:
    """Returns the name of the GPU, or that there is none."""
    return torch.cuda.get_device_name() if device == "cuda" else "the host, for a trial"
