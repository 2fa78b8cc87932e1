"""Types of quantised tensors as problem texts write them, and how such tensors lie in memory.

The formulas are those of ``octile_quantized_layout_query``; tests compare the two. They are written out here because
they also have to hold for sizes that are symbols, while PyTorch traces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index

#: Scale formats of each granularity; the first is the default.
FORMATS = {
    "tensor": ("pow2", "f32", "bf16"),
    "row": ("pow2", "f32", "bf16"),
    "1x128": ("pow2", "f32", "ue8m0x4", "bf16"),
    "128x128": ("pow2", "f32", "bf16"),
    "1x32": ("e8m0",),
    "32x32": ("e8m0",),
}

#: The type that a scale is stored in, by format.
STORED = {"pow2": "fp32", "f32": "fp32", "bf16": "bf16", "e8m0": "uint8", "ue8m0x4": "int32"}

#: Numbers of octile_dtype, octile_granularity and octile_scale_format.
DTYPES = {"e4m3": 1, "e5m2": 2, "bf16": 3, "fp16": 4, "fp32": 5}
GRANULARITIES = {"tensor": 1, "row": 2, "1x128": 3, "128x128": 4, "1x32": 5, "32x32": 6}
SCALE_FORMATS = {"f32": 1, "pow2": 2, "ue8m0x4": 3, "e8m0": 4, "bf16": 5}

#: How many elements of K are summed before they are added in fp32.
PROMOTES = ("32", "64", "128", "256", "512", "none")


def refuse(argument: str, value: object, allowed: str) -> ValueError:
    """Returns the error that names an argument, its value and what is allowed."""
    return ValueError(f"octile: {argument} is {value!r}; allowed {allowed}")


def wrong_type(argument: str, value: object, allowed: str) -> TypeError:
    """Returns the error that names an argument of a wrong type."""
    return TypeError(f"octile: {argument} is of type {type(value).__name__}; allowed is {allowed}")


def one_of(argument: str, value: object, names: Iterable[str], note: str = "are") -> str:
    """Returns the one of ``names`` that ``value`` is, or raises ValueError. Problem texts are made of its results, and
    of integers."""
    names = tuple(names)
    if isinstance(value, str):
        for name in names:
            if value == name:
                return name
    raise refuse(argument, value, f"{note} " + ", ".join(map(repr, names)))


def promote_of(promote: object, a: TensorType) -> str:
    """Returns ``promote`` as a problem's text has it: the default of operands of a's type for None."""
    if promote is None:
        return "32" if a.granularity in ("1x32", "32x32") else "128"
    if isinstance(promote, int) and not isinstance(promote, bool):
        promote = str(int(promote))
    return one_of("promote", promote, PROMOTES)


def is_integer(value: object, low: int = 0) -> bool:
    """Returns whether a value is an integer from ``low`` on, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def token_range(tokens: object, or_one: bool = False) -> tuple[int, int]:
    """Returns (lo, hi), or raises ValueError. or_one: a single number is a range too."""
    if or_one and is_integer(tokens):
        tokens = tokens, tokens
    if isinstance(tokens, tuple | list) and len(tokens) == 2 and all(map(is_integer, tokens)):
        lo, hi = tokens
        if lo <= hi < 2**31:
            return lo, hi
    number = "a number from 0 on and " if or_one else ""
    raise refuse("tokens", tokens, f"are {number}(lo, hi) with 0 <= lo <= hi < 2**31")


def check_tuple(q: object, kind: type, argument: str, size_types: tuple[type, ...] = (int,)) -> tuple:
    """Returns rows and columns of a quantised tensor. Raises TypeError unless it is a ``Quantized`` of the module
    that was called, ValueError unless its type and shape are such."""
    if not isinstance(q, kind):
        raise wrong_type(argument, q, f"{kind.__module__}.{kind.__name__}, which quantize() returns")
    if type(q.type) is not TensorType:
        raise wrong_type(argument + ".type", q.type, "octile._types.TensorType")
    shape = q.shape
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise refuse(argument + ".shape", shape, "is (rows, cols)")
    for size in shape:
        if not isinstance(size, size_types) or isinstance(size, bool) or size < 0:
            raise refuse(argument + ".shape", shape, "is (rows, cols), integers from 0 on")
    return tuple(shape)


