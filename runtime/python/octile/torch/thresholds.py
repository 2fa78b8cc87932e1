"""From how many tokens on FP8 pays in a layer, and from how many rows on in the experts of a mixture, by verdicts on
measured ones.

The verdicts are those of ``octile bench verdict``: records of layers ("what" is "layer ...", in docs/records.md) with
the details ``verdict`` and ``verdict_eager``, and FP8 pays if both say so. ``layers.jsonl`` and ``experts.jsonl`` hold
those that the package ships, of forward and backward with W quantised once (training), and of forward alone with W
quantised before (prefill), which ``tools/lab/thresholds.py`` measures. If ``OCTILE_VERDICTS`` names a file of records,
those of this card stand for the shipped ones. On a card of another compute capability than the measured one, the
verdicts of ``octile shapes --estimate`` stand for them.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from octile._paths import command

#: The recipe whose measurement stands for those that were not measured.
MEASURED = "blockwise"
#: From how many tokens on a forward pass alone is taken to gain although it compares its weight, which takes as long as
#: to read it. On an H100 [4096, 4096], [7168, 2048] and [8192, 8192] gained at 4096 tokens, and none at 1024.
COMPARED_TOKENS = 2048


#: Kinds of verdicts, each with a file of its name.
LAYERS, EXPERTS = "layers", "experts"


class Point(NamedTuple):
    """One layer or the experts of one mixture, and whether FP8 pays in it; None: not known."""

    tokens: int  #: of experts: the rows of all
    n: int
    k: int  #: of experts, [n, k] is the weight behind the activation: hidden size and width
    training: bool | None  #: in forward and backward
    forward: bool | None  #: in forward alone
    experts: int = 1

    def pays(self, training: bool) -> bool | None:
        """Returns whether FP8 pays in forward and backward, or in forward alone if that is known."""
        return self.training if training or self.forward is None else self.forward

    def least_with(self, experts: int) -> int:
        """Returns from how many rows on this number of experts has the point's rows, in all and an expert, or more."""
        return -(-self.tokens * max(experts, self.experts) // self.experts)

    def most_with(self, experts: int) -> int:
        """Returns up to how many rows this number of experts has the point's rows, in all and an expert, or fewer."""
        return self.tokens * min(experts, self.experts) // self.experts


@dataclass(frozen=True)
class Thresholds:
    """Verdicts, and what follows from them for other layers or experts.

    More tokens, a larger n and a larger k let FP8 gain more. So FP8 pays in a layer if it pays at a point with at
    most as many tokens, n and k, unless a point with at least as many says otherwise. Rows of experts count in all and
    an expert: kernels start once for all rows, and the weights of each expert are quantised for its own.
    """

    card: str
    points: dict[str, tuple[Point, ...]]  #: by recipe

    def least_tokens(
        self, n: int, k: int, recipe: str = MEASURED, training: bool = True, experts: int = 1
    ) -> int | None:
        """Returns the least number of tokens at which FP8 pays in a layer [n, k], or of rows in this number of experts,
        or None if no point says so."""
        points = [p for p in self.points.get(recipe) or self.points[MEASURED] if p.pays(training) is not None]
        gains = (p.least_with(experts) for p in points if p.n <= n and p.k <= k and p.pays(training))
        losses = (p.most_with(experts) for p in points if p.n >= n and p.k >= k and not p.pays(training))
        slow = max(losses, default=-1)
        return min((tokens for tokens in gains if tokens > slow), default=None)


def thresholds_of(card: str, points: dict[str, Iterable[Iterable]]) -> Thresholds:
    """Returns verdicts of rows in the order of ``Point``."""
    return Thresholds(card, {name: tuple(Point(*row) for row in rows) for name, rows in points.items()})


@cache
def measured(of: str) -> Thresholds:
    """Returns the verdicts on layers or experts that the package ships, all of one card."""
    records = _records((Path(__file__).parent / f"{of}.jsonl").read_text())
    card = records[0]["card"]["name"]
    return Thresholds(card, points_of(records, card, of))


# ---- the verdicts of this machine

VARIABLE = "OCTILE_VERDICTS"
_LAYER = re.compile(r"layer .*layer=(\S+) mode=(\w+) tokens=(\d+) n=(\d+) k=(\d+) recipe=(\w+)(?::f32)?")


def card_here() -> str | None:
    """Returns the name of the current GPU, or None without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def thresholds_of_recipe(recipe: str, of: str = LAYERS) -> tuple[Thresholds, str]:
    """Returns what serves layers or experts of the recipe, and in words which it is: the verdicts of the file that
    ``OCTILE_VERDICTS`` names if they are of this card and the recipe, else estimates if this card is unlike the
    measured one, else what the package ships, and why."""
    shipped = measured(of)
    prefix = "experts of " if of == EXPERTS else ""
    description = f"{prefix}{recipe if recipe in shipped.points else MEASURED} by verdicts measured on {shipped.card}"
    card = card_here()
    if card != shipped.card and not _is_like_measured():
        try:
            shipped = Thresholds(card, {recipe: _estimated(recipe, _device_here(), of)})
            description = f"{prefix}{recipe} by estimates for {card}, on which thresholds.py has not run"
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            description += f", which is another kind of GPU than {card}: it could not be estimated ({error})"
    path = os.environ.get(VARIABLE)
    if path is None:
        return shipped, description
    found, why = _read_verdicts(path, card, of)
    if found is not None and recipe in found:
        description = f"{prefix}{recipe} by verdicts measured on {card}, in {path}"
        return Thresholds(card or "", {recipe: found[recipe]}), description
    why = why or f"it has no verdicts of {prefix}recipe {recipe} on {card}"
    return shipped, f"{description}; not {VARIABLE}={path}: {why}"


# ---- estimates

_MEASURED_CAPABILITY = (9, 0)


def _is_like_measured() -> bool:
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() == _MEASURED_CAPABILITY


def _device_here() -> str:
    return f"cuda:{torch.cuda.current_device()}"


@cache
def _estimated(recipe: str, device: str, of: str) -> tuple[Point, ...]:
    """Returns the verdicts of ``octile shapes --estimate`` on the measured layers or experts for the device. Raises
    OSError, ValueError, KeyError or SubprocessError."""
    points = measured(of).points[MEASURED]
    tokens = sorted({p.tokens for p in points})
    weights = sorted({weight for p in points for weight in _weights_of(p, of)})
    rows = [
        {"role": f"{n}x{k}x{groups}", "layers": 1, "n": n, "k": k, "split": "-", "recipe": recipe}
        | ({"groups": groups, "per_token": 1} if of == EXPERTS else {})
        for n, k, groups in weights
    ]
    words = ["--estimate", "--json", "--device", device, "--recipe", recipe, "--mode", "training,prefill"]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"models": [{"model": of, "weights": rows}]}, file)
        file.flush()
        words = [command(), "shapes", "--model", file.name, *words, "--tokens", ",".join(map(str, tokens))]
        others = {name: value for name, value in os.environ.items() if name != VARIABLE}
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60, env=others)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    layers = json.loads(done.stdout)["models"][0]["estimate"]["layers"]
    pays = {(la["mode"], la["tokens"], la["n"], la["k"], la.get("groups", 1)): _pays(la) for la in layers}
    sizes = {(p.n, p.k, p.experts): _weights_of(p, of) for p in points}
    return _merged(
        (mode, count, *size, all(pays[mode, count, *weight] for weight in parts))
        for mode in ("training", "prefill")
        for count in tokens
        for size, parts in sizes.items()
        if all((mode, count, *weight) in pays for weight in parts)
    )


def _weights_of(point: Point, of: str) -> list[tuple[int, int, int]]:
    """Returns n, k and the experts of each weight, in experts of gate and up in one and of down."""
    last = point.n, point.k, point.experts
    return [(2 * point.k, point.n, point.experts), last] if of == EXPERTS else [last]


# ---- records of layers

_MOST_BYTES = 64 << 20


def _text_of(path: str) -> str:
    """Returns the text of a regular file of at most 64 MiB; a FIFO is not waited for. Raises OSError or ValueError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return data.decode()


def _read_verdicts(path: str, card: str | None, of: str) -> tuple[dict[str, tuple[Point, ...]] | None, str]:
    """Returns the points by recipe, or None and why."""
    if card is None:
        return None, "no GPU is here"
    try:
        return points_of(_records(_text_of(path)), card, of), ""
    except OSError as error:
        return None, f"it cannot be read: {error.strerror}"
    except ValueError as error:
        return None, f"it is not a file of records: {error}"


def _records(text: str) -> list[dict]:
    """Returns the records of a file. Raises ValueError naming the line."""
    records = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        try:
            if line.strip():
                records.append(_checked(json.loads(line)))
        except (ValueError, RecursionError) as error:
            reason = "it is not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else error
            raise ValueError(f"line {number}: {reason}") from None
    return records


def _checked(record: object) -> dict:
    """Returns the record if the fields that are read here have their types. Raises ValueError naming one."""
    if not isinstance(record, dict):
        raise ValueError("it is not an object")
    details = record.setdefault("details", {})
    card = record.get("card")
    fields = {
        "what": isinstance(record.get("what"), str),
        "card": isinstance(card, dict) and isinstance(card.get("name"), str),
        "ok": isinstance(record.get("ok"), bool),
        "details": isinstance(details, dict),
    }
    if fields["details"]:
        kinds = {"groups": int, "rows": int, "verdict": str, "verdict_eager": str, "bf16": str}
        fields |= {f"details.{name}": type(details[name]) is kind for name, kind in kinds.items() if name in details}
        layer = _LAYER.fullmatch(str(record.get("what")))
        if layer is not None and _is_of_experts(layer) and details.get("groups"):
            fields["details.rows"] = type(details.get("rows")) is int
    for name, good in fields.items():
        if not good:
            raise ValueError(f"{name} is missing or of another type")
    return record


def points_of(records: Iterable[dict], card: str, of: str = LAYERS) -> dict[str, tuple[Point, ...]]:
    """Returns the points of the card's measured layers or experts, by recipe. Records of a single weight of experts are
    neither: a module of experts is measured as a whole."""
    verdicts: dict[str, list[tuple]] = defaultdict(list)
    for record in records:
        match = _LAYER.fullmatch(record["what"])
        details = record.get("details", {})
        if match is None or record["card"]["name"] != card or not record["ok"] or "verdict_eager" not in details:
            continue
        mode, *numbers, recipe = match.groups()[1:]
        experts = details.get("groups", 0)
        if _is_of_experts(match) != (of == EXPERTS) or bool(experts) != (of == EXPERTS):
            continue
        if details.get("bf16", "measured") != "measured":
            continue
        tokens, n, k = map(int, numbers)
        size = (details["rows"], n, k, experts) if of == EXPERTS else (tokens, n, k, 1)
        verdicts[recipe].append((mode, *size, _pays(details)))
    return {recipe: _merged(those) for recipe, those in verdicts.items()}


def _is_of_experts(layer: re.Match[str]) -> bool:
    """Returns whether the name is that of a module of experts."""
    return layer[1].endswith("experts")


def _pays(verdicts: dict) -> bool:
    return verdicts.get("verdict", "pays") == verdicts["verdict_eager"] == "pays"


def _merged(verdicts: Iterable[tuple]) -> tuple[Point, ...]:
    """Returns the points of (mode, tokens, n, k, experts, pays), of which the last of a mode and sizes counts."""
    pays: dict[tuple, dict[bool, bool]] = defaultdict(dict)
    for mode, *at, verdict in verdicts:
        pays[tuple(at)][mode == "training"] = verdict
    return tuple(Point(*at, of.get(True), of.get(False), experts) for (*at, experts), of in pays.items())
