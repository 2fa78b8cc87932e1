"""The records of measurements in docs/records, and the GPU suite's report: what is measured, of which card and when.

Notebooks find them in the source tree that they lie in.
"""

from __future__ import annotations

import datetime
import json
import pathlib
import statistics

CARDS = {"NVIDIA H200": "H200", "NVIDIA H100 80GB HBM3": "H100"}


def source_tree(start: str | pathlib.Path = ".") -> pathlib.Path:
    """Returns the folder above ``start`` that has docs/records. Raises FileNotFoundError."""
    start = pathlib.Path(start).resolve()
    for folder in (start, *start.parents):
        if (folder / "docs" / "records").is_dir():
            return folder
    raise FileNotFoundError(
        f"octile: {start} is in no source tree of Octile; allowed are folders of a clone, which has docs/records"
    )


def load(root: str | pathlib.Path) -> list[dict]:
    """Returns all records of a source tree, each with the file that has it."""
    return [
        json.loads(line) | {"file": path.name}
        for path in sorted((pathlib.Path(root) / "docs" / "records").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def median(values: dict) -> float:
    """Returns the median of a record, a peer or a ratio."""
    return statistics.median(values["samples"]) if "samples" in values else values["median"]


def peer_of(record: dict, name: str | None = None) -> dict | None:
    """Returns the peer of this name, by default the first, or None."""
    return next((p for p in record.get("peers", []) if name in (None, p["name"])), None)


def fields(record: dict) -> dict[str, str]:
    """Returns the fields of a problem's text: its first word, and what stands behind each '='."""
    first, *others = record["what"].split()
    return {"": first} | dict(word.split("=", 1) for word in others if "=" in word)


def newest_of_each(records: list[dict]) -> list[dict]:
    """Returns the newest measurement of each thing, by card."""
    found = {}
    for r in sorted(records, key=lambda r: r["date"]):
        found[r["card"]["name"], r["what"], r.get("part")] = r
    return list(found.values())


def of_tool(records: list[dict], tool: str, part: str | None = None) -> list[dict]:
    return [r for r in records if r["tool"] == tool and part in (None, r.get("part"))]


def card(record: dict) -> str:
    return CARDS.get(record["card"]["name"], record["card"]["name"])


def day_of(date: str) -> str:
    """Returns a record's date in words: "30 November 2026"."""
    day = datetime.date.fromisoformat(date[:10])
    return f"{day.day} {day:%B %Y}"


def source_of(record: dict) -> str:
    """Returns where a measurement comes from: "H200, 30 November 2026, commit 649aa15"."""
    commit = f", commit {record['commit'][:7]}" if record.get("commit") else ""
    return f"{card(record)}, {day_of(record['date'])}{commit}"


def gpu_report(root: str | pathlib.Path) -> dict:
    """Returns the report of the GPU suite (tests/gpu/REPORT.json)."""
    return json.loads((pathlib.Path(root) / "tests" / "gpu" / "REPORT.json").read_text())
