"""GEMMs for engines that serve models: of codes and scales that the engine has, where they lie, and of x. The
projections that engines fuse into one GEMM are those with ``fused`` in tools/models/config/leaves.cc."""

from __future__ import annotations

import torch

from octile._types import ceil_div, one_of, refuse, token_range
from octile.torch._arguments import FLOATS, FLOATS_TEXT, check_flag, check_floats, check_place, check_tensor
from octile.torch._operators import ops
from octile.torch.frozen import CODE, product

#: By the granularity of B's scales, the types of A and B.
TYPES = {"128x128": ("e4m3:1x128:f32", "e4m3:128x128:f32"), "row": ("e4m3:row:f32", "e4m3:row:f32")}
_BIASES = (torch.bfloat16, torch.float32)
_MOST_GROUPS = 1024


def scaled_mm(
    a: torch.Tensor,
    a_scale: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Returns D[m, n] = A[m, k] B[n, k]^T + bias as ``dtype`` (bfloat16, float16 or float32), from the caller's codes
    and scales. Scales multiply. Every 128 products are added in fp32, and D is rounded once.

    a, b: float8_e4m3fn with contiguous rows, n a multiple of 8 and k of 16. bias: bfloat16 or float32 [n]. The scales
    are float32, in one of two forms:

    - a_scale [m, ceil(k / 128)] and b_scale [ceil(n / 128), ceil(k / 128)]. a_scale is read in place if its strides are
      (1, ld), ld is m rounded up to a multiple of 4, or a larger multiple, and it begins at a multiple of 16 bytes.
      vLLM's and DeepGEMM's quantisers write this layout. A kernel may also read, but does not use, the floats up to
      that multiple of 4 after the last column. b_scale is read in place if its rows are contiguous.
    - a_scale [m] or [m, 1] and b_scale [n] or [n, 1]: a scale for each row, read in place if they are contiguous and
      begin at a multiple of 8 bytes.

    Scales in other layouts are copied first, on the current stream.

    Runs on the current stream, without a synchronisation and without a gradient. CUDA graphs may capture it; compile
    its kernels with ``prepare`` before. Raises ValueError for bad arguments.
    """
    operands = {"a": a, "a_scale": a_scale, "b": b, "b_scale": b_scale}
    for argument, tensor in operands.items():
        check_tensor(tensor, argument)
    check_place(a, "a", a_scale=a_scale, b=b, b_scale=b_scale, bias=bias)
    _matrix_of_codes(a, "a", "m")
    n, k = _matrix_of_codes(b, "b", "n")
    m = a.shape[0]
    if a.shape[1] != k:
        raise refuse("a.shape", tuple(a.shape), f"is (m, {k}) with b {tuple(b.shape)}")
    check_multiples(n, 8, k)
    check_dtype(dtype, "dtype")
    _check_bias(bias, n)
    of_blocks = blocks(n, k)
    if tuple(b_scale.shape) == of_blocks:
        granularity, of_a = "128x128", (m, of_blocks[1])
        check_shape(a_scale, "a_scale", of_a, f"with b_scale {of_blocks}")
        scales = a_scale.t(), b_scale
    else:
        granularity = "row"
        if tuple(b_scale.shape) not in ((n,), (n, 1)):
            raise refuse("b_scale.shape", tuple(b_scale.shape), f"are {of_blocks}, ({n},) and ({n}, 1)")
        if tuple(a_scale.shape) not in ((m,), (m, 1)):
            allowed = f"with b_scale {tuple(b_scale.shape)} are ({m},) and ({m}, 1)"
            raise refuse("a_scale.shape", tuple(a_scale.shape), allowed)
        scales = [s.unsqueeze(0) if s.dim() == 1 else s.t() for s in (a_scale, b_scale)]
    for argument, tensor in (("a_scale", a_scale), ("b_scale", b_scale)):
        check_float32(tensor, argument)
    a_type, b_type = TYPES[granularity]
    d = a.new_empty((m, n), dtype=dtype)
    ops.gemm_out(a, scales[0], a_type, b, scales[1], b_type, bias, d, k, "m", False, "128")
    return d


def block_fp8_linear(
    x: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns x B^T + bias: [..., n], of x's dtype. x: [..., k] of bfloat16, float16 or float32, which is quantised in
    1x128 blocks with float32 scales. b: float8_e4m3fn [n, k], contiguous, n and k multiples of 16. b_scale: float32
    [ceil(n / 128), ceil(k / 128)], contiguous, as checkpoints have it. bias: bfloat16 or float32 [n].

    Runs, and may be captured, like ``scaled_mm``. Raises ValueError for bad arguments.
    """
    check_floats(x, "x")
    check_tensor(b, "b")
    check_tensor(b_scale, "b_scale")
    check_place(x, "x", b=b, b_scale=b_scale, bias=bias)
    n, k = _matrix_of_codes(b, "b", "n")
    if x.dim() == 0 or x.shape[-1] != k:
        raise refuse("x.shape", tuple(x.shape), f"is (..., {k}) with b {(n, k)}")
    check_multiples(n, 16, k)
    _check_bias(bias, n)
    check_shape(b_scale, "b_scale", blocks(n, k), f"with b {(n, k)}")
    check_float32(b_scale, "b_scale")
    for argument, tensor in (("b", b), ("b_scale", b_scale)):
        if not tensor.is_contiguous():
            raise refuse(f"{argument}.stride()", tensor.stride(), "is that of a contiguous tensor")
    return product(x, b, b_scale, bias)


def prepare(
    n: int,
    k: int,
    tokens: tuple[int, int],
    dtype: torch.dtype = torch.bfloat16,
    bias: torch.dtype | None = None,
    granularity: str = "128x128",
    linear: bool = False,
    device: torch.device | str | int | None = None,
    groups: int | None = None,
    masked: bool = False,
) -> None:
    """Compiles, or finds in the cache, the kernels of ``scaled_mm`` with a B [n, k], for ``tokens[0]`` to ``tokens[1]``
    rows of A, and loads them. dtype: of D. bias: its dtype, or None. granularity: of B's scales, "128x128" or "row".
    linear: also those of ``block_fp8_linear`` with an x of this dtype; with "128x128" alone.

    groups: the number of B's matrices. Then it prepares ``scaled_grouped_mm``, where rows are those of all groups, and
    with linear also ``block_fp8_experts``. With masked it prepares ``scaled_masked_mm``, where rows are ``expected``
    rows of a group, or m if a call states none, and with linear also ``block_fp8_masked_experts``, for m in ``tokens``
    too. Groups have no bias.

    device: by default the current CUDA device, or without one the host, where nothing is compiled. Any number of
    threads may call it. Raises ValueError for bad arguments, RuntimeError if a kernel is not available.
    """
    lo, hi = token_range(tokens)
    check_dtype(dtype, "dtype")
    if bias not in (None, *_BIASES):
        raise refuse("bias", bias, "are None, torch.bfloat16 and torch.float32")
    granularity = one_of("granularity", granularity, TYPES)
    check_flag(linear, "linear")
    if linear and granularity != "128x128":
        raise refuse("linear", linear, f"with granularity {granularity!r} is False")
    check_flag(masked, "masked")
    if groups is None:
        if masked:
            raise refuse("masked", masked, "without groups is False")
    elif isinstance(groups, bool) or not isinstance(groups, int) or not 1 <= groups <= _MOST_GROUPS:
        raise refuse("groups", groups, f"are None and 1 to {_MOST_GROUPS}")
    elif bias is not None:
        raise refuse("bias", bias, f"with groups {groups} is None")
    check_multiples(n, 16 if linear else 8, k)
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)
    sample = torch.empty(0, dtype=dtype, device=device)
    of_bias = None if bias is None else sample.to(bias)
    ops.prepare_gemm(sample, of_bias, *TYPES[granularity], n, k, lo, hi, groups or 0, masked, masked and linear)
    codes = sample.to(torch.float8_e4m3fn)
    if masked:
        return
    if linear and groups is not None:
        ops.prepare_experts(sample, codes, None, CODE, groups, n, k, lo, hi, False)
    elif linear:
        ops.prepare_linear(sample, codes, of_bias, None, CODE, n, k, lo, hi, False)


