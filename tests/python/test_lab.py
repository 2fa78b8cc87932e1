"""The scripts that are run on a GPU, tried at tiny sizes on the host device."""

import importlib.util
import io
import json
import math
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "tools" / "lab"

#: Each script's options for a trial, and a part of its output.
TRIALS = {
    "thresholds.py": (
        "--layers 64x32,128x64 --tokens 16,32 --rounds 1 --seconds 20",
        "blockwise training [64, 32]: FP8 from",
    ),
    "layer.py": ("--shape 32,64,128 --rounds 1", '"part": "kept for backward"'),
    "weights.py": ("--sizes 64,128,32 --rounds 1", '"part": "microbatches, weights trusted"'),
    "state.py": ("--sizes 64,128,32 --rounds 1 --times 1", "recipe=blockwise with a sentry"),
    "mlps.py": ("--size 64,128 --tokens 32 --rounds 1", "recipe=tensorwise fused eager"),
    "tensor_parallel.py": (
        "--size tiny --tokens 128 --widths 64 --rounds 1 --times 1 --warm-steps 1",
        '"what": "TP block size=tiny ranks=1 tokens=128 recipe=blockwise"',
    ),
    "models.py": (
        "--size tiny --layers 1 --tokens 64 --modes eager --rounds 1 --warm-steps 1 --min-dims 16",
        '"what": "Llama size=tiny layers=1 tokens=64 recipe=blockwise"',
    ),
    "fsdp.py": (
        "--size tiny --layers 1 --tokens 32 --eager --rounds 1 --steps 1 --warm-steps 1 --min-dims 16 --variants "
        "blockwise+fp8 --loss-steps 1 --parts bits,gather,quantise,overlap,losses,step",
        "kept      blockwise+fp8",
    ),
    "blocks.py": (
        "--size tiny --tokens 32 --modes eager --rounds 1 --warm-steps 1",
        '"what": "Llama-3-8B blocks count=4 size=tiny tokens=32 recipe=blockwise"',
    ),
    "coldstart.py": ("--size tiny --tokens 32", "kernels compiled: 0, then 0"),
    "experts_model.py": (
        "--size tiny --tokens 64 --modes eager --rounds 1 --warm-steps 1",
        '"what": "Qwen3-MoE model size=tiny tokens=64 recipe=blockwise"',
    ),
    "experts.py": (
        "--sizes 64,2,32,64,2 --modes eager --rounds 1 --times 1",
        '"what": "experts rows=64 experts=2 inner=32 hidden=64 recipe=blockwise", "part": "eager"',
    ),
    "decode.py": (
        "--size tiny --layers 2 --batches 2 --rounds 1 --steps 2 --min-dims 16",
        '"what": "decode size=tiny layers=2 batch=2 recipe=blockwise", "part": "frozen"',
    ),
    "expert_parallel.py": (
        "--rows 64 --columns 144 --inner 32 --experts 4 --top-k 2 --rounds 1 --times 1",
        "a layer is that quantised afterwards: good",
    ),
    "transformers_generate.py": (
        "--size tiny --batch 2 --prompt 8 --new-tokens 2 --models qwen3",
        "0 kernels, 0 compiles",
    ),
}


#: The script that measures a process from its start.
OWN_PROCESS = "coldstart.py"


def run(script, *arguments):
    """Runs a script, in this process if it may be: importing torch takes longer than most trials."""
    words = [str(FOLDER / script), *map(str, arguments)]
    if script == OWN_PROCESS:
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as left:
            code = left.code or 0
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@pytest.mark.parametrize("script", TRIALS)
def test_scripts_run_without_a_gpu(script):
    if script in ("decode.py", "experts.py", "experts_model.py", "fsdp.py", "models.py", "transformers_generate.py"):
        pytest.importorskip("transformers")
    options, said = TRIALS[script]
    done = run(script, "--device", "cpu", *options.split())
    assert said in done.stdout, done.stdout + done.stderr
    # How long a step takes here says nothing, so thresholds may not hold.
    assert done.returncode == 0 or script == "thresholds.py", done.stdout + done.stderr


def test_serving_in_vllm_says_that_vllm_is_missing():
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    done = run("vllm_serve.py")
    assert done.returncode == 1 and "vllm_serve.py: vLLM cannot be imported: No module named 'vllm'" in done.stderr


THRESHOLDS = "--device", "cpu", *TRIALS["thresholds.py"][0].split()


def refusal_of(path):
    """Returns what the command says of a file of records before it asks for a GPU."""
    words = "bench", "--gemm", "64x512x1024", "--records", path
    return subprocess.run([sys.executable, "-m", "octile", *words], capture_output=True, text=True).stderr


def test_the_command_reads_the_records_of_a_script(tmp_path):
    path = tmp_path / "records.jsonl"
    done = run("thresholds.py", *THRESHOLDS, "--records", path)
    printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(printed) == 8 and path.read_text().splitlines() == printed, done.stdout + done.stderr
    assert "line" not in refusal_of(path)
    path.write_text(printed[0].replace('"what"', '"why"') + "\n")
    assert f"{path} line 1: what is missing; allowed: a text" in refusal_of(path)


