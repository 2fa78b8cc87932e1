#!/usr/bin/env python3
"""Joins the reports of octile_gpu_suite's shards, which ran at once on the GPUs of one machine, into one.

    for i in 0 1 2 3; do
      CUDA_VISIBLE_DEVICES=$i GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$i octile_gpu_suite --report shard-$i.json &
    done; wait
    merge_reports.py shard-*.json > tests/gpu/REPORT.json

The shards must have run the same kernels on the same kind of card, each test in one of them.
"""
import json
import sys

SAME = ("format", "device", "driver", "set", "kernels", "launch_code")
JOINED = ("results", "cases", "seconds")


def merged(reports):
    """Returns one report of all; ValueError says what makes them none."""
    whole = dict(reports[0])
    for other in reports[1:]:
        for field in SAME:
            if other[field] != whole[field]:
                raise ValueError(f"the reports differ in '{field}'")
        for field in JOINED:
            parts = [report.get(field) or {} for report in (whole, other)]
            if twice := parts[0].keys() & parts[1].keys():
                raise ValueError(f"'{field}' of {min(twice)} is in two reports")
            whole[field] = dict(sorted({**parts[0], **parts[1]}.items()))
        whole["date"] = max(whole["date"], other["date"])
        whole["total_seconds"] += other["total_seconds"]
        whole["worst_c"] = {key: max(value, other["worst_c"][key]) for key, value in whole["worst_c"].items()}
    return whole


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    reports = []
    for path in sys.argv[1:]:
        with open(path) as file:
            reports.append(json.load(file))
    print(json.dumps(merged(reports), indent=1))


if __name__ == "__main__":
    main()
