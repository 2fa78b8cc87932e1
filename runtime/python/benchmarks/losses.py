"""Compares loss curves that examples/train_gpt.py wrote with --losses.

    SIZE="--device cuda --compile --width 1024 --layers 12 --heads 16 --context 1024 --batch 16 --steps 2000 --lr 6e-4"
    for recipe in none blockwise; do for seed in 0 1 2; do
      python ../examples/train_gpt.py $SIZE --recipe $recipe --seed $seed --losses $recipe-$seed.json
    done; done
    python losses.py none-*.json blockwise-*.json

A final loss is the mean of the last 5 % of the steps. Prints one for each file, and for each recipe the relative
difference of its mean from that of the runs with the same seeds without FP8, beside these runs' own spread.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path


def final_loss(losses: list[float]) -> float:
    """Returns the mean of the last 5 % of the steps."""
    return statistics.fmean(losses[-max(1, len(losses) // 20) :])


def main(paths: list[str]) -> None:
    finals: dict[str, dict[int, float]] = {}
    for path in paths:
        run = json.loads(Path(path).read_text())
        recipe, seed = run["options"]["recipe"], run["options"]["seed"]
        finals.setdefault(recipe, {})[seed] = final_loss(run["losses"])
        print(json.dumps({"file": path, "recipe": recipe, "seed": seed, "final_loss": finals[recipe][seed]}))
    plain = finals.get("none", {})
    for recipe, runs in finals.items():
        seeds = sorted(runs.keys() & plain.keys())
        if recipe == "none" or not seeds:
            continue
        difference = statistics.fmean(runs[s] / plain[s] - 1 for s in seeds)
        spread = (max(plain.values()) - min(plain.values())) / statistics.fmean(plain.values())
        print(json.dumps({"recipe": recipe, "seeds": seeds, "relative_difference": difference, "spread": spread}))


if __name__ == "__main__":
    main(sys.argv[1:])
