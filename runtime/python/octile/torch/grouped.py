"""Linear layers of the experts of a mixture, in FP8."""

from __future__ import annotations

import functools

import torch

from octile._types import refuse
from octile.torch._arguments import check_place, check_sizes, check_tensor
from octile.torch._operators import ops
from octile.torch.derivatives import (
    GradientFunction,
    batched_by_loop,
    differentiable_once,
    is_in_forward_mode,
    is_transformed,
    one_by_one,
    refuse_forward_mode,
    refuse_tangents,
    refuse_trace,
    weight_gradient,
)
from octile.torch.functional import as_operands, dummy_gradient, has_gradients
from octile.torch.plain_gradients import mark
from octile.torch.held_weight import plain_values
from octile.torch.recipes import DW, DX, Recipe, stateless
from octile.torch.watch import watch_of

#: Recipes that the library multiplies groups in, in all three passes.
RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise")
#: Recipes without weight gradients of groups: their tokens lie in K, where no quantiser writes scales of columns.
WITHOUT_WEIGHT_GRADIENTS = ("rowwise",)


class _Experts(torch.autograd.Function):
    """As ``_Linear``, of groups. transposed: the weight is [experts, k, n]."""

    @staticmethod
    def forward(ctx, x, weight, offsets, code, scaling=None, sentry=None, transposed=False, plain=0):
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        keeps_copy = needs_weight and not plain & DW
        if plain:  # as in ``_Linear``
            needs_x = not plain & DX or plain & DW > 0
        w = as_rows(weight, transposed)
        y, x_codes, x_scales = ops.experts_forward(x, w, offsets, code, keeps_copy, needs_x, scaling, sentry)
        ctx.save_for_backward(weight, x if needs_weight and plain & DW else x_codes, x_scales, offsets)
        ctx.set_materialize_grads(False)
        ctx.code, ctx.state, ctx.transposed, ctx.plain = code, (scaling, sentry), transposed, plain
        ctx.parameter = weight if needs_weight and weight.is_leaf else None
        return y, x_codes

    @staticmethod
    @differentiable_once
    def backward(ctx, saved, dy):
        return expert_gradients(ctx, saved, dy, *weight_gradient(ctx))


def expert_gradients(ctx, saved: tuple, dy: torch.Tensor, needs_weight: bool, main_grad: torch.Tensor | None) -> tuple:
    """Returns the gradients of ``_Experts``' inputs, None for those that are not needed."""
    gradients = group_gradients(ctx, saved, dy, ctx.needs_input_grad[0], needs_weight, main_grad, ctx.parameter)
    return *gradients, None, None, None, None, None, None


