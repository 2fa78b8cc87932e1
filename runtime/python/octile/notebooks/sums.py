"""How precisely a long sum of FP8 products is kept: in FP8, in bf16, in a tensor core and in fp32.

Tensor cores are models: a step cuts its products and the sum so far behind some bits of the largest, adds them, and
cuts the sum (docs/numerics.md, "Tolerance"). They have the bits of the models of tests/support/sum_model.h, which the
emulated kernels sum with. tests/gpu/REPORT.json has the errors of real ones, as the GPU suite measured them.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy

import octile.numpy as on
from octile._types import TensorType
from octile.notebooks import numbers, records, style
from octile.notebooks.explorer import Explorer, choice


class SumModel(NamedTuple):
    """A tensor core's sums: a step adds this number of products, which keep these bits behind the point."""

    name: str
    bits: int
    step: int


#: The units of Hopper (wgmma), and of Hopper's mma.sync, which ptxas makes of FP16's.
WGMMA = SumModel("13 bits", 13, 32)
MMA = SumModel("25 bits", 25, 16)
_FP32_BITS = 23


def _exponent(values: numpy.ndarray) -> numpy.ndarray:
    """Returns e of |value| = 1.f * 2^e."""
    return numpy.frexp(values)[1] - 1


def _cut(values: numpy.ndarray, exponent: numpy.ndarray, bits: int) -> numpy.ndarray:
    """Cuts what lies more than ``bits`` below 2^exponent, towards zero."""
    return numpy.ldexp(numpy.trunc(numpy.ldexp(values, bits - exponent)), exponent - bits)


def add_products(total: numpy.ndarray, a: numpy.ndarray, b: numpy.ndarray, model: SumModel) -> numpy.ndarray:
    """Returns total [cases] + the products of a and b [cases, terms], values of FP8, in the model's steps; float32."""
    total = total.astype(numpy.float64)
    for at in range(0, a.shape[1], model.step):
        total = _add_step(total, a[:, at : at + model.step], b[:, at : at + model.step], model.bits)
    return total.astype(numpy.float32)


def _add_step(total: numpy.ndarray, a: numpy.ndarray, b: numpy.ndarray, bits: int) -> numpy.ndarray:
    none = -1000
    products = a * b
    # Products are not normalised: their exponents are those of the factors.
    tops = numpy.where(products != 0, _exponent(a) + _exponent(b), none).max(axis=1)
    top = numpy.maximum(tops, numpy.where(total != 0, _exponent(total), none))
    top = numpy.where(top == none, 0, top)
    added = _cut(total, top, bits) + _cut(products, top[:, None], bits).sum(axis=1)
    return numpy.where(added == 0, 0, _cut(added, _exponent(added), min(bits, _FP32_BITS)))


# ---- data

CASES = 24
#: Normal numbers as E4M3; codes that are all as likely, whose products span eleven decades; products of one sign and
#: about one size, which lose most in long sums. The GPU suite has the first two.
DRAWS = ("normal numbers", "uniform codes", "one sign")
INTERVALS = ("32", "64", "128", "256", "512", "none")
TERMS = (512, 1024, 2048, 4096, 8192, 16384)
#: Errors are given in units of 2^-13 of the sum of magnitudes. docs/numerics.md calls such a number c.
UNIT = 2.0**-13


class Operands(NamedTuple):
    """Codes [cases, terms] and their values in float64."""

    codes: tuple[numpy.ndarray, numpy.ndarray]
    a: numpy.ndarray
    b: numpy.ndarray

    def first(self, terms: int) -> Operands:
        return Operands(tuple(each[:, :terms] for each in self.codes), self.a[:, :terms], self.b[:, :terms])


@cache
def operands(draw: str) -> Operands:
    """Returns random operands of the longest sum."""
    random = numpy.random.default_rng(DRAWS.index(draw))
    shape = (2, CASES, TERMS[-1])
    if draw == "uniform codes":
        codes = random.integers(1, 127, shape, numpy.uint8)
    else:
        values = 100 * random.standard_normal(shape, numpy.float32)
        codes = numbers.cast(numpy.abs(values) if draw == "one sign" else values)
    a, b = numbers.code_values("e4m3").astype(numpy.float64)[codes]
    return Operands((codes[0], codes[1]), a, b)


def _magnitudes(of: Operands) -> numpy.ndarray:
    return numpy.abs(of.a * of.b).sum(axis=1)


def _exact(of: Operands) -> numpy.ndarray:
    return (of.a * of.b).sum(axis=1)


