"""Quantise, dequantise and multiply NumPy arrays on the host, with the same bits as GPU kernels.

NumPy has no FP8 type, so codes are uint8. bfloat16 is that of the package ``ml_dtypes``, if it is installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy
from numpy import ma

from octile import _c
from octile._inspection import Inspection, Matrix, Tensor, inspection_of
from octile._types import (
    TensorType,
    check_tuple,
    codes_shape,
    dequantize_text,
    gemm_text,
    one_of,
    promote_of,
    quantize_text,
    refuse,
    wrong_type,
)

__all__ = ["Inspection", "Quantized", "dequantize", "gemm", "inspect", "quantize"]


class Quantized(NamedTuple):
    """A quantised matrix: element (i, j) is ``codes[i, j]`` as FP8, times its scale."""

    codes: numpy.ndarray  #: uint8 [rows, cols]; of a transposed copy padded to [rows, roundup(cols, 16)]
    scales: numpy.ndarray  #: in the layout of ``type`` for a [rows, cols] tensor, padding included
    type: TensorType
    shape: tuple[int, int]  #: rows, cols


_WORDS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_RESULTS = ("fp32", "fp16", "bf16")


def _array_type(word: str) -> numpy.dtype:
    if word == "bf16":
        import ml_dtypes

        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype({"fp32": "float32", "fp16": "float16", "uint8": "uint8", "int32": "int32"}[word])


def _empty(shape: tuple[int, int], dtype: numpy.dtype) -> numpy.ndarray:
    """Returns memory of which no byte is initialised, aligned to 16 bytes as operands of a GEMM are."""
    size = shape[0] * shape[1] * dtype.itemsize
    memory = numpy.empty(size + 16, numpy.uint8)
    first = -memory.ctypes.data % 16
    return memory[first : first + size].view(dtype).reshape(shape)


def _plain(array: numpy.ndarray) -> numpy.ndarray:
    """Returns the array in this machine's byte order, aligned and with rows one behind the other: itself if it is."""
    if not array.dtype.isnative:  # not by a cast, which ignores the byte order of ml_dtypes' types
        array = array.byteswap().view(array.dtype.newbyteorder("="))
    return numpy.require(array, None, ["C", "A"])


def _check_unmasked(array, argument: str) -> None:
    """Raises TypeError for an array of which some elements are not there, though their memory is."""
    if isinstance(array, ma.MaskedArray):
        raise wrong_type(argument, array, "numpy.ndarray without a mask, such as the result of filled()")


def _as_array(array, argument: str) -> numpy.ndarray:
    if array is None:
        raise wrong_type(argument, array, "numpy.ndarray")
    _check_unmasked(array, argument)
    try:
        return numpy.asarray(array)
    except (ValueError, TypeError, RuntimeError) as error:
        raise wrong_type(argument, array, f"an argument of numpy.asarray() ({error})") from None


def _matrix(array, argument: str) -> tuple[numpy.ndarray, str]:
    """Returns a matrix, and its type as problem texts name it."""
    array = _as_array(array, argument)
    if array.ndim != 2:
        raise refuse(argument + ".ndim", array.ndim, "is 2")
    if array.dtype.name not in _WORDS:
        raise refuse(argument + ".dtype", array.dtype.name, "are float32, float16 and ml_dtypes' bfloat16")
    return _plain(array), _WORDS[array.dtype.name]


def _checked(q: Quantized, argument: str) -> Quantized:
    """Returns the tensor as the library reads it. Raises TypeError or ValueError if codes and scales are not what
    ``type`` and ``shape`` say."""
    rows, cols = check_tuple(q, Quantized, argument, (int, numpy.integer))
    wanted = q.type.scale_shape(rows, cols)
    stored = _array_type(q.type.scale_type)
    for name, array, dtype in (("codes", q.codes, numpy.dtype("uint8")), ("scales", q.scales, stored)):
        if not isinstance(array, numpy.ndarray):
            raise wrong_type(f"{argument}.{name}", array, "numpy.ndarray")
        _check_unmasked(array, f"{argument}.{name}")
        if array.dtype.newbyteorder("=") != dtype:
            raise refuse(f"{argument}.{name}.dtype", array.dtype.name, f"with {q.type} is {dtype.name}")
    if q.codes.ndim != 2 or q.codes.shape[0] != rows or q.codes.shape[1] < cols:
        raise refuse(argument + ".codes.shape", q.codes.shape, f"is ({rows}, {cols} or more)")
    if q.scales.shape != wanted:
        raise refuse(argument + ".scales.shape", q.scales.shape, f"is {wanted}")
    return Quantized(_plain(q.codes), _aligned(_plain(q.scales)), q.type, (int(rows), int(cols)))


