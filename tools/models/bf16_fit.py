"""Fits the roofline of BF16 GEMMs (tools/models/bf16_roofline.cc) to the times of cuBLASLt and PyTorch that
docs/records and docs/experiments/benchmarks.md hold, and prints its constants, its error, and the error on times that
it was not fitted to.

    python3 tools/models/bf16_fit.py
"""

import json
import math
import re
import statistics
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
SMS = 132
DRAM = {"h100": 3.12e6, "h200": 4.3e6}  # bytes a microsecond, as generator/core/device_spec.cc has them
PEAK = 989.5e6  # operations a microsecond: half of the datasheet's FP8 rate
TILES = ((64, 64), (128, 64), (128, 128), (128, 256))


def points():
    """Yields card, m, n, k and microseconds."""
    for line in (DOCS / "experiments" / "benchmarks.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8 and re.fullmatch(r"\d+ x \d+ x \d+", cells[0]) and cells[4].endswith("%"):
            yield ("h200", *map(int, cells[0].split(" x ")), float(cells[6]))
    for line in (DOCS / "records" / "h100-0971869.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("part") == "decoding, weights trusted" and record["protocol"]["timing"] == "graph":
            m, n, k = map(int, re.findall(r"(?:tokens|n|k)=(\d+)", record["what"]))
            yield "h100", m, n, k, statistics.median(record["peers"][0]["samples"])


def expected(point, fixed, memory, rate, norm):
    card, m, n, k, _ = point
    bytes_us = 2 * (m * k + n * k + m * n) / (memory * DRAM[card])
    waves = (math.ceil(math.ceil(m / a) * math.ceil(n / b) / SMS) * a * b for a, b in TILES)
    tensor_us = min(waves) * SMS * 2 * k / (rate * PEAK)
    return fixed + (bytes_us**norm + tensor_us**norm) ** (1 / norm)


def errors(data, constants):
    return [math.log(expected(point, *constants) / point[-1]) for point in data]


def fit(data):
    """Returns the constants with the least squares of logarithms, by coordinate descent."""
    best, step = [1.0, 0.94, 0.72, 3.5], [0.2, 0.1, 0.1, 0.5]
    least = sum(e * e for e in errors(data, best))
    for _ in range(120):
        for i in range(len(best)):
            for sign in (1, -1):
                tried = [*best[:i], best[i] + sign * step[i], *best[i + 1 :]]
                if min(tried) <= 0.01:
                    continue
                loss = sum(e * e for e in errors(data, tried))
                if loss < least:
                    best, least, step[i] = tried, loss, step[i] * 1.3
                    break
            else:
                step[i] *= 0.6
    return best


def held_out(data, group_of):
    """Returns the errors of each group by the constants that the other groups give."""
    all_errors = []
    for group in sorted({group_of(point) for point in data}):
        constants = fit([point for point in data if group_of(point) != group])
        all_errors += errors([point for point in data if group_of(point) == group], constants)
    return all_errors


def describe(name, of):
    bias, deviation = 100 * math.expm1(statistics.mean(of)), 100 * statistics.pstdev(of)
    largest = 100 * math.expm1(max(map(abs, of)))
    print(f"{name}: {len(of)} GEMMs, bias {bias:+.1f} %, deviation {deviation:.1f} %, largest {largest:.0f} %")


def main():
    data = list(points())
    constants = fit(data)
    names = ("fixed us", "share of the stream", "share of the rate", "norm of the overlap")
    for name, value in zip(names, constants, strict=True):
        print(f"{name}: {value:.3f}")
    for card in sorted(DRAM):
        describe(card, errors([point for point in data if point[0] == card], constants))
    describe("all", errors(data, constants))
    describe("all, each weight [n, k] by the fit to the others", held_out(data, lambda point: point[2:4]))
    describe("all, each card by the fit to the other", held_out(data, lambda point: point[0]))


if __name__ == "__main__":
    main()