def _errors(sums: numpy.ndarray, of: Operands) -> numpy.ndarray:
    """Returns each case's error over the sum of magnitudes."""
    return numpy.abs(sums.astype(numpy.float64) - _exact(of)) / _magnitudes(of)


# ---- sums


def promoted(of: Operands, model: SumModel, interval: str) -> numpy.ndarray:
    """Returns sums whose intervals a tensor core sums from zero and fp32 adds up."""
    terms = of.a.shape[1]
    size = terms if interval == "none" else int(interval)
    total = numpy.zeros(len(of.a), numpy.float32)
    for at in range(0, terms, size):
        part = slice(at, min(at + size, terms))
        total = total + add_products(numpy.zeros(len(of.a)), of.a[:, part], of.b[:, part], model)
    return total


def in_fp32(of: Operands, interval: str) -> numpy.ndarray:
    """Returns the sums of the library's host executor, which adds one product after the other in fp32."""
    kind = TensorType(
        "e4m3",
        "1x32" if interval == "32" else "tensor" if interval == "none" else "1x128",
        "e8m0" if interval == "32" else "f32",
    )
    if kind.granularity == "1x128" and interval in ("256", "512"):
        kind = TensorType("e4m3", "tensor", "f32")
    shape = of.codes[0].shape
    scales = numpy.full(
        kind.scale_shape(*shape),
        127 if kind.scales == "e8m0" else 1,
        numpy.uint8 if kind.scales == "e8m0" else numpy.float32,
    )
    tensors = (on.Quantized(numpy.ascontiguousarray(codes), scales, kind, shape) for codes in of.codes)
    return on.gemm(*tensors, promote=interval).diagonal()


def in_bf16(of: Operands) -> numpy.ndarray:
    """Returns sums that are rounded to bf16 after every term."""
    import ml_dtypes

    total = numpy.zeros(len(of.a), numpy.float32)
    for products in (of.a * of.b).T.astype(numpy.float32):
        total = (total + products).astype(ml_dtypes.bfloat16).astype(numpy.float32)
    return total


def in_fp8(of: Operands) -> numpy.ndarray:
    """Returns sums that are rounded to E4M3 after every term, with one scale that lets the largest sum fit."""
    products = (of.a * of.b).astype(numpy.float32)
    scale = numbers.largest_of("e4m3") / float(numpy.abs(numpy.cumsum(of.a * of.b, axis=1)).max())
    values, total = numbers.code_values("e4m3"), numpy.zeros(len(of.a), numpy.float32)
    for one in products.T * numpy.float32(scale):
        total = values[numbers.cast(total + one)]
    return total / numpy.float32(scale)


#: Names of the sums, and the colours that they are drawn in.
SUMS = {"FP8": "mark", "BF16": "first", "13 bits": "octile", "25 bits": "third", "fp32": "text"}
_FP8_TERMS = 2048  # beyond, the sum has long stopped growing


class Errors(NamedTuple):
    """Errors over the sum of magnitudes, the largest of the cases."""

    terms: dict[str, dict[int, float]]  #: by sum and terms, at the interval
    intervals: dict[str, dict[str, float]]  #: by tensor core and interval, of all terms


@cache
def _error_at(name: str, draw: str, interval: str, terms: int) -> float:
    of = operands(draw).first(terms)
    models = {model.name: model for model in (WGMMA, MMA)}
    if name in models:
        sums = promoted(of, models[name], interval)
    else:
        sums = in_fp32(of, interval) if name == "fp32" else in_bf16(of) if name == "BF16" else in_fp8(of)
    return float(_errors(sums, of).max())


def errors(draw: str, terms: int, interval: str) -> Errors:
    """Returns the largest errors of sums of up to ``terms`` products."""
    counts = [2**e for e in range(5, 15) if 2**e <= terms]
    by_terms = {
        name: {
            # Sums without promotion do not depend on the interval.
            count: _error_at(name, draw, interval if name not in ("FP8", "BF16") else "", count)
            for count in counts
            if name != "FP8" or count <= _FP8_TERMS
        }
        for name in SUMS
    }
    return Errors(by_terms, {model.name: by_interval(model, draw, terms) for model in (WGMMA, MMA)})


def by_interval(model: SumModel, draw: str, terms: int) -> dict[str, float]:
    """Returns the largest errors of a tensor core's sums, by promotion interval."""
    return {each: _error_at(model.name, draw, each, terms) for each in INTERVALS}


