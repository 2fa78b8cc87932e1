"""May a layer be trained with one scale a tensor? Its tensors, its products, a training run on the host, and what was
measured on GPUs."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy

import octile.numpy as on
from octile._inspection import Loss
from octile._recipes import ROWS, Row
from octile._types import TensorType
from octile.notebooks import records, style, tiles
from octile.notebooks.explorer import Explorer, power_slider

ONE_SCALE, BLOCKS = "tensorwise", "blockwise"
TOKENS, K, N = 256, 256, 64
STEPS, LOOKED_AT = 16, 4  #: steps of a run, and the one whose tensors are looked at
_LOUD = 77  # the channel of X that is louder than the others
#: The rule of this question: with one scale a tensor loses at most this number of dB beside blocks of the same format,
#: and at most this share of its elements becomes zero. A tensor's loudest column has no part in its dB: it has most of
#: the squares and little error, so that a sum with it would not show what happens to the others.
MOST_DB, MOST_FLUSHED = 1.0, 0.01


def row_of(recipe: str) -> Row:
    return next(row for row in ROWS if row.name == recipe)


def quantized(x: numpy.ndarray, kind: TensorType, output: str = "both"):
    return on.quantize(x, kind.dtype, kind.granularity, kind.scales, output)


class Run(NamedTuple):
    """A layer that learns: Y = X W^T, with the mean square of its error as loss."""

    losses: list[float]  #: before each step
    x: numpy.ndarray
    w: numpy.ndarray  #: in step LOOKED_AT
    dy: numpy.ndarray


def _problem(channel: float) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Returns X [TOKENS, K], of which one channel is louder than the others, and Y [TOKENS, N], which those make."""
    x = tiles.normal(TOKENS, K, 1).copy()
    wanted = tiles.normal(N, K, 2) / numpy.float32(K**0.5)
    wanted[:, _LOUD] = 0
    y = x @ wanted.T + numpy.float32(0.05) * tiles.normal(TOKENS, N, 3)
    x[:, _LOUD] *= channel
    return x, y


def products(x, w, dy, row: Row | None):
    """Returns Y, dX and dW of a step by a recipe, in fp32 without one."""
    if row is None:
        return x @ w.T, dy @ w, dy.T @ x
    (xq, xt), (wq, wt), (dq, dt) = (
        quantized(each, kind) for each, kind in ((x, row.activation), (w, row.weight), (dy, row.gradient))
    )
    return (
        on.gemm(xq, wq, promote=row.promote_forward),
        on.gemm(dq, wt, promote=row.promote_backward),
        on.gemm(dt, xt, promote=row.promote_backward),
    )


@cache
def run(recipe: str, channel: float) -> Run:
    """Returns a run of STEPS steps, whose products are the recipe's, or fp32's for "fp32". A weight's step is as long as
    its channel is quiet."""
    row = None if recipe == "fp32" else row_of(recipe)
    x, y = _problem(channel)
    rate = 0.5 / (x.astype(numpy.float64) ** 2).sum(axis=0)
    w, losses, seen = numpy.zeros((N, K), numpy.float32), [], None
    kept = row and quantized(x, row.activation)  # X is the same in all steps
    for step in range(STEPS):
        dy = (on.gemm(kept[0], quantized(w, row.weight, "row"), promote=row.promote_forward) if row else x @ w.T) - y
        losses.append(float((dy.astype(numpy.float64) ** 2).mean()))
        if step == LOOKED_AT:
            seen = w.copy(), dy.copy()
        dw = on.gemm(quantized(dy, row.gradient, "col"), kept[1], promote=row.promote_backward) if row else dy.T @ x
        w = (w - rate * dw).astype(numpy.float32)
    return Run(losses, x, *seen)


class Beside(NamedTuple):
    """A tensor without its loudest column, with one scale, and with blocks of the same format."""

    tensor: str
    one: Loss
    blocks: Loss

    @property
    def lost_db(self) -> float:
        return self.blocks.snr_db - self.one.snr_db

    @property
    def may(self) -> bool:
        return self.lost_db <= MOST_DB and self.one.flushed_share <= MOST_FLUSHED