def _aligned(array: numpy.ndarray) -> numpy.ndarray:
    """Returns the array at a multiple of 16 bytes, as a GEMM reads it."""
    if array.ctypes.data % 16 == 0:
        return array
    copy = _empty(array.shape, array.dtype)
    copy[:] = array
    return copy


def _result(kind: TensorType, rows: int, cols: int, transposed: bool) -> Quantized:
    shape = (cols, rows) if transposed else (rows, cols)
    codes = _empty(codes_shape(rows, cols, transposed), numpy.dtype("uint8"))
    return Quantized(codes, _empty(kind.scale_shape(*shape), _array_type(kind.scale_type)), kind, shape)


def quantize(
    x,
    dtype: str = "e4m3",
    granularity: str = "1x128",
    scales: str | None = None,
    output: str = "row",
    encode_scale: float | None = None,
) -> Quantized | tuple[Quantized, Quantized]:
    """Quantises x [rows, cols] of float32, float16 or bfloat16 to ``dtype`` ("e4m3" or "e5m2").

    granularity: the block that shares a scale, "tensor", "row", "1x128", "128x128", "1x32" or "32x32". scales: "pow2"
    (the default of fp32 scales), "f32", "bf16", "ue8m0x4" or "e8m0". output: "row", "col" (the transposed copy, which
    is x^T with its own scales), or "both". encode_scale: with "tensor", a factor for x, such as an earlier step's,
    instead of the one from its largest magnitude; results beyond the format's largest value saturate. Raises ValueError
    and NotImplementedError.
    """
    x, word = _matrix(x, "x")
    kind = TensorType.of(dtype, granularity, scales)
    output = one_of("output", output, ("row", "col", "both"))
    rows, cols = x.shape
    given = encode_scale is not None
    if given:
        encode_scale = _check_encode_scale(encode_scale, kind)
    plan = _c.host_plan(quantize_text(word, kind, cols, output, delayed=given))
    made = [_result(kind, rows, cols, flip) for flip, one in ((False, "row"), (True, "col")) if output in (one, "both")]
    args = _c.QuantizeArgs(struct_size=ctypes.sizeof(_c.QuantizeArgs), rows=rows, x=x.ctypes.data, ldx=cols)
    if given:
        args.delayed = ctypes.pointer(_c.Delayed(ctypes.sizeof(_c.Delayed), (ctypes.c_float * 1)(encode_scale)))
    if output != "col":
        args.q, args.ldq, args.scale = made[0].codes.ctypes.data, cols, made[0].scales.ctypes.data
    if output != "row":
        args.q_transposed, args.scale_transposed = made[-1].codes.ctypes.data, made[-1].scales.ctypes.data
    _run_quantizer(plan, args)
    return (made[0], made[1]) if output == "both" else made[0]


def _check_encode_scale(scale: float, kind: TensorType) -> float:
    if kind.granularity != "tensor":
        raise refuse("encode_scale", scale, f"is None with granularity {kind.granularity!r}")
    if not isinstance(scale, (int, float, numpy.floating)) or isinstance(scale, bool):
        raise wrong_type("encode_scale", scale, "float")
    rounded = ctypes.c_float(scale).value
    if not 0 < rounded < float("inf"):
        raise refuse("encode_scale", scale, "are finite numbers above 0 in float32")
    return rounded


def _run_quantizer(plan, args: _c.QuantizeArgs) -> None:
    space = _c.workspace(plan, args.rows)
    args.workspace, args.workspace_bytes = ctypes.addressof(space), ctypes.sizeof(space)
    _c.check(_c.api().octile_quantize_run(plan, ctypes.byref(args), None))


def dequantize(q: Quantized, dtype: str = "fp32") -> numpy.ndarray:
    """Returns code * scale [rows, cols] as ``dtype``: "fp32", "fp16" or "bf16"."""
    q, dtype = _checked(q, "q"), one_of("dtype", dtype, _RESULTS)
    rows, cols = q.shape
    plan = _c.host_plan(dequantize_text(q.type, cols, dtype))
    values = _empty((rows, cols), _array_type(dtype))
    source = _c.SourceScales(ctypes.sizeof(_c.SourceScales), q.scales.ctypes.data, 0)
    args = _c.QuantizeArgs(
        struct_size=ctypes.sizeof(_c.QuantizeArgs),
        rows=rows,
        x=q.codes.ctypes.data,
        ldx=q.codes.shape[1],
        q=values.ctypes.data,
        source_scales=ctypes.pointer(source),
    )
    _run_quantizer(plan, args)
    return values


