"""``gated_mlp``: an MLP in FP8 whose activation the quantiser of its last layer computes, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional as F

from octile._types import one_of, refuse
from octile.torch._arguments import check_place, check_tensor
from octile.torch._operators import ops
from octile.torch.derivatives import (
    batched_by_loop,
    differentiable_once,
    is_transformed,
    refuse_tangents,
    refuse_trace,
    wanted_gradient,
)
from octile.torch.functional import as_operands, dummy_gradient, linear, linear_of
from octile.torch.normed_input import copy_of, origin_of
from octile.torch.recipes import Recipe, stateless
from octile.torch.watch import watch_of


def _relu2(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square()


#: Activations that a quantiser computes, as PyTorch computes them.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu2": _relu2,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}
_mlp_output = ops.mlp_output.default
BLOCK = 128  #: what the outputs of a gate and an up layer of their own are multiples of


class Weights(NamedTuple):
    """The weights and biases of an MLP. gate: [i, k], or without ``up`` that of both, gate before up, [2 i, k]."""

    gate: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor | None = None
    gate_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    up_bias: torch.Tensor | None = None


class _Mlp(torch.autograd.Function):
    """Keeps the outputs of gate and up, and the transposed FP8 copy of x or x's origin, as ``_Linear`` does. The output
    of gate is a result too, by which a second derivative finds the way to x."""

    @staticmethod
    def forward(
        ctx, x, gate_weight, down_weight, up_weight, gate_bias, down_bias, up_bias,
        activation, code, gate_sentry, down_sentry, up_sentry,
        readers=None, *of_norm,
    ):  # fmt: skip
        needs_x, needs_gate, needs_down, needs_up, needs_gate_bias, _, needs_up_bias = ctx.needs_input_grad[:7]
        keeps_norm = len(of_norm) > 0
        keeps_copy = (needs_gate or needs_up) and not keeps_norm
        codes, scales, *of_x = ops.quantize_input(x, code, True, keeps_copy)
        if keeps_norm:
            of_x = of_norm
        given = None, gate_sentry, codes, scales
        gate = ops.linear_forward(x, gate_weight, gate_bias, code, needs_gate, needs_x, *given)[0]
        up = None
        if up_weight is not None:
            given = None, up_sentry, codes, scales
            up = ops.linear_forward(x, up_weight, up_bias, code, needs_up, needs_x, *given)[0]
        left, right = _halves(gate, up, down_weight)
        ctx.needs_product = needs_x or needs_gate or needs_up or needs_gate_bias or needs_up_bias
        h, h_scales, _, _, encode = ops.quantize_activation(left, right, activation, code, True, False)
        given = None, down_sentry, h, h_scales
        y = ops.linear_forward(left, down_weight, down_bias, code, needs_down, ctx.needs_product, *given)[0]
        ctx.save_for_backward(gate_weight, gate, up, down_weight, up_weight, encode, *of_x)
        ctx.readers, ctx.keeps_norm = readers, keeps_norm
        ctx.set_materialize_grads(False)
        ctx.activation, ctx.code, ctx.sentries = activation, code, (gate_sentry, down_sentry, up_sentry)
        ctx.bias_dtypes = tuple(None if b is None else b.dtype for b in (gate_bias, down_bias, up_bias))
        weights = gate_weight, down_weight, up_weight
        # The parameters themselves, because a saved tensor may come back as another one, without main_grad.
        ctx.parameters = tuple(w if w is not None and w.requires_grad and w.is_leaf else None for w in weights)
        ctx.is_linear = False
        return y, gate

    @staticmethod
    @differentiable_once
    def backward(ctx, saved, dy):
        gate_weight, gate, up, down_weight, up_weight, encode, *of_x = saved
        left, right = _halves(gate, up, down_weight)
        wanted = [wanted_gradient(ctx, 1 + i, parameter) for i, parameter in enumerate(ctx.parameters)]
        # In this order tensors of the product's size are freed early.
        dh, db_down = _product_gradient(ctx, dy, down_weight)
        copies = _quantized_gradients(ctx, dh, left, right, wanted) if ctx.needs_product else None
        del dh
        d_down = _down_gradient(ctx, (left, right), encode, down_weight, wanted[1], dy)
        del gate, up, left, right, saved
        dx = d_gate = d_up = db_gate = db_up = None
        if copies is not None:
            layers = [(gate_weight, 0, *wanted[0]), (up_weight, 2, *wanted[2])]
            dx, (d_gate, d_up) = _layer_gradients(ctx, copies, layers, of_x)
            db_gate, db_up = _bias_gradients(ctx, copies.sums, gate_weight.shape[0])
        return dx, d_gate, d_down, d_up, db_gate, db_down, db_up, *(None,) * (len(ctx.needs_input_grad) - 7)


class _Copies:
    """The gradients of gate and up in FP8, side by side: codes and flat scales row-wise and transposed, and the sums of
    their columns."""

    def __init__(self, like: torch.Tensor, columns: int, parts: tuple) -> None:
        *self.row, self.col, self.col_scales, self.sums = parts
        self.like, self.columns = like, columns


def _halves(gate, up, down_weight) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns what is gated and what is multiplied, which one layer may have computed."""
    if up is None and gate.shape[-1] != down_weight.shape[1]:
        return gate.chunk(2, -1)
    return gate, up


