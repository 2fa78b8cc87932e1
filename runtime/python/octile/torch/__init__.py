"""FP8 linear layers for PyTorch.

>>> import octile.torch
>>> report = octile.torch.convert(model)  # swaps nn.Linear where FP8 gains; print(report) says what and why
"""

from octile.torch.conversion import Report, convert
from octile.torch.functional import Quantized, dequantize, gemm, linear, quantize, transpose
from octile.torch.modules import Linear
from octile.torch.recipes import Recipe
from octile.torch.weights import weights_changed

__all__ = [
    "Linear",
    "Quantized",
    "Recipe",
    "Report",
    "convert",
    "dequantize",
    "gemm",
    "linear",
    "quantize",
    "transpose",
    "weights_changed",
]
