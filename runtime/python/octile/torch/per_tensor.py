"""Linear layers of FP8 checkpoints with one scale a weight, as transformers' FineGrainedFP8Config without blocks has
them, and with one for the activations that the checkpoint knows beforehand, or with none."""

from __future__ import annotations

import torch

from octile._types import TensorType, round_up
from octile.torch._arguments import FLOATS
from octile.torch.functional import Quantized, gemm, quantize

_ROWS = TensorType.of("e4m3", "row", "f32")
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def serves(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, x_scale: torch.Tensor | None) -> bool:
    """Returns whether ``linear`` computes this layer: float8_e4m3fn [n, k], n and k multiples of 16 above 0, with one
    scale, or several that each hold for as many rows one behind the other, such as those of gate and up."""
    n, k = weight.shape[-2:]
    of_rows = scale.numel() > 0 and scale.shape[:1].numel() == scale.numel() and n % scale.numel() == 0
    return (
        weight.dim() == 2
        and weight.dtype == torch.float8_e4m3fn
        and x.dtype in FLOATS
        and scale.is_floating_point()
        and of_rows
        and (x_scale is None or (x_scale.numel() == 1 and x_scale.is_floating_point()))
        and n > 0
        and k > 0
        and n % 16 == 0
        and k % 16 == 0
    )


def linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, x_scale: torch.Tensor | None
) -> torch.Tensor:
    """Returns x weight^T + bias of x [tokens, k], in x's dtype. x is divided by ``x_scale`` and saturates, or is
    quantised row by row if that is None."""
    if x_scale is None:
        a = quantize(x, granularity="row", scales="f32")
    else:
        x_scale = x_scale.float().reshape(1)
        codes = (x.float() / x_scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
        a = _with_scales(codes, x_scale)
    return gemm(a, _with_scales(weight.contiguous(), scale.float().reshape(-1)), x.dtype, bias)


def _with_scales(codes: torch.Tensor, scales: torch.Tensor) -> Quantized:
    """Returns codes with a scale for each row; each of ``scales`` holds for as many rows as the others."""
    rows = codes.shape[0]
    each = scales.repeat_interleave(rows // scales.numel(), output_size=rows)
    padded = torch.nn.functional.pad(each, (0, round_up(rows, 4) - rows))
    return Quantized(codes, padded[None], _ROWS, tuple(codes.shape))
