"""A value in FP8, beside the whole numbers that tutorials show in its place."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy

import octile.numpy as on
from octile._types import TensorType
from octile.notebooks import style
from octile.notebooks.explorer import Explorer, choice, number


@cache
def code_values(dtype: str) -> numpy.ndarray:
    """Returns the value of each of the 256 codes, as the library dequantises them."""
    kind = TensorType(dtype, "tensor", "f32")
    codes = numpy.arange(256, dtype=numpy.uint8).reshape(1, 256)
    return on.dequantize(on.Quantized(codes, numpy.ones((1, 1), numpy.float32), kind, (1, 256)))[0]


@cache
def largest_of(dtype: str) -> float:
    """Returns the largest number of a format."""
    values = code_values(dtype)
    return float(values[numpy.isfinite(values)].max())


def cast(values: numpy.ndarray, dtype: str = "e4m3", encode_scale: float = 1.0) -> numpy.ndarray:
    """Returns the codes of values times a scale, in the shape of the values."""
    values = numpy.asarray(values, numpy.float32)
    made = on.quantize(values.reshape(1, -1), dtype, "tensor", "f32", encode_scale=encode_scale)
    return made.codes.reshape(values.shape)


class Cast(NamedTuple):
    """A value in FP8."""

    value: float
    encode_scale: float
    code: int
    stored: float  #: the code's value, over the scale
    below: float  #: the neighbours of the stored value, over the scale; itself at an end of the format
    above: float
    flushed: bool  #: it is not zero, and its code is
    saturated: bool  #: it lies beyond the largest value, by more than half of the last step
    integer: float  #: the value that the picture of tutorials stores: a whole number, over the scale

    @property
    def error(self) -> float:
        return self.stored - self.value

    @property
    def integer_error(self) -> float:
        return self.integer - self.value

    @property
    def relative_error(self) -> float:
        return abs(self.error / self.value) if self.value else 0.0


def cast_of(value: float, dtype: str = "e4m3", encode_scale: float = 1.0) -> Cast:
    """Returns what becomes of a finite value that is multiplied by a scale and cast."""
    code = int(cast(numpy.array([value]), dtype, encode_scale)[0])
    values = code_values(dtype)
    grid = numpy.unique(values[numpy.isfinite(values)])
    at = int(numpy.searchsorted(grid, values[code]))
    below, above = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    scaled, beyond = abs(value) * encode_scale, grid[-1] + (grid[-1] - grid[-2]) / 2
    stored = (float(one) / encode_scale for one in (values[code], below, above))
    integer = float(integer_codes(numpy.array(value * encode_scale), dtype)) / encode_scale
    return Cast(value, encode_scale, code, *stored, bool(value and values[code] == 0), bool(scaled > beyond), integer)


def integer_codes(scaled: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """Returns the codes of the picture of tutorials: values to the nearest whole number, up to the format's largest."""
    return numpy.clip(numpy.rint(scaled), -largest_of(dtype), largest_of(dtype))


