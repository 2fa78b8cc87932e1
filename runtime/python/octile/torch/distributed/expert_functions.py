"""The two halves of spread experts, with gradients: from tokens to the activation's inputs, and from there to rows
that are back where their tokens are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from octile._types import TensorType
from octile.torch._operators import ops
from octile.torch.derivatives import once_differentiable
from octile.torch.distributed.expert_exchange import Way, to_experts, to_sources
from octile.torch.functional import as_operands
from octile.torch.grouped import as_rows, exchanges
from octile.torch.layer import Layer
from octile.torch.mixture import activate, both, down
from octile.torch.modules import multiply_groups
from octile.torch.recipes import recipe_of


class Source(NamedTuple):
    """Which rows of x are sent: row r is ``x[order[r] // top_k]``. order and places are as in ``mixture.Route``."""

    order: torch.Tensor
    places: torch.Tensor
    top_k: int

    def rows_of(self, x: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, self.order // self.top_k)

    def sums_of(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[self.places].unflatten(0, (self.places.shape[0] // self.top_k, self.top_k)).sum(1)


class Arrived(NamedTuple):
    """Rows in FP8, in the order of experts: codes [rows, columns] and their scales, flat."""

    codes: torch.Tensor
    scales: torch.Tensor


def send(x: torch.Tensor, kind: TensorType, source: Source | None, way: Way) -> Arrived:
    """Returns what arrives of rows of x, which are quantised before any row is there twice."""
    messages = ops.quantize_messages(x.contiguous(), kind.text)
    if source is not None:
        messages = source.rows_of(messages.view(torch.int64)).view(torch.uint8)
    return Arrived(*ops.open_messages(to_experts(messages, way), way.index, kind.text, x.shape[1]))


def _shape_of(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of the shape of rows without memory for it."""
    return torch.empty((), dtype=dtype, device=rows.device).expand(rows.shape)


class Product(NamedTuple):
    """One layer of a call."""

    code: int
    sentry: torch.Tensor | None
    transposed: bool  #: the weight is [experts, k, n]

    @property
    def exchanged(self) -> bool:
        return self.transposed and exchanges(self.code)

    def kinds(self) -> tuple[TensorType, TensorType]:
        """Returns the types of X and dY."""
        recipe = recipe_of(self.code)
        return recipe.activation, recipe.gradient

    def of_arrived(self, x: Arrived, like: torch.Tensor, weight, offsets, recorded: bool) -> torch.Tensor:
        """Returns x weight^T by groups."""
        state = None, self.sentry, None
        if not self.exchanged:
            w = as_rows(weight, self.transposed)
            return ops.experts_forward(like, w, offsets, self.code, False, recorded, *state, *x)[0]
        nothing = like.new_empty(0, dtype=torch.uint8)
        return ops.experts_backward(
            like, weight, offsets, nothing, nothing, self.code, True, False, *state, 0, *x, None, None
        )[0]

    def gradients_of_arrived(self, x: Arrived, like, weight, offsets, dy, needs_x: bool, needs_w: bool) -> tuple:
        """Returns the gradients of ``of_arrived`` for x and the weight, None for those that are not needed."""
        nothing = dy.new_empty(0, dtype=torch.uint8)
        copies = nothing, nothing
        if needs_w:
            copies = ops.requantize_groups(*x, offsets, self.kinds()[0].text)
        if not self.exchanged:
            w = as_rows(weight, self.transposed)
            dx, dw = ops.experts_backward(dy, w, offsets, *copies, self.code, needs_x, needs_w, None, self.sentry)
            return dx if needs_x else None, as_rows(dw, self.transposed) if needs_w else None
        dx, *kept = ops.experts_forward(dy, weight, offsets, self.code, needs_w, True, None, self.sentry)
        dw = None
        if needs_w:
            state = None, self.sentry, None, 0, None, None
            dw = ops.experts_backward(like, weight, offsets, *kept, self.code, False, True, *state, *copies)[1]
        return dx if needs_x else None, dw

    def gradients_by_arrived(self, dy: Arrived, like, weight, offsets, x, needs_w: bool) -> tuple:
        """Returns the gradients of x weight^T, of a dY that has arrived: of x, and of the weight or None."""
        copies: tuple = (None, None)
        if needs_w:
            copies = ops.requantize_groups(*dy, offsets, self.kinds()[1].text)
        if not self.exchanged:
            w = as_rows(weight, self.transposed)
            state = None, self.sentry, None, 0
            empty = x.new_empty(0)
            dx, dw = ops.experts_backward(
                like, w, offsets, x, empty, self.code, True, needs_w, *state, *dy, *copies
            )  # fmt: skip
            return dx, as_rows(dw, self.transposed) if needs_w else None
        dx = ops.experts_forward(like, weight, offsets, self.code, False, True, None, self.sentry, None, *dy)[0]
        if not needs_w:
            return dx, None
        return dx, ops.experts_backward(x, weight, offsets, *copies, self.code, False, True, None, self.sentry)[1]


class _First(torch.autograd.Function):
    """x of the tokens to the products of its rows with each weight, at the experts."""

    @staticmethod
    def forward(ctx, x, source, way, products, *weights):
        kind = products[0].kinds()[0]
        arrived = send(x, kind, source, way)
        like = _shape_of(arrived.codes, x.dtype)
        ctx.save_for_backward(arrived.codes, arrived.scales, *weights)
        ctx.source, ctx.way, ctx.products, ctx.dtype = source, way, products, x.dtype
        recorded = ctx.needs_input_grad[0]
        pairs = zip(products, weights, strict=True)
        return tuple(product.of_arrived(arrived, like, w, way.offsets, recorded) for product, w in pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx, saved, *dys):
        codes, scales, *weights = saved
        arrived, way = Arrived(codes, scales), ctx.way
        like = _shape_of(codes, ctx.dtype)
        needs_x, _, _, _, *needs = ctx.needs_input_grad
        dx, gradients = None, []
        for product, weight, dy, needs_w in zip(ctx.products, weights, dys, needs, strict=True):
            wanted = needs_x, needs_w
            part, dw = product.gradients_of_arrived(arrived, like, weight, way.offsets, dy.contiguous(), *wanted)
            dx = part if dx is None or part is None else dx.add_(part)
            gradients.append(dw)
        if needs_x:
            dx = to_sources(dx, way)
            dx = dx if ctx.source is None else ctx.source.sums_of(dx)
        return dx, None, None, None, *gradients


class _Second(torch.autograd.Function):
    """activation(*inner) weight^T at the experts, to rows at their tokens. The activation is computed again for
    backward; dY travels as messages."""

    @staticmethod
    def forward(ctx, activation, way, product, weight, *inner):
        ctx.save_for_backward(weight, *inner)
        ctx.activation, ctx.way, ctx.product = activation, way, product
        active = activate(activation, *inner).contiguous()
        recorded = any(ctx.needs_input_grad)
        state = None, product.sentry
        if product.exchanged:
            nothing = active.new_empty(0, dtype=torch.uint8)
            y = ops.experts_backward(
                active, weight, way.offsets, nothing, nothing, product.code, True, False, *state
            )[0]  # fmt: skip
        else:
            w = as_rows(weight, product.transposed)
            y = ops.experts_forward(active, w, way.offsets, product.code, False, recorded, *state)[0]
        return to_sources(y, way)

    @staticmethod
    @once_differentiable
    def backward(ctx, saved, dy):
        weight, *inner = saved
        active, pull = torch.func.vjp(lambda *parts: activate(ctx.activation, *parts), *inner)
        arrived = send(dy, ctx.product.kinds()[1], None, ctx.way)
        like = _shape_of(arrived.codes, dy.dtype)
        needs_w = ctx.needs_input_grad[3]
        dx, dw = ctx.product.gradients_by_arrived(
            arrived, like, weight, ctx.way.offsets, active.contiguous(), needs_w
        )  # fmt: skip
        return None, None, None, dw, *pull(dx)


class _ToExperts(torch.autograd.Function):
    """Rows of x to their experts, in x's dtype; ``_ToSources`` is its gradient, but for the tokens' sums."""

    @staticmethod
    def forward(ctx, x, source, way):
        ctx.source, ctx.way = source, way
        rows = x if source is None else source.rows_of(x)
        return to_experts(rows, way).index_select(0, way.index)

    @staticmethod
    def backward(ctx, dy):
        dx = _ToSources.apply(dy, ctx.way)
        return dx if ctx.source is None else ctx.source.sums_of(dx), None, None


class _ToSources(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, way):
        ctx.way = way
        return to_sources(rows, way)

    @staticmethod
    def backward(ctx, dy):
        return _ToExperts.apply(dy, None, ctx.way), None


def _product_of(layer: Layer, like: torch.Tensor) -> Product:
    code, _ = layer._call_state(like)
    return Product(code, None if layer._watch is None else layer._watch.words, layer.transposed)


def first(
    layers: tuple[Layer, ...], weights: tuple[torch.Tensor, ...], x: torch.Tensor, source: Source | None, way: Way,
    fp8: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Returns the products of the rows that x's are for this rank's experts with each weight: [rows, n]."""
    if fp8:
        products = tuple(_product_of(layer, x) for layer in layers)
        return _First.apply(as_operands(x, weights[0], None)[0], source, way, products, *weights)
    rows = _ToExperts.apply(x, source, way)
    if len(layers) == 2:
        return both(layers, weights, rows, way.offsets, False)
    return (multiply_groups(layers[0], rows, weights[0], way.offsets),)


def second(
    layer: Layer, weight: torch.Tensor, activation: Callable[..., torch.Tensor], inner: tuple[torch.Tensor, ...],
    way: Way, fp8: bool,
) -> torch.Tensor:  # fmt: skip
    """Returns activation(*inner) weight^T at the ranks of the tokens, of rows in the order of this rank's experts."""
    if fp8:
        return _Second.apply(activation, way, _product_of(layer, inner[0]), weight, *inner)
    return _ToSources.apply(down(layer, weight, activation, inner, None, way.offsets, False), way)
