"""Linear layers and experts, with gradients."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from octile._recipes import ROWS
from octile._types import one_of, refuse
from octile.jax._calls import aligned
from octile.jax.functional import check_offsets, product, quantize_all, word_of

_RECIPES = {row.name: row for row in ROWS}


class _Layer(NamedTuple):
    """A layer without its arrays: x [tokens, k], weight, and bias or offsets."""

    recipe: str
    bias: str | None  #: its dtype
    grouped: bool  #: the weight is [experts, n, k], and offsets come behind it

    def rest(self, rest: tuple) -> tuple:
        """Returns bias and offsets of a call."""
        return (None, rest[0]) if self.grouped else (rest[0] if rest else None, None)


def _output(layer: _Layer, x, weight, *rest, copies: tuple = ()):
    row, (bias, offsets) = _RECIPES[layer.recipe], layer.rest(rest)
    a = copies[0] if copies else quantize_all(x, row.activation, "row", offsets)[0]
    (b,) = quantize_all(weight, row.weight, "row")
    if bias is not None and bias.dtype == jnp.float16:
        bias = bias.astype(jnp.float32)
    return product(a, b, x.dtype, bias, offsets, row.promote_forward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _differentiable(layer: _Layer, needs: tuple[bool, ...], *operands):
    """Returns y. needs: of which operands a gradient is wanted."""
    return _output(layer, *operands)


def _forward(layer: _Layer, needs: tuple[bool, ...], x, weight, *rest):
    """Also returns what backward reads: the weight, and the transposed FP8 copy of x for the weight's gradient."""
    row, (_, offsets) = _RECIPES[layer.recipe], layer.rest(rest)
    copies = quantize_all(x, row.activation, "both" if needs[1] else "row", offsets)
    y = _output(layer, x, weight, *rest, copies=copies)
    return y, (weight, copies[1] if needs[1] else None, offsets)


def _backward(layer: _Layer, needs: tuple[bool, ...], kept: tuple, dy):
    row, (weight, x, offsets) = _RECIPES[layer.recipe], kept
    needs_x, needs_weight, needs_bias = *needs[:2], layer.bias is not None and needs[2]
    output = {(True, True): "both", (False, True): "col"}.get((needs_x, needs_weight), "row")
    made = quantize_all(dy, row.gradient, output, offsets, sums=needs_bias)
    dx = dw = None
    if needs_x:
        (w,) = quantize_all(weight, row.weight, "col")
        dx = product(made[0], w, dy.dtype, None, offsets, row.promote_backward)
    if needs_weight:
        transposed, powers = made[1 if needs_x else 0], row.gradient.granularity == "1x128"
        dw = product(transposed, x, weight.dtype, None, offsets, row.promote_backward, "k", powers)
    db = made[-1].astype(layer.bias) if needs_bias else None
    return (dx, dw) + (() if layer.bias is None else (db,)) + (None,) * layer.grouped


_differentiable.defvjp(_forward, _backward)

# vmap of a layer folds the examples into its tokens. A primitive says so before the layer is differentiated, so that
# the gradient of a shared weight is one GEMM over all examples.
_linear = Primitive("octile_linear")
_compiled = jax.jit(_output, static_argnums=0)


@_linear.def_impl
def _(*operands, layer):
    return _compiled(layer, *operands)


@_linear.def_abstract_eval
def _(x, weight, *rest, layer):
    return x.update(shape=(x.shape[0], weight.shape[-2]))


def _jvp(primals, tangents, layer):
    needs = tuple(not isinstance(tangent, ad.Zero) for tangent in tangents)
    tangents = tuple(map(ad.instantiate_zeros, tangents))
    return jax.jvp(functools.partial(_differentiable, layer, needs), primals, tangents)


def _batch(operands, axes, layer):
    moved = [o if axis is None else jnp.moveaxis(o, axis, 0) for o, axis in zip(operands, axes, strict=True)]
    x, *shared = moved
    if layer.grouped or axes[0] is None or any(axis is not None for axis in axes[1:]):
        # Examples with a weight of their own, one after the other.
        mapped = [o for o, axis in zip(moved, axes, strict=True) if axis is not None]

        def of_example(example):
            rest = iter(example)
            chosen = [o if axis is None else next(rest) for o, axis in zip(moved, axes, strict=True)]
            return _linear.bind(*chosen, layer=layer)

        return jax.lax.map(of_example, mapped), 0
    y = _linear.bind(x.reshape(x.shape[0] * x.shape[1], x.shape[2]), *shared, layer=layer)
    return y.reshape(*x.shape[:2], y.shape[1]), 0


