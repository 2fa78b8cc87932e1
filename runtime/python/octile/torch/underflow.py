"""``underflow``: which shares of the operands of FP8 layers become zero or saturate when they are quantised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from octile._types import TensorType, refuse
from octile.torch._arguments import check_model
from octile.torch.derivatives import is_transformed
from octile.torch.functional import as_operands, dequantize, linear_of, quantize
from octile.torch.grouped import as_rows, experts_of, with_first_zero
from octile.torch.layer import Layer
from octile.torch.held_weight import plain_values
from octile.torch.recipes import DW, DX, recipe_of
from octile.torch.watch import Watch

_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
#: The least value that rounds beyond the largest code, by that code.
_BEYOND = {"e4m3": 464 / torch.finfo(_TYPES["e4m3"]).max, "e5m2": 61440 / torch.finfo(_TYPES["e5m2"]).max}
_OPERANDS = ("x", "w", "dy")
_COLUMNS = ("x.T", "dy.T")  # the transposed copies, which dW multiplies
_SHOWN = 20  # layers that a printed result has


class Shares(NamedTuple):
    """Counts of an operand's values that are not zero: their number, and the shares that became zero and saturated."""

    values: int
    flushed: float
    saturated: float


@dataclass
class Underflow:
    """The counts of ``underflow``, by the names of layers."""

    _sums: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    @property
    def layers(self) -> dict[str, dict[str, Shares]]:
        """The shares of each layer's operands "x", "w", "dy", "x.T" and "dy.T", as far as calls have had them. Waits
        for the device."""
        return {name: {key: _shares(of) for key, of in sums.items()} for name, sums in self._sums.items() if sums}

    def __str__(self) -> str:
        layers = sorted(self.layers.items(), key=lambda item: -max(shares.flushed for shares in item[1].values()))
        if not layers:
            return "no call was in FP8"
        columns = (*_OPERANDS, *_COLUMNS)
        lines = ["zero, saturated:", "".join(f"{key:>18}" for key in columns) + "  layer"]
        for name, operands in layers[:_SHOWN]:
            shares = (operands.get(key) for key in columns)
            cells = ("-" if of is None else f"{100 * of.flushed:.3g} %, {100 * of.saturated:.3g} %" for of in shares)
            lines.append("".join(f"{cell:>18}" for cell in cells) + f"  {name or 'model'}")
        return "\n".join(lines + [f"and {len(layers) - _SHOWN} more layers"] * (len(layers) > _SHOWN))


def _shares(sums: torch.Tensor) -> Shares:
    values, flushed, saturated = map(int, sums.tolist())
    return Shares(values, flushed / max(values, 1), saturated / max(values, 1))


@contextmanager
def underflow(model: nn.Module) -> Iterator[Underflow]:
    """Counts, while the block runs, which values of the operands of a model's FP8 layers become zero or saturate.

    >>> with octile.torch.underflow(model) as seen:
    ...     loss_of(model(x)).backward()
    >>> print(seen)

    x and w are counted in forward and dy in backward, in blocks along their rows. "x.T" and "dy.T" are the transposed
    copies, the operands of dW, with blocks along the tokens; with one scale per tensor they are the same and left out.
    A value is flushed if it is not zero but its code is, and saturated if it exceeds the largest code. Results and
    gradients do not change; fused MLPs run layer by layer, compiled models run eager, and each operand is quantised
    once more, so a step takes a few times as long. Calls without FP8 and inside ``torch.func`` are not counted. Raises
    ValueError for a model without FP8 layers, and for one that a sentry watches.
    """
    check_model(model)
    seen = Underflow()
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, Layer) and m._code is not None]
    if not layers:
        raise refuse("model", type(model).__name__, "is a model with octile.torch.Linear or Experts in it")
    if any(layer._watch is not None for _, layer in layers):
        raise refuse("model", type(model).__name__, "is a model without a sentry; call its remove() first")
    for name, layer in layers:
        layer._watch = _Meter(layer, seen._sums.setdefault(name, {}))
    try:
        with torch.compiler.set_stance("force_eager"):
            yield seen
    finally:
        for _, layer in layers:
            layer._watch = None