def draw_errors(axes, dtype: str, chosen: Cast | None = None) -> None:
    """Draws the largest relative errors of FP8 and of whole numbers against the magnitude, by eighths of a binade."""
    low, high = (-12, 11) if dtype == "e4m3" else (-20, 18)
    x = 2.0 ** numpy.linspace(low, high, (high - low) * 512 + 1)[:-1]
    middles = x.reshape(-1, 64)[:, 32]
    stored = code_values(dtype)[cast(x, dtype)]
    for restored, colour in ((integer_codes(x, dtype), "first"), (stored, "octile")):
        worst = (numpy.abs(restored - x) / x).reshape(-1, 64).max(axis=1)
        axes.plot(middles, worst, color=style.LIGHT[colour], linewidth=1.7)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(2e-4, 2)
    axes.set_yticks([1e-3, 1e-2, 1e-1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.minorticks_off()
    if chosen is not None and chosen.value:
        at = abs(chosen.value * chosen.encode_scale)
        axes.plot(
            [min(max(at, x[0]), x[-1])],
            [min(max(chosen.relative_error, 2e-4), 2)],
            "o",
            clip_on=False,
            zorder=5,
            color=style.LIGHT["mark"],
        )
    axes.set_xlabel("value times scale", fontsize=9, color=style.LIGHT["quiet"])


def draw_value(chosen: Cast, dtype: str):
    """Draws a value between its neighbours, and the errors of all values."""
    figure = style.figure(8.6, 3.0)
    line = style.axes_in(figure, (0.06, 0.19, 0.40, 0.5), "")
    errors = style.axes_in(figure, (0.56, 0.19, 0.41, 0.58))
    near = [chosen.below, chosen.stored, chosen.above]
    width = max(max(near) - min(near), abs(chosen.value - chosen.stored) * 1.2, 1e-30)
    middle = (min(*near, chosen.value) + max(*near, chosen.value)) / 2
    line.set_xlim(middle - 0.75 * width, middle + 0.75 * width)
    line.set_ylim(-1, 1.35)
    line.axhline(0, color=style.LIGHT["grid"], linewidth=1.2)
    for one in sorted(set(near)):
        is_stored = one == chosen.stored
        colour = style.LIGHT["octile" if is_stored else "quiet"]
        line.plot([one, one], [-0.25, 0.25], color=colour, linewidth=2.4 if is_stored else 1.4)
        line.text(one, -0.45, f"{one:.6g}", ha="center", va="top", fontsize=9, color=colour)
    line.plot([chosen.value], [0], "o", color=style.LIGHT["mark"], zorder=5)
    line.text(chosen.value, 0.5, f"{chosen.value:.6g}", ha="center", fontsize=9.5, color=style.LIGHT["mark"])
    line.set_xticks([])
    line.set_yticks([])
    style.title(line, "the value between FP8's neighbours")
    draw_errors(errors, dtype, chosen)
    style.title(errors, "largest relative error, by magnitude")
    style.key(figure, [("FP8", "octile"), ("whole numbers", "first"), ("the value", "mark")], 0.93)
    return figure


class Value(Explorer):
    """A value, in FP8."""

    def controls(self):
        return {
            "value": number("value", 0.3),
            "encode_scale": choice("times", [2.0**e for e in range(-8, 9, 2)], 1.0, slider=True),
            "dtype": choice("format", ["e4m3", "e5m2"], "e4m3"),
        }

    def compute(self, value, encode_scale, dtype):
        return cast_of(value, dtype, encode_scale)

    def page(self, result):
        state = "saturated" if result.saturated else "flushed to zero" if result.flushed else "in range"
        rows = [
            [
                "FP8",
                f"0x{result.code:02x}",
                f"{result.below:.6g}",
                f"{result.stored:.6g}",
                f"{result.above:.6g}",
                f"{result.error:+.3g}",
                f"{100 * result.relative_error:.2f} %",
                state,
            ],
            [
                "whole numbers",
                "-",
                "-",
                f"{result.integer:.6g}",
                "-",
                f"{result.integer_error:+.3g}",
                f"{100 * abs(result.integer_error / result.value) if result.value else 0:.2f} %",
                "-",
            ],
        ]
        headings = ["stored as", "code", "below", "value", "above", "error", "of the value", "state"]
        return style.page_of(draw_value(result, self.values["dtype"]), style.table(headings, rows))


def draw_codes():
    """Draws the values of E4M3 and E5M2, and the relative error of rounding to E4M3 and to whole numbers."""
    figure = style.figure(8.6, 3.3)
    lines = style.axes_in(figure, (0.06, 0.17, 0.40, 0.6), "x")
    for i, (dtype, colour) in enumerate((("e4m3", "octile"), ("e5m2", "fourth"))):
        values = code_values(dtype)
        shown = numpy.unique(values[numpy.isfinite(values) & (values > 0)])
        lines.vlines(shown, 1 - i + 0.08, 1 - i + 0.62, color=style.LIGHT[colour], linewidth=0.7)
        finite = len(numpy.unique(values[numpy.isfinite(values)]))
        lines.text(
            2.0**-17, 1 - i + 0.7, f"{dtype.upper()}: {finite} finite values", fontsize=9, color=style.LIGHT[colour]
        )
    lines.set_xscale("log", base=2)
    lines.set_xlim(2.0**-17, 2.0**16)
    lines.set_ylim(0, 2)
    lines.set_yticks([])
    lines.minorticks_off()
    lines.set_xlabel("value", fontsize=9, color=style.LIGHT["quiet"])
    style.title(lines, "positive values")
    errors = style.axes_in(figure, (0.56, 0.17, 0.41, 0.6))
    draw_errors(errors, "e4m3")
    style.title(errors, "largest relative error of rounding, by magnitude")
    style.key(figure, [("E4M3", "octile"), ("E5M2", "fourth"), ("whole numbers up to 448", "first")], 0.92)
    return figure