class Measured(NamedTuple):
    """The GPU suite's measured errors: the largest c of all its cases, by interval."""

    c: dict[str, float]
    card: str
    day: str

    @property
    def source(self) -> str:
        return f"GPU suite, {self.card}, {self.day}"


def measured(root=None) -> Measured:
    """Returns the GPU suite's measured errors. Those of 32 are of MX, whose scales lie up to 2^60 apart, too; those of
    "none" of sums of up to 16384."""
    report = records.gpu_report(root or records.source_tree())
    return Measured(report["worst_c"], report["device"].removeprefix("NVIDIA "), records.day_of(report["date"]))


def interval_table(terms: int = 2048):
    """Returns a table of the errors of a unit with 13 bits by interval and draw, beside those that were measured."""
    rows = [
        [f"model, {draw}", *(f"{error / UNIT:.3g}" for error in by_interval(WGMMA, draw, terms).values())]
        for draw in DRAWS
    ]
    seen = measured()
    rows.append([f"measured: {seen.source}", *(f"{seen.c[each]:.3g}" for each in INTERVALS)])
    return style.show(below=style.table(["promoted every", *INTERVALS[:-1], "all of K"], rows))


def draw_errors(found: Errors, seen: Measured, interval: str, terms: int, source: str):
    """Draws errors against terms, and against promotion intervals with those that a GPU had."""
    figure = style.figure(8.6, 3.9)
    left = style.axes_in(figure, (0.075, 0.15, 0.40, 0.60))
    for name, curve in found.terms.items():
        shown = {count: error for count, error in curve.items() if error > 0}
        left.plot(list(shown), list(shown.values()), color=style.LIGHT[SUMS[name]], linewidth=1.7)
    left.set_xscale("log", base=2)
    left.set_yscale("log")
    left.set_ylim(1e-10, 1)
    left.set_xlim(32, max(found.terms["fp32"]))
    left.minorticks_off()
    left.set_xlabel("terms", fontsize=9, color=style.LIGHT["quiet"])
    words = "no promotion" if interval == "none" else f"promoted every {interval}"
    style.title(left, f"largest error / sum of magnitudes, {words}")
    right = style.axes_in(figure, (0.57, 0.15, 0.40, 0.60))
    places = range(len(INTERVALS))
    for name, curve in found.intervals.items():
        right.plot(
            places,
            [curve[each] / UNIT for each in INTERVALS],
            color=style.LIGHT[SUMS[name]],
            linewidth=1.7,
            marker="o",
            markersize=3.5,
        )
    right.plot(places, [seen.c[each] for each in INTERVALS], "D", color=style.LIGHT["fourth"], markersize=6, zorder=5)
    right.set_yscale("log")
    right.set_ylim(1e-5, 1e4)
    right.set_xticks(places, [*INTERVALS[:-1], "all"])
    right.minorticks_off()
    right.set_xlabel("promotion interval, elements of K", fontsize=9, color=style.LIGHT["quiet"])
    style.title(right, f"largest error of {terms} terms, in units of 2⁻¹³")
    style.key(
        figure,
        [
            ("FP8", "mark"),
            ("BF16", "first"),
            ("13 bits (Hopper's wgmma)", "octile"),
            ("25 bits", "third"),
            ("fp32", "text"),
        ],
        0.93,
    )
    figure.text(
        0.075,
        0.86,
        f"◆ measured on tensor cores: {source}, the largest of all cases",
        fontsize=9.5,
        color=style.LIGHT["fourth"],
    )
    return figure


class Accumulation(Explorer):
    """Sums of FP8 products."""

    def controls(self):
        return {
            "terms": choice("terms", TERMS, 2048, slider=True),
            "interval": choice("promotion interval", INTERVALS, "128", slider=True),
            "draw": choice("products of", DRAWS, "uniform codes"),
        }

    def compute(self, terms, interval, draw):
        return errors(draw, terms, interval)

    def page(self, result):
        seen, values = measured(), self.values
        rows = []
        for name, curve in result.terms.items():
            count, error = max(curve.items())
            rows.append(
                [name if count == values["terms"] else f"{name}, {count} terms", f"{error:.2e}", f"{error / UNIT:.3g}"]
            )
        c = seen.c[values["interval"]]
        rows.append([f"measured, {seen.source}", f"{c * UNIT:.2e}", f"{c:.3g}"])
        words = style.table(["sum", "largest error / sum of magnitudes", "in units of 2⁻¹³"], rows)
        return style.page_of(draw_errors(result, seen, values["interval"], values["terms"], seen.source), words)
