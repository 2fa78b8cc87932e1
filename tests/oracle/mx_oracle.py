"""Compares MX quantisation (1x32, 32x32, E8M0 scales) with ml_dtypes and the OCP text, in numpy.

Source: OCP Microscaling Formats (MX) v1.0, section 6.3. The shared exponent is floor(log2(amax)) minus
the exponent of the element format's largest power of two, and elements saturate. `up` is the smallest
exponent for which no element saturates. Scales are read back as ml_dtypes' float8_e8m0fnu.
"""

from oracle_common import (FP8_MAX, INPUT_TYPES, Tally, exponents, quantize_mx, round_up, saturating_cast)

import ml_dtypes
import numpy as np  # after oracle_common, which skips if it is missing

BLOCK = 32


def block_maxima(x, rows, cols):
    padded = np.zeros((round_up(x.shape[0], rows), round_up(x.shape[1], cols)), np.float32)
    padded[: x.shape[0], : x.shape[1]] = np.abs(x)
    return padded.reshape(padded.shape[0] // rows, rows, -1, cols).max(axis=(1, 3))


def quantize_blocks(x, rows, cols, fp8, rounding):
    """Returns codes [rows][cols], and scales as float8_e8m0fnu [row blocks][roundup(column blocks, 4)]."""
    e = exponents(block_maxima(x, rows, cols), fp8, rounding)
    spread = np.repeat(np.repeat(e, rows, 0), cols, 1)[: x.shape[0], : x.shape[1]]
    # 2^-e times x is exact in FP64; its fp32 value is rounded to FP8.
    scaled = (x.astype(np.float64) * np.exp2(-spread.astype(np.float64))).astype(np.float32)
    padded = np.zeros((e.shape[0], round_up(e.shape[1], 4)), np.int64)
    padded[:, : e.shape[1]] = e
    scales = np.exp2(padded.astype(np.float64)).astype(ml_dtypes.float8_e8m0fnu)
    return saturating_cast(scaled, fp8), scales.view(np.uint8)


def transposed_codes(codes):
    out = np.zeros((codes.shape[0], round_up(codes.shape[1], 16)), np.uint8)
    out[:, : codes.shape[1]] = codes
    return out


def finite_data(rows, cols, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, cols)) * np.exp2(rng.integers(-12, 12, (rows, 1)))
    x[: rows // 3, : cols // 2] = 0
    x[0, 0] = 448.0  # on the border between two exponents
    if rows > 40:
        x[40] *= 1e-38 if dtype != "fp16" else 1e-6
    limit = float(np.float32(3.3895313892515355e38)) if dtype == "bf16" else 6e4
    return np.clip(x, -limit, limit).astype(INPUT_TYPES[dtype])


tally = Tally()
for seed, (rows, cols) in enumerate([(1, 16), (65, 96), (303, 300), (96, 1152)]):
    for dtype in INPUT_TYPES:
        x = finite_data(rows, cols, dtype, seed)
        wide = x.astype(np.float32)
        for fp8 in FP8_MAX:
            for rounding in ("up", "ocp_floor"):
                for name, side in (("1x32", 1), ("32x32", BLOCK)):
                    what = f"{name} {rounding} {rows}x{cols} {dtype} {fp8}"
                    got = quantize_mx(x, dtype, fp8, name, rounding)
                    codes, scales = quantize_blocks(wide, side, BLOCK, fp8, rounding)
                    tally.same(f"codes {what}", got[0], codes.ravel(), wide)
                    tally.same(f"scales {what}", got[1], scales.ravel())
                    codes, scales = quantize_blocks(wide.T.copy(), side, BLOCK, fp8, rounding)
                    tally.same(f"transposed codes {what}", got[2], transposed_codes(codes).ravel())
                    tally.same(f"transposed scales {what}", got[3], scales.ravel())
tally.finish("MX against ml_dtypes and the OCP text")
