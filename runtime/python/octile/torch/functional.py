"""The library's operations on tensors: quantise, dequantise, multiply, and a linear layer with its gradients.

All of them are functional, run on the current stream and do not synchronise. They raise ValueError for arguments that
are not allowed, NotImplementedError for computations that the library does not support, and RuntimeError with its
sentence.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from octile._types import DTYPES, TensorType, check_tuple, one_of, promote_of, refuse
from octile.torch._arguments import check_floats, check_place, check_sizes, check_tensor
from octile.torch._operators import STORED, ops
from octile.torch.derivatives import (
    GradientFunction,
    batched_by_loop,
    differentiable_once,
    is_transformed,
    one_by_one,
    refuse_forward_mode,
    refuse_tangents,
    refuse_trace,
    weight_gradient,
)
from octile.torch.normed_input import copy_of, origin_of
from octile.torch.plain_gradients import input_gradient, linear_gradients_of_recipe, weight_gradient_of
from octile.torch.held_weight import plain_values
from octile.torch.recipes import DW, DX, Recipe, stateless
from octile.torch.shared_input import shared_input
from octile.torch.watch import watch_of

_WORDS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}
_FP8 = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


class Quantized(NamedTuple):
    """A quantised matrix [rows, cols]: element (i, j) is ``codes[i, j]`` times its scale."""

    codes: torch.Tensor  #: float8 [rows, cols]; of a transposed copy padded with zeros to [rows, roundup(cols, 16)]
    scales: torch.Tensor  #: in the layout of ``type`` for a [rows, cols] tensor, padding included
    type: TensorType
    shape: tuple[int, int]  #: rows, cols

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns the values [rows, cols] as ``dtype``."""
        return dequantize(self, dtype)


def _call(operator, *arguments):
    """Calls an operator; what the library does not support becomes NotImplementedError."""
    if torch.compiler.is_compiling():
        return operator(*arguments)
    try:
        return operator(*arguments)
    except RuntimeError as error:
        if "OCTILE_UNSUPPORTED" in str(error):
            raise NotImplementedError(str(error).splitlines()[0]) from None
        raise


def _output_word(dtype: torch.dtype, argument: str) -> str:
    if dtype not in _WORDS or dtype in _FP8:
        raise refuse(argument, dtype, "are bfloat16, float16 and float32")
    return _WORDS[dtype]


def quantize(
    x: torch.Tensor,
    dtype: torch.dtype = torch.float8_e4m3fn,
    granularity: str = "1x128",
    scales: str | None = None,
    output: str = "row",
) -> Quantized | tuple[Quantized, Quantized]:
    """Quantises x [rows, cols] of bfloat16, float16 or float32 to ``dtype`` (float8_e4m3fn or float8_e5m2).

    granularity: the block that shares a scale, "tensor", "row", "1x128", "128x128", "1x32" or "32x32". scales: "pow2"
    (the default of fp32 scales), "f32", "bf16", "ue8m0x4" or "e8m0". output: "row", "col" (the transposed copy, which
    is x^T with its own scales), or "both", from one read of x. A scale multiplies; docs/numerics.md has the
    arithmetic.
    """
    check_tensor(x, "x")
    if x.dim() != 2:
        raise refuse("x.dim()", x.dim(), "is 2")
    if dtype not in _FP8:
        raise refuse("dtype", dtype, "are torch.float8_e4m3fn and torch.float8_e5m2")
    kind = TensorType.of(_FP8[dtype], granularity, scales)
    output = one_of("output", output, ("row", "col", "both"))
    _output_word(x.dtype, "x.dtype")
    rows, cols = x.shape
    if x.stride(1) != 1 or (rows > 1 and x.stride(0) < cols):
        x = x.contiguous()
    if output == "both":
        row, row_scales, col, col_scales = _call(ops.quantize_both, x, kind.text)
        return Quantized(row, row_scales, kind, (rows, cols)), Quantized(col, col_scales, kind, (cols, rows))
    made = _call(ops.quantize_one, x, kind.text, output == "col")
    return Quantized(*made, kind, (cols, rows) if output == "col" else (rows, cols))


