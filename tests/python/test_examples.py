"""The tutorial script and the scripts that measure, as far as a machine without a GPU can run them."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "runtime" / "python"


def run(*words):
    return subprocess.run([sys.executable, *map(str, words)], check=True, capture_output=True, text=True).stdout


def test_the_tutorial_learns_and_its_curves_are_compared(tmp_path):
    size = ("--steps", 6, "--layers", 1, "--batch", 1, "--context", 32, "--lr", "1e-2")
    for recipe in ("none", "blockwise"):
        run(ROOT / "examples/train_gpt.py", *size, "--recipe", recipe, "--losses", tmp_path / f"{recipe}.json")
    losses = json.loads((tmp_path / "blockwise.json").read_text())["losses"]
    assert len(losses) == 6 and min(losses) < losses[0] - 1
    lines = run(ROOT / "benchmarks/losses.py", tmp_path / "none.json", tmp_path / "blockwise.json").splitlines()
    assert len(lines) == 3 and abs(json.loads(lines[2])["relative_difference"]) < 0.02


def test_the_scripts_for_a_gpu_say_what_they_do():
    for name in ("layer.py", "blocks.py"):
        assert "usage: " + name in run(ROOT / "benchmarks" / name, "--help")
