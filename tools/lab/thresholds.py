"""Measures in which layers octile.torch.Linear is faster than nn.Linear, for the verdicts that convert() reads.

    python thresholds.py --records ../../runtime/python/octile/torch/layers.jsonl
    python thresholds.py --device cpu --layers 64x32,128x64 --tokens 16,32 --seconds 5

For every layer [n, k] and every number of tokens it times, eager and in turns with nn.Linear in bfloat16: forward and
backward with a weight that is new each step, and forward alone with a weight that stays. Kernels are compiled first;
--seconds ends the whole, and cells that were not reached are left out. Writes a record a layer and mode, how many times
as fast as nn.Linear it was, with the verdicts of `octile bench verdict --judge`; OCTILE_VERDICTS=FILE lets convert()
read them. Exits with 1 if nothing was measured, or if a choice made of the verdicts is slower than nn.Linear.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from records import RATIO, Records, parser_of, peer_of, protocol_of
from timing import interleaved
from torch import nn

import octile.torch as ot
from octile._paths import command
from octile.torch.thresholds import Thresholds, points_of

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


def ratios(steps: dict, rounds: int, device: str) -> list[float]:
    """Returns BF16's time over FP8's by round."""
    for step in steps.values():
        step()
    slowest = max(max(us) for us in interleaved(steps, 1, 2, device).values())
    times = max(2, min(50, int(2000 / slowest)))  # 2 ms of work a round
    us = interleaved(steps, rounds, times, device)
    return [bf16 / fp8 for bf16, fp8 in zip(us["bf16"], us["fp8"], strict=True)]


def measure(layers: dict[str, nn.Module], tokens: int, rounds: int, device: str) -> dict[str, list[float]]:
    """Returns the ratios of one cell by mode."""
    n, k = layers["fp8"].weight.shape
    x = torch.randn(tokens, k, device=device, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(tokens, n, device=device, dtype=torch.bfloat16)
    training = {name: training_step(layer, x, dy) for name, layer in layers.items()}
    gains = {"training": ratios(training, rounds, device)}
    forward = {name: forward_step(layer, x.detach()) for name, layer in layers.items()}
    return gains | {"prefill": ratios(forward, rounds, device)}


def cells(options, recipe: str, deadline: float) -> Iterator[tuple[str, list[float]]]:
    """Yields what the record of each cell is of, and its ratios, until the time is over."""
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
            for mode, gains in measure(layers, tokens, options.rounds, options.device).items():
                shape = f"tokens={tokens} n={n} k={k} recipe={recipe}"
                yield f"layer model=PyTorch layer=nn.Linear mode={mode} {shape}", gains


def judged(record: dict) -> dict:
    """Returns a record of a layer with its verdicts by the command's rule."""
    words = [command(), "bench", "verdict", "--judge", "-"]
    done = subprocess.run(words, input=json.dumps(record), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


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
    parser.add_argument("--recipes", default="blockwise")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=55)
    options = parser.parse_args()
    begin = time.time()
    recipes = options.recipes.split(",")
    records, kept = Records(options.records, options.device), []
    protocol = protocol_of("stream", options.rounds, l2="warm")
    for index, recipe in enumerate(recipes):
        compile_all(options, recipe)
        print(f"{recipe}: kernels after {time.time() - begin:.1f} s", flush=True)
        for what, gains in cells(options, recipe, begin + options.seconds * (index + 1) / len(recipes)):
            kept.append(records.keep(judged(records.made(what, RATIO, gains, protocol, peers=[peer_of("bf16")]))))
    card = records.card["name"]
    table = Thresholds(card, points_of(kept, card))
    print(f"{time.time() - begin:.1f} s on {card}")
    return 0 if kept and all(chooses_well(table, recipe, kept) for recipe in recipes) else 1


def chooses_well(table: Thresholds, recipe: str, records: list[dict]) -> bool:
    """Prints what follows for the measured layers. Returns whether no choice is slower than nn.Linear."""
    good = True
    for training in (True, False):
        mode = "training" if training else "prefill"
        for n, k in sorted({(p.n, p.k) for p in table.points[recipe]}):
            least = table.least_tokens(n, k, recipe, training)
            print(f"{recipe} {'training' if training else 'forward'} [{n}, {k}]: FP8 from {least} tokens on")
            for p in table.points[recipe]:
                if (p.n, p.k) != (n, k) or least is None or p.tokens < least:
                    continue
                shape = f" mode={mode} tokens={p.tokens} n={n} k={k} recipe={recipe}"
                gain = next(statistics.median(r["samples"]) for r in records if r["what"].endswith(shape))
                if gain < 1:
                    print(f"  slower at {p.tokens}: {gain:.3f}")
                    good = False
    return good


if __name__ == "__main__":
    sys.exit(main())
