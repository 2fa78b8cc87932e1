"""From how many tokens on an FP8 layer is faster than ``nn.Linear``, as measured on a GPU.

``thresholds.json`` holds the measurement, which ``tools/lab/thresholds.py`` makes: for each recipe rows
of tokens, n, k, and how many times as fast as ``nn.Linear`` in bfloat16 the layer was, eager, in forward and backward
with W quantised once, and in forward alone with W quantised before. A time that is not known is null.

The records of ``octile bench verdict --records FILE`` on this card stand for that, if ``OCTILE_VERDICTS`` names their
file. On a card of another compute capability than the measured one, the cost model's estimate stands for it until
``thresholds.py`` has run there.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from octile._paths import command

#: The recipe whose measurement stands for those that were not measured.
MEASURED = "blockwise"
#: A gain below this may be noise.
LEAST_GAIN = 1.02
#: From how many tokens on a forward pass alone is taken to gain although it compares its weight, which takes as long as
#: to read it. On an H100 [4096, 4096], [7168, 2048] and [8192, 8192] gained at 4096 tokens, and none at 1024.
COMPARED_TOKENS = 2048


class Point(NamedTuple):
    """One measured layer."""

    tokens: int
    n: int
    k: int
    training: float | None  #: BF16's time of forward and backward over FP8's
    forward: float | None  #: BF16's time of forward alone over FP8's

    def gain(self, training: bool) -> float | None:
        """Returns how many times as fast as BF16 the layer was."""
        return self.training if training or self.forward is None else self.forward


@dataclass(frozen=True)
class Thresholds:
    """A measurement, and what follows from it for layers that were not measured.

    More tokens, a larger n and a larger k let FP8 gain more. So a layer gains if one no larger in any of the three did,
    unless one no smaller in any of them did not.
    """

    card: str
    points: dict[str, tuple[Point, ...]]  #: by recipe

    def least_tokens(self, n: int, k: int, recipe: str = MEASURED, training: bool = True) -> int | None:
        """Returns the least number of tokens at which a layer [n, k] gains, or None if no measured point says so."""
        points = [p for p in self.points.get(recipe) or self.points[MEASURED] if p.gain(training) is not None]
        gains = (p.tokens for p in points if p.n <= n and p.k <= k and p.gain(training) >= LEAST_GAIN)
        losses = (p.tokens for p in points if p.n >= n and p.k >= k and p.gain(training) < LEAST_GAIN)
        slow = max(losses, default=-1)
        return min((tokens for tokens in gains if tokens > slow), default=None)

    def to_json(self, torch_version: str) -> str:
        """Returns the text of the data file, a row a line."""
        recipes = ",\n".join(
            f"    {json.dumps(name)}: [\n" + ",\n".join(f"      {json.dumps(list(p))}" for p in points) + "\n    ]"
            for name, points in self.points.items()
        )
        head = {"card": self.card, "torch": torch_version, "columns": list(Point._fields)}
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
        return f'{{\n{lines},\n  "points": {{\n{recipes}\n  }}\n}}\n'


def thresholds_of(card: str, points: dict[str, Iterable[Iterable]]) -> Thresholds:
    """Returns a measurement of rows in the order of ``Point``."""
    return Thresholds(card, {name: tuple(Point(*row) for row in rows) for name, rows in points.items()})


@cache
def measured() -> Thresholds:
    """Returns the measurement that the package ships."""
    data = json.loads(Path(__file__).with_suffix(".json").read_text())
    return thresholds_of(data["card"], data["points"])


# ---- the verdicts of this machine

VARIABLE = "OCTILE_VERDICTS"
_LAYER = re.compile(r"layer .* mode=(\w+) tokens=(\d+) n=(\d+) k=(\d+) recipe=(\w+)(?::f32)?")
#: Microseconds that the host takes for a layer call by call, ``nn.Linear`` and FP8: verdicts are of CUDA graphs, and
#: an eager layer takes at least as long. From the smallest layers of ``thresholds.json``, whose time is the host's.
_HOST_US = {"training": (190.0, 245.0), "forward": (25.0, 36.0)}


def card_here() -> str | None:
    """Returns the name of the current GPU, or None without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def thresholds_of_recipe(recipe: str) -> tuple[Thresholds, str]:
    """Returns what serves the recipe, and in words which it is: the verdicts of the file that ``OCTILE_VERDICTS`` names
    if they are of this card and the recipe, else the cost model's estimate if this card is unlike the measured one,
    else what the package ships, and why."""
    shipped = measured()
    of = recipe if recipe in shipped.points else MEASURED
    told = f"{of} as measured on {shipped.card}"
    card = card_here()
    if card != shipped.card and not _is_like_measured():
        try:
            shipped = Thresholds(card, {recipe: _estimated(recipe, _device_here())})
            told = f"{recipe} as the cost model estimates it for {card}, on which thresholds.py has not run"
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            told += f", which is another kind of GPU than {card}: it could not be estimated ({error})"
    path = os.environ.get(VARIABLE)
    if path is None:
        return shipped, told
    found, why = _read_verdicts(path, card)
    if found is not None and recipe in found:
        return Thresholds(card or "", {recipe: found[recipe]}), f"{recipe} by the verdicts in {path}, eager, on {card}"
    why = why or f"it has no verdicts of recipe {recipe} on {card}"
    return shipped, f"{told}; not {VARIABLE}={path}: {why}"