def group_gradients(
    ctx, saved: tuple, dy: torch.Tensor, needs_x: bool, needs_weight: bool, main_grad: torch.Tensor | None,
    parameter: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """Returns the gradients of x and of the weight, None for those that are not needed. saved: the weight, x's copy and
    its scales, or x itself and an empty tensor, and offsets. parameter: what has ``main_grad``."""
    weight, *kept, offsets = saved
    if getattr(ctx, "plain", 0):
        return _plain_group_gradients(ctx, saved, dy, needs_x, needs_weight, main_grad, parameter)
    w = as_rows(weight, ctx.transposed)
    if main_grad is None or ctx.transposed:
        dx, dw = ops.experts_backward(dy, w, offsets, *kept, ctx.code, needs_x, needs_weight, *ctx.state)
        dw = as_rows(dw, ctx.transposed) if needs_weight else None
        if main_grad is not None:
            main_grad.add_(dw)
    else:
        dx = ops.experts_backward_into(dy, w, offsets, *kept, main_grad, ctx.code, needs_x, *ctx.state)
    if main_grad is not None:
        dw = dummy_gradient(parameter)
    return dx if needs_x else None, dw if needs_weight else None


def _plain_group_gradients(
    ctx, saved: tuple, dy: torch.Tensor, needs_x: bool, needs_weight: bool, main_grad: torch.Tensor | None,
    parameter: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """Returns the gradients of x and weight, some without FP8."""
    weight, x, x_scales, offsets = saved
    of_x, of_weight = needs_x and ctx.plain & DX > 0, needs_weight and ctx.plain & DW > 0
    in_fp8 = needs_x and not of_x, needs_weight and not of_weight
    words, w, dx, dw = ctx.state[1], as_rows(weight, ctx.transposed), None, None
    if any(in_fp8):
        kept = (x, x_scales) if in_fp8[1] else [dy.new_empty(0, dtype=torch.uint8)] * 2
        dx, dw = ops.experts_backward(dy, w, offsets, *kept, ctx.code, *in_fp8, *ctx.state)
    if of_x:
        mark(words, 1, dx := plain_experts(dy, w.transpose(1, 2), offsets))
    if of_weight:
        mark(words, 2, dw := plain_weight_gradients(dy, x, offsets).to(weight.dtype))
    if needs_weight:
        dw = as_rows(dw, ctx.transposed)
    if main_grad is not None:
        main_grad.add_(dw)
        dw = dummy_gradient(parameter)
    return dx if needs_x else None, dw if needs_weight else None


def plain_weight_gradients(dy: torch.Tensor, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Returns dy^T x of the groups, as PyTorch computes it in their dtype: [experts, n, k]. offsets: with the first
    group's begin."""
    return _grouped_product(dy, x, offsets)[1:]


_EXCHANGED = frozenset(
    recipe.code
    for recipe in (Recipe(name, scales) for name in RECIPES for scales in ("pow2", "f32"))
    if recipe.activation == recipe.gradient and recipe.weight.granularity == "128x128"
)


def exchanges(code: int) -> bool:
    """Returns whether a product with a weight [experts, k, n] may be computed as the input gradient of the layer whose
    weight that is, and its gradient as that layer's product: if X and dY are of one type, and so are W and W^T."""
    return code in _EXCHANGED


def exchanged_product(x, weight, offsets, code: int, sentry) -> torch.Tensor:
    """Returns x weight by groups, of a weight [experts, k, n]. A value that is not finite is marked as if it were an
    input gradient."""
    nothing = x.new_empty(0, dtype=torch.uint8)
    return ops.experts_backward(x, weight, offsets, nothing, nothing, code, True, False, None, sentry)[0]


def exchanged_gradients(
    weight, x, dy, offsets, code: int, sentry, needs_weight: bool, main_grad: torch.Tensor | None,
    parameter: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Returns the gradients of ``exchanged_product``. parameter: what has ``main_grad``."""
    dx, *copies = ops.experts_forward(dy, weight, offsets, code, needs_weight, True, None, sentry)
    if not needs_weight:
        return dx, None
    if main_grad is None:
        return dx, ops.experts_backward(x, weight, offsets, *copies, code, False, True, None, sentry)[1]
    ops.experts_backward_into(x, weight, offsets, *copies, main_grad, code, False, None, sentry)
    return dx, dummy_gradient(parameter)


def as_rows(weight: torch.Tensor, transposed: bool) -> torch.Tensor:
    """Returns a weight as [experts, n, k], and such a gradient as the weight is."""
    return weight.transpose(1, 2) if transposed else weight


class _ExpertsOfFunc(torch.autograd.Function):
    """The same for the transforms of ``torch.func``; see ``_LinearOfFunc``."""

    @staticmethod
    def forward(x, weight, offsets, code, scaling, sentry, recorded, plain):
        return ops.experts_forward(x, weight, offsets, code, False, recorded, scaling, sentry)[0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, offsets, ctx.code, *ctx.state, _, ctx.plain = inputs
        ctx.save_for_backward(x, weight, offsets)

    @staticmethod
    def backward(ctx, dy):
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        x, weight, offsets = ctx.saved_tensors
        of_x, of_weight = needs_x and ctx.plain & DX > 0, needs_weight and ctx.plain & DW > 0
        in_fp8 = needs_x and not of_x, needs_weight and not of_weight
        dx, dw = _ExpertGradients.apply(dy, x, weight, offsets, ctx.code, *in_fp8, *ctx.state)
        dx = plain_experts(dy, weight.transpose(1, 2), offsets) if of_x else dx
        dw = plain_weight_gradients(dy, x, offsets).to(weight.dtype) if of_weight else dw
        return dx if needs_x else None, dw if needs_weight else None, *(None,) * 6

    jvp = staticmethod(refuse_forward_mode)

    @staticmethod
    def vmap(info, in_dims, x, weight, offsets, code, scaling, sentry, recorded, plain):
        call = functools.partial(experts_of, plain=plain)
        return one_by_one(call, info, in_dims[:6], x, weight, offsets, code, scaling, sentry)


class _ExpertGradients(GradientFunction):
    """dx and dw of x itself; empty if not needed."""

    @staticmethod
    def forward(dy, x, weight, offsets, code, needs_x, needs_weight, scaling, sentry):
        kept = ops.experts_forward(x, weight, offsets, code, needs_weight, False, scaling, sentry)[1:]
        return ops.experts_backward(dy, weight, offsets, *kept, code, needs_x, needs_weight, scaling, sentry)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return one_by_one(_ExpertGradients.apply, info, in_dims, *arguments)


def with_first_zero(offsets: torch.Tensor, experts: int, x: torch.Tensor) -> torch.Tensor:
    """Returns int32 [experts + 1]: the first row of each group, then the end of the last. x: what has the rows."""
    check_tensor(offsets, "offsets")
    check_place(x, "x", offsets=offsets)
    if offsets.dim() != 1 or offsets.shape[0] not in (experts, experts + 1):
        raise refuse("offsets.shape", tuple(offsets.shape), f"are ({experts},) and ({experts + 1},)")
    if offsets.dtype not in (torch.int32, torch.int64):
        raise refuse("offsets.dtype", offsets.dtype, "are torch.int32 and torch.int64")
    offsets = offsets.to(torch.int32)
    if offsets.shape[0] == experts + 1:
        return offsets.contiguous()
    return torch.nn.functional.pad(offsets, (1, 0))


def check_recipe(recipe: Recipe, weight_gradient: bool, stateful: bool = False) -> None:
    """Raises NotImplementedError for a recipe that the library has not for groups. stateful: the caller keeps the state
    of "delayed"."""
    recipes, name = RECIPES + (("delayed",) if stateful else ()), recipe.name
    weight_gradient = weight_gradient and recipe.dw == "fp8"
    if name in recipes or (name in WITHOUT_WEIGHT_GRADIENTS and not weight_gradient):
        return
    why = "with weight gradients " if name in WITHOUT_WEIGHT_GRADIENTS else ""
    allowed = recipes if why else recipes + WITHOUT_WEIGHT_GRADIENTS
    raise NotImplementedError(f"octile: recipe is {name!r}; of groups the library has {why}{', '.join(allowed)}")


def experts(
    x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, recipe: Recipe | str = "blockwise"
) -> torch.Tensor:
    """Returns y[rows of group g] = x[rows of group g] weight[g]^T, computed in FP8, with gradients: [tokens, n].

    x: [tokens, k], the groups one after the other, each of any size. weight: [experts, n, k], n and k multiples of 16.
    offsets: integers on x's device, [experts], the end of each group, as for ``torch._grouped_mm``, or [experts + 1]
    with the first group's start before them. The host does not read them. Rows after the last group are not written, in
    y and in x's gradient. Dtypes, ``main_grad`` and the quantisation of weights are as in ``linear``. The weight
    gradient of a group without tokens is zero.

    recipe: one of ``RECIPES``, or of ``WITHOUT_WEIGHT_GRADIENTS`` if the weight needs no gradient or dw is "bf16";
    others raise NotImplementedError. ``octile.torch.Experts`` also has "delayed". A sentry watches the calls if it was
    given the weight's name.
    """
    check_tensor(weight, "weight")
    recipe = stateless(recipe, "experts")
    check_recipe(recipe, torch.is_grad_enabled() and weight.requires_grad)
    watch = watch_of(weight)
    if watch is None:
        return experts_of(x, weight, offsets, recipe.code, plain=recipe.plain)
    if watch.pauses_call():
        return plain_experts(x, weight, offsets)
    return watch.experts(x, weight, offsets, recipe.code, None, plain=recipe.plain)


def experts_of(
    x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, code: int,
    scaling: torch.Tensor | None = None, sentry: torch.Tensor | None = None, transposed: bool = False, plain: int = 0,
) -> torch.Tensor:  # fmt: skip
    """Returns what ``experts`` does, by a recipe's code. scaling, sentry and plain: as in ``linear_of``. transposed: the
    weight is [experts, k, n]."""
    x, offsets = group_operands(x, weight, offsets)
    recorded = has_gradients(x, weight, None)
    if is_transformed():
        return _ExpertsOfFunc.apply(x, as_rows(weight, transposed), offsets, code, scaling, sentry, recorded, plain)
    refuse_tangents(x, weight)
    if recorded:
        refuse_trace()
        return _Experts.apply(x, weight, offsets, code, scaling, sentry, transposed, plain)[0]
    if transposed and exchanges(code):
        return exchanged_product(x, weight, offsets, code, sentry)
    return ops.experts_forward(x, as_rows(weight, transposed), offsets, code, False, False, scaling, sentry)[0]


def grouped_mm(
    x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor, *, recipe: Recipe | str = "blockwise"
) -> torch.Tensor:
    """Returns what ``torch._grouped_mm(x, w, offs=offs)`` does, computed in FP8, with gradients: [tokens, n].

    x: [tokens, k]. w: [experts, k, n], contiguous or as the view ``weight.transpose(-2, -1)`` of [experts, n, k]; n and
    k are multiples of 16. offs: integers [experts], the end of each group. The rest is as in ``experts``.
    """
    check_tensor(w, "w")
    if w.dim() != 3:
        raise refuse("w.shape", tuple(w.shape), "is (experts, k, n)")
    recipe = stateless(recipe, "experts")
    check_recipe(recipe, torch.is_grad_enabled() and w.requires_grad)
    if w.stride(2) != 1:
        return experts_of(x, w.transpose(1, 2), offs, recipe.code, plain=recipe.plain)
    return experts_of(x, w, offs, recipe.code, transposed=True, plain=recipe.plain)


def group_operands(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns x in autocast's dtype, if there is one, and offsets with the first group's begin."""
    check_tensor(weight, "weight")
    if weight.dim() != 3:
        raise refuse("weight.shape", tuple(weight.shape), "is (experts, n, k)")
    return as_operands(x, weight, None)[0], with_first_zero(offsets, weight.shape[0], x)


def plain_experts(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Returns what ``experts`` does, computed by PyTorch in x's dtype, or in autocast's."""
    x, _ = group_operands(x, weight, offsets)
    check_sizes(x, "x", weight, 2, 3)
    weight = plain_values(weight).to(x.dtype)
    if offsets.shape[0] > weight.shape[0]:  # rows before the first group make one more, whose product nobody reads
        weight = torch.cat([weight[:1], weight])
    return _grouped_product(x, weight, offsets.to(torch.int32))


# An operator of its own, because PyTorch's refuses types while it is traced that it computes otherwise, gradients with
# strides of 0, and no tokens.
@torch.library.custom_op("octile::grouped_mm", mutates_args=())
def _grouped_mm(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Returns a [tokens, m] times b [experts, n, m], transposed: [tokens, n]. With b [tokens, n] it returns the
    products a^T b of the groups: [experts, m, n]."""
    if a.shape[0] == 0:
        return a.new_zeros(_grouped_shape(a, b, ends))
    if b.dim() == 3:
        return torch._grouped_mm(_in_rows(a), b.transpose(1, 2), offs=ends)
    return torch._grouped_mm(_in_rows(a).t(), _in_rows(b), offs=ends)


@_grouped_mm.register_fake
def _(a, b, ends):
    return a.new_empty(_grouped_shape(a, b, ends))


def _grouped_shape(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> tuple[int, ...]:
    return (a.shape[0], b.shape[1]) if b.dim() == 3 else (ends.shape[0], a.shape[1], b.shape[1])


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    """Returns x [rows, cols] with strides of cols and 1, also if it has one row."""
    return x if x.stride() == (x.shape[1], 1) else x.clone(memory_format=torch.contiguous_format)


class _GroupedProduct(torch.autograd.Function):
    """``_grouped_mm`` with gradients of all orders."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, b, ends):
        return _grouped_mm(a, b, ends)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, dy):
        a, b, ends = ctx.saved_tensors
        needs_a, needs_b, _ = ctx.needs_input_grad
        if b.dim() == 3:
            of_a, of_b = (dy, b.transpose(1, 2)), (dy, a)
        else:
            of_a, of_b = (b, dy), (a, dy.transpose(1, 2))
        da = _grouped_product(*of_a, ends) if needs_a else None
        return da, _grouped_product(*of_b, ends) if needs_b else None, None


class _GroupedProductOfDuals(_GroupedProduct):
    """The same in forward mode, which torch.compile does not take."""

    @staticmethod
    def jvp(ctx, a_tangent, b_tangent, _):
        a, b, ends = ctx.saved_tensors
        of_a = None if a_tangent is None else _grouped_product(a_tangent, b, ends)
        of_b = None if b_tangent is None else _grouped_product(a, b_tangent, ends)
        return of_a if of_b is None else of_b if of_a is None else of_a + of_b


def _grouped_product(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Returns what ``_grouped_mm`` does, with all of its derivatives."""
    return (_GroupedProductOfDuals if is_in_forward_mode() else _GroupedProduct).apply(a, b, ends)


batched_by_loop(_grouped_mm)
batched_by_loop(ops.experts_backward)
