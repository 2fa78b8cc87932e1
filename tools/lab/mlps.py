"""MLPs whose activation a quantiser computes, on a GPU: their time, and the bytes that they keep for backward.

    python mlps.py
    python mlps.py --device cpu --size 64,128 --tokens 32 --recipes blockwise --rounds 1

Forward and backward of an MLP of Llama-3-8B's sizes, fused and with PyTorch's activation between its layers, eager and,
on a GPU, compiled. Prints a record each (records.py). tests/python/test_gpu_mlps.py checks the results.
"""

from __future__ import annotations

import sys

import torch
from models import Mlp
from records import Records, parser_of, peer_of, protocol_of
from timing import interleaved, kept_bytes, medians
from torch import nn

import octile.torch as ot


def mlp_of(recipe: str, k: int, i: int, fuse: bool, device: str) -> nn.Module:
    """Returns an MLP that is fused, or the same that is not."""
    torch.manual_seed(0)
    with torch.device(device):
        model = nn.ModuleDict({"mlp": Mlp(k, i)}).to(torch.bfloat16)
    report = ot.convert(model, recipe, preset="all-linear", min_dims=16, fuse=fuse)
    if bool(report.fused) != fuse:
        raise AssertionError(f"{report} has fused {len(report.fused)} MLPs")
    return model["mlp"]


def measure(records: Records, recipe: str, k: int, i: int, options) -> None:
    device, tokens = options.device, options.tokens
    x = torch.randn(tokens, k, device=device, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(tokens, k, device=device, dtype=torch.bfloat16)
    runs = {f"{name} eager": mlp_of(recipe, k, i, fuse, device) for name, fuse in (("fused", True), ("plain", False))}
    if device == "cuda":
        torch._dynamo.reset()
        runs |= {name.replace("eager", "compiled"): torch.compile(run) for name, run in runs.items()}
    steps = {name: lambda run=run: run(x).backward(dy) for name, run in runs.items()}
    for step in steps.values():
        step()
    us = interleaved(steps, options.rounds, 3, device)
    kept = {name: kept_bytes(lambda run=run: run(x), device) for name, run in runs.items()}
    mib = ", ".join(f"{name} {count / 2**20:.0f} MiB" for name, count in kept.items())
    print(f"{recipe}, {tokens} tokens, [{i}, {k}]: {medians(us)}; kept: {mib}", flush=True)
    for name, values in us.items():
        peers = [peer_of(other, theirs) for other, theirs in us.items() if other != name]
        what = f"ot.gated_mlp tokens={tokens} k={k} i={i} recipe={recipe} {name}"
        protocol = protocol_of("stream", options.rounds, l2="warm")
        records.add(what, "us", values, protocol, peers=peers, kept_bytes=kept[name])


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--size", default="4096,14336", help="k,i; i is a multiple of 128")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--recipes", default="blockwise,tensorwise")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    records = Records(options.records, options.device)
    for recipe in options.recipes.split(","):
        measure(records, recipe, *map(int, options.size.split(",")), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
