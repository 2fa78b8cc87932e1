"""Loads the operators of the extension, and gives the shapes of their results while PyTorch traces."""

from __future__ import annotations

import math

import torch

from octile._paths import extension
from octile._types import TensorType, ceil_div, codes_shape, round_up
from octile.torch._arguments import check_place, check_sizes
from octile.torch.recipes import recipe_of

torch.ops.load_library(str(extension()))

ops = torch.ops.octile

#: Numbers of octile_dtype to element types.
CODES = {1: torch.float8_e4m3fn, 2: torch.float8_e5m2, 3: torch.bfloat16, 4: torch.float16, 5: torch.float32}
#: Element types of scales.
STORED = {"fp32": torch.float32, "bf16": torch.bfloat16, "uint8": torch.uint8, "int32": torch.int32}


def _quantized(x: torch.Tensor, kind: TensorType, rows, cols, transposed: bool, flat: bool = False):
    """Returns empty codes and scales of a [rows, cols] tensor on x's device."""
    codes = x.new_empty(codes_shape(rows, cols, transposed), dtype=CODES[1 if kind.dtype == "e4m3" else 2])
    scales = kind.scale_shape(*((cols, rows) if transposed else (rows, cols)))
    return codes, x.new_empty((math.prod(scales),) if flat else scales, dtype=STORED[kind.scale_type])