class Answer(NamedTuple):
    may: bool
    tensors: tuple[Beside, ...]
    errors: dict[str, dict[str, float]]  #: by recipe and product: the error over the product, of fp64's
    losses: dict[str, list[float]]  #: of runs, by recipe

    def sentence(self) -> str:
        if self.may:
            return f"Yes: one scale a tensor loses at most {MOST_DB:g} dB beside blocks."
        reasons = (
            f"{each.tensor} loses {each.lost_db:.1f} dB, and {100 * each.one.flushed_share:.0f} % of it becomes zero"
            for each in self.tensors
            if not each.may
        )
        return f"No: {'; '.join(reasons)}."


def compare(tensors: dict[str, numpy.ndarray]) -> tuple[Beside, ...]:
    """Returns X, W and dY of a layer with the types of one scale a tensor, and with blocks of the same formats."""
    one, blocks = row_of(ONE_SCALE), row_of(BLOCKS)
    kinds = {
        "X": (one.activation, blocks.activation),
        "W": (one.weight, blocks.weight),
        "dY": (one.gradient, blocks.gradient),
    }
    found = []
    for name, x in tensors.items():
        kind, beside = kinds[name]
        same_format = TensorType(kind.dtype, beside.granularity, beside.scales)
        found.append(Beside(name, *(_loss_of_others(x, each) for each in (kind, same_format))))
    return tuple(found)


def _loss_of_others(x: numpy.ndarray, kind: TensorType) -> Loss:
    """Returns what a tensor's columns but the loudest lose."""
    others = numpy.arange(x.shape[1]) != (x.astype(numpy.float64) ** 2).sum(axis=0).argmax()
    return tiles.loss_between(x[:, others], on.dequantize(quantized(x, kind, "row"))[:, others])


def _product_errors(of: Run) -> dict[str, dict[str, float]]:
    exact = products(*(each.astype(numpy.float64) for each in (of.x, of.w, of.dy)), None)
    found = {}
    for recipe in (ONE_SCALE, BLOCKS):
        made = products(of.x, of.w, of.dy, row_of(recipe))
        found[recipe] = {
            name: float(numpy.linalg.norm(each - wanted) / numpy.linalg.norm(wanted))
            for name, each, wanted in zip(("Y", "dX", "dW"), made, exact)
        }
    return found


@cache
def answer(channel: float) -> Answer:
    """Returns whether a layer may have one scale a tensor if a channel is louder than the others by this factor."""
    runs = {recipe: run(recipe, channel) for recipe in ("fp32", ONE_SCALE, BLOCKS)}
    of = runs["fp32"]
    tensors = compare({"X": of.x, "W": of.w, "dY": of.dy})
    return Answer(
        all(each.may for each in tensors),
        tensors,
        _product_errors(of),
        {recipe: each.losses for recipe, each in runs.items()},
    )


class Measured(NamedTuple):
    """Measurements of one scale a tensor on GPUs."""

    losses: dict[str, float]  #: held out, by recipe, BF16's included
    loss_source: str
    gemm_us: dict[str, float]  #: by recipe
    gemm: str
    gemm_source: str


def measured(root=None) -> Measured:
    """Returns the newest records of a model's training, and of a GEMM with each kind of scales."""
    all_of_them = records.load(root or records.source_tree())
    held_out = records.newest_of_each([r for r in all_of_them if r.get("part") == "held out"])
    losses = {records.fields(r)["recipe"]: r for r in held_out}
    shape = "gemm m=4096 n=7168 k=2048"
    texts = {
        ONE_SCALE: f"{shape} a=e4m3:tensor b=e4m3:tensor d=bf16 acc=0 promote=none",
        BLOCKS: f"{shape} a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
    }
    gemms = {
        recipe: max(
            (r for r in all_of_them if r["what"] == text and r["unit"] == "us" and "part" not in r),
            key=lambda r: r["date"],
        )
        for recipe, text in texts.items()
    }
    return Measured(
        {recipe: records.median(r) for recipe, r in losses.items()},
        "; ".join(sorted({records.source_of(r) for r in losses.values()})),
        {recipe: records.median(r) for recipe, r in gemms.items()},
        "4096 x 7168 x 2048",
        "; ".join(sorted({records.source_of(r) for r in gemms.values()})),
    )


