"""Compares codes and scales with torchao's block quantisers, re-derived in numpy.

Source: torchao, prototype/blockwise_fp8_training/kernels.py: amax clamped below by 1e-12 in fp32,
scale = 448 / amax divided in FP64 and rounded to fp32, data = E4M3 of clamp(x * scale), reciprocal
scale stored. Dividing in FP64 first rounds to the same fp32 (53 >= 2 * 24 + 2 bits).
"""

from oracle_common import INPUT_TYPES, Tally, quantize, round_up, saturating_cast

import numpy as np  # after oracle_common, which skips if it is missing

EPSILON = np.float32(1e-12)
BLOCK = 128


def quantize_blocks(x, block_rows, block_cols):
    rows, cols = x.shape
    codes = np.empty(x.shape, np.uint8)
    scales = np.empty((-(-rows // block_rows), -(-cols // block_cols)), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            window = (slice(i * block_rows, (i + 1) * block_rows),
                      slice(j * block_cols, (j + 1) * block_cols))
            amax = np.float64(max(np.abs(x[window]).max(), EPSILON))
            scale = np.float32(448.0 / amax)
            codes[window] = saturating_cast(x[window] * scale, "e4m3")
            scales[i, j] = np.float32(1) / scale
    return codes, scales


def unpadded(scales, outer, inner):
    return scales.reshape(outer, round_up(inner, 4))[:, :inner]


tally = Tally()
for seed, (rows, cols) in enumerate([(3, 128), (128, 256), (200, 640), (77, 1152), (303, 300)]):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, cols)) * np.exp2(rng.integers(-8, 8, (rows, 1)))
    x[: rows // 2, :128] = 0
    for dtype in ("bf16", "fp32"):
        typed = x.astype(INPUT_TYPES[dtype])
        wide = typed.astype(np.float32)
        name = f"{rows}x{cols} {dtype}"
        row_blocks, col_blocks = -(-rows // BLOCK), -(-cols // BLOCK)

        got = quantize(typed, dtype, "e4m3", "1x128", "f32", float(EPSILON), "both")
        codes, scales = quantize_blocks(wide, 1, BLOCK)
        tally.same(f"1x128 codes {name}", got[0], codes.ravel(), wide)
        tally.same(f"1x128 scales {name}", unpadded(got[1], col_blocks, rows), scales.T)
        codes, scales = quantize_blocks(wide, BLOCK, 1)
        columns = got[2].reshape(cols, round_up(rows, 16))[:, :rows]
        tally.same(f"1x128 transposed codes {name}", columns, codes.T)
        tally.same(f"1x128 transposed scales {name}", unpadded(got[3], row_blocks, cols), scales)

        got = quantize(typed, dtype, "e4m3", "128x128", "f32", float(EPSILON))
        codes, scales = quantize_blocks(wide, BLOCK, BLOCK)
        tally.same(f"128x128 codes {name}", got[0], codes.ravel(), wide)
        tally.same(f"128x128 scales {name}", unpadded(got[1], row_blocks, col_blocks), scales)
tally.finish("torchao arithmetic")