def transpose(q: Quantized) -> Quantized:
    """Returns the transposed codes and scales of a tensor with scales per tensor or of square blocks. No code is
    changed."""
    check(q, "q")
    rows, cols = q.shape
    made = _call(ops.transpose, q.codes, q.scales, q.type.text, cols)
    return Quantized(*made, q.type, (cols, rows))


def dequantize(q: Quantized, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns code * scale [rows, cols], rounded to fp32 and then to ``dtype`` (float32, bfloat16 or float16)."""
    check(q, "q")
    word = _output_word(dtype, "dtype")
    return _call(ops.dequantize, q.codes, q.scales, q.type.text, q.shape[1], DTYPES[word])


def check(q: Quantized, argument: str) -> None:
    """Raises TypeError or ValueError if codes and scales are not what ``type`` and ``shape`` say."""
    rows, cols = check_tuple(q, Quantized, argument, (int, torch.SymInt))
    check_tensor(q.codes, argument + ".codes")
    check_tensor(q.scales, argument + ".scales")
    if _FP8.get(q.codes.dtype) != q.type.dtype:
        raise refuse(argument + ".codes.dtype", q.codes.dtype, f"is that of {q.type}")
    if q.codes.dim() != 2 or q.codes.shape[0] != rows or q.codes.shape[1] < cols or not q.codes.is_contiguous():
        raise refuse(argument + ".codes", tuple(q.codes.shape), f"is contiguous, [{rows}, {cols} or more]")
    wanted = q.type.scale_shape(rows, cols)
    if q.scales.dtype != STORED[q.type.scale_type]:
        raise refuse(argument + ".scales.dtype", q.scales.dtype, f"with {q.type} is {STORED[q.type.scale_type]}")
    if tuple(q.scales.shape) != tuple(wanted) or not q.scales.is_contiguous():
        raise refuse(argument + ".scales", tuple(q.scales.shape), f"is contiguous {tuple(wanted)}")
    if q.codes.device != q.scales.device:
        raise refuse(argument + ".scales.device", q.scales.device, f"is {q.codes.device}")


def _operand(q: Quantized, argument: str) -> Quantized:
    """Returns an operand whose rows begin at multiples of 16 bytes."""
    check(q, argument)
    if q.codes.shape[1] % 16 == 0:
        return q
    padded = torch.nn.functional.pad(q.codes.view(torch.uint8), (0, -q.codes.shape[1] % 16))
    return q._replace(codes=padded.view(q.codes.dtype))


def gemm(
    a: Quantized,
    b: Quantized,
    dtype: torch.dtype = torch.bfloat16,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    promote: str | int | None = None,
    tokens: str = "m",
) -> torch.Tensor:
    """Returns D[m, n] = A[m, k] B[n, k]^T + bias as ``dtype`` (bfloat16, float16 or float32).

    bias: bfloat16 or float32 [n]. out: bfloat16 or float32 [m, n], contiguous; the product is added to it in fp32 and
    rounded once, and it is returned. promote: how many elements of K are summed before they are added in fp32, "32" to
    "512" or "none"; the default is 128, with MX scales 32. tokens: the size that changes from call to call and needs no
    separate kernels, "m", or "k" for weight gradients.
    """
    a, b = _operand(a, "a"), _operand(b, "b")
    (m, k), (n, other_k) = a.shape, b.shape
    if k != other_k:
        raise refuse("b.shape", b.shape, f"is (n, {k}), because a's is {tuple(a.shape)}")
    tokens = one_of("tokens", tokens, ("m", "k"))
    if a.codes.device != b.codes.device:
        raise refuse("b.codes.device", b.codes.device, f"is {a.codes.device}")
    if bias is not None:
        check_tensor(bias, "bias")
        if bias.shape != (n,) or bias.device != a.codes.device:
            raise refuse("bias", tuple(bias.shape), f"is ({n},) on {a.codes.device}")
        if bias.dtype not in (torch.bfloat16, torch.float32):
            raise refuse("bias.dtype", bias.dtype, "are torch.bfloat16 and torch.float32")
    if out is not None:
        check_tensor(out, "out")
        if tuple(out.shape) != (m, n) or not out.is_contiguous() or out.device != a.codes.device:
            raise refuse("out", tuple(out.shape), f"is contiguous ({m}, {n}) on {a.codes.device}")
    _output_word(dtype if out is None else out.dtype, "dtype" if out is None else "out.dtype")
    d = a.codes.new_empty((m, n), dtype=dtype) if out is None else out
    operands = a.codes, a.scales, a.type.text, b.codes, b.scales, b.type.text
    _call(ops.gemm_out, *operands, bias, d, k, tokens, out is not None, promote_of(promote, a.type))
    return d


class _Linear(torch.autograd.Function):
    """Two operators, one for each direction. Only the transposed FP8 copy of x is kept, or with ``keeps_x`` x itself,
    or the tensors of a norm that computed x: ``readers`` and of_norm are x's origin. The copy is a result too, by which
    a second derivative finds the way to x. plain: gradients that are computed without FP8."""

    @staticmethod
    def forward(
        ctx, x, weight, bias, code, scaling=None, sentry=None, shared=None, keeps_x=False, plain=0,
        readers=None, *of_norm,
    ):  # fmt: skip
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        if plain:  # a pass with gradients, whichever they are
            needs_x = not plain & DX or plain & DW > 0
        keeps_norm = len(of_norm) > 0
        keeps_x = (keeps_x or plain & DW > 0) and needs_weight and scaling is None and not keeps_norm
        keeps_copy = needs_weight and not keeps_x and not keeps_norm
        if scaling is None and torch.compiler.is_compiling():  # which merges equal calls
            shared = ops.quantize_input(x, code, True, keeps_copy)
        copies = () if shared is None else shared[:2]
        y, x_codes, x_scales = ops.linear_forward(x, weight, bias, code, keeps_copy, needs_x, scaling, sentry, *copies)
        if shared is not None and keeps_copy:
            x_codes, x_scales = shared[2].detach(), shared[3]  # a result of this function alone
        if keeps_norm:
            x_codes = y.new_empty(0)
            ctx.save_for_backward(weight, x_codes, *of_norm)
        else:
            ctx.save_for_backward(weight, x if keeps_x else x_codes, x_scales)
        ctx.keeps_x, ctx.keeps_norm, ctx.readers, ctx.plain = keeps_x, keeps_norm, readers, plain
        ctx.set_materialize_grads(False)
        ctx.code, ctx.state = code, (scaling, sentry)
        ctx.bias_dtype = None if bias is None else bias.dtype
        # The parameter itself, because a saved tensor may come back as another one, without main_grad.
        ctx.parameter = weight if needs_weight and weight.is_leaf else None
        return y, x_codes

    @staticmethod
    @differentiable_once
    def backward(ctx, saved, dy):
        made = linear_gradients(ctx, saved, dy, *weight_gradient(ctx))
        return *made, *(None,) * (len(ctx.needs_input_grad) - len(made))


def linear_gradients(ctx, saved: tuple, dy: torch.Tensor, needs_weight: bool, main_grad: torch.Tensor | None) -> tuple:
    """Returns the gradients of ``_Linear``'s inputs before ``shared``, None for those that are not needed."""
    weight, x_codes, x_scales, *_ = saved
    needs_x, _, needs_bias, *_ = ctx.needs_input_grad
    if ctx.plain:
        dx, dw, db = linear_gradients_of_recipe(ctx, saved, dy, needs_x, needs_weight, needs_bias, main_grad)
        dw = dw if main_grad is None else dummy_gradient(ctx.parameter)
        return dx, dw, db, None, None, None
    if ctx.keeps_norm and needs_weight:
        x_codes, x_scales = copy_of(ctx.readers, saved[2:], ctx.code)
    elif ctx.keeps_x and needs_weight:
        x_codes, x_scales = ops.quantize_input(x_codes, ctx.code, False, True)[2:]
    scaling, sentry = ctx.state
    if main_grad is None:
        needs = needs_x, needs_weight, needs_bias
        dx, dw, db = ops.linear_backward(dy, weight, x_codes, x_scales, ctx.code, *needs, scaling, sentry)
    else:
        needs = needs_x, needs_bias
        dx, db = ops.linear_backward_into(dy, weight, x_codes, x_scales, main_grad, ctx.code, *needs, scaling, sentry)
        dw = dummy_gradient(ctx.parameter)
    return (
        dx if needs_x else None,
        dw if needs_weight else None,
        db.to(ctx.bias_dtype) if needs_bias else None,
        None,
        None,
        None,
    )


class _LinearOfFunc(torch.autograd.Function):
    """The same for the transforms of ``torch.func``, which need every kept tensor to be an argument or a result. So x
    itself is kept, and quantised again for dw."""

    @staticmethod
    def forward(x, weight, bias, code, scaling, sentry, recorded, plain):
        return ops.linear_forward(x, weight, bias, code, False, recorded, scaling, sentry)[0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias, ctx.code, *ctx.state, _, ctx.plain = inputs
        ctx.save_for_backward(x, weight)
        ctx.bias_dtype = None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_x, of_weight = needs_x and ctx.plain & DX > 0, needs_weight and ctx.plain & DW > 0
        in_fp8 = needs_x and not of_x, needs_weight and not of_weight, needs_bias
        dx, dw, db = _LinearGradients.apply(dy, x, weight, ctx.code, *in_fp8, *ctx.state)
        dx = input_gradient(dy, weight) if of_x else dx
        dw = weight_gradient_of(dy, x, weight) if of_weight else dw
        gradients = dx if needs_x else None, dw if needs_weight else None, db.to(ctx.bias_dtype) if needs_bias else None
        return *gradients, None, None, None, None, None

    jvp = staticmethod(refuse_forward_mode)

    @staticmethod
    def vmap(info, in_dims, x, weight, bias, code, scaling, sentry, recorded, plain):
        call = functools.partial(linear_of, plain=plain)
        if in_dims[1:3] == (None, None):
            return call(x.movedim(in_dims[0], 0), weight, bias, code, scaling, sentry), 0
        return one_by_one(call, info, in_dims[:6], x, weight, bias, code, scaling, sentry)


class _LinearGradients(GradientFunction):
    """dx, dw and db of x itself; empty if not needed."""

    @staticmethod
    def forward(dy, x, weight, code, needs_x, needs_weight, needs_bias, scaling, sentry):
        kept = [dy.new_empty(0, dtype=torch.uint8)] * 2
        if needs_weight:
            _, *kept = ops.linear_forward(x, weight, None, code, True, False, scaling, sentry)
        return ops.linear_backward(dy, weight, *kept, code, needs_x, needs_weight, needs_bias, scaling, sentry)

    @staticmethod
    def vmap(info, in_dims, dy, x, weight, code, needs_x, needs_weight, needs_bias, scaling, sentry):
        rest = weight, code, needs_x, needs_weight, needs_bias, scaling, sentry
        if in_dims[0] is None or in_dims[2] is not None or needs_weight or needs_bias:
            return one_by_one(_LinearGradients.apply, info, in_dims, dy, x, *rest)
        return _LinearGradients.apply(dy.movedim(in_dims[0], 0), x, *rest), (0, None, None)


batched_by_loop(ops.linear_output)
batched_by_loop(ops.linear_backward)


def dummy_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Returns what autograd gets once the gradient is in ``main_grad``. Frameworks that wait for a gradient to arrive
    mark the parameter with ``grad_added_to_main_grad``, as Megatron-LM does; they get zeros that take no memory."""
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    return parameter.new_zeros(()).expand(parameter.shape)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    recipe: Recipe | str = "blockwise",
) -> torch.Tensor:
    """Returns x weight^T + bias, computed in FP8, with gradients: [..., n], of x's dtype.

    x: [..., k], weight: [n, k], each bfloat16, float16 or float32; n and k are multiples of 16. bias: [n]. The three
    GEMMs of a layer (y, dx and dw) take FP8 operands by ``recipe`` and add in fp32. dw has the weight's dtype. If the
    weight has an attribute ``main_grad`` (bfloat16 or float32 [n, k]), dw is added to it instead, in fp32. Under
    autocast x is cast to autocast's dtype. Recipe "delayed" raises NotImplementedError, because a function has no state
    for maxima; so do second derivatives and forward mode. A sentry watches the calls if it was given the weight's name.
    """
    check_tensor(weight, "weight")
    recipe, watch = stateless(recipe, "linear"), watch_of(weight)
    if watch is None:
        return linear_of(x, weight, bias, recipe.code, plain=recipe.plain)
    if watch.pauses_call():
        return plain_linear(x, weight, bias)
    return watch.linear(x, weight, bias, recipe.code, None, recipe.plain)


def plain_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns what ``nn.Linear`` does, in x's dtype."""
    check_tensor(x, "x")
    check_place(x, "x", weight=weight, bias=bias)
    check_sizes(x, "x", weight, 1, 2)
    return torch.nn.functional.linear(x, plain_values(weight).to(x.dtype), None if bias is None else bias.to(x.dtype))


def linear_of(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, code: int,
    scaling: torch.Tensor | None = None, sentry: torch.Tensor | None = None, keeps_x: bool = False, plain: int = 0,
) -> torch.Tensor:  # fmt: skip
    """Returns what ``linear`` does, by a recipe's code. scaling: state of a layer of recipe "delayed"; calls with
    gradients record maxima in it. sentry: int32 [3], whose elements become 1 if y, dx or dw is not finite. keeps_x:
    backward quantises x again, instead of an FP8 copy being kept; not with scaling. plain: as ``Recipe.plain``."""
    given = x
    x, bias = as_operands(x, weight, bias)
    recorded = has_gradients(x, weight, bias)
    if is_transformed():
        return _LinearOfFunc.apply(x, weight, bias, code, scaling, sentry, recorded, plain)
    refuse_tangents(x, weight, bias)
    if recorded:
        refuse_trace()
        shared = origin = None
        if scaling is None:
            origin = origin_of(given, x) if weight.requires_grad and not plain else None
            if not torch.compiler.is_compiling():
                keeps_copy = weight.requires_grad and not (keeps_x or plain & DW) and origin is None
                shared = shared_input(given, x, weight, code, keeps_copy)
        of_norm = () if origin is None else (origin.readers, *origin.kept)
        return _Linear.apply(x, weight, bias, code, scaling, sentry, shared, keeps_x, plain, *of_norm)[0]
    return ops.linear_output(x, weight, bias, code, scaling, sentry)


def as_operands(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns x in autocast's dtype, if there is one, and a bias of a dtype that the library adds. weight: None if it
    is held in FP8."""
    check_floats(x, "x")
    if weight is not None:
        check_floats(weight, "weight")
    if bias is not None:
        check_floats(bias, "bias")
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        x = x.to(torch.get_autocast_dtype(device))
    if bias is not None and bias.dtype == torch.float16:
        bias = bias.float()
    return x, bias


def has_gradients(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Returns whether autograd records a layer of these tensors."""
    return torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    )
