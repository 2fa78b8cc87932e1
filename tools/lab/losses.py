"""Compares loss curves that examples/train_gpt.py wrote with --losses.

    SIZE="--device cuda --compile --width 1024 --layers 12 --heads 16 --context 1024 --batch 8 --steps 2000 --lr 6e-4"
    for recipe in none blockwise blockwise_hybrid tensorwise; do for seed in 0 1 2; do
      python ../../runtime/python/examples/train_gpt.py $SIZE --recipe $recipe --seed $seed --losses $recipe-$seed.json
    done; done
    python losses.py --device cuda --records RECORDS *.json   # in docs/records, `make plots` draws it

Prints a row a recipe and three losses, each a mean over seeds, with its relative difference from BF16's of the same
seeds:

    training            mean of the last 5 % of the steps; the forward passes are the recipe's own
    held out            of files not trained on, after the last step, computed as the model was trained
    held out, in bf16   the same weights on the same batches without FP8: what training in FP8 did to the weights

Each loss holds if it is within --bound of BF16's and inside the spread of BF16's seeds. Exits with 1 if one of a
recipe of blocks does not hold; other recipes are controls. Files without held-out losses have none compared.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from records import Records, parser_of, peer_of, protocol_of

POINTS = 100  # of a curve that is drawn
MEASURES = ("training", "held out", "held out, in bf16")

Finals = dict[str, dict[int, float]]  # by measure and seed


def final_loss(losses: list[float]) -> float:
    """Returns the mean of the last 5 % of the steps."""
    return statistics.fmean(losses[-max(1, len(losses) // 20) :])


def drawn(losses: list[float]) -> list[float]:
    """Returns the means of POINTS equal parts of a curve, or the curve if it is shorter."""
    count = min(POINTS, len(losses))
    cuts = [len(losses) * i // count for i in range(count + 1)]
    return [statistics.fmean(losses[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]


def read(paths: list[str]) -> dict[str, dict[int, dict]]:
    """Returns what train_gpt.py wrote for each recipe ("none": BF16) and seed."""
    runs: dict[str, dict[int, dict]] = {}
    for path in paths:
        run = json.loads(Path(path).read_text())
        runs.setdefault(run["options"]["recipe"], {})[run["options"]["seed"]] = run
    return runs


def finals_of(runs: dict[int, dict]) -> Finals:
    """Returns the losses of a recipe that are compared."""
    last = {seed: run["held_out"][-1] for seed, run in runs.items() if run.get("held_out")}
    return {
        "training": {seed: final_loss(run["losses"]) for seed, run in runs.items()},
        "held out": {seed: held["as_trained"] for seed, held in last.items()},
        "held out, in bf16": {seed: held["without_fp8"] for seed, held in last.items()},
    }


def compare(losses: dict[int, float], plain: dict[int, float], bound: float) -> tuple[str, bool]:
    """Returns the cell of one loss of a recipe, and whether it is BF16's or there is none of BF16 to compare with."""
    if not losses:
        return "-", True
    mean, seeds = statistics.fmean(losses.values()), sorted(losses.keys() & plain.keys())
    if not seeds:
        return f"{mean:.4f}", True
    difference = statistics.fmean(losses[seed] / plain[seed] - 1 for seed in seeds)
    inside = len(plain) < 2 or min(plain.values()) <= mean <= max(plain.values())  # one seed has no spread
    good = abs(difference) <= bound and inside
    return f"{mean:.4f} {difference:+.3%} {'holds' if good else 'DIFFERS'}", good


def spread_of(plain: dict[int, float]) -> str:
    """Returns the cell of BF16: the mean over its seeds, and their spread."""
    if not plain:
        return "-"
    mean = statistics.fmean(plain.values())
    return f"{mean:.4f} spread {(max(plain.values()) - min(plain.values())) / mean:.3%}"


def table(runs: dict[str, dict[int, dict]], bound: float) -> tuple[list[list[str]], bool]:
    """Returns rows of cells, the heading first, and whether all recipes of blocks train like BF16."""
    plain, good = finals_of(runs.get("none", {})), True
    rows = [["recipe", "seeds", *MEASURES]]
    for recipe, found in runs.items():
        if recipe == "none":
            rows.append(["bf16", str(len(found)), *(spread_of(plain[name]) for name in MEASURES)])
            continue
        finals = finals_of(found)
        cells = [compare(finals[name], plain[name], bound) for name in MEASURES]
        control = not recipe.startswith("blockwise")
        good = good and (control or all(holds for _, holds in cells))
        rows.append([recipe + " (control)" * control, str(len(found)), *(cell for cell, _ in cells)])
    return rows, good


def record(records: Records, runs: dict[str, dict[int, dict]], model: str) -> None:
    """Records each curve, and each recipe's losses by seed beside BF16's."""
    plain = finals_of(runs.get("none", {}))
    for recipe, found in runs.items():
        name = "bf16" if recipe == "none" else recipe
        for seed, run in sorted(found.items()):
            protocol = protocol_of(
                "training", len(run["losses"]), interleaved=False, note="samples: means of equal parts of the curve"
            )
            records.add(f"{model} recipe={name}", "nats/byte", drawn(run["losses"]), protocol, part="curve", seed=seed)
        for measure, losses in finals_of(found).items():
            if not losses:
                continue
            seeds = sorted(losses)
            of_plain = [plain[measure][seed] for seed in seeds if seed in plain[measure]]
            peers = [peer_of("bf16", of_plain)] if of_plain and recipe != "none" else []
            values = [losses[seed] for seed in seeds]
            protocol = protocol_of("training", len(seeds), interleaved=False, note="samples: one a seed")
            records.add(f"{model} recipe={name}", "nats/byte", values, protocol, part=measure, peers=peers)


def main() -> int:
    parser = parser_of(__doc__, ("cpu", "cuda"))
    parser.add_argument("files", nargs="+")
    parser.add_argument("--bound", type=float, default=0.0025, help="largest relative difference")
    parser.add_argument("--model", default="GPT of 151 M parameters on Python sources")
    options = parser.parse_args()
    found = read(options.files)
    runs = {recipe: found[recipe] for recipe in sorted(found, key=lambda recipe: (recipe != "none", recipe))}
    rows, good = table(runs, options.bound)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"each holds if within {options.bound:.2%} of bf16 and, of several seeds, inside their spread")
    if options.records:
        record(Records(options.records, options.device), runs, options.model)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
