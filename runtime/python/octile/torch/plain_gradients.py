"""Gradients that a recipe leaves to PyTorch: as those of ``nn.Linear``, in the input's dtype."""

from __future__ import annotations

import torch

from octile.torch._operators import ops
from octile.torch.held_weight import plain_values
from octile.torch.recipes import DW, DX


def input_gradient(dy: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns dy weight: [..., k] of dy [..., n], of dy's dtype."""
    return dy @ plain_values(weight).to(dy.dtype)


def weight_gradient_of(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns dy^T x, rounded to dy's dtype, then as the weight's: [n, k]."""
    return (dy.reshape(-1, dy.shape[-1]).t() @ x.reshape(-1, x.shape[-1])).to(weight.dtype)


def mark(words: torch.Tensor | None, index: int, product: torch.Tensor) -> None:
    """Sets a word of a sentry, as the library's products do, if an element is not finite."""
    if words is not None:
        words[index].bitwise_or_((~torch.isfinite(product)).any().to(words.dtype))


def linear_gradients_of_recipe(
    ctx, saved: tuple, dy: torch.Tensor, needs_x: bool, needs_weight: bool, needs_bias: bool,
    main_grad: torch.Tensor | None,
) -> tuple:  # fmt: skip
    """Returns the gradients of x, weight and bias of ``_Linear``, those of ``ctx.plain`` without FP8, None for those that
    are not needed. The weight's is added to ``main_grad``, if there is one."""
    weight, x, x_scales = saved
    of_x, of_weight = needs_x and ctx.plain & DX > 0, needs_weight and ctx.plain & DW > 0
    in_fp8 = needs_x and not of_x, needs_weight and not of_weight, needs_bias and ctx.plain != DX | DW
    words, dx, dw, db = ctx.state[1], None, None, None
    if any(in_fp8):
        if in_fp8[1] and ctx.keeps_x:
            x, x_scales = ops.quantize_input(x, ctx.code, False, True)[2:]
        kept = (x, x_scales) if in_fp8[1] else [dy.new_empty(0, dtype=torch.uint8)] * 2
        if in_fp8[1] and main_grad is not None:
            dx, db = ops.linear_backward_into(
                dy, weight, *kept, main_grad, ctx.code, in_fp8[0], in_fp8[2], *ctx.state
            )  # fmt: skip
        else:
            dx, dw, db = ops.linear_backward(dy, weight, *kept, ctx.code, *in_fp8, *ctx.state)
    if of_x:
        mark(words, 1, dx := input_gradient(dy, weight))
    if of_weight:
        mark(words, 2, dw := weight_gradient_of(dy, x, weight))
    if needs_bias and not in_fp8[2]:
        db = dy.reshape(-1, dy.shape[-1]).sum(0)
    if of_weight and main_grad is not None:
        main_grad.add_(dw)
    return dx if needs_x else None, dw if needs_weight else None, db.to(ctx.bias_dtype) if needs_bias else None