# ---- the cost model's estimate

_MEASURED_CAPABILITY = (9, 0)


def _is_like_measured() -> bool:
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() == _MEASURED_CAPABILITY


def _device_here() -> str:
    return f"cuda:{torch.cuda.current_device()}"


@cache
def _estimated(recipe: str, device: str) -> tuple[Point, ...]:
    """Returns the gains of the measured layers as ``octile shapes --estimate`` has them for the device, eager. Raises
    OSError, ValueError, KeyError or SubprocessError."""
    points = measured().points[MEASURED]
    sizes = sorted({(p.n, p.k) for p in points})
    tokens = sorted({p.tokens for p in points})
    gemms = [{"name": f"{n}x{k}", "n": n, "k": k, "split": "none"} for n, k in sizes]
    shapes = {"model": "layers", "source": "thresholds.json", "gemms": gemms, "tokens": tokens}
    words = ["--estimate", "--json", "--device", device, "--recipe", recipe, "--mode", "training,prefill"]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(shapes, file)
        file.flush()
        words = [command(), "shapes", "--model", file.name, *words, "--tokens", ",".join(map(str, tokens))]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    gains: dict[tuple[int, int, int], dict[str, float]] = defaultdict(dict)
    for layer in json.loads(done.stdout)["models"][0]["estimate"]["layers"]:
        gain = layer["eager_bf16_us"] / layer["eager_fp8_us"]
        gains[layer["tokens"], layer["n"], layer["k"]][layer["mode"]] = gain
    return tuple(Point(*at, of.get("training"), of.get("prefill")) for at, of in gains.items())


# ---- the verdicts of this card


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


def _read_verdicts(path: str, card: str | None) -> tuple[dict[str, tuple[Point, ...]] | None, str]:
    """Returns the points by recipe, or None and why."""
    if card is None:
        return None, "no GPU is here"
    try:
        lines = _text_of(path).splitlines()
        points = list(_points(map(json.loads, lines), card))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        return None, f"it is not a file of records ({error})"
    known: dict[str, dict[tuple[int, int, int], Point]] = defaultdict(dict)
    for recipe, point in points:
        before = known[recipe].get(point[:3], Point(*point[:3], None, None))
        training = before.training if point.training is None else point.training
        forward = before.forward if point.forward is None else point.forward
        known[recipe][point[:3]] = Point(*point[:3], training, forward)
    return {recipe: tuple(of.values()) for recipe, of in known.items()}, ""


def _points(records: Iterable[dict], card: str) -> Iterator[tuple[str, Point]]:
    """Yields the recipe and the point of each measured layer of the card, without experts."""
    for record in records:
        told = _LAYER.fullmatch(record["what"])
        details = record.get("details", {})
        if told is None or record["card"]["name"] != card or not record["ok"]:
            continue
        if details["groups"] or details["bf16"] != "measured":
            continue
        mode, *numbers, recipe = told.groups()
        kind = "training" if mode == "training" else "forward"
        host_bf16, host_fp8 = _HOST_US[kind]
        gain = max(record["peers"][0]["median"], host_bf16) / max(record["median"], host_fp8)
        gains = (gain, None) if kind == "training" else (None, gain)
        yield recipe, Point(*map(int, numbers), *gains)
