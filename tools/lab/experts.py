"""Experts of a mixture, the module of transformers that ``convert`` takes, beside the same in BF16, on a GPU.

    python experts.py                     # narrow, wide and very wide experts, eager and compiled
    python experts.py --sizes 32768,32,1024,2048,4 --modes compiled --records FILE
    python experts.py --device cpu --sizes 64,2,32,64,2 --modes eager --rounds 1 --times 1

A step is forward and backward of one module with SwiGLU, for x, the scores and both weights. BF16 computes experts by
transformers' implementation "grouped_mm". Weights are written before each step, as an optimizer does, and the time of
that is taken off, so that every step quantises them. Prints a record a size and mode (records.py). Exits with 1 if the
results of FP8 are further than 10 % from those of BF16.
"""

from __future__ import annotations

import copy
import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
import transformers
from models import experts_of
from records import Records, parser_of, peer_of, protocol_of
from timing import interleaved
from torch import nn

import octile.torch as ot

#: Rows, experts, inner size, hidden size and experts of a token.
CASES = "65536,16,768,2048,8 32768,16,2880,2880,4 65536,32,2048,7168,8"
MOST = 0.1


class Data(NamedTuple):
    """The arguments of a call, and the gradient of its result."""

    x: torch.Tensor
    chosen: torch.Tensor
    scores: torch.Tensor
    dy: torch.Tensor


def converted(module: nn.Module, recipe: str) -> nn.Module:
    holder = nn.ModuleDict({"experts": copy.deepcopy(module)})
    if not ot.convert(holder, recipe, min_dims=16).experts:
        raise AssertionError("the experts were not converted")
    return holder["experts"]


def data_of(tokens: int, experts: int, hidden: int, top_k: int, device: str) -> Data:
    options = {"device": device, "dtype": torch.bfloat16}
    scores, chosen = torch.randn(tokens, experts, device=device).softmax(-1).topk(top_k)
    x = torch.randn(tokens, hidden, **options).requires_grad_()
    return Data(x, chosen, scores.bfloat16().requires_grad_(), torch.randn(tokens, hidden, **options))


def step_of(run: Callable, module: nn.Module, data: Data, writes: Callable) -> Callable[[], torch.Tensor]:
    """Returns a step. run: the module, or the same compiled."""

    def step() -> torch.Tensor:
        for tensor in (*module.parameters(), data.x, data.scores):
            tensor.grad = None
        writes()
        y = run(data.x, data.chosen, data.scores)
        y.backward(data.dy)
        return y.detach()

    return step


def written(module: nn.Module) -> Callable[[], None]:
    def write() -> None:
        with torch.no_grad():
            for weight in module.parameters():
                weight.add_(0)

    return write


def measure(records: Records, size: str, mode: str, options) -> bool:
    rows, experts, inner, hidden, top_k = map(int, size.split(","))
    plain = experts_of(experts, inner, hidden, top_k, options.device)
    modules = {"bf16": plain, "octile": converted(plain, options.recipe)}
    data = data_of(rows // top_k, experts, hidden, top_k, options.device)
    torch._dynamo.reset()
    runs = {name: torch.compile(module) if mode == "compiled" else module for name, module in modules.items()}
    writes = {name: written(module) for name, module in modules.items()}
    steps = {name: step_of(runs[name], module, data, writes[name]) for name, module in modules.items()}
    for step in steps.values():
        step()
    results = {name: step().float() for name, step in steps.items()}
    error = ((results["octile"] - results["bf16"]).norm() / results["bf16"].norm()).item()
    us = interleaved(steps | {"write": writes["octile"]}, options.rounds, options.times, options.device)
    off = statistics.median(us["write"])
    taken = {name: [value - off for value in us[name]] for name in steps}
    ratio = statistics.median(taken["bf16"]) / statistics.median(taken["octile"])
    print(f"{size} {mode}: {ratio:.3f} of bf16, results differ by {error:.4f}", flush=True)
    records.add(
        f"experts rows={rows} experts={experts} inner={inner} hidden={hidden} recipe={options.recipe}",
        "us",
        taken["octile"],
        protocol_of("stream", options.rounds, note="weights written before each step, without the time of that"),
        part=mode,
        peers=[peer_of("grouped_mm", taken["bf16"], transformers.__version__)],
        check=f"results are within {MOST} of bf16's",
        ok=error <= MOST,
        error=error,
    )
    return error <= MOST


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", default=CASES, help="rows,experts,inner,hidden,experts of a token; by spaces")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--recipe", default="blockwise")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--times", type=int, default=4, help="steps of a round")
    options = parser.parse_args()
    records = Records(options.records, options.device)
    good = True
    for size in options.sizes.split():
        for mode in options.modes.split(","):
            good &= measure(records, size, mode, options)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
