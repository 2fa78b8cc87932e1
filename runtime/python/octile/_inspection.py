"""The loss of quantising to FP8: the numbers of ``octile inspect`` as objects, for ``octile.numpy.inspect`` and
``octile.torch.inspect``."""

from __future__ import annotations

import ctypes
import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import NamedTuple

from octile import _c
from octile._recipes import ROWS, Row
from octile._types import DTYPES, GRANULARITIES, SCALE_FORMATS, TensorType, one_of, refuse, wrong_type

_SHOWN = 20  # lines that a printed inspection has
_MOST_WORST = 4
ROLES = ("weight", "activation", "gradient")


def _db(signal: float, noise: float) -> float:
    """Returns the ratio in decibels: infinite without noise, minus infinity without signal, NaN of nothing."""
    if noise:
        return 10 * math.log10(signal / noise) if signal else -math.inf
    return math.inf if signal else math.nan


class Block(NamedTuple):
    """Elements that share a scale."""

    matrix: int  #: of several in one tensor, such as experts
    row: int
    col: int
    rows: int
    cols: int
    snr_db: float  #: without the element that alone sets the scale, if one does; infinite without an error
    flushed_share: float  #: of its nonzero elements
    amax: float
    set_by_one: bool  #: every other element is at most half as large as the largest

    def _rank(self) -> float:
        """Returns what orders blocks, the worst first, as Loss::insert in runtime/reference/quantize/loss.cc does: one
        of which more than half is flushed counts as having lost that share."""
        return _rank_db(self.snr_db, self.flushed_share) if self.flushed_share > 0.5 else self.snr_db


def _rank_db(snr_db: float, flushed_share: float) -> float:
    """Returns the lower of an SNR and of the flushed share as one: rank_db() of runtime/reference/quantize/loss.h."""
    if math.isnan(snr_db) or flushed_share == 0:
        return snr_db
    return min(snr_db, -10 * math.log10(flushed_share))


