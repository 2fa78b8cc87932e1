"""GEMMs of groups for engines that serve mixtures of experts: of codes and scales that the engine has, where they lie,
and of x."""

from __future__ import annotations

import torch

from octile._types import refuse
from octile.torch._arguments import check_floats, check_place, check_tensor
from octile.torch._operators import ops
from octile.torch.frozen import CODE
from octile.torch.grouped import with_first_zero
from octile.torch.serving import TYPES, blocks, check_codes, check_dtype, check_float32, check_multiples, check_shape


def scaled_grouped_mm(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    offsets: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Returns D[m, n] as ``dtype`` (bfloat16, float16 or float32): D[rows of group g] = A[rows of group g] B[g]^T.

    a: float8_e4m3fn [m, k] with contiguous rows, the rows of one group after the other. a_scale: as in ``scaled_mm``,
    for all rows together. b: float8_e4m3fn [groups, n, k], whose rows are contiguous and lie at one stride, n a
    multiple of 8 and k of 16. b_scale: float32, in one of two forms, and read where it lies:

    - [groups, ceil(n / 128), ceil(k / 128)], likewise, with a_scale of 1x128 blocks;
    - [groups, n] or [groups, n, 1], contiguous, with a_scale of rows.

    offsets: int32 or int64 [groups + 1], the first row of each group and the end of the last, or [groups], the ends.
    Rows in no group of D are not written.

    Sums, roundings, streams, captures and errors are as in ``scaled_mm``; ``prepare`` takes the number of groups.
    """
    n, k, granularity = _check_weights(a, "a", a_scale, b, b_scale, offsets=offsets)
    if a.dim() != 2 or a.shape[1] != k:
        raise refuse("a.shape", tuple(a.shape), f"is (m, {k}) with b {tuple(b.shape)}")
    offsets = with_first_zero(offsets, b.shape[0], a)
    check_dtype(dtype, "dtype")
    m = a.shape[0]
    if granularity == "row":
        a_rows = _rows(a_scale, "a_scale", (m,))
    else:
        check_shape(a_scale, "a_scale", (m, blocks(n, k)[1]), f"with b_scale {tuple(b_scale.shape)}")
        a_rows = a_scale.t()
    d = a.new_empty((m, n), dtype=dtype)
    return _multiply(a, a_rows, b, b_scale, granularity, offsets, d)


def scaled_masked_mm(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    counts: torch.Tensor,
    expected: int = 0,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Returns D[groups, m, n] as ``dtype``: the first counts[g] rows of D[g] are those of A[g] B[g]^T, and the others
    are not written.

    a: float8_e4m3fn [groups, m, k], the groups one after the other. a_scale: float32, with the groups one after the
    other, [groups, m, ceil(k / 128)] with strides (ceil(k / 128) * ld, 1, ld), ld as in ``scaled_mm``, which is
    DeepGEMM's masked layout; or [groups, m] with a stride of m rounded up to a multiple of 4. b, b_scale, dtype: as in
    ``scaled_grouped_mm``. counts: int32 or int64 [groups], on the device; the host does not read them. expected:
    average rows of a group, which selects the kernel and does not change results; 0 or more than m: m.

    The rest is as in ``scaled_grouped_mm``.
    """
    n, k, granularity = _check_weights(a, "a", a_scale, b, b_scale, counts=counts)
    counts = _check_counts(a, "a", b, counts, expected)
    check_dtype(dtype, "dtype")
    groups, m = a.shape[:2]
    if granularity == "row":
        a_rows = _rows(a_scale, "a_scale", (groups, m))
    else:
        check_shape(a_scale, "a_scale", (groups, m, blocks(n, k)[1]), f"with b_scale {tuple(b_scale.shape)}")
        a_rows = a_scale.transpose(1, 2)
    d = a.new_empty((groups, m, n), dtype=dtype)
    return _multiply(a, a_rows, b, b_scale, granularity, counts, d, expected)


def block_fp8_experts(x: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Returns y[rows of group g] = x[rows of group g] B[g]^T: [m, n], of x's dtype. x: [m, k] of bfloat16, float16 or
    float32, which is quantised in 1x128 blocks with float32 scales. b: float8_e4m3fn [groups, n, k], contiguous, n and k
    multiples of 16. b_scale: float32 [groups, ceil(n / 128), ceil(k / 128)], contiguous. offsets, and rows in no group:
    as in ``scaled_grouped_mm``.

    Runs, and may be captured, as ``scaled_grouped_mm``. Raises ValueError for other arguments.
    """
    k = _check_experts(x, b, b_scale, offsets=offsets)
    if x.dim() != 2 or x.shape[1] != k:
        raise refuse("x.shape", tuple(x.shape), f"is (m, {k}) with b {tuple(b.shape)}")
    offsets = with_first_zero(offsets, b.shape[0], x)
    return ops.experts_forward(x, b, offsets, CODE, False, False, w_scales=b_scale)[0]


def block_fp8_masked_experts(
    x: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, counts: torch.Tensor, expected: int = 0
) -> torch.Tensor:
    """Returns y[groups, m, n] of x's dtype: the first counts[g] rows of y[g] are those of x[g] B[g]^T, and the others
    are not written. x: [groups, m, k], otherwise as in ``block_fp8_experts``, as b and b_scale. counts, expected: as in
    ``scaled_masked_mm``.

    Runs, and may be captured, as ``scaled_masked_mm``. Raises ValueError for other arguments.
    """
    _check_experts(x, b, b_scale, counts=counts)
    counts = _check_counts(x, "x", b, counts, expected)
    groups, m = x.shape[:2]
    codes, scales = ops.quantize_masked(x.contiguous(), counts, TYPES["128x128"][0])
    y = x.new_empty((groups, m, b.shape[1]))
    return _multiply(codes, scales[:, :, :m], b, b_scale, "128x128", counts, y, expected)


def _check_experts(x, b, b_scale, **group_rows) -> int:
    """Checks what forms that quantise x share, and returns k."""
    check_floats(x, "x")
    n, k, granularity = _check_weights(x, "x", None, b, b_scale, **group_rows)
    check_multiples(n, 16, k)
    if granularity == "row":
        raise refuse("b_scale.shape", tuple(b_scale.shape), f"is {(b.shape[0], *blocks(n, k))}")
    for argument, tensor in (("b", b), ("b_scale", b_scale)):
        if not tensor.is_contiguous():
            raise refuse(f"{argument}.stride()", tensor.stride(), "is that of a contiguous tensor")
    return k


def _check_counts(a, name, b, counts, expected) -> torch.Tensor:
    """Checks what masked forms share, and returns the counts as operators read them."""
    groups, _, k = b.shape
    if a.dim() != 3 or a.shape[0] != groups or a.shape[2] != k:
        raise refuse(name + ".shape", tuple(a.shape), f"is ({groups}, m, {k}) with b {tuple(b.shape)}")
    check_shape(counts, "counts", (groups,), f"with b {tuple(b.shape)}")
    if counts.dtype not in (torch.int32, torch.int64):
        raise refuse("counts.dtype", counts.dtype, "are torch.int32 and torch.int64")
    if not isinstance(expected, int) or expected < 0:
        raise refuse("expected", expected, "are 0 and more")
    return counts.to(torch.int32).contiguous()


def _check_weights(a, name, a_scale, b, b_scale, **group_rows):
    """Checks what all forms share, and returns n, k and the granularity of B's scales."""
    scales = {"b_scale": b_scale} if a_scale is None else {"a_scale": a_scale, "b_scale": b_scale}
    tensors = {"b": b, **scales, **group_rows}
    for argument, tensor in ((name, a), *tensors.items()):
        check_tensor(tensor, argument)
    check_place(a, name, **tensors)
    if a_scale is not None:
        check_codes(a, name)
    check_codes(b, "b")
    if b.dim() != 3 or b.shape[0] < 1:
        raise refuse("b.shape", tuple(b.shape), "is (groups, n, k), with 1 group or more")
    groups, n, k = b.shape
    check_multiples(n, 8, k)
    for argument, tensor in scales.items():
        check_float32(tensor, argument)
    of_blocks, of_rows = (groups, *blocks(n, k)), ((groups, n), (groups, n, 1))
    if tuple(b_scale.shape) == of_blocks:
        return n, k, "128x128"
    if tuple(b_scale.shape) not in of_rows:
        raise refuse("b_scale.shape", tuple(b_scale.shape), f"are {of_blocks}, {of_rows[0]} and {of_rows[1]}")
    return n, k, "row"


def _rows(scale: torch.Tensor, argument: str, shape: tuple) -> torch.Tensor:
    """Returns scales of rows, [..., rows] or [..., rows, 1], as [..., 1, rows]."""
    if tuple(scale.shape) not in (shape, (*shape, 1)):
        raise refuse(argument + ".shape", tuple(scale.shape), f"with scales of rows of b are {shape} and {(*shape, 1)}")
    return scale.unsqueeze(-2) if scale.dim() == len(shape) else scale.transpose(-1, -2)


def _multiply(a, a_rows, b, b_scale, granularity, group_rows, d, expected=0):
    a_type, b_type = TYPES[granularity]
    b_rows = b_scale if granularity == "128x128" else _rows(b_scale, "b_scale", b.shape[:2])
    ops.grouped_gemm_out(a, a_rows, a_type, b, b_rows, b_type, group_rows, d, expected)
    return d
