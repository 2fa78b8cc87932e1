"""Quantisers and GEMMs."""

from __future__ import annotations

import dataclasses
import functools
from ctypes import byref, sizeof

import jax
import jax.numpy as jnp

from octile import _c
from octile._types import TensorType, gemm_text, one_of, promote_of, quantize_text, refuse, wrong_type
from octile.jax._calls import BIAS, COL, OFFSETS, ROW, SUMS, call

WORDS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_FP8 = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
_ARRAY_TYPES = {word: name for name, word in (WORDS | _FP8).items()} | {"uint8": "uint8", "int32": "int32"}


@functools.partial(jax.tree_util.register_dataclass, data_fields=["codes", "scales"], meta_fields=["type", "shape"])
@dataclasses.dataclass(frozen=True)
class Quantized:
    """A quantised matrix [rows, cols], or several: element (i, j) is ``codes[i, j]`` times its scale. A pytree."""

    codes: jax.Array  #: float8 [rows, roundup(cols, 16)]; what is behind the columns is not defined
    scales: jax.Array  #: in the layout of ``type``, padding included
    type: TensorType
    shape: tuple[int, ...]  #: (rows, cols), or (tensors, rows, cols), whose codes lie one behind the other


def word_of(array: object, argument: str) -> str:
    """Returns an array's type as problem texts name it. Raises TypeError or ValueError for any other object."""
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        raise wrong_type(argument, array, "jax.Array")
    if str(array.dtype) not in WORDS:
        raise refuse(argument + ".dtype", str(array.dtype), "are bfloat16, float16 and float32")
    return WORDS[str(array.dtype)]


def _results(kind: TensorType, problem: str, rows: int, groups: int, transposed: bool) -> list:
    """Returns shapes and dtypes of an output's codes and scales."""
    layout = _c.Layout(struct_size=sizeof(_c.Layout))
    _c.check(_c.api().octile_plan_quantized_layout(_c.host_plan(problem), rows, groups, transposed, byref(layout)))
    scales = (layout.scale_rows, layout.scale_ld), _ARRAY_TYPES[kind.scale_type]
    return [((layout.data_rows, layout.data_ld), _ARRAY_TYPES[kind.dtype]), scales]


def _problem(x: str, kind: TensorType, shape: tuple[int, ...], output: str, groups: int) -> str:
    group = " group=stacked" if len(shape) == 3 else " group=contiguous" * (groups > 0)
    return quantize_text(x, kind, shape[-1], output) + group


def check_offsets(offsets: object) -> int:
    """Returns how many groups there are. Raises TypeError or ValueError for other objects than int32 [groups + 1]."""
    if not hasattr(offsets, "dtype") or not hasattr(offsets, "shape"):
        raise wrong_type("offsets", offsets, "jax.Array")
    if offsets.ndim != 1 or not 2 <= offsets.shape[0] <= 1025:
        raise refuse("offsets.shape", tuple(offsets.shape), "is (groups + 1,), of 1 to 1024 groups")
    if offsets.dtype != jnp.int32:
        raise refuse("offsets.dtype", str(offsets.dtype), "is int32")
    return offsets.shape[0] - 1


def quantize_all(
    x: jax.Array, kind: TensorType, output: str, offsets: jax.Array | None = None, sums: bool = False
) -> tuple:
    """Returns what ``quantize`` does, always as a tuple, and with ``sums`` the fp32 sums of x's columns behind it."""
    groups = 0 if offsets is None else check_offsets(offsets)
    problem = _problem(word_of(x, "x"), kind, x.shape, output, groups)
    rows, tensors = x.shape[-2], x.shape[0] if x.ndim == 3 else groups
    flips = [flip for flip, name in ((False, "row"), (True, "col")) if output in (name, "both")]
    results = [result for flip in flips for result in _results(kind, problem, rows, tensors, flip)]
    parts = sum(COL if flip else ROW for flip in flips) + OFFSETS * (groups > 0) + SUMS * sums
    results += [((x.shape[1],), "float32")] * sums
    operands = (x,) if offsets is None else (x, offsets)
    made = call("quantize", operands, results, problem + " dbias=1" * sums, rows, parts, tensors)
    shapes = [(*x.shape[:-2], x.shape[-1], rows) if flip else x.shape for flip in flips]
    copies = [Quantized(*made[2 * i : 2 * i + 2], kind, shape) for i, shape in enumerate(shapes)]
    return *copies, *made[2 * len(copies) :]


def quantize(
    x: jax.Array,
    dtype=jnp.float8_e4m3fn,
    granularity: str = "1x128",
    scales: str | None = None,
    output: str = "row",
    offsets: jax.Array | None = None,
) -> Quantized | tuple[Quantized, Quantized]:
    """Quantises x, bfloat16, float16 or float32, to ``dtype``, float8_e4m3fn or float8_e5m2.

    x: [rows, cols], or [tensors, rows, cols], such as weights of experts, each with its own scales. granularity: the
    block that shares a scale, "tensor", "row", "1x128", "128x128", "1x32" or "32x32". scales: "pow2" (the default of
    fp32 scales), "f32", "bf16", "ue8m0x4" or "e8m0". output: "row", "col" (the transposed copy, x^T with its own
    scales), or "both" from one read of x. offsets: int32 [groups + 1], ascending from 0, for x [rows, cols]: rows
    offsets[g] to offsets[g + 1] are group g, whose transposed copy begins at a multiple of 128 columns; rows after the
    last group are not quantised. A scale multiplies; docs/numerics.md has the arithmetic.

    Raises ValueError and TypeError for bad arguments, NotImplementedError for unsupported computations. Neither this
    function nor ``gemm`` has derivatives.
    """
    word_of(x, "x")
    allowed = (2,) if offsets is not None else (2, 3)
    if x.ndim not in allowed:
        raise refuse("x.ndim", x.ndim, "are 2 and 3" if offsets is None else "with offsets is 2")
    name = jnp.dtype(dtype).name
    if name not in _FP8:
        raise refuse("dtype", name, "are float8_e4m3fn and float8_e5m2")
    kind = TensorType.of(_FP8[name], granularity, scales)
    made = quantize_all(x, kind, one_of("output", output, ("row", "col", "both")), offsets)
    return made if output == "both" else made[0]


