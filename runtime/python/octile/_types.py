"""Types of quantised tensors as problem texts write them, and how such tensors lie in memory.

The formulas are those of ``octile_quantized_layout_query``; tests compare the two. They are written out here because
they also have to hold for sizes that are symbols, while PyTorch traces.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Scale formats of each granularity; the first is the default.
FORMATS = {
    "tensor": ("pow2", "f32", "bf16"),
    "row": ("pow2", "f32", "bf16"),
    "1x128": ("pow2", "f32", "ue8m0x4", "bf16"),
    "128x128": ("pow2", "f32", "bf16"),
    "1x32": ("e8m0",),
    "32x32": ("e8m0",),
}

#: What a scale is stored as, by format: the word and the number that the operators take (ScaleType in plans.h).
SCALE_TYPES = {
    "pow2": ("fp32", 0),
    "f32": ("fp32", 0),
    "bf16": ("bf16", 1),
    "e8m0": ("uint8", 2),
    "ue8m0x4": ("int32", 3),
}

#: Numbers of octile_dtype.
DTYPES = {"e4m3": 1, "e5m2": 2, "bf16": 3, "fp16": 4, "fp32": 5}


def refuse(argument: str, value: object, allowed: str) -> ValueError:
    """Returns the error that names an argument, its value and what is allowed."""
    return ValueError(f"octile: {argument} is {value!r}; allowed {allowed}")


def ceil_div(a, b):
    """Returns a / b, rounded up."""
    return (a + b - 1) // b


def round_up(a, b):
    """Returns the smallest multiple of b that is at least a."""
    return ceil_div(a, b) * b


@dataclass(frozen=True)
class TensorType:
    """The type of a quantised tensor: FP8 format, blocks that share a scale, and how scales are kept."""

    dtype: str
    granularity: str
    scales: str

    @staticmethod
    def of(dtype: str, granularity: str, scales: str | None = None) -> TensorType:
        """Returns the type, or raises ValueError. ``scales=None`` is the granularity's default."""
        if dtype not in ("e4m3", "e5m2"):
            raise refuse("dtype", dtype, "are 'e4m3' and 'e5m2'")
        formats = FORMATS.get(granularity)
        if formats is None:
            raise refuse("granularity", granularity, "are " + ", ".join(map(repr, FORMATS)))
        if scales is None:
            scales = formats[0]
        if scales not in formats:
            raise refuse("scales", scales, f"with {granularity!r} are " + ", ".join(map(repr, formats)))
        return TensorType(dtype, granularity, scales)

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The type as the text of a quantiser's problem names it."""
        return f"{self.dtype}:{self.granularity}:{self.scales}"

    @property
    def scale_type(self) -> str:
        """What a scale is stored as: ``fp32``, ``bf16``, ``uint8`` or ``int32``."""
        return SCALE_TYPES[self.scales][0]

    @property
    def operand(self) -> str:
        """The type as the text of a GEMM names it: fp32 scales need not be said to be powers of two."""
        scales = "f32" if self.scales == "pow2" else self.scales
        return f"{self.dtype}:{self.granularity}:{scales}"

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


def quantize_text(x: str, q: TensorType, cols: int, output: str) -> str:
    """Returns the problem text of quantising [?, cols] of type x. output: row, col or both."""
    return f"quantize rows=? cols={cols} x={x} q={q.text} out={output}"


def gemm_text(
    a: TensorType, b: TensorType, m, n, k, d: str, tokens: str, accumulate: bool, promote: str, bias: str | None
) -> str:
    """Returns the problem text of D[m, n] (+)= A[m, k] B[n, k]^T. tokens: "m" or "k", the size that calls state."""
    sizes = {"m": m, "n": n, "k": k, tokens: "?"}
    text = f"gemm m={sizes['m']} n={n} k={sizes['k']} a={a.operand} b={b.operand} d={d}"
    return text + f" acc={int(accumulate)} promote={promote}" + (f" bias={bias}" if bias else "")


def default_promote(a: TensorType) -> str:
    """Returns how many elements of K the tensor core sums before they are added in fp32."""
    return "32" if a.granularity in ("1x32", "32x32") else "128"
