"""The computation of a mixture of experts: rows sorted by expert, two grouped GEMMs and an activation between them, and
the sum of each token's rows. No step waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from octile.torch._operators import ops
from octile.torch.derivatives import (
    is_in_forward_mode,
    is_transformed,
    once_differentiable,
    wanted_gradient,
    weight_gradient,
)
from octile.torch.grouped import (
    as_rows,
    exchanged_gradients,
    exchanged_product,
    exchanges,
    group_gradients,
    group_operands,
)
from octile.torch.layer import Layer
from octile.torch.modules import multiply_groups


#: Rows of a token that a compiled sum reads one after the other.
_MOST_IN_A_CHAIN = 32


class Route(NamedTuple):
    """Which rows the experts compute. Row r is choice ``order[r]`` of all tokens' choices, counted token by token."""

    order: torch.Tensor  #: int64 [rows]
    places: torch.Tensor  #: int64 [rows]: the row of each choice, the inverse of ``order``
    offsets: torch.Tensor  #: int32 [experts + 1]: the first row of each expert, then the end of the last
    top_k: int  #: rows of a token


def route(chosen: torch.Tensor, experts: int) -> Route:
    """Returns the rows of tokens whose experts are ``chosen``, integers [tokens, top_k] below ``experts``."""
    ids, order = torch.sort(chosen.reshape(-1), stable=True)
    numbers = torch.arange(ids.shape[0], device=ids.device)
    places = torch.empty_like(order).scatter_(0, order, numbers)
    firsts = torch.arange(experts + 1, device=ids.device, dtype=ids.dtype)
    return Route(order, places, torch.searchsorted(ids, firsts, out_int32=True), chosen.shape[-1])


