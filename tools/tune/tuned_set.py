#!/usr/bin/env python3
"""Makes or refreshes a set of decisions that the library embeds: runtime/tuned/<device>.jsonl.

    tools/tune/tuned_set.py h100 build/release/octile            searches everything, on a live card
    tools/tune/tuned_set.py h100 --records DIR/tuning.jsonl      takes what `octile tune` left

The search covers the GEMMs of six shipped models: the forward pass of the dense layers at 1, 4, 16,
64 and every doubling up to 8192 tokens, their gradients at 1024 and every doubling up to 8192, since
a training step has no fewer; and of the experts every pass at 1024 and 8192 tokens a rank, and the
forward pass of masked groups at 16, 64, 256 and 1024 tokens an expert. Of Llamas whose q, k, v, gate
and up are layers of their own, as PyTorch trains them, it covers every pass with per-tensor scales,
weight gradients of bf16 with power-of-two scales, and the projections to keys and values. A line of the set is replaced
by the new decision of the same problem and tokens. Lines keep the fields that a lookup and
`octile emit --explain` read, with six significant digits.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIELDS = ("version", "family", "problem", "bucket", "tokens", "device", "sm_count", "winner", "default",
          "gain", "noise", "baselines_us", "quantize_us", "error", "compiler", "source_digest", "date")
TOKENS = "1,4,16,64,128,256,512,1024,2048,4096,8192"
TRAINING_TOKENS = "1024,2048,4096,8192"
EXPERT_TOKENS = "1024,8192"
MASKED_TOKENS = "16,64,256,1024"
SEPARATE_TOKENS = "4096,8192,16384"
# Hidden size, width of the MLP, and of keys, of models whose projections are apart.
SEPARATE = ((4096, 14336, 1024), (8192, 28672, 1024))
DENSE_MODELS = "llama-3-405b,llama-3-70b,llama-3-8b"
# Ranks that share a model's experts in the shipped decisions.
EXPERTS = {"deepseek-v3": 8, "qwen3-235b-a22b": 8, "mixtral-8x7b": 1}


def rounded(value):
    """Returns the value with every float at six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return value


def reduced(record):
    """Returns the shipped fields of a record of `octile tune`."""
    kept = {field: record[field] for field in FIELDS if field in record}
    kept["baselines_us"] = {name: us for name, us in kept.get("baselines_us", {}).items() if name == "bf16"}
    return rounded({field: value for field, value in kept.items() if value != {}})


def key_of(record):
    return record["problem"], record["bucket"], record["tokens"]


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def merged(old, new):
    """Returns the old records with those of `new` in their places, further ones at the end."""
    fresh = {key_of(record): record for record in new}
    kept = [fresh.pop(key_of(record), record) for record in old]
    return kept + list(fresh.values())


def masked_problems(octile):
    """Returns the forward GEMMs of the experts with masked groups, one a line."""
    problems = set()
    for model, ranks in EXPERTS.items():
        call = [octile, "tune", "--model", model, "--ep", str(ranks), "--tokens", "1024", "--explain",
                "--device", "h200", "--json"]
        tasks = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)["tasks"]
        problems |= {task["problem"] for task in tasks if "group=contiguous" in task["problem"]}
    return "\n".join(sorted(problems)).replace("group=contiguous", "group=masked") + "\n"


def separate_problems():
    """Returns the GEMMs of the training of models with projections of their own, one a line."""
    tensor, end = "a=e4m3:tensor b=e4m3:tensor d=bf16 acc=0", "d=bf16 acc=0 promote=128"
    lines = []
    for hidden, inner, keys in SEPARATE:
        for n, k in ((hidden, hidden), (keys, hidden), (inner, hidden), (hidden, inner)):
            lines += [f"gemm m=? n={n} k={k} {tensor} promote=none", f"gemm m=? n={k} k={n} {tensor} promote=128",
                      f"gemm m={n} n={k} k=? {tensor} promote=128",
                      f"gemm m={n} n={k} k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 {end}"]
            if n == keys:
                lines += [f"gemm m=? n={a} k={b} a=e4m3:1x128 b=e4m3:128x128 {end}" for a, b in ((n, k), (k, n))]
    return "\n".join(lines) + "\n"


def search(octile, out, budget):
    """Runs the searches; an interrupt keeps their decisions."""
    use = ["--recipe", "blockwise", "--mode", "prefill"]
    dense = [["--model", DENSE_MODELS, *use]] + [["--model", model, "--keep", "experts", *use] for model in EXPERTS]
    calls = [[*one, "--passes", "fprop", "--tokens", TOKENS] for one in dense]
    calls += [[*one, "--passes", "dgrad,wgrad", "--tokens", TRAINING_TOKENS] for one in dense]
    calls += [["--model", model, "--ep", str(ranks), *use, "--passes", "fprop,dgrad,wgrad", "--tokens", EXPERT_TOKENS]
              for model, ranks in EXPERTS.items()]
    for name, problems, tokens in (("masked", masked_problems(octile), MASKED_TOKENS),
                                   ("separate", separate_problems(), SEPARATE_TOKENS)):
        file = out / f"{name}.txt"
        file.write_text(problems)
        calls.append(["--problem-file", str(file), "--tokens", tokens])
    for call in calls:
        subprocess.run([octile, "tune", *call, "--budget", str(budget), "--out", str(out)], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="the set's name: h100, h200")
    parser.add_argument("octile", nargs="?", help="the command, to search with")
    parser.add_argument("--records", type=pathlib.Path, help="a tuning.jsonl to take instead of searching")
    parser.add_argument("--budget", type=float, default=900, help="seconds of each search")
    options = parser.parse_args()
    if (options.octile is None) == (options.records is None):
        parser.error("allowed is either the command or --records")
    records = options.records
    if records is None:
        folder = pathlib.Path("tuned-set")
        folder.mkdir(mode=0o700, exist_ok=True)
        search(options.octile, folder, options.budget)
        records = folder / "tuning.jsonl"
    path = ROOT / "runtime" / "tuned" / f"{options.device}.jsonl"
    new = [reduced(record) for record in read_lines(records) if record["device"] == options.device]
    old = read_lines(path) if path.exists() else []
    lines = [json.dumps(record, separators=(",", ":")) for record in merged(old, new)]
    path.write_text("\n".join(lines) + "\n")
    print(f"{path.relative_to(ROOT)}: {len(new)} decisions taken, {len(lines)} in all", file=sys.stderr)


if __name__ == "__main__":
    main()