def ceil_div(a, b):
    """Returns a / b, rounded up."""
    return (a + b - 1) // b


def round_up(a, b):
    """Returns the smallest multiple of b that is at least a."""
    return ceil_div(a, b) * b


@dataclass(frozen=True)
class TensorType:
    """The type of a quantised tensor: FP8 format, blocks that share a scale, and how scales are kept. Raises ValueError
    for any other text."""

    dtype: str
    granularity: str
    scales: str

    def __post_init__(self) -> None:
        self._names()

    @staticmethod
    def of(dtype: str, granularity: str, scales: str | None = None) -> TensorType:
        """Returns the type, or raises ValueError. ``scales=None`` is the granularity's default."""
        if scales is None:
            scales = FORMATS[one_of("granularity", granularity, FORMATS)][0]
        return TensorType(dtype, granularity, scales)

    def _names(self) -> tuple[str, str, str]:
        """Returns the three parts as the library names them."""
        dtype = one_of("dtype", self.dtype, ("e4m3", "e5m2"))
        granularity = one_of("granularity", self.granularity, FORMATS)
        return dtype, granularity, one_of("scales", self.scales, FORMATS[granularity], f"with {granularity!r} are")

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The type as the text of a quantiser's problem names it."""
        return ":".join(self._names())

    @property
    def scale_type(self) -> str:
        """The type that a scale is stored in: ``fp32``, ``bf16``, ``uint8`` or ``int32``."""
        return STORED[self.scales]

    def operand(self, promote: str) -> str:
        """Returns the type as the text of a GEMM names it. fp32 scales need not be said to be powers of two, unless the
        instruction multiplies them: those of blocks without promotion."""
        dtype, granularity, scales = self._names()
        if promote == "none" and granularity in ("1x128", "128x128"):
            return self.text
        return f"{dtype}:{granularity}:{'f32' if scales == 'pow2' else scales}"

    def scale_shape(self, rows, cols):
        """Returns the shape of the scales of a [rows, cols] tensor, padding included."""
        if self.granularity == "tensor":
            return 1, 1
        if self.granularity == "row":
            return 1, round_up(rows, 4)
        if self.granularity == "1x128":
            blocks = ceil_div(cols, 128)
            return (ceil_div(blocks, 4) if self.scales == "ue8m0x4" else blocks), round_up(rows, 4)
        block = 128 if self.granularity == "128x128" else 32
        scale_rows = rows if self.granularity == "1x32" else ceil_div(rows, block)
        return scale_rows, round_up(ceil_div(cols, block), 4)


def codes_shape(rows, cols, transposed: bool):
    """Returns the shape of the FP8 codes of a [rows, cols] tensor, or of its transposed copy."""
    return (cols, round_up(rows, 16)) if transposed else (rows, cols)


def quantize_text(x: str, q: TensorType, cols: int, output: str, delayed: bool = False) -> str:
    """Returns the problem text of quantising [?, cols] of type x. output: row, col or both. delayed: the call gives the
    scale."""
    x, output = one_of("x", x, DTYPES), one_of("output", output, ("row", "col", "both"))
    return f"quantize rows=? cols={index(cols)} x={x} q={q.text} out={output}" + " policy=delayed" * delayed


def dequantize_text(x: TensorType, cols: int, q: str) -> str:
    """Returns the problem text of dequantising [?, cols] to type q."""
    return f"dequantize rows=? cols={index(cols)} x={x.text} q={one_of('dtype', q, DTYPES)} out=row"


def gemm_text(
    a: TensorType, b: TensorType, n: int, k: int, d: str, promote: str, m: int | None = None, powers: bool = False
) -> str:
    """Returns the problem text of D[?, n] = A[?, k] B[n, k]^T, or with m of D[m, n], which sums over the tokens. powers:
    it names the scales' format, so that the tensor core may multiply powers of two."""
    d, promote = one_of("dtype", d, DTYPES), one_of("promote", promote, PROMOTES)
    sizes = f"m=? n={index(n)} k={index(k)}" if m is None else f"m={index(m)} n={index(n)} k=?"
    a, b = (q.text if powers else q.operand(promote) for q in (a, b))
    return f"gemm {sizes} a={a} b={b} d={d} acc=0 promote={promote}"
