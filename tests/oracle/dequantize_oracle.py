"""Compares dequantising with ml_dtypes: every code with E8M0, fp32 and bf16 scales.

A value is code * scale in fp32, cast to the output type: numpy multiplies and ml_dtypes casts. NaNs
are compared as NaNs, and their bits with those in docs/numerics.md ("Inverses").
"""

import pathlib
import tempfile

from oracle_common import FP8_TYPES, INPUT_TYPES, Tally, run_dump

import ml_dtypes
import numpy as np  # after oracle_common, which skips if it is missing

NAN = {"bf16": 0x7FFF, "fp16": 0x7FFF, "fp32": 0x7FFFFFFF}


def dequantize(codes, scales, text, out):
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, name) for name in ("codes", "scales", "out")]
        paths[0].write_bytes(codes.tobytes())
        paths[1].write_bytes(scales.tobytes())
        run_dump("dequantize", text, codes.shape[0], *paths)
        bits = np.uint32 if out == "fp32" else np.uint16
        return np.fromfile(paths[2], bits).reshape(codes.shape)


def expected(codes, spread, fp8, out):
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        values = codes.view(FP8_TYPES[fp8]).astype(np.float32) * spread
        typed = values.astype(INPUT_TYPES[out])
    bits = typed.view(np.uint32 if out == "fp32" else np.uint16).copy()
    bits[np.isnan(values)] = NAN[out]
    return bits


tally = Tally()
every_code = np.arange(256, dtype=np.uint8)
rng = np.random.default_rng(1)
for fp8 in FP8_TYPES:
    for out in INPUT_TYPES:
        # 1x32: row r has the scale r in all blocks, and every code.
        scales = np.repeat(every_code[:, None], 8, 1)
        codes = np.tile(every_code, (256, 1))
        spread = every_code.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[:, None]
        got = dequantize(codes, scales, f"dequantize rows=? cols=256 x={fp8}:1x32 q={out} out=row", out)
        tally.same(f"e8m0 {fp8} {out}", got, expected(codes, spread, fp8, out))

        # 1x128: one scale of any size for each row and block, [blocks][rows].
        bits = rng.integers(0, 1 << 32, (2, 256), dtype=np.uint32)
        scales = bits.view(np.float32)
        spread = np.repeat(scales.T, 128, 1)
        got = dequantize(codes, scales, f"dequantize rows=? cols=256 x={fp8}:1x128 q={out} out=row", out)
        tally.same(f"f32 {fp8} {out}", got, expected(codes, spread, fp8, out))

        half = (bits >> 16).astype(np.uint16)
        spread = np.repeat(half.view(ml_dtypes.bfloat16).astype(np.float32).T, 128, 1)
        text = f"dequantize rows=? cols=256 x={fp8}:1x128:bf16 q={out} out=row"
        tally.same(f"bf16 {fp8} {out}", dequantize(codes, half, text, out),
                   expected(codes, spread, fp8, out))
tally.finish("dequantising against ml_dtypes")
