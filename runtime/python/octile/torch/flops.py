"""How many floating-point operations the operators take, as ``torch.utils.flop_counter.FlopCounterMode`` counts them."""

from __future__ import annotations

import math

from torch.utils.flop_counter import register_flop_formula

from octile.torch._operators import ops
from octile.torch import grouped  # noqa: F401  (it defines octile::grouped_mm)


def _of_layer(tokens, weight, products: int) -> int:
    """Returns the operations of ``products`` products of tokens [..., k] with a weight [..., n, k]. All tokens of
    experts count, as they do in PyTorch's grouped GEMM: which are in no group, the host does not know."""
    return 2 * math.prod(tokens[:-1]) * weight[-2] * weight[-1] * products


@register_flop_formula([ops.linear_forward, ops.linear_output, ops.experts_forward])
def _forward(x, weight, *_, out_shape=None, **__) -> int:
    return _of_layer(x, weight, 1)


@register_flop_formula(ops.mlp_output)
def _mlp(x, gate, up, down, *_, **__) -> int:
    return sum(_of_layer(x, weight, 1) for weight in (gate, up, down) if weight is not None)


@register_flop_formula(ops.linear_backward)
def _linear_backward(dy, weight, x_codes, x_scales, recipe, input_gradient, weight_gradient, *_, **__) -> int:
    return _of_layer(dy, weight, input_gradient + weight_gradient)


@register_flop_formula(ops.linear_backward_into)
def _linear_backward_into(dy, weight, x_codes, x_scales, main_grad, recipe, input_gradient, *_, **__) -> int:
    return _of_layer(dy, weight, input_gradient + 1)


@register_flop_formula(ops.quantized_backward)
def _quantized_backward(
    codes, scales, transposed, transposed_scales, like, columns, first, weight, x_codes, x_scales, recipe,
    input_gradient, weight_gradient, *_, **__,
) -> int:  # fmt: skip
    return _of_layer(like, weight, input_gradient + weight_gradient)


@register_flop_formula(ops.quantized_backward_into)
def _quantized_backward_into(transposed, transposed_scales, like, columns, first, weight, *_, **__) -> int:
    return _of_layer(like, weight, 1)


@register_flop_formula(ops.experts_backward)
def _experts_backward(dy, weight, offsets, x_codes, x_scales, recipe, input_gradient, weight_gradient, *_, **__) -> int:
    return _of_layer(dy, weight, input_gradient + weight_gradient)


@register_flop_formula(ops.experts_backward_into)
def _experts_backward_into(dy, weight, offsets, x_codes, x_scales, main_grad, recipe, input_gradient, *_, **__) -> int:
    return _of_layer(dy, weight, input_gradient + 1)


@register_flop_formula(ops.gemm_out)
def _gemm(a, a_scale, a_type, b, b_scale, b_type, bias, d, k, *_, **__) -> int:
    return 2 * d[0] * d[1] * k


@register_flop_formula(ops.grouped_gemm_out)
def _grouped_gemm(a, a_scale, a_type, b, b_scale, b_type, group_rows, d, *_, **__) -> int:
    return 2 * math.prod(d) * b[2]  # of masked groups: as if all rows existed


@register_flop_formula(ops.sum_panels_out)
def _sum_panels(a, a_scale, a_type, b, b_scale, b_type, d, *_, **__) -> int:
    return 2 * d[0] * d[1] * (a[0] * a[2] if len(a) == 3 else a[1])


@register_flop_formula(ops.grouped_mm)
def _grouped(a, b, ends, **_) -> int:
    return 2 * a[0] * a[1] * b[-2 if len(b) == 3 else 1]
