"""The tutorial scripts."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rank_processes import run_script

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "runtime" / "python" / "examples"


def run(*words):
    return subprocess.run([sys.executable, *map(str, words)], check=True, capture_output=True, text=True).stdout


TINY = ("--steps", 6, "--layers", 1, "--batch", 1, "--context", 32, "--lr", "1e-2", "--eval-batches", 2)


@pytest.fixture(scope="module")
def train_gpt():
    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLES / "train_gpt.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trained(train_gpt, tmp_path, monkeypatch):
    """Trains a tiny model of a recipe. Returns what the script wrote."""

    def train(recipe, *words):
        out = tmp_path / f"{recipe}.json"
        words = *TINY, "--recipe", recipe, "--losses", out, *words
        monkeypatch.setattr(sys, "argv", ["train_gpt.py", *map(str, words)])
        train_gpt.main()
        return json.loads(out.read_text())

    return train


def test_the_tutorial_learns_and_its_curves_are_compared(trained, tmp_path):
    runs = {recipe: trained(recipe) for recipe in ("none", "blockwise")}
    losses = runs["blockwise"]["losses"]
    assert len(losses) == 6 and min(losses) < losses[0] - 1
    files = tmp_path / "none.json", tmp_path / "blockwise.json"
    lines = run(ROOT / "tools/lab/losses.py", *files, "--bound", "0.02").splitlines()
    assert len(lines) == 4 and lines[1].startswith("bf16") and lines[2].split().count("holds") == 3


@pytest.mark.parametrize(
    ("recipe", "form"),
    [("none", ()), ("blockwise_hybrid", ("--gated",)), ("tensorwise", ("--gated", "--no-fuse")), ("delayed", ())],
)
def test_held_out_losses_leave_training_as_it_is(trained, recipe, form):
    often, once = trained(recipe, *form, "--eval-every", 2), trained(recipe, *form)
    assert often["losses"] == once["losses"] and often["held_out"][-1:] == once["held_out"]
    assert [held["step"] for held in often["held_out"]] == [2, 4, 6]
    for held in often["held_out"]:
        # FP8 rounds, and without it the same weights are close.
        assert (held["as_trained"] == held["without_fp8"]) == (recipe == "none")
        assert abs(held["as_trained"] / held["without_fp8"] - 1) < 0.01
    assert often["held_out"][-1]["without_fp8"] < often["held_out"][0]["without_fp8"]


def test_held_out_files_are_fixed_and_not_trained_on(train_gpt):
    text, held_out = (bytes(part.numpy()) for part in train_gpt.read_text())
    assert (text, held_out) == tuple(bytes(part.numpy()) for part in train_gpt.read_text())
    assert len(text) / 64 < len(held_out) < len(text) / 4
    assert held_out[1000:3000] not in text


def ended(script, folder, *words):
    """Returns what an example says at its end."""
    folder.mkdir(exist_ok=True)
    lines = run_script(folder, EXAMPLES / script, "--output", folder, *words).splitlines()
    return json.loads(next(line for line in reversed(lines) if line.startswith('{"losses"')))


def test_the_trainer_of_transformers_goes_on_from_its_checkpoint(tmp_path):
    pytest.importorskip("accelerate")  # the Trainer needs it
    words = "--steps", 4, "--save", 2, "--width", 64, "--inner", 32
    whole = ended("train_transformers.py", tmp_path / "whole", *words)
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "parts" / "checkpoint-2")
    assert ended("train_transformers.py", tmp_path / "parts", *words, "--resume") == whole
    files = [tmp_path / name / "checkpoint-4" / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(whole["losses"]) == 4 and whole["held_out"] < whole["losses"][0] - 0.5


def test_accelerate_goes_on_from_its_state(tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    whole = ended("train_accelerate.py", tmp_path / "whole", "--cpu", "--steps", 4)
    first = ended("train_accelerate.py", tmp_path / "parts", "--cpu", "--steps", 2)
    second = ended("train_accelerate.py", tmp_path / "parts", "--cpu", "--steps", 4, "--resume")
    assert first["losses"] + second["losses"] == whole["losses"] and second["held_out"] == whole["held_out"]
    assert whole["held_out"] < whole["losses"][0] - 0.5
