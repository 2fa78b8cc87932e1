"""Compares casts to FP8 with ml_dtypes: every bf16 and fp16 pattern and fp32 boundary sets.

ml_dtypes does not saturate, so finite values are clipped first. Values that are not finite, and a
few saturating values, come from a table written by hand (docs/numerics.md, "Quantising", step 3).
"""

from oracle_common import FP8_MAX, FP8_TYPES, INPUT_TYPES, Tally, cast, saturating_cast

import numpy as np  # after oracle_common, which skips if it is missing

# Maps fp32 bits to codes.
WRITTEN = {
    "e4m3": {
        0x7F800000: 0x7F, 0xFF800000: 0x7F,  # infinities
        0x7FC00000: 0x7F, 0xFFC00000: 0x7F, 0x7F800001: 0x7F, 0xFFFFFFFF: 0x7F,  # NaNs
        0x43E00000: 0x7E, 0x43E00001: 0x7E, 0x43E80000: 0x7E, 0x43E80001: 0x7E,  # 448, 464 and above
        0x7F7FFFFF: 0x7E, 0xFF7FFFFF: 0xFE, 0xC3F00000: 0xFE,
        0x80000000: 0x80, 0x00000001: 0x00, 0x80000001: 0x80,
        0x3A800000: 0x00, 0x3A800001: 0x01,  # 2^-10, halfway to the smallest subnormal
    },
    "e5m2": {
        0x7F800000: 0x7C, 0xFF800000: 0xFC,
        0x7FC00000: 0x7F, 0xFFC00000: 0x7F, 0x7F800001: 0x7F, 0xFFFFFFFF: 0x7F,
        0x47600000: 0x7B, 0x47600001: 0x7B, 0x47700000: 0x7B, 0x47700001: 0x7B,  # 57344, 61440
        0x7F7FFFFF: 0x7B, 0xFF7FFFFF: 0xFB,
        0x80000000: 0x80, 0x00000001: 0x00, 0x80000001: 0x80,
        0x37000000: 0x00, 0x37000001: 0x01,  # 2^-17
    },
}


def non_finite_codes(values, fp8):
    infinity = 0x7F if fp8 == "e4m3" else np.where(np.signbit(values), 0xFC, 0x7C)
    return np.where(np.isnan(values), 0x7F, infinity).astype(np.uint8)


def expected(values, fp8):
    finite = np.isfinite(values)
    codes = saturating_cast(np.where(finite, values, np.float32(0)), fp8)
    return np.where(finite, codes, non_finite_codes(values, fp8))


def boundary_set(fp8):
    """Returns every value and midpoint of the format and every power of two, with their fp32 neighbours."""
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(FP8_TYPES[fp8]).astype(np.float32)
    values = np.unique(values[np.isfinite(values) & (values >= 0)])
    middles = (values[1:] + values[:-1]) / 2
    beyond = FP8_MAX[fp8] * np.array([1 + 1 / 32, 17 / 16, 9 / 8, 2], np.float32)
    powers = (np.arange(1, 255, dtype=np.uint32) << 23).view(np.float32)
    subnormal_powers = (np.uint32(1) << np.arange(23, dtype=np.uint32)).view(np.float32)
    centres = np.concatenate([values, middles, beyond, powers, subnormal_powers]).view(np.uint32)
    near = (centres[:, None].astype(np.int64) + np.arange(-3, 4)).ravel()
    near = near[(near >= 0) & (near < 0x7F800000)].astype(np.uint32)
    special = np.array([0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF], np.uint32)
    magnitudes = np.unique(np.concatenate([near, special]))
    scattered = np.random.default_rng(1).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    return np.concatenate([magnitudes, magnitudes | np.uint32(0x80000000), scattered])


tally = Tally()
for fp8 in FP8_TYPES:
    for dtype in ("bf16", "fp16"):
        x = np.arange(1 << 16, dtype=np.uint16).view(INPUT_TYPES[dtype])
        values = x.astype(np.float32)
        tally.same(f"{dtype} to {fp8}", cast(x, dtype, fp8), expected(values, fp8), values)
    x = boundary_set(fp8).view(np.float32)
    tally.same(f"fp32 to {fp8}", cast(x, "fp32", fp8), expected(x, fp8), x)
    bits = np.array(list(WRITTEN[fp8]), np.uint32)
    codes = np.array(list(WRITTEN[fp8].values()), np.uint8)
    tally.same(f"written {fp8}", cast(bits, "fp32", fp8), codes, bits)
tally.finish("ml_dtypes casts")
