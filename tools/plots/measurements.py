"""The checked-in records (docs/records/*.jsonl), and those that a table or a plot is made of."""

import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "runtime" / "python"))  # records.py needs nothing that is built

from octile.notebooks import records as _records
from octile.notebooks.records import card, day_of, fields, median, newest_of_each, of_tool, peer_of  # noqa: F401


def load(root=ROOT):
    """Returns all records, each with the file that has it."""
    return _records.load(root)


def median_interval(samples):
    """Returns the 95 % interval of the median, by ranks, as runtime/measure/statistics.h does."""
    ordered, n = sorted(samples), len(samples)
    probability = below = 0.5**n
    cut = 0
    while below <= 0.025:
        cut += 1
        probability *= (n - cut + 1) / cut
        below += probability
    first = max(cut - 1, 0)
    return ordered[first], ordered[n - 1 - first]


def ratio(record, name=None):
    """Returns how many times as long as Octile the peer takes, with its interval if that is known."""
    peer = peer_of(record, name)
    if record["unit"] == "ratio":
        stated = record
    elif "ratio" in peer:
        stated = peer["ratio"]
    elif len(record.get("samples", ())) == len(peer.get("samples", ())) > 0:
        stated = {"samples": [t / o for o, t in zip(record["samples"], peer["samples"])]}
    else:
        stated = {"median": median(peer) / median(record)}
    if "samples" in stated:
        return median(stated), *median_interval(stated["samples"])
    return stated["median"], *stated.get("interval", (None, None))


def faster_peer(record):
    """Returns the ratio to whichever peer is the faster."""
    return min(ratio(record, peer["name"]) for peer in record["peers"])


def mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def shape(record):
    f = fields(record)
    return tuple(int(f[name]) for name in ("m", "n", "k"))


def newest(records):
    """Returns those of the newest file that has any, of one day the first by name. If a file has a measurement twice,
    because its part was measured again, the later one counts."""
    if not records:
        raise SystemExit("pages.py: docs/records has no measurement for a table; add records, or take the table out")
    file = max(records, key=lambda r: r["date"])["file"]
    return list({(r["tool"], r["what"], r.get("part")): r for r in records if r["file"] == file}.values())


def is_dense(r):
    f = fields(r)
    return f[""] == "gemm" and not {"group", "batch"} & f.keys() and "part" not in r


def is_blocks(r, b):
    """Returns whether the operands have blocks of 1x128 and b, with scales in fp32 or powers of two."""
    f = fields(r)
    return f.get("a", "").removesuffix(":pow2") == "e4m3:1x128" and f.get("b", "").removesuffix(":pow2") == f"e4m3:{b}"


def forward(records, peer):
    return newest([r for r in records if is_dense(r) and is_blocks(r, "128x128") and peer_of(r, peer)])


def weight_gradients(records):
    return newest([r for r in records if is_dense(r) and is_blocks(r, "1x128") and peer_of(r, "cublaslt")])


def quantisers(records):
    """Returns those of large tensors, by the text behind rows and columns."""
    found = newest(
        [r for r in records if r["what"].startswith("quantize rows=16384 cols=7168 ") and peer_of(r, "stream")]
    )
    return {r["what"].split(" ", 3)[3]: r for r in found}


def groups(records):
    return newest_of_each(
        [r for r in records if r["what"].startswith("gemm ") and "group=" in r["what"] and peer_of(r, "deepgemm")]
    )


def few_rows(records):
    return newest(of_tool(records, "octile bench quantize"))


def scaled(records, scales):
    """Returns GEMMs with scales per tensor or per row."""
    return newest([r for r in records if is_dense(r) and fields(r)["a"] == f"e4m3:{scales}" and peer_of(r, "cublaslt")])


def layers(records, part="eager"):
    return newest(of_tool(records, "layer.py", part))


def losses(records):
    """Returns the losses by recipe and kind."""
    found = [r for r in records if r["unit"] == "nats/byte" and r.get("part") != "curve"]
    return {(fields(r)["recipe"], r["part"]): r for r in newest_of_each(found)}
