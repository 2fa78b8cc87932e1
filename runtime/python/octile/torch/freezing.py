"""``freeze_to_fp8``: keeps the weights of linear layers that are not trained in FP8 alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import MethodType

import torch
from torch import nn

from octile._types import refuse
from octile.torch._arguments import check_model
from octile.torch.contents import encode
from octile.torch.conversion import layers_of, leave_fast_paths
from octile.torch.conversion_report import Report
from octile.torch.frozen import FrozenCodes, FrozenLinear
from octile.torch.modules import is_called_by_accelerate, own_state
from octile.torch.recipes import as_recipe


def freeze_to_fp8(
    model: nn.Module, filter: Callable[[str, nn.Linear], bool] | None = None, preset: str = "deepseek-v3"
) -> Report:
    """Turns each ``nn.Linear`` and ``octile.torch.Linear`` of ``model`` into a ``FrozenLinear``, in place, and returns
    a report. Weights are quantised in blocks of 128 x 128, one layer after the other, and freed: a frozen one takes one
    byte an element. The layers' biases need no gradient any more. Adapters train on top of frozen layers.

    filter, preset, and which layers stay: as in ``convert``, except that no size and no number of tokens is too small.
    Layers that share a weight share its codes. Raises ValueError and TypeError as ``convert`` does.
    """
    found = layers_of(model, filter, preset, FrozenLinear)
    report = Report(as_recipe("blockwise:f32"), skipped=found.scripted, target="frozen FP8")
    sharing: dict[int, list[nn.Linear]] = defaultdict(list)
    for layer, names in found.names.items():
        reason = found.reasons[layer]
        if reason is None:
            sharing[id(layer.weight)].append(layer)
            report.converted |= dict.fromkeys(names, f"[{layer.out_features}, {layer.in_features}]")
        else:
            report.skipped |= dict.fromkeys(names, reason)
    for layers in sharing.values():
        dtype = layers[0].weight.dtype
        codes, scales = encode(layers[0].weight.detach(), "f32")
        codes, scales = FrozenCodes(codes), nn.Parameter(scales, False)
        for layer in layers:
            become(FrozenLinear, layer)
            layer._freeze(codes, scales, dtype)
            if layer.bias is not None:
                layer.bias.requires_grad_(False)
    leave_fast_paths(model)
    return report


def thaw_from_fp8(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Turns each ``FrozenLinear`` of ``model`` into an ``nn.Linear`` again, in place, and returns their number. A
    weight is codes times scales as ``dtype`` (bfloat16, float16 or float32), by default the layer's ``compute_dtype``.
    It needs no gradient, and the bias becomes of the same dtype. Adapters can be merged into it."""
    check_model(model)
    if isinstance(model, FrozenLinear):
        raise refuse("model", "FrozenLinear", "is a module that contains such layers; use FrozenLinear.dequantize")
    sharing: dict[int, list[FrozenLinear]] = defaultdict(list)
    for module in model.modules():
        if isinstance(module, FrozenLinear):
            sharing[id(module._parameters["weight"])].append(module)
    for layers in sharing.values():
        weight = nn.Parameter(layers[0].dequantize(dtype), False)
        for layer in layers:
            become(nn.Linear, layer)
            layer._parameters["weight"] = weight
            del layer._parameters["weight_scale_inv"], layer.__dict__["compute_dtype"]
            if layer.bias is not None:
                layer.bias.data = layer.bias.data.to(weight.dtype)
    return sum(map(len, sharing.values()))


def become(kind: type[nn.Linear], layer: nn.Linear) -> None:
    """Makes a layer one of another class, without the attributes that only an octile.torch.Linear has."""
    if is_called_by_accelerate(layer):
        layer._old_forward = MethodType(kind.forward, layer)
    else:
        layer.__dict__.pop("forward", None)
    for name in own_state():
        layer.__dict__.pop(name, None)
    layer.__class__ = kind