def _check(q: object, argument: str, tensors: int, groups: int, transposed: bool) -> None:
    """Raises TypeError or ValueError unless q is a matrix, or as many tensors, with the codes and scales that its type
    and shape say. transposed: it is the transposed copy of groups."""
    if not isinstance(q, Quantized):
        raise wrong_type(argument, q, "octile.jax.Quantized, which quantize() returns")
    if type(q.type) is not TensorType:
        raise wrong_type(argument + ".type", q.type, "octile._types.TensorType")
    if len(q.shape) != 2 + (tensors > 0) or (tensors > 0 and q.shape[0] != tensors):
        raise refuse(argument + ".shape", q.shape, f"is ({tensors}, rows, cols)" if tensors else "is (rows, cols)")
    source = q.shape[::-1] if transposed else q.shape
    problem = _problem("bf16", q.type, source, "col" if transposed else "row", groups)
    wanted = _results(q.type, problem, source[-2], tensors or groups, transposed)
    for name, array, (shape, dtype) in zip(("codes", "scales"), (q.codes, q.scales), wanted, strict=True):
        if not hasattr(array, "dtype") or tuple(array.shape) != shape or str(array.dtype) != dtype:
            found = f"{array.dtype}{list(array.shape)}" if hasattr(array, "dtype") else array
            raise refuse(f"{argument}.{name}", found, f"with {q.type} and shape {q.shape} is {dtype}{list(shape)}")


def gemm(
    a: Quantized,
    b: Quantized,
    dtype=jnp.bfloat16,
    bias: jax.Array | None = None,
    offsets: jax.Array | None = None,
    promote: str | int | None = None,
    tokens: str = "m",
) -> jax.Array:
    """Returns D[m, n] = A[m, k] B[n, k]^T + bias as ``dtype``, bfloat16, float16 or float32.

    bias: bfloat16 or float32 [n]. promote: how many elements of K are summed before they are added in fp32, "32" to
    "512" or "none"; the default is 128, with MX scales 32. tokens: the size that holds the tokens, "m", or "k" for
    weight gradients.

    offsets: int32 [groups + 1], as in ``quantize``. With tokens="m" b is [groups, n, k], and rows of group g of a are
    multiplied by b[g]; rows of D after the last group are undefined. With tokens="k" a and b are transposed copies of
    groups, and D is [groups, m, n]. Errors are those of ``quantize``.
    """
    return product(a, b, dtype, bias, offsets, promote, tokens)


def product(
    a: Quantized, b: Quantized, dtype, bias: jax.Array | None, offsets: jax.Array | None, promote: str | int | None,
    tokens: str = "m", powers: bool = False,
) -> jax.Array:  # fmt: skip
    """Returns what ``gemm`` does. powers: the tensor core may multiply scales that are powers of two."""
    groups = 0 if offsets is None else check_offsets(offsets)
    sums_over_tokens = one_of("tokens", tokens, ("m", "k")) == "k"
    _check(a, "a", 0, groups, groups > 0 and sums_over_tokens)
    tensors, groups_of_b = (0, groups) if sums_over_tokens else (groups, 0)
    _check(b, "b", tensors, groups_of_b, groups > 0 and sums_over_tokens)
    (m, k), (n, other_k) = a.shape, b.shape[-2:]
    if k != other_k:
        raise refuse("b.shape", b.shape, f"ends in {k}, because a's is {a.shape}")
    name = jnp.dtype(dtype).name
    if name not in WORDS:
        raise refuse("dtype", name, "are bfloat16, float16 and float32")
    types = a.type, b.type, n, k, WORDS[name], promote_of(promote, a.type)
    problem = gemm_text(*types, m if sums_over_tokens else None, powers)
    operands, parts = [a.codes, a.scales, b.codes, b.scales], 0
    if bias is not None:
        if word_of(bias, "bias") == "fp16" or bias.shape != (n,):
            raise refuse("bias", f"{bias.dtype}{list(bias.shape)}", f"is bfloat16 or float32 [{n}]")
        problem, parts = f"{problem} bias={WORDS[str(bias.dtype)]}", BIAS
        operands.append(bias)
    if groups:
        problem, parts = f"{problem} group=contiguous groups={groups}", parts + OFFSETS
        operands.append(offsets)
    _c.host_plan(problem)  # raises what the library says of it
    shape = (groups, m, n) if groups and sums_over_tokens else (m, n)
    return call("gemm", operands, [(shape, name)], problem, k if sums_over_tokens else m, parts)[0]
