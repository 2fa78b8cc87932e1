"""FP8 linear layers for PyTorch.

>>> import octile.torch
>>> report = octile.torch.convert(model)  # swaps nn.Linear where FP8 gains; print(report) has the layers and reasons
"""

from octile.torch import _needs  # noqa: F401  (first: it says which PyTorch is needed)

from octile.torch import flops  # noqa: F401  (it registers formulas)
from octile.torch.availability import is_available, why_unavailable
from octile.torch.conversion import convert
from octile.torch.conversion_report import Report
from octile.torch.export import block_fp8_state_dict, export_hf
from octile.torch.freezing import freeze_to_fp8, thaw_from_fp8
from octile.torch.frozen import FrozenLinear
from octile.torch.functional import Quantized, dequantize, gemm, linear, quantize, transpose
from octile.torch.gated import gated_mlp
from octile.torch.grouped import experts, grouped_mm
from octile.torch.huggingface import use_in_transformers
from octile.torch.inspection import Inspection, Watched, inspect, watching
from octile.torch.model_shapes import Shapes, shapes
from octile.torch.modules import Experts, Linear
from octile.torch.nonfinite import Sentry, sentry
from octile.torch.primary import Primary, primary_fp8
from octile.torch.recipes import Recipe
from octile.torch.scales_state import load_scales_state_dict, scales_state_dict
from octile.torch.scaling import reduce_scales, update_scales
from octile.torch.schedule import Schedule, set_fp8
from octile.torch.serving import block_fp8_linear, prepare, scaled_mm
from octile.torch.serving_groups import (
    block_fp8_experts,
    block_fp8_masked_experts,
    scaled_grouped_mm,
    scaled_masked_mm,
)
from octile.torch.status import status
from octile.torch.unconversion import unconvert
from octile.torch.underflow import underflow
from octile.torch.warm import problems, warmup
from octile.torch.weights import trust_weights, weights_changed

__all__ = [
    "Experts",
    "FrozenLinear",
    "Inspection",
    "Linear",
    "Primary",
    "Quantized",
    "Recipe",
    "Report",
    "Schedule",
    "Sentry",
    "Shapes",
    "Watched",
    "block_fp8_experts",
    "block_fp8_masked_experts",
    "block_fp8_linear",
    "block_fp8_state_dict",
    "convert",
    "dequantize",
    "experts",
    "export_hf",
    "freeze_to_fp8",
    "gated_mlp",
    "gemm",
    "grouped_mm",
    "inspect",
    "is_available",
    "linear",
    "load_scales_state_dict",
    "prepare",
    "primary_fp8",
    "problems",
    "quantize",
    "reduce_scales",
    "scaled_grouped_mm",
    "scaled_masked_mm",
    "scaled_mm",
    "scales_state_dict",
    "sentry",
    "set_fp8",
    "shapes",
    "status",
    "thaw_from_fp8",
    "transpose",
    "trust_weights",
    "unconvert",
    "underflow",
    "update_scales",
    "use_in_transformers",
    "warmup",
    "watching",
    "weights_changed",
    "why_unavailable",
]