def _product_gradient(ctx, dy, weight) -> tuple:
    """Returns the gradients of the product and of the last layer's bias."""
    needs_bias, nothing = ctx.needs_input_grad[5], dy.new_empty(0, dtype=torch.uint8)
    needs = ctx.needs_product, False, needs_bias
    dh, _, db = ops.linear_backward(dy, weight, nothing, nothing, ctx.code, *needs, None, ctx.sentries[1])
    return dh, db.to(ctx.bias_dtypes[1]) if needs_bias else None


def _down_gradient(ctx, halves: tuple, encode, weight, of_weight: tuple, dy) -> torch.Tensor | None:
    """Returns the gradient of the last layer's weight. encode: the one scale of the product, if it has one."""
    wanted, main_grad = of_weight
    if not wanted:
        return None
    scale = encode if encode.numel() else None
    kept = ops.quantize_activation(*halves, ctx.activation, ctx.code, False, True, encode=scale)[2:4]
    if main_grad is None:
        return ops.linear_backward(dy, weight, *kept, ctx.code, False, True, False, None, ctx.sentries[1])[1]
    ops.linear_backward_into(dy, weight, *kept, main_grad, ctx.code, False, False, None, ctx.sentries[1])
    return dummy_gradient(ctx.parameters[1])


def _quantized_gradients(ctx, dh, left, right, wanted: list) -> _Copies:
    needs_x, _, _, _, needs_bias, _, needs_up_bias, *_ = ctx.needs_input_grad
    of_weights = wanted[0][0] or wanted[2][0]
    needs = needs_x or not of_weights, of_weights, needs_bias or needs_up_bias
    parts = ops.quantize_gradients(dh, left, right, ctx.activation, ctx.code, *needs)
    columns = dh.shape[-1] * (1 if right is None else 2)
    return _Copies(dh.new_empty((*dh.shape[:-1], 0)), columns, parts)


def _layer_gradients(ctx, copies: _Copies, layers: list, of_x: tuple) -> tuple:
    """Returns the gradients of x, and of the weights of gate and up. of_x: what is kept of x."""
    dx, dws, first = None, [], []
    x_codes, x_scales = of_x[:2]
    for weight, *_ in layers:
        first.append(0 if not first else layers[0][0].shape[0])
        if ctx.needs_input_grad[0] and weight is not None:
            given = *copies.row, copies.col, copies.col_scales, copies.like, copies.columns, first[-1]
            sentry = ctx.sentries[2 if len(first) > 1 else 0]
            made = ops.quantized_backward(*given, weight, x_codes, x_scales, ctx.code, True, False, sentry)[0]
            dx = made if dx is None else dx + made
    row, copies.row = copies.row, None  # freed
    nothing = [t.new_empty(0) for t in row]
    del row
    if ctx.keeps_norm and any(wanted for _, _, wanted, _ in layers):
        x_codes, x_scales = copy_of(ctx.readers, tuple(of_x), ctx.code)
    for (weight, i, wanted, main_grad), begin in zip(layers, first, strict=True):
        if not wanted:
            dws.append(None)
            continue
        given = copies.col, copies.col_scales, copies.like, copies.columns, begin, weight, x_codes, x_scales
        if main_grad is None:
            dws.append(ops.quantized_backward(*nothing, *given, ctx.code, False, True, ctx.sentries[i])[1])
        else:
            ops.quantized_backward_into(*given, main_grad, ctx.code, ctx.sentries[i])
            dws.append(dummy_gradient(ctx.parameters[i]))
    return dx, dws


def _bias_gradients(ctx, sums, columns: int) -> tuple:
    """Returns the gradients of the biases of gate and up. columns: of the first weight."""
    needs_bias, needs_up_bias = ctx.needs_input_grad[4], ctx.needs_input_grad[6]
    return (
        sums[:columns].to(ctx.bias_dtypes[0], copy=True) if needs_bias else None,
        sums[columns:].to(ctx.bias_dtypes[2], copy=True) if needs_up_bias else None,
    )


for _operator in (ops.quantize_activation, ops.mlp_output, ops.quantize_gradients, ops.quantized_backward):
    batched_by_loop(_operator)


