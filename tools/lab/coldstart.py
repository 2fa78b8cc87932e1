"""How long a process takes to its first training step: four Llama-3-8B blocks, kernel cache empty and full.

    python coldstart.py
    python coldstart.py --device cpu --size tiny --tokens 32

Each row is a process of its own: BF16, octile with an empty cache, and octile with the cache of the one before. The
clock starts when PyTorch is imported, the model is built and the device has multiplied once. "ours" is the time that octile
adds: its import, convert, warmup, and the first step beyond a later one, less what BF16's first step takes beyond a
later one. Exits with 1 if a row fails, or if the second process of octile compiles a kernel; on a GPU also above --cold
and --warm seconds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

from records import Records, parser_of, peer_of, protocol_of


def run(recipe: str, options) -> dict[str, float]:
    """Returns the seconds of one process."""
    import torch
    from timing import seconds_of

    x = torch.randn(64, 64, device=options.device, dtype=torch.bfloat16)
    (x @ x).sum().item()
    seconds = {}

    def lap(name: str, call: Callable):
        seconds[name], made = seconds_of(call, options.device)
        return made

    if recipe != "none":
        ot = lap("import", lambda: importlib.import_module("octile.torch"))
    # Outside of the laps, because it imports our operators in the process of BF16 too.
    from models import SIZES, blocks

    def build() -> tuple:
        model = blocks(options.size, options.device)
        x = torch.randn(1, options.tokens, SIZES[options.size].width, device=options.device, dtype=torch.bfloat16)
        return model, torch.optim.SGD(model.parameters(), lr=1e-6), x

    model, optimizer, x = lap("build", build)
    if recipe != "none":
        lap("convert", lambda: ot.convert(model, recipe, preset="all-linear", min_dims=16))
        lap("warmup", lambda: ot.warmup(model, (options.tokens, options.tokens)))

    def step() -> None:
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for name in ("first step", "second step", "later step"):
        lap(name, step)
    return seconds


def in_process(recipe: str, cache: str) -> dict[str, float]:
    """Returns what a process of this script measured."""
    environment = os.environ | {"OCTILE_CACHE_DIR": cache}
    command = [sys.executable, *sys.argv, "--run", recipe]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def misses(cache: str) -> int:
    """Returns how many kernels were compiled with this cache."""
    command = [sys.executable, "-m", "octile", "cache", "stats", "--json"]
    environment = os.environ | {"OCTILE_CACHE_DIR": cache}
    told = subprocess.run(command, check=True, env=environment, capture_output=True)
    return json.loads(told.stdout)["total"]["misses"]


def ours(seconds: dict[str, float], plain: dict[str, float]) -> float:
    """Returns the seconds that octile adds before a model trains at its later speed."""
    first = seconds["first step"] - seconds["later step"] - (plain["first step"] - plain["later step"])
    return seconds["import"] + seconds["convert"] + seconds["warmup"] + first


def record(options, to_first: dict[str, float], added: dict[str, float], compiled: list[int]) -> None:
    """Records the seconds to the end of the first step, and those that are ours."""
    records = Records(options.records, options.device)
    for name, count in zip(added, (compiled[0], compiled[1] - compiled[0]), strict=True):
        records.add(
            f"first step of Llama-3-8B blocks count=4 size={options.size} tokens={options.tokens} "
            f"recipe={options.recipe}",
            "s",
            to_first[name],
            protocol_of("host", 1, interleaved=False, note="one process each"),
            part=name,
            peers=[peer_of("bf16", to_first["bf16"])],
            ours_s=added[name],
            kernels=count,
            processors=os.cpu_count() or 1,
        )


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--size", default="llama", choices=["llama", "tiny"])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--recipe", default="blockwise")
    parser.add_argument(
        "--cold", type=float, default=5.0, help="most seconds to the end of the first step, cache empty"
    )
    parser.add_argument("--warm", type=float, default=0.5, help="most seconds that are ours in a second process")
    parser.add_argument("--run", help=argparse.SUPPRESS)  # one process
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(options.run, options)))
        return 0
    with tempfile.TemporaryDirectory() as cache:
        plain = in_process("none", cache)
        rows, compiled = {}, []
        for name in ("empty cache", "second process"):
            rows[name] = in_process(options.recipe, cache)
            compiled.append(misses(cache))
    names = ("import", "build", "convert", "warmup", "first step", "second step", "later step")
    print(f"{'':15}" + "".join(f"{name:>12}" for name in names) + f"{'to step 1':>12}{'ours':>8}   seconds")
    to_first = {}
    for name, row in {"bf16": plain, **rows}.items():
        to_first[name] = sum(row.get(lap, 0.0) for lap in names[:5])
        added = ours(row, plain) if row is not plain else 0.0
        cells = "".join(f"{row[lap]:12.3f}" if lap in row else f"{'':12}" for lap in names)
        print(f"{name:15}{cells}{to_first[name]:12.3f}{added:8.3f}")
    print(f"kernels compiled: {compiled[0]}, then {compiled[1] - compiled[0]}; {os.cpu_count()} processors")
    record(options, to_first, {name: ours(row, plain) for name, row in rows.items()}, compiled)
    good = compiled[0] == compiled[1]
    if options.device == "cuda":
        good &= compiled[0] > 0 and to_first["empty cache"] <= options.cold
        good &= ours(rows["second process"], plain) <= options.warm
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