def test_thresholds_are_records_of_layers_that_the_package_reads(tmp_path):
    from octile.torch.thresholds import points_of

    path = tmp_path / "records.jsonl"
    run("thresholds.py", *THRESHOLDS, "--records", path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        (gain,) = record["samples"]
        pays = "pays" if gain >= 1.02 else "loses" if gain < 1 else "even"
        assert record["details"] == {"gain_eager": gain, "verdict": pays, "verdict_eager": pays}
    points = points_of(records, records[0]["card"]["name"])["blockwise"]
    assert [p[:3] for p in points] == [(16, 64, 32), (16, 128, 64), (32, 64, 32), (32, 128, 64)]
    assert all(None not in point for point in points)


def test_thresholds_of_experts_are_records_of_modules_that_the_package_reads(tmp_path):
    pytest.importorskip("transformers")
    from octile.torch.thresholds import points_of

    path = tmp_path / "records.jsonl"
    words = "--experts --modules 4x64x32 --rows 8,16 --eager --rounds 1 --seconds 20"
    done = run("thresholds.py", "--device", "cpu", *words.split(), "--records", path)
    assert "blockwise training 4 experts of [64, 32]: FP8 from" in done.stdout, done.stdout + done.stderr
    records = [json.loads(line) for line in path.read_text().splitlines()]
    card = records[0]["card"]["name"]
    assert all(record["ok"] for record in records) and points_of(records, card) == {}
    points = points_of(records, card, "experts")["blockwise"]
    assert [(*p[:3], p.experts) for p in points] == [(32, 64, 32, 4), (64, 64, 32, 4)]
    assert all(None not in point for point in points)


def test_thresholds_without_time_measure_nothing_and_fail():
    done = run("thresholds.py", "--device", "cpu", "--layers", "64x32", "--tokens", "16", "--seconds", "0")
    assert done.returncode == 1 and "the time is over: cells are missing" in done.stdout, done.stdout + done.stderr


def write_curves(folder, recipe, shift, held_out=None):
    """held_out: shifts of the losses as trained and without FP8; None: a file without them."""
    for seed in range(3):
        losses = [5 * math.exp(-i / 100) + 1 + 0.01 * seed + shift for i in range(1000)]
        run = {"options": {"recipe": recipe, "seed": seed}, "losses": losses}
        if held_out is not None:
            values = [2 + 0.01 * seed + more for more in held_out]
            run["held_out"] = [{"step": n, "as_trained": 9, "without_fp8": 9} for n in (250, 500)]
            run["held_out"].append({"step": 1000, "as_trained": values[0], "without_fp8": values[1]})
        (folder / f"{recipe}-{seed}.json").write_text(json.dumps(run))


def test_losses_that_differ_fail_unless_they_are_a_control(tmp_path):
    write_curves(tmp_path, "none", 0)
    write_curves(tmp_path, "blockwise", 0.001)
    write_curves(tmp_path, "tensorwise", 0.1)
    done = run("losses.py", *tmp_path.glob("*.json"), "--records", tmp_path / "records")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if not line.startswith("{")]
    assert lines[1] == ["bf16", "3", "1.0103", "spread", "1.980%", "-", "-"]
    assert lines[2] == ["blockwise", "3", "1.0113", "+0.099%", "holds", "-", "-"]
    assert lines[3][:2] == ["tensorwise", "(control)"] and lines[3][5:] == ["DIFFERS", "-", "-"]
    records = [json.loads(line) for line in (tmp_path / "records").read_text().splitlines()]
    curves = [record["samples"] for record in records if record["part"] == "curve"]
    assert len(curves) == 9 and all(len(curve) == 100 for curve in curves)
    last = {record["what"].split("=")[-1]: record for record in records if record["part"] == "training"}
    assert len(last["tensorwise"]["samples"]) == 3 and last["tensorwise"]["peers"][0]["name"] == "bf16"
    write_curves(tmp_path, "blockwise", 0.02)
    done = run("losses.py", *tmp_path.glob("*.json"))
    assert done.returncode == 1 and "DIFFERS" in done.stdout


@pytest.mark.parametrize(
    "as_trained, without_fp8, said",
    [(0.004, 0.002, ["holds", "holds"]), (0.006, 0.002, ["DIFFERS", "holds"]), (0.0, 0.02, ["holds", "DIFFERS"])],
)
def test_held_out_losses_are_compared_one_by_one(tmp_path, as_trained, without_fp8, said):
    write_curves(tmp_path, "none", 0, (0, 0))
    write_curves(tmp_path, "blockwise_hybrid", 0, (as_trained, without_fp8))
    done = run("losses.py", *tmp_path.glob("*.json"))
    assert done.returncode == (1 if "DIFFERS" in said else 0), done.stdout + done.stderr
    heading, plain, row, _ = done.stdout.splitlines()
    assert heading.split("  ")[-1] == "held out, in bf16"
    assert plain.split()[5:] == ["2.0100", "spread", "0.995%"] * 2
    words = row.split()
    assert words[:5] == ["blockwise_hybrid", "3", "1.0103", "+0.000%", "holds"]
    assert [words[7], words[10]] == said and words[5] == f"{2.01 + as_trained:.4f}"