def _nothing(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((0,), dtype=torch.uint8)


def _tokens(x: torch.Tensor):
    return math.prod(x.shape[:-1])


def _check_layer(tokens: torch.Tensor, name: str, weight: torch.Tensor, shared: int, dims: int, **others) -> None:
    """Checks tensors without memory, on the meta device or while PyTorch traces, as the operators check others. PyTorch
    also comes here with tensors that have memory, if one of them is on the meta device."""
    check_place(tokens, name, weight=weight, **others)
    check_sizes(tokens, name, weight, shared, dims)


def _like_weight(weight: torch.Tensor, gradient: int) -> torch.Tensor:
    """Returns an empty weight gradient: of the weight's dtype, or of the one that the operator is given for FP8
    codes."""
    return weight.new_empty(weight.shape, dtype=CODES.get(gradient, weight.dtype))


@torch.library.register_fake("octile::quantize_weight")
def _(weight, recipe, codes, scales):
    check_place(weight, "weight", codes=codes, scales=scales)


@torch.library.register_fake("octile::make_pieces")
def _(x, buffers, table, type, via_bf16):
    return 0  # what is not in memory has no pieces


@torch.library.register_fake("octile::run_pieces")
def _(buffers, token, step, first, count):
    pass


@torch.library.register_fake("octile::linear_forward")
def _(
    x, weight, bias, recipe, keep_x, input_gradient, scaling=None, sentry=None, codes=None, scales=None, w_scales=None
):  # fmt: skip
    others = {"scaling": scaling, "sentry": sentry, "codes": codes, "scales": scales, "w_scales": w_scales}
    _check_layer(x, "x", weight, 1, 2, bias=bias, **others)
    y = x.new_empty((*x.shape[:-1], weight.shape[0]))
    if not keep_x or codes is not None:
        return y, _nothing(x), _nothing(x)
    codes, scales = _quantized(x, recipe_of(recipe).activation, _tokens(x), x.shape[-1], True, flat=True)
    return y, codes, scales


@torch.library.register_fake("octile::linear_output")
def _(x, weight, bias, recipe, scaling=None, sentry=None, codes=None, scales=None, w_scales=None):
    others = {"scaling": scaling, "sentry": sentry, "codes": codes, "scales": scales, "w_scales": w_scales}
    _check_layer(x, "x", weight, 1, 2, bias=bias, **others)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.register_fake("octile::quantize_input")
def _(x, recipe, rowwise, transposed):
    kind, sizes = recipe_of(recipe).activation, (_tokens(x), x.shape[-1])
    nothing = _nothing(x), _nothing(x)
    row = _quantized(x, kind, *sizes, False, flat=True) if rowwise else nothing
    return *row, *(_quantized(x, kind, *sizes, True, flat=True) if transposed else nothing)


@torch.library.register_fake("octile::quantize_normed")
def _(x, rstd, weight, recipe, via_bf16, mean=None, bias=None):
    check_place(x, "x", rstd=rstd, weight=weight, mean=mean, bias=bias)
    return _quantized(x, recipe_of(recipe).activation, _tokens(x), x.shape[-1], True, flat=True)


@torch.library.register_fake("octile::quantize_operand")
def _(x, recipe, role, rowwise, transposed, sums, encode=None):
    check_place(x, "x", encode=encode)
    of = recipe_of(recipe)
    kind, sizes = (of.activation, of.weight, of.gradient)[role], (_tokens(x), x.shape[-1])
    nothing = _nothing(x), _nothing(x)
    return (
        *(_quantized(x, kind, *sizes, False, flat=True) if rowwise else nothing),
        *(_quantized(x, kind, *sizes, True, flat=True) if transposed else nothing),
        x.new_empty((x.shape[-1],), dtype=torch.float32) if sums else _nothing(x),
    )


@torch.library.register_fake("octile::sum_panels_out")
def _(a, a_scale, a_type, b, b_scale, b_type, d):
    check_place(a, "a", a_scale=a_scale, b=b, b_scale=b_scale, d=d)


@torch.library.register_fake("octile::operand_amax")
def _(x, recipe, role):
    return x.new_empty((1,), dtype=torch.float32)


def _computed(x: torch.Tensor, kind: TensorType, rows, cols, rowwise: bool, transposed: bool, offsets):
    """Returns empty copies of a computed [rows, cols], of one tensor or of groups of rows."""
    nothing = _nothing(x), _nothing(x)
    row = _quantized(x, kind, rows, cols, False, flat=True) if rowwise else nothing
    if transposed and offsets is not None:
        rows = _group_columns(rows, offsets.shape[0] - 1)
    return *row, *(_quantized(x, kind, rows, cols, True, flat=True) if transposed else nothing)


@torch.library.register_fake("octile::quantize_activation")
def _(gate, up, activation, recipe, rowwise, transposed, offsets=None, factors=None, encode=None):
    check_place(gate, "gate", up=up, offsets=offsets, factors=factors, encode=encode)
    kind, sizes = recipe_of(recipe).activation, (_tokens(gate), gate.shape[-1])
    records = kind.granularity == "tensor" and offsets is None
    return (
        *_computed(gate, kind, *sizes, rowwise, transposed, offsets),
        gate.new_empty((1,), dtype=torch.float32) if records else _nothing(gate),
    )


@torch.library.register_fake("octile::mlp_output")
def _(
    x, gate, up, down, gate_bias, up_bias, down_bias, activation, recipe, gate_sentry=None, up_sentry=None,
    down_sentry=None, gate_scales=None, up_scales=None, down_scales=None,
):  # fmt: skip
    sentries = {"gate_sentry": gate_sentry, "up_sentry": up_sentry, "down_sentry": down_sentry}
    biases = {"gate_bias": gate_bias, "up_bias": up_bias, "down_bias": down_bias}
    scales = {"gate_scales": gate_scales, "up_scales": up_scales, "down_scales": down_scales}
    check_place(x, "x", up=up, down=down, **biases, **sentries, **scales)
    for weight in (gate, up):
        if weight is not None:
            _check_layer(x, "x", weight, 1, 2)
    return x.new_empty((*x.shape[:-1], down.shape[0]))


@torch.library.register_fake("octile::quantize_gradients")
def _(dh, gate, up, activation, recipe, rowwise, transposed, sums, offsets=None, factors=None):
    check_place(dh, "dh", gate=gate, up=up, offsets=offsets, factors=factors)
    columns = gate.shape[-1] * (1 if up is None else 2)
    return (
        *_computed(gate, recipe_of(recipe).gradient, _tokens(gate), columns, rowwise, transposed, offsets),
        dh.new_empty((columns,), dtype=torch.float32) if sums else _nothing(dh),
    )


@torch.library.register_fake("octile::quantized_backward")
def _(
    codes, scales, transposed, transposed_scales, like, columns, first, weight, x_codes, x_scales, recipe,
    input_gradient, weight_gradient, sentry=None, w_scales=None, w_gradient=0,
):  # fmt: skip
    check_place(like, "like", codes=codes, transposed=transposed, weight=weight, x_codes=x_codes, x_scales=x_scales)
    return (
        like.new_empty((*like.shape[:-1], weight.shape[1])) if input_gradient else _nothing(like),
        _like_weight(weight, w_gradient) if weight_gradient else _nothing(like),
    )


@torch.library.register_fake("octile::quantized_backward_into")
def _(
    transposed, transposed_scales, like, columns, first, weight, x_codes, x_scales, main_grad, recipe, sentry=None,
    w_scales=None, w_gradient=0,
):  # fmt: skip
    check_place(like, "like", transposed=transposed, weight=weight, x_codes=x_codes, main_grad=main_grad)


@torch.library.register_fake("octile::linear_backward")
def _(
    dy, weight, x_codes, x_scales, recipe, input_gradient, weight_gradient, bias_gradient, scaling=None, sentry=None,
    w_scales=None, w_gradient=0,
):  # fmt: skip
    kept = {"x_codes": x_codes, "x_scales": x_scales, "w_scales": w_scales}
    _check_layer(dy, "dy", weight, 0, 2, **kept, scaling=scaling, sentry=sentry)
    n, k = weight.shape
    dx = dy.new_empty((*dy.shape[:-1], k)) if input_gradient else _nothing(dy)
    dw = _like_weight(weight, w_gradient) if weight_gradient else _nothing(dy)
    return dx, dw, dy.new_empty((n,), dtype=torch.float32) if bias_gradient else _nothing(dy)


@torch.library.register_fake("octile::linear_backward_into")
def _(
    dy, weight, x_codes, x_scales, main_grad, recipe, input_gradient, bias_gradient, scaling=None, sentry=None,
    w_scales=None, w_gradient=0,
):  # fmt: skip
    kept = {"x_codes": x_codes, "x_scales": x_scales, "main_grad": main_grad, "w_scales": w_scales}
    _check_layer(dy, "dy", weight, 0, 2, **kept, scaling=scaling, sentry=sentry)
    n, k = weight.shape
    dx = dy.new_empty((*dy.shape[:-1], k)) if input_gradient else _nothing(dy)
    return dx, dy.new_empty((n,), dtype=torch.float32) if bias_gradient else _nothing(dy)


def _group_columns(tokens, groups: int):
    """Returns the most columns that a transposed copy of contiguous groups takes: each begins at a multiple of 128."""
    filled = torch.sym_min(tokens, groups)
    return 128 * (filled + (tokens - filled) // 128)


@torch.library.register_fake("octile::experts_forward")
def _(
    x, weight, offsets, recipe, keep_x, input_gradient, scaling=None, sentry=None, w_scales=None, codes=None,
    scales=None,
):  # fmt: skip
    others = {"scaling": scaling, "sentry": sentry, "w_scales": w_scales, "codes": codes, "scales": scales}
    _check_layer(x, "x", weight, 2, 3, offsets=offsets, **others)
    y = x.new_empty((x.shape[0], weight.shape[1]))
    if not keep_x or codes is not None:
        return y, _nothing(x), _nothing(x)
    kind, columns = recipe_of(recipe).activation, _group_columns(x.shape[0], weight.shape[0])
    codes = x.new_empty((x.shape[1], columns), dtype=torch.float8_e4m3fn)
    scales = weight.shape[0] if kind.granularity == "tensor" else math.prod(kind.scale_shape(x.shape[1], columns))
    return y, codes, x.new_empty((scales,), dtype=torch.float32)


@torch.library.register_fake("octile::experts_backward")
def _(
    dy, weight, offsets, x_codes, x_scales, recipe, input_gradient, weight_gradient, scaling=None, sentry=None,
    w_scales=None, w_gradient=0, dy_codes=None, dy_scales=None, dy_transposed=None, dy_transposed_scales=None,
):  # fmt: skip
    kept = {"offsets": offsets, "x_codes": x_codes, "x_scales": x_scales, "w_scales": w_scales}
    _check_layer(dy, "dy", weight, 1, 3, **kept, scaling=scaling, sentry=sentry)
    dx = dy.new_empty((dy.shape[0], weight.shape[2])) if input_gradient else _nothing(dy)
    return dx, _like_weight(weight, w_gradient) if weight_gradient else _nothing(dy)


@torch.library.register_fake("octile::experts_backward_into")
def _(
    dy, weight, offsets, x_codes, x_scales, main_grad, recipe, input_gradient, scaling=None, sentry=None,
    w_scales=None, w_gradient=0, dy_codes=None, dy_scales=None, dy_transposed=None, dy_transposed_scales=None,
):  # fmt: skip
    kept = {"offsets": offsets, "x_codes": x_codes, "x_scales": x_scales, "main_grad": main_grad}
    kept["w_scales"] = w_scales
    _check_layer(dy, "dy", weight, 1, 3, **kept, scaling=scaling, sentry=sentry)
    return dy.new_empty((dy.shape[0], weight.shape[2])) if input_gradient else _nothing(dy)


def message_bytes(columns):
    """Returns the bytes of the message of a row of ``columns`` FP8 codes, a multiple of 16, with its 1x128 scales."""
    return columns + 4 * round_up(ceil_div(columns, 128), 4)


@torch.library.register_fake("octile::quantize_messages")
def _(x, type):
    return x.new_empty((x.shape[0], message_bytes(x.shape[1])), dtype=torch.uint8)


@torch.library.register_fake("octile::open_messages")
def _(messages, index, type, columns):
    check_place(messages, "messages", index=index)
    codes, scales = _quantized(messages, _named(type), index.shape[0], columns, False, flat=True)
    return codes[:, :columns], scales


@torch.library.register_fake("octile::requantize_groups")
def _(codes, scales, offsets, type):
    check_place(codes, "codes", scales=scales, offsets=offsets)
    rows, cols = codes.shape
    columns = _group_columns(rows, offsets.shape[0] - 1)
    made = codes.new_empty((cols, columns))
    return made, scales.new_empty((math.prod(_named(type).scale_shape(cols, columns)),))


@torch.library.register_fake("octile::quantize_one")
def _(x, type, transposed):
    return _quantized(x, _named(type), *x.shape, transposed)


@torch.library.register_fake("octile::quantize_both")
def _(x, type):
    kind = _named(type)
    return *_quantized(x, kind, *x.shape, False), *_quantized(x, kind, *x.shape, True)


@torch.library.register_fake("octile::quantize_masked")
def _(x, counts, type):
    check_place(x, "x", counts=counts)
    codes, scales = _quantized(x, _named(type), *x.shape[1:], False)
    return codes.new_empty(x.shape), scales.new_empty((x.shape[0], *scales.shape))


@torch.library.register_fake("octile::transpose")
def _(codes, scales, type, cols):
    check_place(codes, "codes", scales=scales)
    return _quantized(codes, _named(type), codes.shape[0], cols, True)


@torch.library.register_fake("octile::dequantize")
def _(codes, scales, type, cols, result):
    check_place(codes, "codes", scales=scales)
    return codes.new_empty((codes.shape[0], cols), dtype=CODES[result])


@torch.library.register_fake("octile::gemm_out")
def _(a, a_scale, a_type, b, b_scale, b_type, bias, d, k, tokens, accumulate, promote):
    check_place(a, "a", a_scale=a_scale, b=b, b_scale=b_scale, bias=bias, d=d)


@torch.library.register_fake("octile::grouped_gemm_out")
def _(a, a_scale, a_type, b, b_scale, b_type, group_rows, d, expected):
    check_place(a, "a", a_scale=a_scale, b=b, b_scale=b_scale, group_rows=group_rows, d=d)


def _named(type: str) -> TensorType:
    return TensorType(*type.split(":"))
