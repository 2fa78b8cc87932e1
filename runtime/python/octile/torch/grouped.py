"""Linear layers of the experts of a mixture, in FP8."""

from __future__ import annotations

import torch

from octile._types import refuse
from octile.torch._operators import ops
from octile.torch.functional import dummy_gradient
from octile.torch.recipes import Recipe, stateless


#: Recipes that the library multiplies groups in, in all three passes.
RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise")
#: Recipes without weight gradients of groups: their tokens lie in K, where no quantiser writes scales of columns.
WITHOUT_WEIGHT_GRADIENTS = ("rowwise",)


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, offsets, code):
        needs_x, needs_weight, _, _ = ctx.needs_input_grad
        y, x_codes, x_scales = ops.experts_forward(x, weight, offsets, code, needs_weight, needs_x)
        ctx.save_for_backward(weight, offsets, x_codes, x_scales)
        ctx.code = code
        ctx.parameter = weight if needs_weight and weight.is_leaf else None
        return y

    @staticmethod
    def backward(ctx, dy):
        weight, offsets, x_codes, x_scales = ctx.saved_tensors
        needs_x, needs_weight, _, _ = ctx.needs_input_grad
        main_grad = getattr(ctx.parameter, "main_grad", None) if needs_weight else None
        if main_grad is None:
            dx, dw = ops.experts_backward(dy, weight, offsets, x_codes, x_scales, ctx.code, needs_x, needs_weight)
        else:
            dx = ops.experts_backward_into(dy, weight, offsets, x_codes, x_scales, main_grad, ctx.code, needs_x)
            dw = dummy_gradient(ctx.parameter)
        return dx if needs_x else None, dw if needs_weight else None, None, None


def with_first_zero(offsets: torch.Tensor, experts: int) -> torch.Tensor:
    """Returns int32 [experts + 1]: the first row of each group, then the end of the last."""
    if offsets.dim() != 1 or offsets.shape[0] not in (experts, experts + 1):
        raise refuse("offsets.shape", tuple(offsets.shape), f"are ({experts},) and ({experts + 1},)")
    if offsets.dtype not in (torch.int32, torch.int64):
        raise refuse("offsets.dtype", offsets.dtype, "are torch.int32 and torch.int64")
    offsets = offsets.to(torch.int32)
    if offsets.shape[0] == experts + 1:
        return offsets.contiguous()
    return torch.nn.functional.pad(offsets, (1, 0))


def _check_recipe(name: str, weight_gradient: bool) -> None:
    if name in RECIPES or (name in WITHOUT_WEIGHT_GRADIENTS and not weight_gradient):
        return
    why = "with weight gradients " if name in WITHOUT_WEIGHT_GRADIENTS else ""
    allowed = RECIPES if why else RECIPES + WITHOUT_WEIGHT_GRADIENTS
    raise NotImplementedError(f"octile: recipe is {name!r}; of groups the library has {why}{', '.join(allowed)}")


def experts(
    x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, recipe: Recipe | str = "blockwise"
) -> torch.Tensor:
    """Returns y[rows of group g] = x[rows of group g] weight[g]^T, computed in FP8, with gradients: [tokens, n].

    x: [tokens, k], the groups one behind the other, each of any size. weight: [experts, n, k], n and k multiples of 16.
    offsets: integers on x's device, [experts], the end of each group, as ``torch._grouped_mm`` takes them, or
    [experts + 1] with the first group's begin before them. The host does not read them. Rows behind the last group are
    not written, in y and in x's gradient. dtypes, ``main_grad`` and when weights are quantised are as in ``linear``. A
    group's weight gradient is zero if it has no tokens.

    recipe: one of ``RECIPES``, or of ``WITHOUT_WEIGHT_GRADIENTS`` if the weight needs no gradient; others raise
    NotImplementedError.
    """
    if weight.dim() != 3:
        raise refuse("weight.shape", tuple(weight.shape), "is (experts, n, k)")
    recipe = stateless(recipe, "experts")
    _check_recipe(recipe.name, torch.is_grad_enabled() and weight.requires_grad)
    offsets = with_first_zero(offsets, weight.shape[0])
    code = recipe.code
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _Experts.apply(x, weight, offsets, code)
    return ops.experts_forward(x, weight, offsets, code, False, False)[0]
