"""The tutorial script, and the benchmark that needs a GPU for all it does."""

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
    files = tmp_path / "none.json", tmp_path / "blockwise.json"
    lines = run(ROOT / "benchmarks/losses.py", *files, "--bound", "0.02").splitlines()
    assert len(lines) == 2 and lines[0].startswith("bf16") and lines[1].endswith("holds")


def test_the_script_for_a_gpu_says_what_it_does():
    assert "usage: layer.py" in run(ROOT / "benchmarks" / "layer.py", "--help")