ad.primitive_jvps[_linear] = _jvp
batching.primitive_batchers[_linear] = _batch
mlir.register_lowering(
    _linear, mlir.lower_fun(lambda *operands, layer: _output(layer, *operands), multiple_results=False)
)


def _check_layer(x, weight, ndim: int, recipe: object, function: str) -> None:
    word_of(x, "x")
    word_of(weight, "weight")
    if weight.ndim != ndim:
        raise refuse("weight.shape", tuple(weight.shape), "is (n, k)" if ndim == 2 else "is (experts, n, k)")
    n, k = weight.shape[-2:]
    if n % 16 or k % 16 or 0 in weight.shape:
        raise refuse("weight.shape", tuple(weight.shape), "are n and k that are multiples of 16 above 0")
    if x.ndim == 0 or (ndim == 3 and x.ndim != 2) or x.shape[-1] != k:
        leading = "..." if ndim == 2 else "tokens"
        raise refuse("x.shape", tuple(x.shape), f"is ({leading}, {k}) with a weight {tuple(weight.shape)}")
    one_of("recipe", recipe, _RECIPES)
    if _RECIPES[recipe].delayed:
        raise NotImplementedError(
            f"octile: recipe is {recipe!r}, whose maxima a layer keeps; {function}() keeps nothing: use 'tensorwise'"
        )


def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None, recipe: str = "blockwise") -> jax.Array:
    """Returns x weight^T + bias, computed in FP8, with gradients: [..., n], of x's dtype.

    x: [..., k], weight: [n, k], bias: [n], each bfloat16, float16 or float32; n and k are multiples of 16. The three
    GEMMs of a layer (y, dx and dw) take FP8 operands by ``recipe`` and add in fp32. dw has the weight's dtype. Backward
    keeps the weight and an FP8 copy of x. A gradient that is not requested is not computed.

    recipe: "blockwise", "blockwise_hybrid", "tensorwise", "rowwise" or "mxfp8", with ":f32" appended for scales that
    are not powers of two, as in ``octile.torch.Recipe``. "delayed" raises NotImplementedError.

    jit, grad, checkpoint, scan, shard_map and vmap work. vmap over x alone merges its examples into the tokens, so
    scales and sums are those of one call with all examples; otherwise the examples are computed one after the other.
    Forward mode raises TypeError. Other errors are those of ``quantize``.
    """
    _check_layer(x, weight, 2, recipe, "linear")
    operands = [x.reshape(x.size // x.shape[-1], x.shape[-1]), weight]
    if bias is not None:
        word_of(bias, "bias")
        if bias.shape != weight.shape[:1]:
            raise refuse("bias.shape", tuple(bias.shape), f"is ({weight.shape[0]},)")
        operands.append(bias)
    layer = _Layer(recipe, None if bias is None else str(bias.dtype), False)
    return _linear.bind(*aligned(*operands), layer=layer).reshape(*x.shape[:-1], weight.shape[0])


def experts(x: jax.Array, weight: jax.Array, offsets: jax.Array, recipe: str = "blockwise") -> jax.Array:
    """Returns y[rows of group g] = x[rows of group g] weight[g]^T, computed in FP8, with gradients: [tokens, n].

    x: [tokens, k], the groups one after the other, each of any size. weight: [experts, n, k], n and k multiples of 16.
    offsets: int32 [experts + 1], ascending from 0: the first row of each group, then the end of the last. Rows after
    the last group are undefined, in y and in x's gradient. The weight gradient of a group without tokens is zero.
    recipe: "blockwise", "blockwise_hybrid" or "tensorwise", and "rowwise" without gradients of the weight. The rest is
    as in ``linear``; vmap computes examples one after the other.
    """
    _check_layer(x, weight, 3, recipe, "experts")
    if check_offsets(offsets) != weight.shape[0]:
        raise refuse("offsets.shape", tuple(offsets.shape), f"is ({weight.shape[0] + 1},)")
    return _linear.bind(*aligned(x, weight, offsets), layer=_Layer(recipe, None, True))
