#!/usr/bin/env python3
"""BENCHMARKS.md, docs/distributed.md and README have the numbers of docs/records, and a difference is told. pages.sh
keeps the records of whole parts apart from those of parts that failed."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "plots"))

import measurements  # noqa: E402
import pages  # noqa: E402


def tree(folder):
    """Returns a copy of the compared files."""
    root = pathlib.Path(folder)
    shutil.copytree(ROOT / "docs" / "records", root / "docs" / "records")
    for name in ("BENCHMARKS.md", "README.md", "docs/distributed.md"):
        shutil.copy(ROOT / name, root / name)
    return root


def expect(root, *sentences):
    """Fails unless the check says these sentences and no others."""
    said = pages.check(root, measurements.load(root))
    if len(said) != len(sentences) or not all(part in one for part, one in zip(sentences, said)):
        sys.exit(f"pages.py says {said}, not {sentences}")


def slow_down(root):
    """Makes every FP8 GEMM of the table beside DeepGEMM take twice as long."""
    path = root / "docs" / "records" / "h200-9dccfe1.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record["median"] *= 2
        for peer in record["peers"]:
            peer["ratio"]["median"] /= 2
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def measure_again(root):
    """Adds a file of one part, the weight gradients, of which the second run is the right one."""
    records = root / "docs" / "records"
    again = [json.loads(line) for line in (records / "h200-649aa15.jsonl").read_text().splitlines()]
    again = [r | {"commit": "abcdef1", "date": "2026-12-24T10:00:00Z"} for r in again if "acc=1" in r["what"]]
    slow = [r | {"samples": [1e9] * 9} for r in again]
    (records / "h200-abcdef1.jsonl").write_text("".join(json.dumps(r) + "\n" for r in slow + again))


def expect_new_weight_gradients(root):
    """Fails unless that row alone is the new file's, and its table names no commit any more."""
    before = pages.page(measurements.load(root)).splitlines()
    measure_again(root)
    after = pages.page(measurements.load(root)).splitlines()
    new = [line for line in after if line not in before]
    text = next(line for line in before if line.startswith("Scales are"))
    row = next(line for line in before if line.startswith("| weight gradients"))
    expected = [text.replace(" (commit 649aa15)", ""), row.replace("30 November 2026", "24 December 2026")]
    if new != expected:
        sys.exit(f"a file of weight gradients alone changes {new}, not {expected}")


# Stands for the command: it keeps a record of its first word, and `tune` fails after that.
COMMAND = """#!/bin/sh
first=$1
while [ "$1" != --records ]; do shift; done
echo '{"tool": "'"$first"'", "ok": true}' >"$2"
[ "$first" != tune ]
"""


def measure(folder, *options):
    """Returns the status and the output of pages.sh, and the tools of the records that it kept and put aside."""
    command = pathlib.Path(folder) / "octile"
    command.write_text(COMMAND)
    command.chmod(0o700)
    out = pathlib.Path(folder) / "records.jsonl"
    script = [ROOT / "tools/bench/pages.sh", "--commit", "abcdef1", "--octile", command, "--out", out, *options]
    ended = subprocess.run(script, text=True, capture_output=True, check=False)
    kept = [
        [json.loads(line)["tool"] for line in path.read_text().splitlines()] if path.exists() else []
        for path in (out, out.with_name(out.name + ".unfinished"))
    ]
    return ended.returncode, ended.stdout + ended.stderr, *kept


def expect_parts(options, status, said, kept, aside):
    """Fails unless pages.sh, in a folder of its own, does that."""
    with tempfile.TemporaryDirectory() as folder:
        got = measure(folder, *options)
    if (got[0], *got[2:]) != (status, kept, aside) or said not in got[1]:
        sys.exit(f"pages.sh {' '.join(options)}: {got}")


def expect_whole_parts():
    expect_parts(["--parts", "mx,wgrad"], 1, "failed: mx (1); what they measured is in ", ["bench"], ["tune"])
    expect_parts(["--parts", "card,scales"], 0, "== card: exit status 0", ["bench", "doctor"], [])
    expect_parts(["--parts", "wgrad,mx", "--seconds", "1"], 0, "not begun within 1 s: wgrad mx", [], [])
    expect_parts(["--parts", "wgrad", "--dry-run"], 0, "bench --model ", [], [])
    expect_parts(["--parts", "wgrad,gemm"], 2, "--parts has 'gemm'; allowed: wgrad quantise ", [], [])
    expect_parts(["--seconds", "soon"], 2, "--seconds is 'soon'; allowed: 1 to 99999", [], [])


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = tree(folder)
        expect(root)
        (root / "BENCHMARKS.md").write_text((root / "BENCHMARKS.md").read_text().replace("1.516", "1.616"))
        expect(root, "BENCHMARKS.md differs from docs/records")
    with tempfile.TemporaryDirectory() as folder:
        root = tree(folder)
        path = root / "docs/distributed.md"
        path.write_text(path.read_text().replace("145.4, 15.8", "144.4, 15.8"))
        expect(root, "docs/distributed.md differs from docs/records")
    with tempfile.TemporaryDirectory() as folder:
        root = tree(folder)
        slow_down(root)
        expect(
            root,
            "BENCHMARKS.md differs",
            'README.md lacks a sentence that docs/records gives: "0.63 times the speed of the faster of',
        )
        if "- **Dense GEMMs**: 24 of 24 are slower than DeepGEMM's" not in pages.page(measurements.load(root)):
            sys.exit("a page of slow GEMMs does not say so")
    with tempfile.TemporaryDirectory() as folder:
        expect_new_weight_gradients(tree(folder))
    expect_whole_parts()
    # The interval of six values is that of runtime/measure/statistics.h: their whole range.
    if measurements.median_interval([3, 1, 2, 6, 5, 4]) != (1, 6):
        sys.exit("median_interval is not that of statistics.h")


if __name__ == "__main__":
    main()
