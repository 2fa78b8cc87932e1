"""Compares loss curves that examples/train_gpt.py wrote with --losses.

    SIZE="--device cuda --compile --width 1024 --layers 12 --heads 16 --context 1024 --batch 16 --steps 2000 --lr 6e-4"
    for recipe in none blockwise blockwise_hybrid tensorwise; do for seed in 0 1 2; do
      python ../examples/train_gpt.py $SIZE --recipe $recipe --seed $seed --losses $recipe-$seed.json
    done; done
    python losses.py --out ../../../tools/plots/losses.json *.json   # and `make plots` draws it

A final loss is the mean of the last 5 % of the steps. Prints a row a recipe: the mean of its finals, their relative
difference from BF16's with the same seeds, and BF16's own spread. Exits with 1 if a recipe of blocks is more than
--bound from BF16, or outside the seeds' spread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

POINTS = 100  # of a curve that is drawn


def final_loss(losses: list[float]) -> float:
    """Returns the mean of the last 5 % of the steps."""
    return statistics.fmean(losses[-max(1, len(losses) // 20) :])


def drawn(losses: list[float]) -> list[float]:
    """Returns the means of POINTS equal parts of a curve, or the curve if it is shorter."""
    count = min(POINTS, len(losses))
    cuts = [len(losses) * i // count for i in range(count + 1)]
    return [round(statistics.fmean(losses[a:b]), 5) for a, b in zip(cuts, cuts[1:], strict=False)]


def read(paths: list[str]) -> dict[str, dict[int, list[float]]]:
    """Returns the losses of each recipe ("none": BF16) and seed."""
    runs: dict[str, dict[int, list[float]]] = {}
    for path in paths:
        run = json.loads(Path(path).read_text())
        runs.setdefault(run["options"]["recipe"], {})[run["options"]["seed"]] = run["losses"]
    return runs


def compare(recipe: str, runs: dict[int, list[float]], plain: dict[int, float], bound: float) -> bool:
    """Prints the row of a recipe. Returns whether it trains like BF16, or is none that has to."""
    finals = {seed: final_loss(losses) for seed, losses in runs.items()}
    mean, seeds = statistics.fmean(finals.values()), sorted(finals.keys() & plain.keys())
    if recipe == "none" or not seeds:
        print(f"{'bf16' if recipe == 'none' else recipe:18} {len(finals)} seeds  final {mean:.4f}")
        return True
    difference = statistics.fmean(finals[seed] / plain[seed] - 1 for seed in seeds)
    spread = (max(plain.values()) - min(plain.values())) / statistics.fmean(plain.values())
    inside = len(plain) < 2 or min(plain.values()) <= mean <= max(plain.values())  # one seed has no spread
    good = abs(difference) <= bound and inside
    print(
        f"{recipe:18} {len(seeds)} seeds  final {mean:.4f}  {difference:+.3%} from bf16, whose seeds spread {spread:.3%}"
        f"  {'holds' if good else 'DIFFERS' if recipe.startswith('blockwise') else 'differs, a control'}"
    )
    return good or not recipe.startswith("blockwise")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--bound", type=float, default=0.0025, help="largest relative difference")
    parser.add_argument("--out", type=Path, help="file for what `make plots` draws")
    parser.add_argument("--title", default="GPT of 151 M parameters on Python sources, H100")
    options = parser.parse_args()
    runs = read(options.files)
    plain = {seed: final_loss(losses) for seed, losses in runs.get("none", {}).items()}
    order = sorted(runs, key=lambda recipe: (recipe != "none", recipe))
    good = [compare(recipe, runs[recipe], plain, options.bound) for recipe in order]
    if options.out:
        curves = [
            {"recipe": recipe, "seed": seed, "steps": len(losses), "losses": drawn(losses)}
            for recipe in order
            for seed, losses in sorted(runs[recipe].items())
        ]
        lines = ",\n".join(f"    {json.dumps(curve)}" for curve in curves)
        options.out.write_text(f'{{\n  "title": {json.dumps(options.title)},\n  "runs": [\n{lines}\n  ]\n}}\n')
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
