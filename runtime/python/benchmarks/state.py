"""What layers record on a GPU: the maxima of delayed scaling and the words of a sentry, eager, captured and compiled.

    python state.py
    python state.py --device cpu     # the checks that need no GPU

Prints a line a check, and exits with 1 if one fails. Times: a layer's forward and backward with scales of its own, with
delayed ones, and with a sentry.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import warnings

import torch
from checks import all_hold, equal, passes
from records import Records, add_option, peer_of, protocol_of
from timing import interleaved
from torch import nn

import octile.torch as ot

DELAYED = ot.Recipe("delayed", warmup=2, history=4)


def layer_of(device: str, n: int, k: int, recipe: ot.Recipe | str = DELAYED) -> ot.Linear:
    return ot.Linear(k, n, device=device, dtype=torch.bfloat16, recipe=recipe)


def data_of(device: str, n: int, k: int, size: float = 1.0, tokens: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    x, dy = torch.randn(tokens, k) * size, torch.randn(tokens, n) * size
    return x.to(device, torch.bfloat16), dy.to(device, torch.bfloat16)


def values_of(layer: ot.Linear | ot.Experts) -> torch.Tensor:
    return layer._scaling.values.cpu()


def update_alike(a: ot.Linear | ot.Experts, b: ot.Linear | ot.Experts) -> bool:
    """Ends a step of both layers. Returns whether each had one, and their states have the same bits."""
    return ot.update_scales(a) == ot.update_scales(b) == 1 and values_of(a).equal(values_of(b))


def scales_equal_the_hosts(device: str, n: int, k: int) -> bool:
    """The device's scales have the bits of the host's, in warm-up and behind it, and products are close."""
    layer = layer_of(device, n, k)
    host, good = copy.deepcopy(layer).cpu(), True
    for size in (1, 4, 0.5, 3, 0.1, 0.1):
        x, dy = data_of(device, n, k, size)
        ours, theirs = passes(layer, x, dy), passes(host, x.cpu(), dy.cpu())
        good &= all((a.cpu() - b).norm() <= 0.01 * b.norm() for a, b in zip(ours, theirs, strict=True))
        good &= update_alike(layer, host)
    return good


def experts_equal_the_hosts(device: str, n: int, k: int) -> bool:
    """The same of experts, one of which has no tokens; and a sentry marks those of their products that have a NaN."""
    layer = ot.Experts(4, k, n, device=device, dtype=torch.bfloat16, recipe=DELAYED)
    host, good = copy.deepcopy(layer).cpu(), True
    watch = ot.sentry(layer)
    ends = torch.tensor([7, 7, 170, 300], dtype=torch.int32)
    for step, size in enumerate((1, 4, 0.5, 3, 0.1, 0.1)):
        x, dy = data_of(device, n, k, size)
        ours, theirs = passes(layer, x, dy, ends.to(device)), passes(host, x.cpu(), dy.cpu(), ends)
        good &= all((a.cpu() - b).norm() <= 0.01 * b.norm() for a, b in zip(ours, theirs, strict=True))
        good &= update_alike(layer, host) and not watch.step()
        x[3, 5] = math.nan
        passes(layer, x, dy, ends.to(device))
        passes(host, x.cpu(), dy.cpu(), ends)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            good &= update_alike(layer, host) and watch.step().item() == 1
        good &= watch.counts[""] == (step + 1, 0, step + 1)
    return good


def replays_record(n: int, k: int) -> bool:
    """Replays use scales that are updated between them, and raise maxima; a capture in warm-up is refused."""
    layer = layer_of("cuda", n, k)
    twin = copy.deepcopy(layer)
    x, dy = data_of("cuda", n, k)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            layer(x)
        return False
    except RuntimeError as refused:
        if "warm-up steps" not in str(refused):
            return False
    for _ in range(2):
        for one in (layer, twin):
            passes(one, x, dy)
            ot.update_scales(one)
    graph, good = torch.cuda.CUDAGraph(), True
    with torch.cuda.graph(graph):
        made = passes(layer, x, dy)
    for size in (3, 0.5, 7, 0.1):
        new_x, new_dy = data_of("cuda", n, k, size)
        x.copy_(new_x)
        dy.copy_(new_dy)
        for one in (layer, twin):
            one.weight.data.neg_()  # which nothing counts
        graph.replay()
        wanted = passes(twin, x, dy)
        good &= equal(made, wanted)
        good &= update_alike(layer, twin)
    return good


def replays_in_eval_follow_the_weight(n: int, k: int) -> bool:
    """A graph of eval() scales a weight, and an input, by what they are at each replay, whoever wrote them."""
    layer, good = layer_of("cuda", n, k), True
    x, dy = data_of("cuda", n, k)
    for _ in range(3):
        passes(layer, x, dy)
        ot.update_scales(layer)
    graph = torch.cuda.CUDAGraph()
    layer.eval()
    with torch.no_grad():
        layer(x)
        with torch.cuda.graph(graph):
            y = layer(x)
        for size in (16, 1 / 256):
            layer.weight.data.mul_(size)
            x.mul_(size)
            graph.replay()
            wanted = torch.nn.functional.linear(x, layer.weight, layer.bias).float()
            good &= bool((y.float() - wanted).norm() <= 0.06 * wanted.norm())
    return good


def captured_steps_update(n: int, k: int) -> bool:
    """A graph of a whole step, the optimizer's included, updates scales by each replay."""
    layer = layer_of("cuda", n, k)
    twin = copy.deepcopy(layer)
    x, dy = data_of("cuda", n, k)
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-3) for one in (layer, twin)]

    def step(one: ot.Linear, optimizer: torch.optim.Optimizer) -> None:
        one(x).backward(dy)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            for one, optimizer in zip((layer, twin), optimizers, strict=True):
                step(one, optimizer)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(layer, optimizers[0])
    good = True
    for size in (3, 0.5, 7):
        x.copy_(data_of("cuda", n, k, size)[0])
        graph.replay()
        step(twin, optimizers[1])
        good &= values_of(layer).equal(values_of(twin)) and layer.weight.equal(twin.weight)
    return good


