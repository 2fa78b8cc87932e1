"""One linear layer on a GPU, eager, forward and backward: checked against FP64, then timed beside nn.Linear in BF16.

    python layer.py                         # every shape: check, then time
    python layer.py --shape 8192,4096,4096 --recipe blockwise_hybrid --profile
    python layer.py --device cpu --shape 32,64,128 --rounds 1         # nothing is replayed

The check compares y, dx, dw and db with FP64 products of the operands as FP8 holds them, and replays of a CUDA graph
with eager steps after the weight has changed. Each timed step of the FP8
layer quantises its weight (as after an optimizer step) unless --microbatches says that several share it. Times:

- wall: CUDA events around a run of steps, host and device together, the rounds of both layers interleaved;
- device: the same step captured once in a CUDA graph and replayed, which leaves the host out;
- host: until the calls of a step have returned, with an empty queue.

Prints a record a time and shape (records.py), and exits with 1 if a check fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from records import Records, parser_of, peer_of, protocol_of
from timing import captured, host_us, kernels_of, wall_us
from torch import nn

import octile.torch as ot

SHAPES = [(8192, 8192, 8192), (16384, 4096, 8192), (8192, 4096, 4096), (2048, 7168, 2048), (128, 4096, 4096)]
ODD_TOKENS = (1, 7, 77, 129, 1000)  # checked at the smallest weight


def quantized(x: torch.Tensor, kind, output: str) -> torch.Tensor:
    """Returns x as FP8 holds it, in FP64; the transposed copy with output="col"."""
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind.dtype]
    return ot.quantize(x, dtype, kind.granularity, kind.scales, output).dequantize().double()


def error_of(actual: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> float:
    """Returns the largest error of an element of A B^T beyond rounding to the output's type, as a part of the sum of
    |products| behind it."""
    exact, size = a @ b.t(), a.abs() @ b.abs().t()
    if bias is not None:
        exact, size = exact + bias, size + bias.abs()
    rounding = torch.finfo(actual.dtype).eps / 2 * exact.abs()
    return (((actual.double() - exact).abs() - rounding).clamp_min(0) / size.clamp_min(1e-300)).max().item()


def check(tokens: int, n: int, k: int, recipe: ot.Recipe, device: str) -> dict[str, float]:
    """Returns the errors of a layer's results, in units of the tolerance: each should be at most 1."""
    layer = ot.Linear(k, n, device=device, dtype=torch.bfloat16, recipe=recipe)
    x = torch.randn(tokens, k, device=device, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(tokens, n, device=device, dtype=torch.bfloat16)
    y = layer(x)
    y.backward(dy)
    with torch.no_grad():
        w = layer.weight
        a, c = recipe.activation, recipe.gradient
        errors = {
            "y": error_of(y, quantized(x, a, "row"), quantized(w, recipe.weight, "row"), layer.bias.double()),
            "dx": error_of(x.grad, quantized(dy, c, "row"), quantized(w, recipe.weight, "col")),
            "dw": error_of(w.grad, quantized(dy, c, "col"), quantized(x, a, "col")),
            "db": error_of(layer.bias.grad[:, None], dy.double().t(), torch.ones(1, tokens, device=device).double()),
        }
    return {name: error / allowed(name, k, recipe) for name, error in errors.items()}


def allowed(name: str, k: int, recipe: ot.Recipe) -> float:
    """Returns the largest error of an element as a part of its sum of |products|: docs/numerics.md, "Tolerance"."""
    if name == "db":
        return 2**-20  # fp32 sums
    # These recipes let the tensor core sum all of K in the forward pass.
    all_of_k = name == "y" and recipe.name in ("tensorwise", "rowwise")
    return 12 * 2**-13 * (-(-k // 128) if all_of_k else 1)


def step_of(layer: nn.Module, x: torch.Tensor, dy: torch.Tensor, microbatches: int) -> Callable[[], None]:
    """Returns a training step without its optimizer: the weight is new, every microbatch goes forward and back."""

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        ot.weights_changed()  # as behind an optimizer's step; BF16's step calls it too
        for _ in range(microbatches):
            layer(x).backward(dy)

    return step


def replays_see_new_weights(recipe: ot.Recipe) -> bool:
    """Returns whether a replay after the weight has changed gives the bits of an eager step."""
    layer = ot.Linear(1024, 512, device="cuda", dtype=torch.bfloat16, recipe=recipe)
    x = torch.randn(300, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    step = step_of(layer, x, torch.randn(300, 512, device="cuda", dtype=torch.bfloat16), 2)
    graph, _ = captured(step)
    static = [x.grad, *(p.grad for p in layer.parameters())]
    with torch.no_grad():
        layer.weight.mul_(1.5).add_(0.01)
    graph.replay()
    replayed = [grad.clone() for grad in static]
    step()
    return all(a.equal(b) for a, b in zip(replayed, [x.grad, *(p.grad for p in layer.parameters())], strict=True))


def measure(records: Records, tokens: int, n: int, k: int, recipe: ot.Recipe, options) -> None:
    """Records the times of interleaved rounds, and the bytes kept for backward."""
    rounds, microbatches, device = options.rounds, options.microbatches, options.device
    x = torch.randn(tokens, k, device=device, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(tokens, n, device=device, dtype=torch.bfloat16)
    layers = {
        "bf16": nn.Linear(k, n, bias=False, device=device, dtype=torch.bfloat16),
        "fp8": ot.Linear(k, n, bias=False, device=device, dtype=torch.bfloat16, recipe=recipe),
    }
    steps = {name: step_of(layer, x, dy, microbatches) for name, layer in layers.items()}
    for step in steps.values():
        for _ in range(5):
            step()
    parts = {
        "eager": ("stream", lambda name: wall_us(steps[name], 10, device)),
        "host": ("host", lambda name: host_us(steps[name], 10, device)),
    }
    if device == "cuda":
        graphs = {name: captured(step)[0] for name, step in steps.items()}
        parts["graph"] = "graph", lambda name: wall_us(graphs[name].replay, 10)
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name in steps:
            for part, (_timing, time_of) in parts.items():
                times.setdefault((part, name), []).append(time_of(name))
    what = f"nn.Linear tokens={tokens} n={n} k={k} recipe={recipe.name}"
    details = {"scales": options.scales, "microbatches": microbatches, "torch": torch.__version__}

    def add(part: str, unit: str, values: dict, protocol: dict) -> None:
        peers = [peer_of("bf16", values["bf16"])]
        records.add(what, unit, values["fp8"], protocol, part=part, peers=peers, **details)

    for part, (timing, _time_of) in parts.items():
        add(part, "us", {name: times[part, name] for name in steps}, protocol_of(timing, rounds, l2="warm"))
    kept = {name: float(saved_bytes(layer, x)) for name, layer in layers.items()}
    add("kept for backward", "bytes", kept, protocol_of("saved tensors", interleaved=False))
    if options.profile:
        for name, step in steps.items():
            print(name, kernels_of(step, device), file=sys.stderr)


def saved_bytes(layer: nn.Module, x: torch.Tensor) -> int:
    """Returns the bytes that a forward pass keeps for backward, without the weight."""
    kept = {}
    own = {p.data_ptr() for p in layer.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        layer(x)
    return sum(t.nbytes for address, t in kept.items() if address not in own)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--shape", action="append", help="tokens,n,k; may be given several times")
    parser.add_argument("--recipe", default="blockwise")
    parser.add_argument("--scales", default="pow2", choices=["pow2", "f32"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="print the kernels of a step to stderr")
    parser.add_argument("--check-only", action="store_true")
    options = parser.parse_args()
    shapes = [tuple(map(int, text.split(","))) for text in options.shape or []] or SHAPES
    recipe = ot.Recipe(options.recipe, options.scales)
    torch.manual_seed(0)

    small = min(shapes, key=lambda shape: shape[1] * shape[2])
    worst = 0.0
    for tokens, n, k in [*shapes, *((tokens, *small[1:]) for tokens in ODD_TOKENS)]:
        errors = check(tokens, n, k, recipe, options.device)
        worst = max(worst, *errors.values())
        print(json.dumps({"check": [tokens, n, k], "errors_of_allowed": errors}), flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    graphs = options.device != "cuda" or replays_see_new_weights(recipe)
    good = worst <= 1 and graphs
    print(json.dumps({"worst_error_of_allowed": worst, "graphs": graphs, "holds": good}), flush=True)
    if options.check_only:
        return 0 if good else 1
    records = Records(options.records, options.device)
    for tokens, n, k in shapes:
        measure(records, tokens, n, k, recipe, options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
