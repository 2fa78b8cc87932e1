"""Measurements as lines of JSON, the schema of docs/records.md: what the scripts of this folder print and keep.

parser_of() gives every script --records FILE. OCTILE_COMMIT names the commit.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

RATIO = "ratio"  # the unit of values that are the one peer's over Octile's


def rounded(value: float) -> float:
    """Returns the number with six digits, more than a measurement has."""
    return float(f"{value:.6g}")


def values_of(values: float | Sequence[float]) -> dict:
    """Returns the fields of samples, or of a number of which there are none."""
    if isinstance(values, (int, float)):
        return {"median": rounded(values)}
    return {"samples": [rounded(value) for value in values]}


def driver_version() -> str:
    """Returns the CUDA version of the driver, as "13.0", or nothing if there is none."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return ""
    except OSError:
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def card_of(device: str) -> dict:
    """Returns the card: "cuda", or "cpu" for a trial on the host."""
    import torch
    from timing import card

    if device == "cpu":
        return {"name": card(device)}
    driver = driver_version()
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    return {"name": card(device), "capability": capability} | ({"driver": driver} if driver else {})


def peer_of(name: str, values: float | Sequence[float] | None = None, version: str = "") -> dict:
    """Returns what a measurement is compared with. values: None if the record's own are ratios."""
    return (
        {"name": name} | ({"version": version} if version else {}) | (values_of(values) if values is not None else {})
    )


def protocol_of(
    timing: str, rounds: int = 0, *, interleaved: bool = True, l2: str | None = None, note: str = ""
) -> dict:
    """Returns how it was measured. timing: "graph", "stream", "host" or another word."""
    counted = {"rounds": rounds} if rounds else {}
    return {"timing": timing, **counted, "interleaved": interleaved} | {
        name: text for name, text in (("l2", l2), ("note", note)) if text
    }


class Records:
    """The measurements of one script: each is printed as a line of JSON, and appended to a file if there is one."""

    def __init__(self, path: Path | None, device: str) -> None:
        self.path, self.tool, self.card = path, Path(sys.argv[0]).name, card_of(device)

    def made(
        self,
        what: str,
        unit: str,
        values: float | Sequence[float],
        protocol: dict,
        *,
        part: str = "",
        peers: Sequence[dict] = (),
        ok: bool = True,
        check: str = "",
        **details: str | float | bool,
    ) -> dict:
        """Returns the record of one measurement."""
        import octile  # here, because coldstart.py times it

        now = datetime.datetime.now(datetime.timezone.utc)
        fields = {
            "record": 1,
            "tool": self.tool,
            "what": what,
            "part": part,
            "card": self.card,
            "library": octile.__version__,
            "commit": os.environ.get("OCTILE_COMMIT", ""),
            "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "protocol": protocol,
            "unit": unit,
            **values_of(values),
            "peers": list(peers),
            "ok": ok,
            "check": check,
            "details": details,
        }
        return {name: value for name, value in fields.items() if value not in ("", [], {})}

    def keep(self, record: dict) -> dict:
        """Prints a record, appends it to the file, and returns it."""
        line = json.dumps(record)
        print(line, flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(line + "\n")
        return record

    def add(self, *fields, **more) -> dict:
        """Keeps the record that made() makes of these arguments, and returns it."""
        return self.keep(self.made(*fields, **more))


def parser_of(doc: str | None, devices: Sequence[str] = ("cuda", "cpu")) -> argparse.ArgumentParser:
    """Returns a script's parser, with its --device, the first by default, and --records."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=devices[0], choices=devices)
    parser.add_argument(
        "--records", type=Path, help="a file that gets a line of JSON for each measurement; OCTILE_COMMIT: the commit"
    )
    return parser
