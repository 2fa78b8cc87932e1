"""Compares codes, scales and layouts with TransformerEngine's published arithmetic, in numpy.

Source: TransformerEngine, common/recipe/recipe_common.cuh (the scale of an amax) and the GEMM_READY
layout of its block-scaled tensors. Finite data: theirs hides NaN and infinity, ours does not.
"""

from oracle_common import (FP8_MAX, INPUT_TYPES, TYPE_MAX, Tally, quantize, round_up,
                           saturating_cast)

import numpy as np  # after oracle_common, which skips if it is missing

BLOCK = 128


def scale_of(amax, fp8, dtype, pow2, epsilon):
    """Returns (encode, decode) of fp32 maxima; numpy's fp32 division is correctly rounded."""
    amax = np.maximum(amax, np.float32(epsilon))
    with np.errstate(divide="ignore", over="ignore"):
        encode = FP8_MAX[fp8] / amax
    encode = np.where(np.isinf(encode), TYPE_MAX[dtype], encode)
    encode = np.where(amax == 0, np.float32(1), encode).astype(np.float32)
    if pow2:
        encode = (encode.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
    return encode, np.float32(1) / encode


def block_maxima(x, block_rows, block_cols):
    rows, cols = x.shape
    padded = np.zeros((round_up(rows, block_rows), round_up(cols, block_cols)), np.float32)
    padded[:rows, :cols] = np.abs(x)
    blocks = padded.reshape(padded.shape[0] // block_rows, block_rows, -1, block_cols)
    return blocks.max(axis=(1, 3))


def quantize_blocks(x, block_rows, block_cols, fp8, dtype, pow2, epsilon):
    """Returns codes [rows][cols] and decode scales [row blocks][column blocks]."""
    encode, decode = scale_of(block_maxima(x, block_rows, block_cols), fp8, dtype, pow2, epsilon)
    spread = np.repeat(np.repeat(encode, block_rows, 0), block_cols, 1)[: x.shape[0], : x.shape[1]]
    return saturating_cast(x * spread, fp8), decode


def padded_scales(scales):
    """Returns scales as GEMM_READY: the inner dimension is rounded up to 4; Octile pads with 1."""
    out = np.ones((scales.shape[0], round_up(scales.shape[1], 4)), np.float32)
    out[:, : scales.shape[1]] = scales
    return out.ravel()


def padded_codes(codes):
    out = np.zeros((codes.shape[0], round_up(codes.shape[1], 16)), np.uint8)
    out[:, : codes.shape[1]] = codes
    return out.ravel()


def finite_data(rows, cols, dtype, seed):
    """Returns blocks of very different sizes: normal, zero, subnormal, up to the type's maximum."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, cols)) * np.exp2(rng.integers(-12, 12, (rows, cols)))
    x[:, ::17] *= 40
    if cols > 128:
        x[:, 128:256] *= 1e-36 if dtype != "fp16" else 1e-7
    if rows > 128:
        x[128:256, :128] = 0
        x[128:, -1] = float(TYPE_MAX[dtype])
    return np.clip(x, -float(TYPE_MAX[dtype]), float(TYPE_MAX[dtype])).astype(INPUT_TYPES[dtype])


tally = Tally()
for seed, (rows, cols) in enumerate([(1, 16), (65, 96), (256, 384), (303, 300), (130, 1152)]):
    for dtype in INPUT_TYPES:
        x = finite_data(rows, cols, dtype, seed)
        wide = x.astype(np.float32)
        assert np.isfinite(wide).all()
        for fp8 in FP8_MAX:
            for pow2, epsilon in [(False, 0.0), (True, 0.0), (False, 2.0**-10)]:
                how = (fp8, dtype, pow2, epsilon)
                ours = (fp8, "pow2" if pow2 else "f32", epsilon if epsilon else None)
                name = f"{rows}x{cols} {dtype} {fp8} pow2={pow2} eps={epsilon}"

                got = quantize(x, dtype, ours[0], "1x128", *ours[1:], "both")
                codes, scales = quantize_blocks(wide, 1, BLOCK, *how)
                tally.same(f"1x128 codes {name}", got[0], codes.ravel(), wide)
                tally.same(f"1x128 scales {name}", got[1], padded_scales(scales.T))
                codes, scales = quantize_blocks(wide, BLOCK, 1, *how)
                tally.same(f"1x128 transposed codes {name}", got[2], padded_codes(codes.T))
                tally.same(f"1x128 transposed scales {name}", got[3], padded_scales(scales))

                got = quantize(x, dtype, ours[0], "128x128", *ours[1:], "both")
                codes, scales = quantize_blocks(wide, BLOCK, BLOCK, *how)
                tally.same(f"128x128 codes {name}", got[0], codes.ravel(), wide)
                tally.same(f"128x128 scales {name}", got[1], padded_scales(scales))
                tally.same(f"128x128 transposed codes {name}", got[2], padded_codes(codes.T))
                tally.same(f"128x128 transposed scales {name}", got[3], padded_scales(scales.T))

                got = quantize(x, dtype, ours[0], "tensor", *ours[1:], "both")
                codes, scales = quantize_blocks(wide, rows, cols, *how)
                tally.same(f"tensor codes {name}", got[0], codes.ravel(), wide)
                tally.same(f"tensor scale {name}", got[1], scales.ravel())
                tally.same(f"tensor transposed codes {name}", got[2], padded_codes(codes.T))
                tally.same(f"tensor transposed scale {name}", got[3], scales.ravel())
tally.finish("TransformerEngine arithmetic")
