"""A linear layer whose products the host checks one by one, and computes again without FP8 if they are not finite."""

from __future__ import annotations

import math

import torch

from octile.torch._operators import ops
from octile.torch.functional import Quantized, _Linear, as_operands, dummy_gradient, has_gradients
from octile.torch.recipes import recipe_of

#: Of a layer's words, as Product in runtime/python/torch/sentry.h.
OUTPUT, INPUT_GRADIENT, WEIGHT_GRADIENT = range(3)


class _Checked(torch.autograd.Function):
    """As ``_Linear``, with a check of both gradients. ``failed(product)`` waits for the product and says whether it is
    not finite; ``settle(product, result)`` hears of the result that takes its place."""

    @staticmethod
    def forward(ctx, x, weight, bias, code, scaling, words, failed, settle):
        ctx.failed, ctx.settle = failed, settle
        return _Linear.forward(ctx, x, weight, bias, code, scaling, words)

    @staticmethod
    def backward(ctx, dy):
        weight, x_codes, x_scales = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        main_grad = getattr(ctx.parameter, "main_grad", None) if needs_weight else None
        # A product that is added to main_grad could not be taken back.
        if main_grad is not None:
            ctx.parameter.main_grad = torch.zeros_like(main_grad, dtype=torch.float32)
        try:
            dx, dw, db, *_ = _Linear.backward(ctx, dy)
            if main_grad is not None:
                dw = ctx.parameter.main_grad
        finally:
            if main_grad is not None:
                ctx.parameter.main_grad = main_grad
        if needs_x and ctx.failed(INPUT_GRADIENT):
            dx = ctx.settle(INPUT_GRADIENT, dy @ weight.to(dy.dtype))
        if needs_weight and ctx.failed(WEIGHT_GRADIENT):
            rows = dy.reshape(-1, dy.shape[-1])
            x = _kept_input(x_codes, x_scales, ctx.code, rows.shape[0], dy.dtype)
            dw = ctx.settle(WEIGHT_GRADIENT, (rows.t() @ x.t()).to(dw.dtype))
        if main_grad is not None:
            main_grad.add_(dw)
            dw = dummy_gradient(ctx.parameter)
        return dx, dw, db, None, None, None, None, None


def _kept_input(codes, scales, code: int, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns X^T [k, tokens], as the transposed FP8 copy has it."""
    kind, k = recipe_of(code).activation, codes.shape[0]
    shape = kind.scale_shape(k, tokens)
    return Quantized(codes, scales[: math.prod(shape)].view(shape), kind, (k, tokens)).dequantize(dtype)


def checked_linear(x, weight, bias, code, scaling, words, failed, settle) -> torch.Tensor:
    """Returns what ``linear_of`` does, or what ``nn.functional.linear`` does if that is not finite."""
    x, bias = as_operands(x, bias)
    if has_gradients(x, weight, bias):
        y = _Checked.apply(x, weight, bias, code, scaling, words, failed, settle)
    else:
        y = ops.linear_forward(x, weight, bias, code, False, False, scaling, words)[0]
    if not failed(OUTPUT):
        return y
    bias = None if bias is None else bias.to(y.dtype)
    return settle(OUTPUT, torch.nn.functional.linear(x, weight.to(y.dtype), bias))
