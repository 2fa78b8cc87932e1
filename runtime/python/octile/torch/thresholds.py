"""From how many tokens on an FP8 layer is faster than ``nn.Linear``, as measured on a GPU.

``thresholds.json`` holds the measurement, which ``runtime/python/benchmarks/thresholds.py`` makes: for each recipe rows
of tokens, n, k, and how many times as fast as ``nn.Linear`` in bfloat16 the layer was, eager, in forward and backward
with W quantised once, and in forward alone with W quantised before. A forward time that is not known is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
    training: float  #: BF16's time of forward and backward over FP8's
    forward: float | None  #: BF16's time of forward alone over FP8's

    def gain(self, training: bool) -> float:
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
        points = self.points.get(recipe) or self.points[MEASURED]
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
