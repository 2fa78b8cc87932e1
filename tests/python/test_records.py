"""Every row of docs/records has a reader: a table, a sentence, a plot, a notebook or a test of estimates."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from octile.notebooks import layer, one_scale, records

ROOT = Path(__file__).parents[2]
ESTIMATES = ROOT / "tests" / "unit" / "tools" / "verdict_test.cc"


def is_layer_as_graph(row):
    """Returns whether measured_layers() of verdict_test.cc takes the row."""
    measured = row.get("part") in ("decoding, weights trusted", "graph", "step")
    return measured and row["protocol"]["timing"] == "graph" and row["peers"][0]["name"] == "bf16"


def is_quantizer(row):
    return row["what"].startswith("quantize ") and row["unit"] == "us"


#: The rows that verdict_test.cc takes of the files that it names. tools/models/bf16_fit.py takes no others.
OF_ESTIMATES = {
    "h100-0971869": is_layer_as_graph,
    "h100-3924796": is_layer_as_graph,
    "h100-2026-11-26": is_layer_as_graph,
    "h200-dde5cca": is_layer_as_graph,
    "h100-9a6c646": is_quantizer,
    "h200-d86c932": is_quantizer,
    "h100-61770ac": lambda row: row["unit"] == "ratio",
}


class Watched(dict):
    """A record or one of its peers. Whoever asks for a value of it, calls ``told``."""

    def __init__(self, fields, told):
        super().__init__(fields)
        self.told = told

    def __getitem__(self, name):
        if name in ("samples", "median", "ratio"):
            self.told()
        return super().__getitem__(name)

    def get(self, name, default=None):
        return self[name] if name in self else default


class Readers:
    """The rows of docs/records, and which of them were read."""

    def __init__(self, rows):
        self.read = set()
        self.rows = [self.watched(at, row) for at, row in enumerate(rows)]

    def watched(self, at, row):
        told = lambda: self.read.add(at)  # noqa: E731
        return Watched(row | {"peers": [Watched(peer, told) for peer in row.get("peers", [])]}, told)

    def orphans(self):
        """Returns those that nobody has read, as file, what and part."""
        return [
            f"{row['file']}: {row['tool']}, {row['what']}, {row.get('part', 'whole')}"
            for at, row in enumerate(self.rows)
            if at not in self.read
        ]


def read_all(rows, patch, folder):
    """Returns the readers of rows, behind everything that reads them."""
    readers = Readers(rows)
    patch.setattr(records, "load", lambda root: readers.rows)
    patch.syspath_prepend(ROOT / "tools" / "plots")
    for name in ("measurements", "pages", "plot"):
        patch.delitem(sys.modules, name, raising=False)
    import pages
    import plot

    pages.check(ROOT, readers.rows)
    patch.setattr(plot, "OUTPUT", folder)
    plot.main()
    one_scale.measured(ROOT)
    for sizes in layer.measured_sizes(ROOT):
        for recipe in layer.RECIPES:
            layer.times_of(recipe, *sizes, ROOT)
    for at, row in enumerate(rows):
        takes = OF_ESTIMATES.get(row["file"].removesuffix(".jsonl"))
        if takes is not None and takes(row):
            readers.read.add(at)
    return readers


def test_every_row_has_a_reader(monkeypatch, tmp_path):
    rows = records.load(ROOT)
    assert read_all(rows, monkeypatch, tmp_path).orphans() == []


def test_a_row_without_a_reader_is_named(monkeypatch, tmp_path):
    rows = records.load(ROOT)
    old = next(row for row in rows if row["tool"] == "layer.py" and row.get("part") == "host")
    rows.append(old | {"file": "h100-old.jsonl", "date": "2026-01-01"})
    assert read_all(rows, monkeypatch, tmp_path).orphans() == [f"h100-old.jsonl: layer.py, {old['what']}, host"]


def test_the_files_of_estimates_are_those_that_their_test_names():
    named = set(re.findall(r'"(h[12]00-[0-9a-f-]+)"', ESTIMATES.read_text()))
    assert named == set(OF_ESTIMATES)