def blocks(n: int, k: int) -> tuple[int, int]:
    return ceil_div(n, 128), ceil_div(k, 128)


def check_codes(codes: torch.Tensor, argument: str) -> None:
    if codes.dtype != torch.float8_e4m3fn:
        raise refuse(argument + ".dtype", codes.dtype, "is torch.float8_e4m3fn")


def check_float32(scale: torch.Tensor, argument: str) -> None:
    if scale.dtype != torch.float32:
        raise refuse(argument + ".dtype", scale.dtype, "is torch.float32")


def _matrix_of_codes(codes: torch.Tensor, argument: str, rows: str) -> torch.Size:
    check_codes(codes, argument)
    if codes.dim() != 2:
        raise refuse(argument + ".shape", tuple(codes.shape), f"is ({rows}, k)")
    return codes.shape


def check_multiples(n: int, of_n: int, k: int) -> None:
    for argument, size, unit in (("n", n, of_n), ("k", k, 16)):
        if size < unit or size % unit != 0:
            raise refuse(argument, size, f"are multiples of {unit}")


def check_shape(scale: torch.Tensor, argument: str, shape: tuple, given: str) -> None:
    if tuple(scale.shape) != shape:
        raise refuse(argument + ".shape", tuple(scale.shape), f"{given} is {shape}")


def check_dtype(dtype: object, argument: str) -> None:
    if dtype not in FLOATS:
        raise refuse(argument, dtype, FLOATS_TEXT)


def _check_bias(bias: torch.Tensor | None, n: int) -> None:
    if bias is None:
        return
    check_tensor(bias, "bias")
    if bias.dtype not in _BIASES:
        raise refuse("bias.dtype", bias.dtype, "are torch.bfloat16 and torch.float32")
    check_shape(bias, "bias", (n,), f"with n {n}")