def channel_table(channels=(100, 1e3, 1e4, 1e5)):
    """Returns a table of the answers for channels of some loudness."""
    rows = []
    for channel in channels:
        found = answer(float(channel))
        x = found.tensors[0]
        rows.append(
            [
                f"{channel:,.0f}",
                "yes" if found.may else "no",
                f"{x.lost_db:.1f} dB",
                f"{100 * x.one.flushed_share:.2g} %",
                *(f"{losses[-1]:.2g}" for losses in found.losses.values()),
            ]
        )
    headings = ["louder by", "one scale?", "X loses", "becomes zero", *(f"loss, {recipe}" for recipe in found.losses)]
    return style.show(below=style.table(headings, rows))


def measured_table():
    """Returns tables of the measurements."""
    seen = measured()
    losses = style.table(
        ["held-out loss, nats a byte", "BF16", ONE_SCALE, BLOCKS],
        [["GPT of 151 M parameters", *(f"{seen.losses[recipe]:.4f}" for recipe in ("bf16", ONE_SCALE, BLOCKS))]],
    )
    gemms = style.table(
        ["product, us", ONE_SCALE, BLOCKS],
        [[seen.gemm, *(f"{seen.gemm_us[recipe]:.1f}" for recipe in (ONE_SCALE, BLOCKS))]],
    )
    return style.show(below=f"{losses}<p>{seen.loss_source}</p>{gemms}<p>{seen.gemm_source}</p>")


_COLOURS = {"fp32": "text", ONE_SCALE: "mark", BLOCKS: "octile"}


def draw_answer(found: Answer):
    """Draws the tensors' SNR, the products' errors and the training runs."""
    figure = style.figure(8.6, 3.5)
    snr = style.axes_in(figure, (0.06, 0.15, 0.24, 0.6), "y")
    for i, each in enumerate(found.tensors):
        for j, (loss, recipe) in enumerate(((each.one, ONE_SCALE), (each.blocks, BLOCKS))):
            snr.bar(i + 0.4 * j - 0.2, loss.snr_db, width=0.36, color=style.LIGHT[_COLOURS[recipe]])
    snr.set_xticks(range(len(found.tensors)), [each.tensor for each in found.tensors])
    snr.set_ylim(0, 36)
    style.title(snr, "SNR of quiet columns, dB")
    errors = style.axes_in(figure, (0.38, 0.15, 0.24, 0.6), "y")
    for j, (recipe, by_product) in enumerate(found.errors.items()):
        for i, error in enumerate(by_product.values()):
            errors.bar(i + 0.4 * j - 0.2, 100 * error, width=0.36, color=style.LIGHT[_COLOURS[recipe]])
    errors.set_xticks(range(3), ["Y", "dX", "dW"])
    style.title(errors, "error of the products, %")
    curves = style.axes_in(figure, (0.70, 0.15, 0.27, 0.6))
    for recipe, losses in found.losses.items():
        curves.plot(losses, color=style.LIGHT[_COLOURS[recipe]], linewidth=1.8)
    curves.set_yscale("log")
    curves.set_ylim(2e-3, 5)
    curves.set_xlim(0, STEPS - 1)
    curves.set_xticks(range(0, STEPS, 5))
    curves.minorticks_off()
    curves.set_xlabel("step", fontsize=9, color=style.LIGHT["quiet"])
    style.title(curves, "loss")
    style.key(figure, [("one scale a tensor", "mark"), ("blocks", "octile"), ("fp32", "text")], 0.9)
    return figure


class OneScale(Explorer):
    """A layer, one channel of whose input is louder than the others."""

    def controls(self):
        return {"channel": power_slider("one channel is louder by", 0, 7, 100.0, step=0.5)}

    def compute(self, channel):
        return answer(channel)

    def page(self, result):
        rows = []
        for each in result.tensors:
            rows.append(
                [
                    each.tensor,
                    f"{each.one.snr_db:.1f} dB",
                    f"{each.blocks.snr_db:.1f} dB",
                    f"{100 * each.one.flushed_share:.2g} %",
                    "yes" if each.may else "no",
                ]
            )
        below = f"<p><b>{result.sentence()}</b></p>" + style.table(
            ["tensor", "one scale", "blocks, same format", "flushed by one scale", "may have one scale"], rows
        )
        return style.page_of(draw_answer(result), below)
