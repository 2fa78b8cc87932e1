"""Shared by the oracles: runs quantize_dump on arrays and compares bytes."""

import pathlib
import subprocess
import sys
import tempfile

try:
    import ml_dtypes
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}; OCTILE_ORACLE_PYTHON names another interpreter")
    sys.exit(77)

INPUT_TYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}
FP8_TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
FP8_MAX = {"e4m3": np.float32(448), "e5m2": np.float32(57344)}
TYPE_MAX = {"bf16": np.float32(3.3895313892515355e38), "fp16": np.float32(65504),
            "fp32": np.finfo(np.float32).max}
LARGEST_POWER = {"e4m3": 8, "e5m2": 15}


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def run_dump(*arguments):
    subprocess.run([sys.argv[1], *map(str, arguments)], check=True)


def cast(x, dtype, fp8):
    """Returns the codes that Octile's cast writes for an array of `dtype` (its NumPy type)."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "x"), pathlib.Path(folder, "q")
        source.write_bytes(x.tobytes())
        run_dump("cast", dtype, fp8, source, target)
        return np.fromfile(target, np.uint8)


def quantize_mx(x, dtype, fp8, granularity, rounding):
    """Returns what quantize() returns with both outputs; scales are E8M0 bytes."""
    text = f"quantize rows=? cols={x.shape[1]} x={dtype} q={fp8}:{granularity} out=both"
    return run_quantize(x, f"{text} round={rounding}", np.uint8)


def quantize(x, dtype, fp8, granularity, scale_format, epsilon=None, output="row"):
    """Returns row codes, row scales, transposed codes, transposed scales: flat, with padding."""
    text = f"quantize rows=? cols={x.shape[1]} x={dtype} q={fp8}:{granularity}"
    text += f":{scale_format} out={output}" if scale_format != "f32" else f" out={output}"
    if epsilon is not None:
        text += f" eps={epsilon!r}"
    return run_quantize(x, text, np.float32)


def run_quantize(x, text, scale_type):
    with tempfile.TemporaryDirectory() as folder:
        source, prefix = pathlib.Path(folder, "x"), pathlib.Path(folder, "out")
        source.write_bytes(x.tobytes())
        run_dump("quantize", text, x.shape[0], source, prefix)
        names = [(".q", np.uint8), (".scale", scale_type), (".qt", np.uint8), (".scalet", scale_type)]
        return [np.fromfile(f"{prefix}{suffix}", kind) for suffix, kind in names]


def saturating_cast(values, fp8):
    """Returns ml_dtypes' codes of finite fp32 values that are clipped to the format's range."""
    limit = FP8_MAX[fp8]
    return np.clip(values, -limit, limit).astype(FP8_TYPES[fp8]).view(np.uint8)


def exponents(amax, fp8, rounding):
    """Returns the exponents of E8M0 scales. FP64 is used, because its log2 of a power of two is exact."""
    wide = np.where(amax == 0, 1, amax).astype(np.float64)
    fraction, exponent = np.frexp(wide)  # amax = fraction * 2^exponent, fraction in [0.5, 1)
    floor = exponent - 1 - LARGEST_POWER[fp8]
    if rounding == "up":
        # An amax above 1.75 times its power of two exceeds the format's largest value.
        floor = floor + (2 * fraction > 1.75)
    return np.where(amax == 0, 0, np.clip(floor, -127, 127)).astype(np.int64)


class Tally:
    """Counts comparisons, prints the first differences, and gives the exit status."""

    def __init__(self):
        self.compared = 0
        self.failures = 0

    def same(self, what, got, want, context=None):
        """Compares bits, so that -0 and NaN count."""
        got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
        if got.shape != want.shape or got.dtype != want.dtype:
            print(f"FAIL {what}: {got.dtype}{got.shape} where {want.dtype}{want.shape} is due")
            self.failures += 1
            return
        bits = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[got.dtype.itemsize]
        different = np.flatnonzero(got.view(bits).ravel() != want.view(bits).ravel())
        self.compared += got.size
        self.failures += different.size
        for at in different[:5]:
            detail = "" if context is None else f" (input {context.ravel()[at]!r})"
            print(f"FAIL {what}[{at}]: {got.ravel()[at]!r} where {want.ravel()[at]!r} is due{detail}")

    def finish(self, name):
        print(f"{name}: {self.compared} values compared, {self.failures} differ")
        if self.compared == 0:
            sys.exit(f"{name}: nothing was compared")
        sys.exit(1 if self.failures else 0)