class _Meter(Watch):
    """Looks at the operands of a layer's calls."""

    def __init__(self, layer: Layer, sums: dict[str, torch.Tensor]) -> None:
        super().__init__(torch.zeros(3, dtype=torch.int32))  # of no use to anybody
        self.layer, self.sums = layer, sums
        self.each_call = True  # so that modules call layer by layer

    def linear(self, x, weight, bias, code, scaling, plain=0) -> torch.Tensor:
        if is_transformed():
            return linear_of(x, weight, bias, code, scaling, plain=plain)
        operand, _ = as_operands(x, None, None)
        self._see("x", code, operand)
        self._see("w", code, plain_values(weight))
        y = linear_of(x, weight, bias, code, scaling, plain=plain)
        if y.requires_grad and plain != DX | DW:
            y.register_hook(lambda dy: self._see("dy", code, dy))
        return y

    def experts(self, x, weight, offsets, code, scaling, transposed=False, plain=0) -> torch.Tensor:
        if is_transformed():
            return experts_of(x, weight, offsets, code, scaling, None, transposed, plain)
        operand, _ = as_operands(x, None, None)
        ends = with_first_zero(offsets, weight.shape[0], x).tolist()
        self._see("x", code, operand, ends)
        self._see("w", code, as_rows(plain_values(weight), transposed))
        y = experts_of(x, weight, offsets, code, scaling, None, transposed, plain)
        if y.requires_grad and plain != DX | DW:
            y.register_hook(lambda dy: self._see("dy", code, dy, ends))
        return y

    @torch.no_grad()
    def _see(self, operand: str, code: int, values: torch.Tensor, ends: list[int] | None = None) -> None:
        """Counts an operand: rows, or groups of rows that end there, or the weights of experts."""
        recipe, index = recipe_of(code), _OPERANDS.index(operand)
        kind = (recipe.activation, recipe.weight, recipe.gradient)[index]
        values = values.detach()
        if ends is not None:
            parts = [values[first:last] for first, last in zip(ends, ends[1:], strict=False)]
        else:
            parts = list(values) if operand == "w" and values.dim() == 3 else [values.reshape(-1, values.shape[-1])]
        delayed = recipe.is_delayed and operand != "w"
        encode = self.layer._scaling.scales[index // 2].reshape(-1) if delayed else None
        trains = self.layer.weight.requires_grad and not self.layer.recipe.plain & DW
        for number, part in enumerate(parts):
            if not part.numel():
                continue
            self._add(operand, _counts(part, kind, None if encode is None else encode[number]))
            if operand != "w" and kind.granularity != "tensor" and trains:
                self._add(operand + ".T", _counts(part.t(), kind, None))

    def _add(self, operand: str, counts: torch.Tensor) -> None:
        self.sums[operand] = self.sums[operand] + counts if operand in self.sums else counts


def _counts(rows: torch.Tensor, kind: TensorType, encode: torch.Tensor | None) -> torch.Tensor:
    """Returns how many values are not zero, become zero, and saturate: float64 [3]. encode: what they are multiplied
    by; None if their maxima say it."""
    largest = torch.finfo(_TYPES[kind.dtype]).max
    if encode is not None:
        scaled = rows.float() * encode
        codes = scaled.clamp(-largest, largest).to(_TYPES[kind.dtype]).float()
        beyond = scaled.abs() > largest * _BEYOND[kind.dtype]
    else:
        quantized = quantize(rows.contiguous(), _TYPES[kind.dtype], kind.granularity, kind.scales)
        codes = quantized.codes.float()
        limit = dequantize(quantized).abs() * _BEYOND[kind.dtype]
        beyond = (codes.abs() == largest) & (rows.float().abs() > limit)
    masks = rows != 0, (rows != 0) & (codes == 0), beyond & rows.isfinite()
    return torch.stack([mask.sum(dtype=torch.float64) for mask in masks])