def compiled_records(device: str, n: int, k: int, mode: str) -> bool:
    """A compiled layer's scales are an eager one's, and its sentry sees what is not finite."""
    torch._dynamo.reset()
    layer = layer_of(device, n, k)
    twin, good = copy.deepcopy(layer), True
    watch = ot.sentry(layer)
    how = {"mode": mode} if device == "cuda" else {"backend": "aot_eager"}
    compiled = torch.compile(layer, fullgraph=True, **how)
    for step, size in enumerate((1, 4, 0.5, 3, 0.1, 0.1)):
        x, dy = data_of(device, n, k, size)
        x[3, 5] = math.nan if step == 3 else x[3, 5]
        for one, run in ((layer, compiled), (twin, twin)):
            one.weight.data.neg_()  # which is new: a replay records the weight's maximum in any case
            one.zero_grad()
            run(x).backward(dy)
        good &= update_alike(layer, twin)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            good &= watch.step().item() == (step == 3)
    return good


def bad_steps_are_skipped_without_waiting(device: str, n: int, k: int) -> bool:
    """A fused optimizer skips a step with a NaN; the host never waits, and hears of it later."""
    layer = layer_of(device, n, k, "blockwise")
    watch = ot.sentry(layer)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2, fused=True)
    optimizer.found_inf, optimizer.grad_scale = watch.found_nonfinite, None
    batches = [data_of(device, n, k) for _ in range(6)]
    batches[3][0][7, 7] = math.nan
    weights = [layer.weight.detach().clone()]
    passes(layer, *batches[0])  # compiles
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try:
        for x, dy in batches:
            optimizer.zero_grad()
            layer(x).backward(dy)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                watch.step()
            optimizer.step()
            weights.append(layer.weight.detach().clone())
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    same = [a.equal(b) for a, b in zip(weights, weights[1:], strict=False)]
    return same == [False] * 3 + [True] + [False] * 2 and watch.counts[""].output == 1


def bad_steps_are_repeated(device: str, n: int, k: int) -> bool:
    """A NaN in one activation: that step has the gradients of BF16, and the next ones FP8's."""
    layer = layer_of(device, n, k, "blockwise")
    plain, watch = nn.Linear(k, n, device=device, dtype=torch.bfloat16), ot.sentry(layer)
    plain.load_state_dict(layer.state_dict())
    good = True
    for step in range(3):
        x, dy = data_of(device, n, k)
        bad = x.clone()
        bad[3, 5] = math.nan
        inputs = [x, bad] if step == 1 else [x]

        def closure(inputs=inputs, dy=dy) -> None:
            layer.zero_grad()
            layer(inputs.pop()).backward(dy)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            watch.run(closure)
        plain.zero_grad()
        plain(x).backward(dy)
        good &= layer.weight.grad.equal(plain.weight.grad) == (step == 1) and not watch.found_nonfinite.item()
    return good and watch.repeated == 1


def time_layers(records: Records, n: int, k: int, tokens: int) -> None:
    x, dy = data_of("cuda", n, k, tokens=tokens)
    layers = {name: layer_of("cuda", n, k, name) for name in ("tensorwise", "blockwise")}
    layers |= {"delayed": layer_of("cuda", n, k), "blockwise with a sentry": layer_of("cuda", n, k, "blockwise")}
    ot.sentry(layers["blockwise with a sentry"])
    for _ in range(2):
        passes(layers["delayed"], x, dy)
        ot.update_scales(layers["delayed"])
    us = interleaved({n: lambda one=one: passes(one, x, dy) for n, one in layers.items()}, 20, 5)
    print(f"{tokens} tokens, [{n}, {k}]: " + ", ".join(f"{a} {statistics.median(v):.1f} us" for a, v in us.items()))
    for name in layers:
        peers = [peer_of(other, values) for other, values in us.items() if other != name]
        protocol = protocol_of("stream", 20, l2="warm")
        records.add(f"ot.Linear tokens={tokens} n={n} k={k} recipe={name}", "us", us[name], protocol, peers=peers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", default="1024,2048", help="n,k of the checks")
    parser.add_argument("--no-times", action="store_true")
    add_option(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    n, k = map(int, options.size.split(","))
    device = options.device
    checks = {
        "scales equal the host's": lambda: scales_equal_the_hosts(device, n, k),
        "experts' scales equal the host's": lambda: experts_equal_the_hosts(device, n, k),
        "compiled": lambda: compiled_records(device, n, k, "default"),
        "bad steps are skipped": lambda: bad_steps_are_skipped_without_waiting(device, n, k),
        "bad steps are repeated": lambda: bad_steps_are_repeated(device, n, k),
    }
    if device == "cuda":
        checks |= {
            "replays record": lambda: replays_record(n, k),
            "captured steps update": lambda: captured_steps_update(n, k),
            "replays in eval follow the weight": lambda: replays_in_eval_follow_the_weight(n, k),
            "compiled to CUDA graphs": lambda: compiled_records(device, n, k, "reduce-overhead"),
        }
    good = all_hold(checks)
    if device == "cuda" and not options.no_times:
        records = Records(options.records, device)
        for size in ((4096, 4096, 8192), (8192, 8192, 8192)):
            time_layers(records, *size)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