def mlp_of(
    x: torch.Tensor, weights: Weights, activation: str, code: int, sentries: tuple = (None, None, None)
) -> torch.Tensor:
    """Returns what ``gated_mlp`` does, by a recipe's code. sentries: of gate, down and up, as of ``linear_of``."""
    given = x
    x, gate_bias = as_operands(x, weights.gate, weights.gate_bias)
    _, down_bias = as_operands(x, weights.down, weights.down_bias)
    _, up_bias = as_operands(x, weights.up, weights.up_bias)
    if is_transformed():

        def layer(x, index, weight, bias):
            return linear_of(x, weight, bias, code, None, sentries[index])

        return composed_mlp(given, weights, activation, layer)
    biases = gate_bias, down_bias, up_bias
    tensors = x, *weights[:3], *biases
    refuse_tangents(*tensors)
    arguments = *tensors, activation, code, *sentries
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        refuse_trace()
        of_weights = weights.gate.requires_grad or (weights.up is not None and weights.up.requires_grad)
        origin = origin_of(given, x) if of_weights else None
        of_norm = () if origin is None else (origin.readers, *origin.kept)
        return _Mlp.apply(*arguments, *of_norm)[0]
    return output_of(*tensors, activation, code, *sentries)


def output_of(x, gate, down, up, gate_bias, down_bias, up_bias, activation, code, *sentries) -> torch.Tensor:
    """Returns what ``mlp_of`` does, without gradients. sentries: of gate, down and up."""
    of_gate, of_down, of_up = sentries
    biases = gate_bias, up_bias, down_bias
    return _mlp_output(x, gate, up, down, *biases, activation, code, of_gate, of_up, of_down)


def composed_mlp(x: torch.Tensor, weights: Weights, activation: str, layer: Callable) -> torch.Tensor:
    """Returns the MLP of three layers of their own, and PyTorch's activation between them. layer: called with an input
    and the number, the weight and the bias of a layer: 0 gate, 1 down, 2 up."""
    left = layer(x, 0, weights.gate, weights.gate_bias)
    right = None if weights.up is None else layer(x, 2, weights.up, weights.up_bias)
    left, right = _halves(left, right, weights.down)
    product = ACTIVATIONS[activation](left)
    return layer(product if right is None else product * right, 1, weights.down, weights.down_bias)


def gated_mlp(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor | None,
    down: torch.Tensor,
    activation: str = "silu",
    recipe: Recipe | str = "blockwise",
    gate_bias: torch.Tensor | None = None,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns h down^T + down_bias, computed in FP8, with gradients: [..., n], of x's dtype, where h = act(g) * u, and
    g = x gate^T + gate_bias and u = x up^T + up_bias are [..., i].

    x: [..., k], gate and up: [i, k], down: [n, i]; i is a multiple of 128, k and n are of 16. up=None: gate is [2 i,
    k], whose first i outputs are g and the others u; or gate is [i, k] with i a multiple of 16, and h = act(g).
    activation: "silu", "gelu" (GELU by erf), "gelu_tanh" (GELU's tanh form), "relu" or "relu2" (its square).

    x is quantised once. The quantiser of h computes it from g and u in fp32, and h is rounded only to FP8. For backward
    g, u and the transposed FP8 copy of x are kept; h is computed again. The quantiser passes the gradients of g and u
    to the GEMMs in FP8. dx is the sum of the input gradients of gate and up, each rounded to x's dtype. Dtypes,
    ``main_grad``, autocast, sentries and errors are as in ``linear``. With dx or dw in bf16, each layer is a call of
    ``linear``.
    """
    for name, weight in (("gate", gate), ("down", down), ("up", up)):
        if weight is not None:
            check_tensor(weight, name)
    recipe = stateless(recipe, "gated_mlp")
    activation = one_of("activation", activation, ACTIVATIONS)
    weights = Weights(gate, down, up, gate_bias, down_bias, up_bias)
    _check_sizes(x, weights)
    watches = [None if w is None else watch_of(w) for w in weights[:3]]
    if recipe.plain or any(watch is not None and (watch.paused or watch.each_call) for watch in watches):
        return composed_mlp(x, weights, activation, lambda x, _, weight, bias: linear(x, weight, bias, recipe))
    return mlp_of(x, weights, activation, recipe.code, tuple(None if watch is None else watch.words for watch in watches))


def _check_sizes(x: torch.Tensor, weights: Weights) -> None:
    gate, down, up = weights[:3]
    check_tensor(x, "x")
    check_place(x, "x", gate=gate, up=up, down=down)
    for name, weight in (("gate", gate), ("down", down), ("up", up)):
        if weight is not None and weight.dim() != 2:
            raise refuse(f"{name}.dim()", weight.dim(), "is 2")
    columns = down.shape[1]
    if up is None:
        if weights.up_bias is not None:
            raise refuse("up_bias", "given", "is None without up")
        if gate.shape[0] not in (columns, 2 * columns):
            raise refuse("gate.shape", tuple(gate.shape), f"is [{columns}, k] or [{2 * columns}, k], by down's columns")
        return
    if gate.shape[0] != columns or columns % BLOCK:
        allowed = f"is [{columns}, k], by down's columns, which with up are a multiple of {BLOCK}"
        raise refuse("gate.shape", tuple(gate.shape), allowed)
    if up.shape != gate.shape:
        raise refuse("up.shape", tuple(up.shape), f"is {tuple(gate.shape)}, as gate's")
