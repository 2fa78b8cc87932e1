"""FP8 linear layers for PyTorch.

>>> import octile.torch
>>> report = octile.torch.convert(model)  # swaps nn.Linear where FP8 gains; says what it did and why
"""

from octile.torch.functional import Quantized, dequantize, gemm, linear, quantize, transpose
from octile.torch.recipes import Recipe

__all__ = ["Quantized", "Recipe", "dequantize", "gemm", "linear", "quantize", "transpose"]