class _Dispatch(torch.autograd.Function):
    """Row r of the result is ``x[order[r] // top_k]``. The gradient is a sum in a fixed order, without atomics."""

    @staticmethod
    def forward(ctx, x, order, places, top_k):
        ctx.save_for_backward(order, places)
        ctx.top_k = top_k
        return x[order // top_k]

    @staticmethod
    def backward(ctx, dy):
        order, places = ctx.saved_tensors
        return _Combine.apply(dy, order, places, ctx.top_k), None, None, None


class _Combine(torch.autograd.Function):
    """Row t of the result is the sum of the rows of token t; ``_Dispatch`` is its gradient, and the other way round."""

    @staticmethod
    def forward(ctx, rows, order, places, top_k):
        ctx.save_for_backward(order, places)
        ctx.top_k = top_k
        return sums_of(rows, places, top_k)

    @staticmethod
    def backward(ctx, dy):
        order, places = ctx.saved_tensors
        return _Dispatch.apply(dy, order, places, ctx.top_k), None, None, None


def sums_of(rows: torch.Tensor, places: torch.Tensor, top_k: int) -> torch.Tensor:
    """Returns the sums of the rows of each token in fp32, rounded once."""
    of_token = places.view(-1, top_k)
    if not torch.compiler.is_compiling() or top_k > _MOST_IN_A_CHAIN:
        return rows[of_token].sum(1)
    # The compiler makes one loop over the columns of it, and of a reduction one over the rows of a token.
    chain = rows[of_token[:, 0]].float()
    for choice in range(1, top_k):
        chain = chain + rows[of_token[:, choice]].float()
    return chain.to(rows.dtype)


def has_own_derivatives() -> bool:
    """Returns whether the functions of this file serve: not transforms of ``torch.func``, and no forward mode."""
    return not is_transformed() and not is_in_forward_mode()


def rows_of(x: torch.Tensor, way: Route, top_k: int) -> torch.Tensor:
    """Returns [rows, ...] of x [rows / top_k, ...], sorted by expert. top_k: rows that an element of x makes."""
    if has_own_derivatives():
        return _Dispatch.apply(x, way.order, way.places, top_k)
    return x[way.order // top_k]


def tokens_of(rows: torch.Tensor, way: Route) -> torch.Tensor:
    """Returns the sums of the rows of each token: [tokens, ...]."""
    if has_own_derivatives():
        return _Combine.apply(rows, way.order, way.places, way.top_k)
    return sums_of(rows, way.places, way.top_k)


class _Down(torch.autograd.Function):
    """score * (activation(*inner) weight^T), by groups of rows. Neither the activation's result nor the product is
    kept: backward computes the first again, and the gradient of a score from the activation's, because <dy, activation
    weight^T> = <dy weight, activation>."""

    @staticmethod
    def forward(ctx, inner, weight, other, scores, offsets, activation, code, sentry, transposed):
        needs_weight = ctx.needs_input_grad[1]
        active = activate(activation, inner, *(() if other is None else (other,)))
        recorded = any(ctx.needs_input_grad[:4])
        ctx.exchanged = transposed and exchanges(code)
        if ctx.exchanged:
            y = exchanged_product(active, weight, offsets, code, sentry)
        else:
            w = as_rows(weight, transposed)
            y = ops.experts_forward(active, w, offsets, code, False, recorded, None, sentry)[0]
        ctx.save_for_backward(inner, weight, other, scores, offsets)
        ctx.activation, ctx.code, ctx.state, ctx.transposed = activation, code, (None, sentry), transposed
        ctx.parameter = weight if needs_weight and weight.is_leaf else None
        if scores is None:
            return y
        return _weighted(y, scores) if torch.compiler.is_compiling() else y.mul_(scores)

    @staticmethod
    @once_differentiable
    def backward(ctx, saved, dy):
        inner, weight, other, scores, offsets = saved
        arguments = (inner,) if other is None else (inner, other)
        active, pull = torch.func.vjp(lambda *parts: activate(ctx.activation, *parts), *arguments)
        # A score multiplies x here, so that dy itself is multiplied with the weight.
        x = active if scores is None else active * scores.to(active.dtype)
        if ctx.exchanged:
            rest = ctx.code, ctx.state[1], *weight_gradient(ctx), ctx.parameter
            dx, dw = exchanged_gradients(weight, x, dy, offsets, *rest)
        else:
            operands = weight, x, x.new_empty(0), offsets
            dx, dw = group_gradients(ctx, operands, dy, True, *weight_gradient(ctx), ctx.parameter)
        d_scores = None
        if scores is not None:
            if ctx.needs_input_grad[3]:
                d_scores = (dx.float() * active.float()).sum(1, keepdim=True).to(scores.dtype)
            dx = dx * scores.to(dx.dtype)
        d_inner, d_other = (*pull(dx), None)[:2]
        return d_inner, dw, d_other, d_scores, None, None, None, None, None


def _weighted(y: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Returns y [rows, n] times scores [rows, 1], of y's dtype."""
    weighted = y * scores
    # A tensor without changes would be a second result of the graph that torch.compile makes of ``_Down``.
    return weighted if weighted.dtype == y.dtype else weighted.to(y.dtype)


def activate(activation: Callable[..., torch.Tensor], inner: torch.Tensor, *other: torch.Tensor) -> torch.Tensor:
    """Returns what stands between the GEMMs, of the first ones' results."""
    return activation(inner, *other).to(inner.dtype)


def _is_composed(layer: Layer, plain: bool) -> bool:
    """Returns whether a layer computes now by ``multiply_groups`` alone."""
    if plain or layer._is_plain() or layer._scaling is not None or layer.recipe.plain or not torch.is_grad_enabled():
        return True
    return (layer._watch is not None and layer._watch.each_call) or not has_own_derivatives()


def words_of(layer: Layer) -> torch.Tensor | None:
    """Returns what a sentry reads of a layer's calls, or None."""
    return None if layer._watch is None else layer._watch.words


def down(
    layer: Layer, weight: torch.Tensor, activation: Callable[..., torch.Tensor], inner: tuple[torch.Tensor, ...],
    scores: torch.Tensor | None, offsets: torch.Tensor, plain: bool,
) -> torch.Tensor:  # fmt: skip
    """Returns scores * (activation(*inner) weight^T) by groups of rows, as a layer computes now: [rows, n].

    inner: one or two tensors [rows, ...]. scores: [rows, 1] or None. weight: the layer's. plain: this call is without
    FP8.
    """
    if _is_composed(layer, plain):
        y = multiply_groups(layer, activate(activation, *inner), weight, offsets, plain)
        if scores is None:
            return y
        # Without FP8 as transformers does it, in the wider of the two types.
        return y * scores if plain or layer._is_plain() else _weighted(y, scores)
    code, _ = layer._call_state(inner[0])
    other = inner[1] if len(inner) == 2 else None
    return _Down.apply(
        inner[0], weight, other, scores, offsets, activation, code, words_of(layer), layer.transposed
    )  # fmt: skip


class _Up(torch.autograd.Function):
    """x[order // top_k] weight by groups of rows, of a weight [experts, k, n]. x itself is kept, which is smaller than
    an FP8 copy of its rows, and which the router keeps in any case; backward sorts its rows again."""

    @staticmethod
    def forward(ctx, x, weight, order, places, offsets, top_k, code, sentry):
        ctx.save_for_backward(x, weight, order, places, offsets)
        ctx.top_k, ctx.code, ctx.sentry = top_k, code, sentry
        ctx.parameter = weight if ctx.needs_input_grad[1] and weight.is_leaf else None
        return exchanged_product(x[order // top_k], weight, offsets, code, sentry)

    @staticmethod
    @once_differentiable
    def backward(ctx, saved, dy):
        x, weight, order, places, offsets = saved
        rest = ctx.code, ctx.sentry, *weight_gradient(ctx), ctx.parameter
        rows, dw = exchanged_gradients(weight, x[order // ctx.top_k], dy, offsets, *rest)
        return sums_of(rows, places, ctx.top_k), dw, None, None, None, None, None, None


def up(layer: Layer, weight: torch.Tensor, x: torch.Tensor, way: Route, plain: bool) -> torch.Tensor:
    """Returns the rows of x [tokens, k] times a layer's weight by groups, as the layer computes now: [rows, n]. plain:
    this call is without FP8."""
    if _is_composed(layer, plain) or not (layer.transposed and exchanges(layer._code)):
        return multiply_groups(layer, rows_of(x, way, way.top_k), weight, way.offsets, plain)
    x, offsets = group_operands(x, weight, way.offsets)
    code, _ = layer._call_state(x)
    return _Up.apply(x, weight, way.order, way.places, offsets, way.top_k, code, words_of(layer))


class _Both(torch.autograd.Function):
    """Two products of one x, of which one FP8 copy is kept."""

    @staticmethod
    def forward(ctx, x, first, second, offsets, code, words):
        needs_x, *needs = ctx.needs_input_grad[:3]
        recorded = needs_x or any(needs)
        y, x_codes, x_scales = ops.experts_forward(x, first, offsets, code, any(needs), recorded, None, words[0])
        other = ops.experts_forward(x, second, offsets, code, False, recorded, None, words[1])[0]
        ctx.save_for_backward(x_codes, first, second, x_scales, offsets)
        ctx.code, ctx.words, ctx.transposed = code, words, False
        ctx.parameters = [w if needs and w.is_leaf else None for w, needs in ((first, needs[0]), (second, needs[1]))]
        return y, other

    @staticmethod
    @once_differentiable
    def backward(ctx, saved, *dys):
        x_codes, *weights, x_scales, offsets = saved
        dx, gradients = None, []
        for index, (weight, dy) in enumerate(zip(weights, dys, strict=True)):
            ctx.state = None, ctx.words[index]
            operands = weight, x_codes, x_scales, offsets
            wanted = wanted_gradient(ctx, index + 1, ctx.parameters[index])
            part, dw = group_gradients(ctx, operands, dy, ctx.needs_input_grad[0], *wanted, ctx.parameters[index])
            dx = part if dx is None or part is None else dx.add_(part)
            gradients.append(dw)
        return dx, *gradients, None, None, None


def both(
    layers: tuple[Layer, Layer], weights: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, offsets: torch.Tensor,
    plain: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Returns x times each of two weights by groups of rows, as their layers compute now."""
    if any(_is_composed(layer, plain) or layer.transposed for layer in layers) or layers[0].recipe != layers[1].recipe:
        first, second = (multiply_groups(layer, x, w, offsets, plain) for layer, w in zip(layers, weights, strict=True))
        return first, second
    x, offsets = group_operands(x, weights[0], offsets)
    codes = [layer._call_state(x)[0] for layer in layers]
    return _Both.apply(x, *weights, offsets, codes[0], tuple(map(words_of, layers)))
