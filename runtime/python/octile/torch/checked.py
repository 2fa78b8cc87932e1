"""Layers whose products the host checks one by one, and computes again without FP8 if they are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch

from octile.torch._operators import ops
from octile.torch.derivatives import differentiable_once, refuse_tangents, weight_gradient
from octile.torch.functional import (
    Quantized,
    _Linear,
    as_operands,
    dummy_gradient,
    has_gradients,
    linear_gradients,
    plain_linear,
)
from octile.torch.grouped import (
    _Experts,
    expert_gradients,
    group_operands,
    plain_experts,
    plain_weight_gradients,
)
from octile.torch.recipes import DW, recipe_of

#: Positions of a layer's words, as runtime/python/torch/sentry.h orders them.
OUTPUT, INPUT_GRADIENT, WEIGHT_GRADIENT = range(3)


class _Checked(torch.autograd.Function):
    """As ``_Linear``, with a check of both gradients. ``failed(product)`` waits for the product and says whether it is
    not finite; ``settle(product, result)`` hears of the result that takes its place."""

    @staticmethod
    def forward(ctx, x, weight, bias, code, scaling, words, failed, settle, plain):
        ctx.failed, ctx.settle = failed, settle
        return _Linear.forward(ctx, x, weight, bias, code, scaling, words, plain=plain)

    @staticmethod
    @differentiable_once
    def backward(ctx, saved, dy):
        weight, x_codes, x_scales = saved

        def of_x():
            return dy @ weight.to(dy.dtype)

        def of_weight():
            rows = dy.reshape(-1, dy.shape[-1])
            if ctx.keeps_x:
                return rows.t() @ x_codes.reshape(-1, x_codes.shape[-1])
            x = _kept_input(x_codes, x_scales, ctx.code, rows.shape[0], dy.dtype)
            return rows.t() @ x.t()

        return *_checked_gradients(ctx, saved, dy, linear_gradients, of_x, of_weight), None, None, None


class _CheckedExperts(torch.autograd.Function):
    """The same of ``_Experts``."""

    @staticmethod
    def forward(ctx, x, weight, offsets, code, scaling, words, failed, settle, plain):
        ctx.failed, ctx.settle = failed, settle
        return _Experts.forward(ctx, x, weight, offsets, code, scaling, words, plain=plain)

    @staticmethod
    @differentiable_once
    def backward(ctx, saved, dy):
        weight, x_codes, x_scales, offsets = saved
        ends = offsets.tolist()

        def of_x():
            return plain_experts(dy, weight.transpose(1, 2), offsets)

        def of_weight():
            if ctx.plain & DW:
                return plain_weight_gradients(dy, x_codes, offsets)
            groups = _kept_groups(x_codes, x_scales, ctx.code, ends, dy.dtype)
            return torch.stack([dy[a:b].t() @ x.t() for (a, b), x in zip(pairwise(ends), groups, strict=True)])

        return *_checked_gradients(ctx, saved, dy, expert_gradients, of_x, of_weight)[:6], *(None,) * 3


_Product = Callable[[], torch.Tensor]


def _checked_gradients(
    ctx, saved: tuple, dy: torch.Tensor, gradients_of: Callable, of_x: _Product, of_weight: _Product
) -> tuple:
    """Returns what ``gradients_of`` does, with the two products in the place of those that are not finite."""
    needs_x, (needs_weight, main_grad) = ctx.needs_input_grad[0], weight_gradient(ctx)
    # A product that is added to main_grad could not be taken back.
    total = None if main_grad is None else torch.zeros_like(main_grad, dtype=torch.float32)
    dx, dw, *others = gradients_of(ctx, saved, dy, needs_weight, total)
    if total is not None:
        dw = total
    if needs_x and ctx.failed(INPUT_GRADIENT):
        dx = ctx.settle(INPUT_GRADIENT, of_x())
    if needs_weight and ctx.failed(WEIGHT_GRADIENT):
        dw = ctx.settle(WEIGHT_GRADIENT, of_weight().to(dw.dtype))
    if total is not None:
        main_grad.add_(dw)
        dw = dummy_gradient(ctx.parameter)
    return dx, dw, *others


def _kept_input(codes, scales, code: int, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns X^T [k, tokens], as the transposed FP8 copy has it."""
    kind, k = recipe_of(code).activation, codes.shape[0]
    shape = kind.scale_shape(k, tokens)
    return Quantized(codes, scales[: math.prod(shape)].view(shape), kind, (k, tokens)).dequantize(dtype)


def _kept_groups(codes, scales, code: int, ends: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns X^T [k, tokens] of each group. In the copy each begins at a multiple of 128 columns."""
    k, columns = codes.shape
    one_each = recipe_of(code).activation.granularity == "tensor"
    values = codes.float() if one_each else _kept_input(codes, scales, code, columns, torch.float32)
    groups, begin = [], 0
    for index, (a, b) in enumerate(pairwise(ends)):
        group = values[:, begin : begin + b - a]
        groups.append((group * scales[index] if one_each else group).to(dtype))
        begin += (b - a + 127) // 128 * 128
    return groups


def checked_linear(x, weight, bias, code, scaling, words, failed, settle, plain=0) -> torch.Tensor:
    """Returns what ``linear_of`` does, or what ``nn.functional.linear`` does if that is not finite."""
    x, bias = as_operands(x, weight, bias)
    refuse_tangents(x, weight, bias)
    if has_gradients(x, weight, bias):
        y, _ = _Checked.apply(x, weight, bias, code, scaling, words, failed, settle, plain)
    else:
        y = ops.linear_forward(x, weight, bias, code, False, False, scaling, words)[0]
    return settle(OUTPUT, plain_linear(x, weight, bias)) if failed(OUTPUT) else y


def checked_experts(x, weight, offsets, code, scaling, words, failed, settle, plain=0) -> torch.Tensor:
    """Returns what ``experts_of`` does, or what ``plain_experts`` does if that is not finite."""
    x, offsets = group_operands(x, weight, offsets)
    refuse_tangents(x, weight)
    if has_gradients(x, weight, None):
        y, _ = _CheckedExperts.apply(x, weight, offsets, code, scaling, words, failed, settle, plain)
    else:
        y = ops.experts_forward(x, weight, offsets, code, False, False, scaling, words)[0]
    return settle(OUTPUT, plain_experts(x, weight, offsets)) if failed(OUTPUT) else y