@dataclass
class Loss:
    """The loss of quantising to one type. Sums are in fp64; NaNs and infinities have no part in them."""

    signal: float = 0.0  #: the sum of x^2
    noise: float = 0.0  #: the sum of (x - code * scale)^2
    rest_signal: float = 0.0
    rest_noise: float = 0.0
    bulk_signal: float = 0.0
    bulk_noise: float = 0.0
    nonzero: int = 0  #: finite elements that are not zero
    flushed: int = 0  #: of these, those whose code is zero
    saturated: int = 0  #: of these, those beyond what rounds to the format's largest value
    blocks: int = 0  #: blocks with a nonzero element
    set_by_one: int = 0  #: of these, those whose scale one element sets
    worst: list[Block] = field(default_factory=list)  #: the blocks with the lowest SNR, the lowest first, four at most

    @property
    def snr_db(self) -> float:
        """10 log10 of signal over noise; infinite without an error, NaN of nothing."""
        return _db(self.signal, self.noise)

    @property
    def rest_snr_db(self) -> float:
        """The SNR without the elements that alone set the scale of their block."""
        return _db(self.rest_signal, self.rest_noise)

    @property
    def bulk_snr_db(self) -> float:
        """The SNR without the blocks whose scale one element sets."""
        return _db(self.bulk_signal, self.bulk_noise)

    @property
    def rank_db(self) -> float:
        """The lower of ``rest_snr_db`` and of the flushed share as an SNR: tables have the lowest first."""
        return _rank_db(self.rest_snr_db, self.flushed_share)

    @property
    def flushed_share(self) -> float:
        return self.flushed / max(self.nonzero, 1)

    @property
    def saturated_share(self) -> float:
        return self.saturated / max(self.nonzero, 1)

    def add(self, other: Loss) -> None:
        """Adds the loss of further elements."""
        for name in ("signal", "noise", "rest_signal", "rest_noise", "bulk_signal", "bulk_noise", "nonzero", "flushed",
                     "saturated", "blocks", "set_by_one"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.worst = sorted(self.worst + other.worst, key=Block._rank)[:_MOST_WORST]


@dataclass
class Tensor:
    """A tensor's values, and what each recipe loses of them."""

    name: str
    shape: tuple[int, ...]
    transposed: bool = False  #: a weight [n, k] is stored as [k, n]: blocks run down columns
    elements: int = 0  #: that were measured
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    amax: float = 0.0  #: the largest finite magnitude
    losses: dict[str, Loss] = field(default_factory=dict)  #: by the names of recipes
    #: by the names of recipes: the same blocks with fp32 scales and with powers of two, for recipes that have both
    f32: dict[str, Loss] = field(default_factory=dict)
    pow2: dict[str, Loss] = field(default_factory=dict)

    def gain_db(self, recipe: str) -> float | None:
        """Returns how much more SNR fp32 scales have than powers of two, without the elements that alone set a scale;
        None if one of the two has no error or the recipe has not both."""
        if recipe not in self.f32 or recipe not in self.pow2:
            return None
        gain = self.f32[recipe].rest_snr_db - self.pow2[recipe].rest_snr_db
        return gain if math.isfinite(gain) else None


class _Wanted(NamedTuple):
    """A recipe, and the type that it gives tensors of a role."""

    name: str
    type: TensorType
    f32: TensorType | None
    pow2: TensorType | None


def _row(name: str) -> Row:
    names = [row.name for row in ROWS]
    return ROWS[names.index(one_of("recipes", name, names))]


def names_of(recipes: str | Iterable[str]) -> list[str]:
    """Returns the names of recipes, each once. Raises ValueError, and TypeError for an object that holds none."""
    if not isinstance(recipes, str | Iterable):
        raise wrong_type("recipes", recipes, "a name of a recipe, or several names")
    names = [recipes] if isinstance(recipes, str) else list(recipes)
    if not names:
        raise refuse("recipes", names, "are names of recipes")
    return list(dict.fromkeys(_row(name).name for name in names))


def wanted(recipes: str | Iterable[str], role: str) -> list[_Wanted]:
    """Returns the recipes by their names. Raises ValueError and TypeError."""
    attribute = one_of("role", role, ROLES)
    names = names_of(recipes)
    found = []
    for name in names:
        kind = getattr(_row(name), attribute)
        twin = name.removesuffix(":f32") if name.endswith(":f32") else f"{name}:f32"
        other = next((getattr(row, attribute) for row in ROWS if row.name == twin), None)
        both = {"f32" if each.scales == "f32" else "pow2": each for each in (kind, other) if each is not None}
        found.append(_Wanted(name, kind, both.get("f32"), both.get("pow2")))
    return found


class Matrix(NamedTuple):
    """A matrix in host memory."""

    address: int
    dtype: str  #: bf16, fp16 or fp32
    rows: int
    cols: int
    ld: int


def _measure(matrix: Matrix, kinds: list[TensorType], sample: float) -> list[_c.LossNumbers]:
    """Measures a matrix by all types in one call, as the command does: by the same elements, summed in the same
    order."""
    types = [(DTYPES[kind.dtype], GRANULARITIES[kind.granularity], SCALE_FORMATS[kind.scales]) for kind in kinds]
    numbers = [_c.LossNumbers(struct_size=ctypes.sizeof(_c.LossNumbers)) for _ in kinds]
    places = (ctypes.POINTER(_c.LossNumbers) * len(kinds))(*map(ctypes.pointer, numbers))
    _c.check(_c.api().octile_measure_loss(DTYPES[matrix.dtype], matrix.address, matrix.rows, matrix.cols, matrix.ld,
                                          (_c.TensorTypeNumbers * len(kinds))(*types), len(kinds), sample, places))
    return numbers


def _loss_of(numbers: _c.LossNumbers, matrix: int, transposed: bool = False) -> Loss:
    """transposed: the blocks have their places in the matrix's transpose."""
    made = Loss(**{name: getattr(numbers, name) for name, _ in _c.LOSS_SUMS})
    for block in numbers.worst[: numbers.worst_count]:
        place = (block.row, block.col, block.rows, block.cols)
        place = (place[1], place[0], place[3], place[2]) if transposed else place
        made.worst.append(Block(matrix, *place, _db(1, block.noise_share), block.flushed_share, block.amax,
                                bool(block.set_by_one)))
    return made


def loss_of(matrix: Matrix, kind: TensorType) -> Loss:
    """Returns the loss of quantising a matrix to a type."""
    return _loss_of(_measure(matrix, [kind], 1.0)[0], 0)


def add_matrix(to: Tensor, matrix: Matrix, index: int, recipes: list[_Wanted], sample: float) -> None:
    """Measures one matrix of a tensor."""
    asked = (kind for recipe in recipes for kind in (recipe.type, recipe.f32, recipe.pow2) if kind is not None)
    kinds = list(dict.fromkeys(asked))
    numbers = _measure(matrix, kinds, sample)
    measured = {kind: _loss_of(each, index, to.transposed) for kind, each in zip(kinds, numbers)}
    for recipe in recipes:
        for losses, kind in ((to.losses, recipe.type), (to.f32, recipe.f32), (to.pow2, recipe.pow2)):
            if kind is not None:
                losses.setdefault(recipe.name, Loss()).add(measured[kind])
    for name in ("elements", "zeros", "nans", "infinities"):  # the same for all types
        setattr(to, name, getattr(to, name) + getattr(numbers[0], name))
    to.amax = max(to.amax, numbers[0].amax)


def check_sample(sample: Real) -> float:
    """Returns the share that is measured. Raises ValueError."""
    if not isinstance(sample, Real) or isinstance(sample, bool) or not 0 < float(sample) <= 1:
        raise refuse("sample", sample, "is a number above 0 and at most 1")
    return float(sample)


def _db_text(value: float) -> str:
    return "-" if math.isnan(value) else "exact" if math.isinf(value) else f"{value:.2f} dB"


def _sorted_db(value: float) -> float:
    """Returns the SNR, infinity of nothing, so that it can be sorted."""
    return math.inf if math.isnan(value) else value


def _share_text(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


class Inspection(Mapping[str, Tensor]):
    """What FP8 does to tensors: a mapping of their names, in the order of the model. Printed, and shown by a notebook,
    as a table, the worst first.

    ``recipes``: the names that were asked for. ``remarks``: sentences below the table, such as names of layers that
    were not called.
    """

    def __init__(self, tensors: Iterable[Tensor], recipes: list[str], remarks: Iterable[str] = ()) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.recipes, self.remarks = recipes, list(remarks)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors, in the order of the model."""
        return list(self._tensors.values())

    def __getitem__(self, name: str) -> Tensor:
        """Returns the tensor of a name. Raises KeyError."""
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def total(self, recipe: str | None = None) -> Loss:
        """Returns the loss of all tensors together by a recipe, the first by default. Its worst blocks do not say of
        which tensor they are."""
        name = self.recipes[0] if recipe is None else one_of("recipe", recipe, self.recipes)
        total = Loss()
        for tensor in self.tensors:
            if name in tensor.losses:
                total.add(tensor.losses[name])
        return total

    @property
    def nonfinite(self) -> dict[str, int]:
        """The names of tensors with NaNs or infinities, and how many they have."""
        return {t.name: t.nans + t.infinities for t in self.tensors if t.nans + t.infinities > 0}

    def worst(self, recipe: str | None = None) -> list[tuple[str, float]]:
        """Returns names of tensors and their SNR in dB without the elements that alone set a scale, in the order of
        the table: a large flushed share counts as a low SNR."""
        name = self.recipes[0] if recipe is None else one_of("recipe", recipe, self.recipes)
        ranked = [(t.name, t.losses[name]) for t in self.tensors if name in t.losses]
        ranked.sort(key=lambda pair: _sorted_db(pair[1].rank_db))
        return [(of, loss.rest_snr_db) for of, loss in ranked]

    def _rows(self) -> list[tuple[Tensor, str]]:
        rows = [(tensor, recipe) for tensor in self.tensors for recipe in tensor.losses]
        return sorted(rows, key=lambda row: _sorted_db(row[0].losses[row[1]].rank_db))

    _HEADINGS = ("tensor", "shape", "recipe", "SNR", "rest", "bulk", "flushed", "saturated", "fp32 scales",
                 "worst block")

    def _cells(self) -> list[tuple[str, ...]]:
        table = []
        for tensor, recipe in self._rows()[:_SHOWN]:
            loss = tensor.losses[recipe]
            gain = tensor.gain_db(recipe)
            place = "-"
            if loss.worst:
                block = loss.worst[0]
                place = f"[{block.row}, {block.col}] {_db_text(block.snr_db)}"
                place = f"expert {block.matrix} {place}" if len(tensor.shape) > 2 else place
            shape = " x ".join(map(str, tensor.shape)) + " [k, n]" * tensor.transposed
            table.append((tensor.name, shape, recipe, _db_text(loss.snr_db), _db_text(loss.rest_snr_db),
                          _db_text(loss.bulk_snr_db), _share_text(loss.flushed_share),
                          _share_text(loss.saturated_share), "-" if gain is None else f"{gain:+.2f} dB", place))
        return table

    def _notes(self) -> list[str]:
        more = len(self._rows()) - _SHOWN
        notes = [f"and {more} more lines"] * (more > 0)
        for name, count in self.nonfinite.items():
            notes.append(f"{name} has {count} NaNs and infinities")
        return notes + self.remarks

    def __str__(self) -> str:
        table = [self._HEADINGS, *self._cells()]
        if len(table) == 1:
            return "\n".join(["nothing was quantised", *self._notes()])
        widths = [max(len(row[i]) for row in table) for i in range(len(self._HEADINGS))]
        left = {"tensor", "shape", "recipe", "worst block"}
        lines = []
        for row in table:
            cells = (cell.ljust(width) if heading in left else cell.rjust(width)
                     for cell, width, heading in zip(row, widths, self._HEADINGS))
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines + self._notes())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns the table for a notebook."""
        head = "".join(f"<th>{html.escape(heading)}</th>" for heading in self._HEADINGS)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
                       for row in self._cells())
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def plot(self, axes=None):
        """Draws the SNR of every tensor, in the order of the model, a line for each recipe. axes: where, by default a
        new figure of matplotlib, which is imported now. Returns the axes. Tensors without an error are left out."""
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.figure(figsize=(8, 4), layout="constrained").add_subplot()
        for recipe in self.recipes:
            points = [(i, tensor.losses[recipe].rest_snr_db) for i, tensor in enumerate(self.tensors)
                      if recipe in tensor.losses]
            points = [(i, value) for i, value in points if math.isfinite(value)]
            axes.plot([i for i, _ in points], [value for _, value in points], marker=".", linewidth=0.8, label=recipe)
        if len(self.tensors) <= _SHOWN:
            axes.set_xticks(range(len(self.tensors)), [t.name for t in self.tensors], rotation=60, ha="right")
        else:
            axes.set_xlabel("tensor, in the order of the model")
        axes.set_ylabel("SNR in dB")
        axes.legend()
        return axes


def inspection_of(tensors: Iterable[tuple[Tensor, Callable[[], Iterable[Matrix]]]], recipes: str | Iterable[str],
                  role: str, sample: float) -> Inspection:
    """Measures tensors, of which nothing is measured yet. The functions give the matrices [n, k] of each in turn."""
    asked, sample = wanted(recipes, role), check_sample(sample)
    made = []
    for tensor, matrices in tensors:
        for index, matrix in enumerate(matrices()):
            add_matrix(tensor, matrix, index, asked, sample)
        made.append(tensor)
    return Inspection(made, [recipe.name for recipe in asked])
