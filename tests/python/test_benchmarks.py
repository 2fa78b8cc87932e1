"""The scripts that are run on a GPU, tried at tiny sizes on the host device."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "runtime" / "python" / "benchmarks"

TRIALS = {
    "thresholds.py": "--device cpu --layers 64x32,128x64 --tokens 16,32 --rounds 1 --seconds 20",
    "weights.py": "--device cpu --size 128,256",
    "state.py": "--device cpu --size 64,128",
    "two_devices.py": "--devices cpu,cpu",
    "blocks.py": "--device cpu --size tiny --tokens 32 --modes eager --rounds 1 --warm-steps 1",
    "coldstart.py": "--device cpu --size tiny --tokens 32",
    "transformers_generate.py": "--device cpu --size tiny --batch 2 --prompt 8 --new-tokens 2 --models qwen3",
}
SAYS = {
    "thresholds.py": "blockwise training [64, 32]: FP8 from",
    "weights.py": "threads: good",
    "state.py": "bad steps are repeated: good",
    "two_devices.py": "threads: the same bits",
    "blocks.py": '"variant": "blockwise eager"',
    "coldstart.py": "kernels compiled: 0, then 0",
    "transformers_generate.py": "0 kernels, 0 compiles",
}


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, FOLDER / script, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("script", TRIALS)
def test_scripts_run_without_a_gpu(script, monkeypatch):
    if script == "transformers_generate.py":
        pytest.importorskip("transformers")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = run(script, *TRIALS[script].split())
    assert SAYS[script] in done.stdout, done.stdout + done.stderr
    # How long a step takes here says nothing, so thresholds may not hold.
    assert done.returncode == 0 or script == "thresholds.py", done.stdout + done.stderr


def test_thresholds_are_written_as_the_package_reads_them(tmp_path):
    from octile.torch.thresholds import thresholds_of

    out = tmp_path / "thresholds.json"
    run("thresholds.py", *TRIALS["thresholds.py"].split(), "--out", out)
    data = json.loads(out.read_text())
    table = thresholds_of(data["card"], data["points"])
    assert [p[:3] for p in table.points["blockwise"]] == [(16, 64, 32), (16, 128, 64), (32, 64, 32), (32, 128, 64)]
    assert all(p.training > 0 and p.forward > 0 for p in table.points["blockwise"])


def test_thresholds_without_time_measure_nothing_and_fail():
    done = run("thresholds.py", "--device", "cpu", "--layers", "64x32", "--tokens", "16", "--seconds", "0")
    assert done.returncode == 1 and "the time is over: cells are missing" in done.stdout, done.stdout + done.stderr


def write_curves(folder, recipe, shift):
    for seed in range(3):
        losses = [5 * math.exp(-i / 100) + 1 + 0.01 * seed + shift for i in range(1000)]
        run = {"options": {"recipe": recipe, "seed": seed}, "losses": losses}
        (folder / f"{recipe}-{seed}.json").write_text(json.dumps(run))


def test_losses_that_differ_fail_unless_they_are_a_control(tmp_path):
    write_curves(tmp_path, "none", 0)
    write_curves(tmp_path, "blockwise", 0.001)
    write_curves(tmp_path, "tensorwise", 0.1)
    done = run("losses.py", *tmp_path.glob("*.json"), "--out", tmp_path / "drawn")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "+0.099% from bf16, whose seeds spread 1.980%  holds" in done.stdout
    assert "differs, a control" in done.stdout
    drawn = json.loads((tmp_path / "drawn").read_text())["runs"]
    assert len(drawn) == 9 and all(len(curve["losses"]) == 100 for curve in drawn)
    write_curves(tmp_path, "blockwise", 0.02)
    done = run("losses.py", *tmp_path.glob("*.json"))
    assert done.returncode == 1 and "DIFFERS" in done.stdout
