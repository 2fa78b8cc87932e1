"""Measures from how many tokens on octile.torch.Linear is faster than nn.Linear, and writes what convert() decides by.

    python thresholds.py --out ../../runtime/python/octile/torch/thresholds.json
    python thresholds.py --device cpu --layers 64x32,128x64 --tokens 16,32 --seconds 5

For every layer [n, k] and every number of tokens it times, eager and in turns with nn.Linear in bfloat16: forward and
backward with a weight that is new each step, and forward alone with a weight that stays. Kernels are compiled first;
--seconds ends the whole, and cells that were not reached are left out. Prints a row a cell: how many times as fast as
nn.Linear. Exits with 1 if nothing was measured, or if a choice made of the rows is slower than nn.Linear.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch
from records import RATIO, Records, parser_of, peer_of, protocol_of
from timing import card, interleaved
from torch import nn

import octile.torch as ot
from octile.torch.thresholds import Point, Thresholds, measured

LAYERS = "4096x4096,8192x8192,2048x2048,1024x1024,14336x4096,4096x14336,1024x4096,4096x1024,7168x2048,2048x7168"
TOKENS = "8192,2048,4096,1024,512,128,16384"  # what decides most first, should the time not suffice


def training_step(layer: nn.Module, x: torch.Tensor, dy: torch.Tensor):
    """Returns forward and backward with a new weight."""

    def step() -> None:
        layer.weight.grad = x.grad = None
        ot.weights_changed()  # as behind an optimizer's step; BF16's step calls it too
        layer(x).backward(dy)

    return step


def forward_step(layer: nn.Module, x: torch.Tensor):
    """Returns forward alone, without gradients, with a weight that is trusted."""
    if isinstance(layer, ot.Linear):
        ot.trust_weights(layer)

    def step() -> None:
        with torch.no_grad():
            layer(x)

    return step


def ratio(steps: dict, rounds: int, device: str) -> float:
    """Returns BF16's time over FP8's."""
    for step in steps.values():
        step()
    slowest = max(max(us) for us in interleaved(steps, 1, 2, device).values())
    times = max(2, min(50, int(2000 / slowest)))  # 2 ms of work a round
    us = interleaved(steps, rounds, times, device)
    return statistics.median(us["bf16"]) / statistics.median(us["fp8"])


def measure(layers: dict[str, nn.Module], tokens: int, rounds: int, device: str) -> Point:
    """Returns the row of one cell."""
    n, k = layers["fp8"].weight.shape
    x = torch.randn(tokens, k, device=device, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(tokens, n, device=device, dtype=torch.bfloat16)
    training = ratio({name: training_step(layer, x, dy) for name, layer in layers.items()}, rounds, device)
    forward = ratio({name: forward_step(layer, x.detach()) for name, layer in layers.items()}, rounds, device)
    return Point(tokens, n, k, round(training, 3), round(forward, 3))


def cells(options, recipe: str, deadline: float):
    """Yields the rows, until the time is over."""
    sizes = [tuple(map(int, text.split("x"))) for text in options.layers.split(",")]
    make = {"bf16": nn.Linear, "fp8": lambda *a, **o: ot.Linear(*a, **o, recipe=recipe)}
    for tokens in map(int, options.tokens.split(",")):
        for n, k in sizes:
            if time.time() > deadline:
                print("the time is over: cells are missing", flush=True)
                return
            layers = {
                name: cls(k, n, bias=False, device=options.device, dtype=torch.bfloat16) for name, cls in make.items()
            }
            yield measure(layers, tokens, options.rounds, options.device)


def compile_all(options, recipe: str) -> None:
    """Compiles what the cells need, all at once."""
    sizes = [tuple(map(int, text.split("x"))) for text in options.layers.split(",")]
    model = nn.ModuleList(
        ot.Linear(k, n, bias=False, device=options.device, dtype=torch.bfloat16, recipe=recipe) for n, k in sizes
    )
    for tokens in map(int, options.tokens.split(",")):
        for training in (True, False):
            ot.warmup(model, (tokens, tokens), training=training)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--layers", default=LAYERS, help="n x k of each")
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("--recipes", default="blockwise", help="those not named keep the rows of the shipped file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=55)
    parser.add_argument("--out", type=Path, help="the data file to write; by default none")
    options = parser.parse_args()
    begin = time.time()
    recipes = options.recipes.split(",")
    records, points = Records(options.records, options.device), {}
    for index, recipe in enumerate(recipes):
        compile_all(options, recipe)
        print(
            f"{recipe}: kernels after {time.time() - begin:.1f} s\n tokens      n      k  training  forward", flush=True
        )
        rows = []
        for point in cells(options, recipe, begin + options.seconds * (index + 1) / len(recipes)):
            rows.append(point)
            print("{:7} {:6} {:6} {:9.3f} {:8.3f}".format(*point), flush=True)
            what = f"nn.Linear tokens={point.tokens} n={point.n} k={point.k} recipe={recipe}"
            for part, value in (("training", point.training), ("forward", point.forward)):
                protocol = protocol_of("stream", options.rounds, l2="warm")
                records.add(what, RATIO, value, protocol, part=part, peers=[peer_of("bf16")])
        points[recipe] = tuple(sorted(rows))
    # Rows of other recipes were measured on the shipped file's card, so they stay only with the same one.
    kept = {name: rows for name, rows in measured().points.items() if measured().card == card(options.device)}
    table = Thresholds(card(options.device), kept | points)
    if options.out:
        options.out.write_text(table.to_json(torch.__version__))
    print(f"{time.time() - begin:.1f} s on {table.card}")
    return 0 if all(points.values()) and all(chooses_well(table, recipe) for recipe in recipes) else 1


def chooses_well(table: Thresholds, recipe: str) -> bool:
    """Prints what follows for the measured layers. Returns whether no choice is slower than nn.Linear."""
    good = True
    for training in (True, False):
        for n, k in sorted({(p.n, p.k) for p in table.points[recipe]}):
            least = table.least_tokens(n, k, recipe, training)
            print(f"{recipe} {'training' if training else 'forward'} [{n}, {k}]: FP8 from {least} tokens on")
            for p in table.points[recipe]:
                if (p.n, p.k) == (n, k) and least is not None and least <= p.tokens and p.gain(training) < 1:
                    print(f"  slower at {p.tokens}: {p.gain(training)}")
                    good = False
    return good


if __name__ == "__main__":
    sys.exit(main())
