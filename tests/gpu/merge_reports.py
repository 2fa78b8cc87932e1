#!/usr/bin/env python3
"""Joins the reports of octile_gpu_suite's shards, which ran at once on the GPUs of one machine, into one.

    for i in 0 1 2 3; do
      CUDA_VISIBLE_DEVICES=$i GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$i octile_gpu_suite --report shard-$i.json &
    done; wait
    merge_reports.py shard-*.json > tests/gpu/REPORT.json

The shards must have run the same kernels on the same kind of card, each test in one of them. The text has the lines
that octile_gpu_suite writes.
"""
import json
import sys

SAME = ("format", "device", "driver", "set", "kernels", "launch_code")


def merged(reports):
    """Returns one report of all; ValueError says why they do not fit."""
    whole = dict(reports[0])
    for other in reports[1:]:
        for field in SAME:
            if other[field] != whole[field]:
                raise ValueError(f"the reports differ in '{field}'")
        if twice := whole["tests"].keys() & other["tests"].keys():
            raise ValueError(f"{min(twice)} is in two reports")
        whole["tests"] = dict(sorted((whole["tests"] | other["tests"]).items()))
        whole["date"] = max(whole["date"], other["date"])
        whole["worst_c"] = {key: max(value, other["worst_c"][key]) for key, value in whole["worst_c"].items()}
    return whole


def in_lines(report):
    """Returns the report with a line for each member, and for each member of an object, as tests/gpu/main.cc does."""

    def text(value):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    def member(value):
        if not isinstance(value, dict):
            return text(value)
        return "{" + ",".join(f"\n  {text(name)}: {text(one)}" for name, one in value.items()) + "\n }"

    return "{" + ",".join(f"\n {text(name)}: {member(value)}" for name, value in report.items()) + "\n}\n"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    reports = []
    for path in sys.argv[1:]:
        with open(path) as file:
            reports.append(json.load(file))
    sys.stdout.write(in_lines(merged(reports)))


if __name__ == "__main__":
    main()
