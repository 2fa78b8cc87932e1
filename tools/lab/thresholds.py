"""Measures in which layers octile.torch.Linear is faster than nn.Linear, and in which experts of a mixture FP8 is
faster than grouped products in BF16, for the verdicts that convert() reads.

    python thresholds.py --records ../../runtime/python/octile/torch/layers.jsonl
    python thresholds.py --experts --seconds 115 --records ../../runtime/python/octile/torch/experts.jsonl
    python thresholds.py --device cpu --layers 64x32,128x64 --tokens 16,32 --seconds 5
    python thresholds.py --device cpu --experts --modules 4x64x32 --rows 8,16 --eager --seconds 20

For every layer [n, k] and every number of tokens it times, in turns with nn.Linear in bfloat16: forward and backward
with a weight that is new each step, and forward alone with a weight that stays. Layers are eager. --experts times the
modules of experts.py so, for every number of rows an expert, eager and compiled. The record is of the compiled ones,
and its detail gain_eager of the eager ones. Kernels are compiled first; --seconds ends the whole, and cells that were
not reached are left out. Writes a record a layer and mode, how many times as fast as BF16 it was, with the verdicts of
`octile bench verdict --judge`; OCTILE_VERDICTS=FILE lets convert() read them. Exits with 1 if nothing was measured, if
results of experts are further than 10 % from BF16's, or if a choice made of the verdicts is slower than BF16.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from models import experts_of
from records import RATIO, Records, parser_of, peer_of, protocol_of, rounded
from timing import interleaved
from torch import nn

import octile.torch as ot
from octile._paths import command
from octile.torch.thresholds import EXPERTS, LAYERS, Point, Thresholds, points_of

WEIGHTS = "4096x4096,8192x8192,2048x2048,1024x1024,14336x4096,4096x14336,1024x4096,4096x1024,7168x2048,2048x7168"
TOKENS = "8192,2048,4096,1024,512,128,16384"  # what decides most first, should the time not suffice
MODULES = "16x2048x768,16x4096x1408,16x2048x1408,16x1024x512,16x7168x2048,128x2048x768,16x2048x512"
ROWS = "512,128,1024,256,4096,64"
TOP_K = 8  #: experts of a token
MOST = 0.1  #: error of experts' results


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


class Cell(NamedTuple):
    """One measurement, of which a record is made."""

    what: str
    gains: list[float]  #: BF16's time over FP8's by round
    timing: str = "stream"
    error: float = 0.0  #: of the result, relative to BF16's
    details: dict[str, float] = {}


def is_over(deadline: float) -> bool:
    """Returns whether the time is over, and prints it."""
    over = time.time() > deadline
    if over:
        print("the time is over: cells are missing", flush=True)
    return over


def layer_cells(options, recipe: str, deadline: float) -> Iterator[Cell]:
    """Yields the cells of layers until the time is over."""
    make = {"bf16": nn.Linear, "fp8": lambda *a, **o: ot.Linear(*a, **o, recipe=recipe)}
    for tokens in numbers(options.tokens):
        for n, k in sizes_in(options.layers):
            if is_over(deadline):
                return
            layers = {
                name: cls(k, n, bias=False, device=options.device, dtype=torch.bfloat16) for name, cls in make.items()
            }
            for mode, gains in measure(layers, tokens, options.rounds, options.device).items():
                shape = f"tokens={tokens} n={n} k={k} recipe={recipe}"
                yield Cell(f"layer model=PyTorch layer=nn.Linear mode={mode} {shape}", gains)


# ---- experts


def experts_step(run: Callable, module: nn.Module, data, training: bool) -> Callable[[], None]:
    """Returns a step of experts. run: the module, or the same compiled."""

    def train() -> None:
        for tensor in (*module.parameters(), data.x, data.scores):
            tensor.grad = None
        ot.weights_changed()
        run(data.x, data.chosen, data.scores).backward(data.dy)

    def forward() -> None:
        with torch.no_grad():
            run(data.x, data.chosen, data.scores)

    return train if training else forward


def expert_cells(options, recipe: str, deadline: float) -> Iterator[Cell]:
    """Yields the cells of experts until the time is over."""
    from experts import converted, data_of  # here, because it needs transformers

    for experts, hidden, inner in sizes_in(options.modules):
        begin, top_k = time.time(), min(TOP_K, experts)
        torch._dynamo.reset()
        plain = experts_of(experts, inner, hidden, top_k, options.device)
        modules = {"bf16": plain, "fp8": converted(plain, recipe)}
        runs = {"eager": modules}
        if not options.eager:
            runs["compiled"] = {name: torch.compile(module) for name, module in modules.items()}
        for rows in numbers(options.rows):
            if is_over(deadline):
                return
            data = data_of(rows * experts // top_k, experts, hidden, top_k, options.device)
            for mode in ("training", "prefill"):
                shape = f"tokens={len(data.x)} n={hidden} k={inner} recipe={recipe}"
                what = f"layer model=Qwen3-MoE layer=mlp.experts mode={mode} {shape}"
                details = {"groups": experts, "rows": rows * experts}
                yield experts_cell(what, details, runs, data, mode == "training", options)
        print(f"{experts} experts of {hidden} x {inner}: {time.time() - begin:.1f} s", flush=True)


def experts_cell(what: str, details: dict, runs: dict[str, dict], data, training: bool, options) -> Cell:
    """Measures one cell of experts. runs: eager and compiled modules, BF16's and FP8's."""
    modules = runs["eager"]
    for tensor in data:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)  # one compilation for all numbers of rows
    ot.trust_weights(modules["fp8"], not training)
    with torch.no_grad():
        y = {name: module(data.x, data.chosen, data.scores).float() for name, module in modules.items()}
    error = ((y["fp8"] - y["bf16"]).norm() / y["bf16"].norm()).item()
    gains = {}
    for how, run in runs.items():
        steps = {name: experts_step(run[name], modules[name], data, training) for name in run}
        gains[how] = ratios(steps, options.rounds, options.device)
    details["gain_eager"] = rounded(statistics.median(gains["eager"]))
    if options.eager:
        return Cell(what, gains["eager"], "stream", error, details)
    return Cell(what, gains["compiled"], "compiled", error, details)


def judged(record: dict) -> dict:
    """Returns a record of a layer with its verdicts by the command's rule."""
    words = [command(), "bench", "verdict", "--judge", "-"]
    done = subprocess.run(words, input=json.dumps(record), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def compile_layers(options, recipe: str) -> None:
    """Compiles what the cells of layers need, all at once."""
    model = nn.ModuleList(
        ot.Linear(k, n, bias=False, device=options.device, dtype=torch.bfloat16, recipe=recipe)
        for n, k in sizes_in(options.layers)
    )
    for tokens in numbers(options.tokens):
        for training in (True, False):
            ot.warmup(model, (tokens, tokens), training=training)


def compile_experts(options, recipe: str) -> None:
    """Compiles what the cells of experts need, all kernels of one number of rows at once."""
    from experts import converted

    for experts in {size[0] for size in sizes_in(options.modules)}:
        top_k = min(TOP_K, experts)
        model = nn.ModuleList(
            converted(experts_of(experts, inner, hidden, top_k, options.device), recipe)
            for count, hidden, inner in sizes_in(options.modules)
            if count == experts
        )
        for rows in numbers(options.rows):
            for training in (True, False):
                ot.warmup(model, (rows * experts // top_k,) * 2, training=training)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def sizes_in(text: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, word.split("x"))) for word in text.split(",")]


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--layers", default=WEIGHTS, help="n x k of each")
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("--experts", action="store_true", help="measure experts instead of layers")
    parser.add_argument("--modules", default=MODULES, help="experts x hidden size x width of each")
    parser.add_argument("--rows", default=ROWS, help="of an expert")
    parser.add_argument("--eager", action="store_true", help="compile no experts by torch.compile")
    parser.add_argument("--recipes", default="blockwise")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=55)
    options = parser.parse_args()
    begin = time.time()
    recipes = options.recipes.split(",")
    records, kept = Records(options.records, options.device), []
    compile_all, cells = (compile_experts, expert_cells) if options.experts else (compile_layers, layer_cells)
    for index, recipe in enumerate(recipes):
        compile_all(options, recipe)
        print(f"{recipe}: kernels after {time.time() - begin:.1f} s", flush=True)
        for cell in cells(options, recipe, begin + options.seconds * (index + 1) / len(recipes)):
            protocol = protocol_of(cell.timing, options.rounds, l2="warm")
            record = records.made(
                cell.what, RATIO, cell.gains, protocol, peers=[peer_of("bf16")], ok=cell.error <= MOST, **cell.details
            )
            kept.append(records.keep(judged(record)))
    of = EXPERTS if options.experts else LAYERS
    card = records.card["name"]
    table = Thresholds(card, points_of(kept, card, of))
    print(f"{time.time() - begin:.1f} s on {card}")
    good = kept and all(record["ok"] for record in kept)
    return 0 if good and all(chooses_well(table, recipe, kept) for recipe in recipes) else 1


def chooses_well(table: Thresholds, recipe: str, records: list[dict]) -> bool:
    """Prints from how many tokens on FP8 pays at the measured sizes. Returns whether no choice is slower than BF16."""
    good = True
    for training in (True, False):
        mode = "training" if training else "prefill"
        for n, k, experts in sorted({(p.n, p.k, p.experts) for p in table.points[recipe]}):
            least = table.least_tokens(n, k, recipe, training, experts)
            of = f"{experts} experts of " if experts > 1 else ""
            unit = "rows" if experts > 1 else "tokens"
            print(f"{recipe} {'training' if training else 'forward'} {of}[{n}, {k}]: FP8 from {least} {unit} on")
            for p in table.points[recipe]:
                if (p.n, p.k, p.experts) != (n, k, experts) or least is None or p.tokens < least:
                    continue
                gain = next(gain_of(r) for r in records if is_of(r, p, mode, recipe))
                if gain < 1:
                    print(f"  slower at {p.tokens}: {gain:.3f}")
                    good = False
    return good


def is_of(record: dict, point: Point, mode: str, recipe: str) -> bool:
    details = record["details"]
    shape = f" n={point.n} k={point.k} recipe={recipe}"
    tokens = details.get("rows") or int(record["what"].split(" tokens=")[1].split()[0])
    has = f" mode={mode} " in record["what"] and record["what"].endswith(shape)
    return has and tokens == point.tokens and details.get("groups", 1) == point.experts


def gain_of(record: dict) -> float:
    """Returns the least of a record's gains."""
    return min(statistics.median(record["samples"]), record["details"]["gain_eager"])


if __name__ == "__main__":
    sys.exit(main())