def gemm(a: Quantized, b: Quantized, dtype: str = "fp32", promote: str | int | None = None) -> numpy.ndarray:
    """Returns D[m, n] = A[m, k] B[n, k]^T as ``dtype``: "fp32", "fp16" or "bf16".

    promote: the elements of K that are summed before they are added in fp32, "32" to "512" or "none"; recipes use 128,
    with MX scales 32.
    """
    a, b, dtype = _checked(a, "a"), _checked(b, "b"), one_of("dtype", dtype, _RESULTS)
    (m, k), (n, other_k) = a.shape, b.shape
    if k != other_k:
        raise refuse("b.shape", b.shape, f"is (n, {k}), because a's is {a.shape}")
    plan = _c.host_plan(gemm_text(a.type, b.type, n, k, dtype, promote_of(promote, a.type)))
    d = _empty((m, n), _array_type(dtype))
    space = _c.workspace(plan, m)
    operands = [_padded(a.codes), _padded(b.codes)]
    args = _c.GemmArgs(
        struct_size=ctypes.sizeof(_c.GemmArgs),
        tokens=m,
        a=operands[0].ctypes.data,
        lda=operands[0].shape[1],
        a_scale=a.scales.ctypes.data,
        b=operands[1].ctypes.data,
        ldb=operands[1].shape[1],
        b_scale=b.scales.ctypes.data,
        d=d.ctypes.data,
        workspace=ctypes.addressof(space),
        workspace_bytes=ctypes.sizeof(space),
    )
    _c.check(_c.api().octile_gemm_run(plan, ctypes.byref(args), None))
    return d


def _padded(codes: numpy.ndarray) -> numpy.ndarray:
    """Returns codes whose rows begin at multiples of 16 bytes, as a GEMM reads them."""
    if codes.shape[1] % 16 == 0 and codes.ctypes.data % 16 == 0:
        return codes
    wide = _empty((codes.shape[0], -(-codes.shape[1] // 16) * 16), numpy.dtype("uint8"))
    wide[:] = 0
    wide[:, : codes.shape[1]] = codes
    return wide


def inspect(
    array: numpy.ndarray | Mapping[str, numpy.ndarray],
    recipes: str | Iterable[str] = "blockwise",
    role: str = "weight",
    sample: float = 1.0,
) -> Inspection:
    """Measures the error of quantising an array to FP8, with the bits of ``quantize``: the numbers of ``octile
    inspect``.

    array: float32, float16, bfloat16 or float64 (rounded to float32, magnitudes beyond it to infinities) with two
    dimensions, or with more, such as experts, where the last two are matrices; or a mapping of names to arrays, such as
    an open ``.npz`` file, of which arrays of other types and fewer dimensions are left out. Blocks lie along rows: pass
    a weight stored as [k, n] as ``array.swapaxes(-1, -2)``. recipes: names of recipes. role: the recipe's type to use,
    of "weight", "activation" or "gradient". sample: the share of each matrix to measure. Raises ValueError and
    TypeError.
    """
    if isinstance(array, Mapping):
        # One after the other: an archive reads an array when it is asked for.
        named = ((str(name), _as_array(array[name], f"array[{name!r}]")) for name in array)
        arrays = ((name, one) for name, one in named if one.ndim > 1 and one.size and one.dtype.name in _INSPECTED)
    else:
        array = _as_array(array, "array")
        if array.ndim < 2 or array.size == 0:
            raise refuse("array.shape", array.shape, "is at least two dimensions, none of which is 0")
        if array.dtype.name not in _INSPECTED:
            allowed = "are float32, float16, float64 and ml_dtypes' bfloat16"
            if array.dtype.name.startswith("float8"):
                allowed += "; of a tensor in FP8, its codes times its scales in one of these"
            raise refuse("array.dtype", array.dtype.name, allowed)
        arrays = [("array", array)]
    return inspection_of(
        ((Tensor(name, one.shape), lambda one=one: _matrices(one)) for name, one in arrays), recipes, role, sample
    )


_INSPECTED = (*_WORDS, "float64")


def _matrices(array: numpy.ndarray) -> Iterator[Matrix]:
    """Gives the matrices of an array, each as long as the next one is not asked for."""
    for matrix in array.reshape(-1, *array.shape[-2:]):
        if matrix.dtype.name == "float64":
            with numpy.errstate(all="ignore"):  # what float32 cannot hold is counted as infinities
                matrix = matrix.astype(numpy.float32)
        plain = _plain(matrix)
        rows, cols = plain.shape
        yield Matrix(plain.ctypes.data, _WORDS[plain.dtype.name], rows, cols, cols)
