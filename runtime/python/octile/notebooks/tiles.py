"""A tensor in FP8 with scales of blocks, beside the whole numbers that tutorials show in its place."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy

import octile.numpy as on
from octile import _inspection
from octile._types import FORMATS, TensorType
from octile.notebooks import style
from octile.notebooks.explorer import Explorer, choice, power_slider
from octile.notebooks.numbers import integer_codes, largest_of

#: Sizes of the blocks that share a scale, in rows and columns; 0: all of them.
BLOCKS = {"tensor": (0, 0), "row": (1, 0), "1x128": (1, 128), "128x128": (128, 128), "1x32": (1, 32), "32x32": (32, 32)}


class Tiles(NamedTuple):
    """A tensor before and after FP8, and what the picture of tutorials makes of it."""

    x: numpy.ndarray
    restored: numpy.ndarray
    integers: numpy.ndarray  #: the same with whole numbers in the place of FP8
    type: TensorType
    loss: _inspection.Loss
    integer_loss: _inspection.Loss  #: signal and noise of all elements; rest without the outlier

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        return tuple(size or whole for size, whole in zip(BLOCKS[self.type.granularity], self.x.shape))


OUTLIER_AT = (90, 170)


@cache
def normal(rows: int, cols: int, seed: int = 0) -> numpy.ndarray:
    """Returns N(0, 1) in float32, read-only: the same at every call."""
    made = numpy.random.default_rng(seed).standard_normal((rows, cols), numpy.float32)
    made.flags.writeable = False
    return made


def with_outlier(outlier: float, rows: int = 256, cols: int = 256) -> numpy.ndarray:
    """Returns N(0, 1) with one element that is an outlier."""
    x = normal(rows, cols).copy()
    x[OUTLIER_AT] = outlier
    return x


def loss_of(x: numpy.ndarray, kind: TensorType) -> _inspection.Loss:
    """Returns what quantising a matrix to a type loses, in the numbers of ``octile inspect``."""
    return _inspection.loss_of(next(on._matrices(x)), kind)


def integers_of(x: numpy.ndarray, granularity: str, dtype: str = "e4m3") -> numpy.ndarray:
    """Returns a tensor as the picture of tutorials has it: whole numbers up to the format's largest, and a scale for
    each block."""
    rows, cols = (min(size or whole, whole) for size, whole in zip(BLOCKS[granularity], x.shape))
    padded = numpy.zeros([-(-whole // size) * size for size, whole in zip((rows, cols), x.shape)], x.dtype)
    padded[: x.shape[0], : x.shape[1]] = x
    tiles = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // cols, cols)
    largest = numpy.abs(tiles).max(axis=(1, 3), keepdims=True).astype(numpy.float64)
    step = numpy.where(largest == 0, 1, largest / largest_of(dtype))
    return (integer_codes(tiles / step, dtype) * step).reshape(padded.shape)[: x.shape[0], : x.shape[1]]


def loss_between(x: numpy.ndarray, restored: numpy.ndarray) -> _inspection.Loss:
    """Returns the loss of an approximation that the library did not make. Rest is without the largest element."""
    squares, errors = x.astype(numpy.float64) ** 2, (x - restored.astype(numpy.float64)) ** 2
    at = numpy.unravel_index(numpy.abs(x).argmax(), x.shape)
    return _inspection.Loss(
        signal=squares.sum(),
        noise=errors.sum(),
        rest_signal=squares.sum() - squares[at],
        rest_noise=errors.sum() - errors[at],
        nonzero=int((x != 0).sum()),
        flushed=int(((restored == 0) & (x != 0)).sum()),
    )


def tiles_of(outlier: float, granularity: str = "1x128", scales: str | None = None, dtype: str = "e4m3") -> Tiles:
    """Returns N(0, 1) of 256 x 256 with an outlier, in FP8 and in whole numbers."""
    x = with_outlier(outlier)
    kind = TensorType.of(dtype, granularity, scales)
    restored = on.dequantize(on.quantize(x, dtype, granularity, kind.scales))
    integers = integers_of(x, granularity, dtype)
    return Tiles(x, restored, integers, kind, loss_of(x, kind), loss_between(x, integers))


def relative_errors(x: numpy.ndarray, restored: numpy.ndarray) -> numpy.ndarray:
    """Returns the error of each element over its magnitude: 1 if it was flushed."""
    return numpy.abs(restored - x) / numpy.maximum(numpy.abs(x), 1e-30)


def _draw_map(axes, values: numpy.ndarray, low: float, high: float, colours: str, block: tuple[int, int]):
    from matplotlib.patches import Rectangle

    shown = axes.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    rows, cols = values.shape
    # A border between all rows would hide them.
    for size, whole, line in ((block[0], rows, axes.axhline), (block[1], cols, axes.axvline)):
        for at in range(size, whole, size) if size > 4 else ():
            line(at - 0.5, color=style.LIGHT["page"], linewidth=1.1)
    row, col = (at // size * size for at, size in zip(OUTLIER_AT, block))
    axes.add_patch(
        Rectangle(
            (col - 0.5, row - 0.5),
            block[1],
            block[0],
            fill=False,
            clip_on=False,
            edgecolor=style.LIGHT["text"],
            linewidth=1.6,
            zorder=6,
        )
    )
    axes.set_xticks([])
    axes.set_yticks([])
    return shown


def draw_tiles(tiles: Tiles):
    """Draws a tensor, what FP8 and whole numbers make of it, and their errors, with the borders of blocks."""
    figure = style.figure(8.6, 5.3)
    with numpy.errstate(divide="ignore"):
        maps = [numpy.log2(numpy.abs(each)) for each in (tiles.x, tiles.restored, tiles.integers)]
    flushed = style.LIGHT["mark"]
    errors = [relative_errors(tiles.x, each) for each in (tiles.restored, tiles.integers)]
    left, width, height = 0.03, 0.27, 0.40
    named = zip(("before", "after FP8", "after whole numbers"), maps)
    for i, (name, values) in enumerate(named):
        axes = style.axes_in(figure, (left + i * 0.30, 0.53, width, height), "")
        shown = _draw_map(axes, numpy.where(numpy.isinf(values), numpy.nan, values), -8, 4, "viridis", tiles.block)
        axes.set_facecolor(flushed)
        style.title(axes, name)
    _colour_bar(figure, shown, (0.925, 0.53, 0.014, height), [-8, -4, 0, 4], ["2⁻⁸", "2⁻⁴", "1", "2⁴"])
    for i, values in enumerate(errors, 1):
        axes = style.axes_in(figure, (left + i * 0.30, 0.04, width, height), "")
        shown = _draw_map(axes, numpy.log10(numpy.maximum(values, 1e-4)), -3, 0, "magma", tiles.block)
        style.title(axes, ("error of FP8", "error of whole numbers")[i - 1] + ", of each value")
    _colour_bar(figure, shown, (0.925, 0.04, 0.014, height), [-3, -2, -1, 0], ["0.1 %", "1 %", "10 %", "100 %"])
    words = [
        (f"{tiles.type.granularity} scales, {tiles.type.scales}", "text"),
        (f"FP8: {tiles.loss.rest_snr_db:.1f} dB, {100 * tiles.loss.flushed_share:.2g} % flushed", "octile"),
        (
            f"whole numbers: {tiles.integer_loss.rest_snr_db:.1f} dB,\n"
            f"{100 * tiles.integer_loss.flushed_share:.2g} % flushed",
            "first",
        ),
        ("red: flushed to zero", "mark"),
        ("dB without the element that\nalone sets a scale; a frame:\nthe outlier's block", "quiet"),
    ]
    for i, (text, colour) in enumerate(words):
        figure.text(left, 0.42 - 0.065 * i - 0.03 * (i > 2), text, fontsize=9.5, va="top", color=style.LIGHT[colour])
    return figure


def _colour_bar(figure, shown, place, ticks, names) -> None:
    axes = style.axes_in(figure, place, "")
    bar = figure.colorbar(shown, cax=axes)
    bar.set_ticks(ticks, labels=names)
    bar.outline.set_visible(False)
    axes.tick_params(colors=style.LIGHT["quiet"], labelsize=8.5)


class Tensor(Explorer):
    """A tensor with an outlier, in FP8."""

    def controls(self):
        choices = [f"{granularity}, {scales}" for granularity, formats in FORMATS.items() for scales in formats]
        return {
            "outlier": power_slider("outlier", 0, 7, 1000),
            "scales": choice("scales", choices, "tensor, f32"),
            "dtype": choice("format", ["e4m3", "e5m2"], "e4m3"),
        }

    def compute(self, outlier, scales, dtype):
        return tiles_of(outlier, *scales.split(", "), dtype)

    def page(self, result):
        loss, integers = result.loss, result.integer_loss
        rows = [
            [
                "FP8",
                f"{loss.snr_db:.1f} dB",
                f"{loss.rest_snr_db:.1f} dB",
                f"{100 * loss.flushed_share:.3g} %",
                f"{100 * loss.saturated_share:.3g} %",
                loss.blocks,
                loss.set_by_one,
            ],
            [
                "whole numbers",
                f"{integers.snr_db:.1f} dB",
                f"{integers.rest_snr_db:.1f} dB",
                f"{100 * integers.flushed_share:.3g} %",
                "-",
                "-",
                "-",
            ],
        ]
        headings = ["stored as", "SNR", "rest", "flushed", "saturated", "blocks", "set by one"]
        return style.page_of(draw_tiles(result), style.table(headings, rows))


# ---- all outliers


class Sweep(NamedTuple):
    """The SNR without the outlier against its size, by granularity."""

    outliers: tuple[float, ...]
    fp8: dict[str, list[float]]
    integers: dict[str, list[float]]


GRANULARITIES = ("tensor", "row", "128x128", "1x128")


@cache
def sweep(rows: int = 256, cols: int = 512, points: int = 22) -> Sweep:
    """Returns the SNR of N(0, 1) without its outlier, for outliers from 8 to 8e7 and scales in fp32."""
    outliers = tuple(float(8 * 10 ** (7 * i / (points - 1))) for i in range(points))
    fp8, integers = {g: [] for g in GRANULARITIES}, {g: [] for g in GRANULARITIES}
    for outlier in outliers:
        x = with_outlier(outlier, rows, cols)
        for granularity in GRANULARITIES:
            fp8[granularity].append(loss_of(x, TensorType("e4m3", granularity, "f32")).rest_snr_db)
            integers[granularity].append(loss_between(x, integers_of(x, granularity)).rest_snr_db)
    return Sweep(outliers, fp8, integers)


_LINES = dict(zip(GRANULARITIES, ("mark", "first", "fourth", "octile")))


def draw_sweep(found: Sweep):
    """Draws the SNR against the outlier: FP8 beside whole numbers."""
    figure = style.figure(8.6, 3.5)
    for i, (name, curves) in enumerate((("E4M3", found.fp8), ("whole numbers of tutorials", found.integers))):
        axes = style.axes_in(figure, (0.06 + 0.48 * i, 0.17, 0.43, 0.58))
        for granularity, values in curves.items():
            axes.plot(
                found.outliers,
                values,
                color=style.LIGHT[_LINES[granularity]],
                linewidth=1.7,
                linestyle="-" if i == 0 else (0, (5, 2)),
            )
        axes.set_xscale("log")
        axes.set_xlim(found.outliers[0], found.outliers[-1])
        axes.set_ylim(-2, 52)
        axes.minorticks_off()
        axes.set_xlabel("outlier, in standard deviations of the others", fontsize=9, color=style.LIGHT["quiet"])
        style.title(axes, f"{name}: SNR of the others, dB")
    names = [(f"one scale a {g}" if g in ("tensor", "row") else g, _LINES[g]) for g in GRANULARITIES]
    style.key(figure, names, 0.92)
    return figure
