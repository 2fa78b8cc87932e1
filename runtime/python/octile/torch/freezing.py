"""``freeze_to_fp8``: keeps weights that are not trained in FP8 alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import MethodType

import torch
from torch import nn

from octile._types import refuse
from octile.torch._arguments import check_model
from octile.torch.contents import encode
from octile.torch.conversion import layers_of, leave_fast_paths, mixtures_of, reason_by_name_in
from octile.torch.conversion_report import Report
from octile.torch.expert_conversion import Found, Sizes
from octile.torch.expert_modules import TakenExperts
from octile.torch.frozen import FrozenCodes, FrozenLinear, FrozenWeight
from octile.torch.layer import Layer
from octile.torch.modules import Experts, is_called_by_accelerate, own_state
from octile.torch.held_weight import held
from octile.torch.recipes import as_recipe
from octile.torch.weights import forget


def freeze_to_fp8(
    model: nn.Module, filter: Callable[[str, nn.Linear], bool] | None = None, preset: str = "deepseek-v3"
) -> Report:
    """Turns each ``nn.Linear`` and ``octile.torch.Linear`` of ``model`` into a ``FrozenLinear``, in place, and returns
    a report. Weights are quantised in blocks of 128 x 128, one layer after the other, and freed: a frozen one takes one
    byte an element. Biases no longer require gradients. Adapters train on top of frozen layers.

    The experts that ``convert`` converts, and ``Experts``, are frozen too: their parameters stay in the modules, as
    ``FrozenWeight``, and their GEMMs are in FP8.

    filter, preset, and which layers and experts stay: as in ``convert``, except that no size and no number of tokens is
    too small. Layers that share a weight share its codes. Raises ValueError and TypeError as ``convert`` does.
    """
    recipe = as_recipe("blockwise:f32")
    found = layers_of(model, filter, preset, FrozenLinear)
    mixtures = mixtures_of(model, recipe, filter, 16, preset, None, again=True)
    mixtures += _own_experts_of(model, filter, preset)
    report = Report(recipe, skipped=found.scripted, target="frozen FP8")
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
    for experts in mixtures:
        _freeze_experts(experts, report)
    leave_fast_paths(model)
    return report


def _own_experts_of(model: nn.Module, filter, preset: str) -> list[Found]:
    """Returns the ``Experts`` of a model, decided."""
    names: dict[Experts, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Experts):
            names[module].append(name)
    reason_by_name = reason_by_name_in(model, preset, filter)
    found = []
    for module, its in names.items():
        reason = reason_by_name(its, module)
        if reason is None and (held(module.weight) or module._sharding is not None):
            reason = "its weight is held in FP8 or sharded"
        found.append(Found(module, its, None, reason, [Sizes(module.out_features, module.in_features)]))
    return found


def _freeze_experts(found: Found, report: Report) -> None:
    module = found.module
    if is_frozen(module):
        found.reason = "is frozen in FP8 already"
    if found.reason is not None:
        report.skipped |= dict.fromkeys(found.names, found.reason)
        return
    if not isinstance(module, Experts):
        found.take(report.recipe, "none")
    else:
        module._set_up_again(report.recipe, module.experts)
    for name, layer in layers_in(module).items():
        forget(layer.weight)
        module._parameters[name] = FrozenWeight.frozen(layer.weight)
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad_(False)
    report.converted |= dict.fromkeys(found.names, found.text())
    report.experts += found.names


def thaw_from_fp8(model: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Turns each ``FrozenLinear`` of ``model`` into an ``nn.Linear`` again, restores frozen experts, in place, and
    returns the number of these modules. A weight becomes codes times scales as ``dtype`` (bfloat16, float16 or
    float32), by default its dtype before freezing. It requires no gradient, and a layer's bias gets the same dtype.
    Adapters can be merged into it."""
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
    mixtures = [module for module in model.modules() if is_frozen(module)]
    for module in mixtures:
        for name, layer in layers_in(module).items():
            module._parameters[name] = nn.Parameter(layer.weight.dequantize(dtype), False)
        if isinstance(module, TakenExperts):
            module._leave()
        else:
            module._weight_is(module.weight)
    return sum(map(len, sharing.values())) + len(mixtures)


def layers_in(module: nn.Module) -> dict[str, Layer]:
    """Returns the layers of a module of experts by the names of their weights; none of others."""
    return module._fp8_weights() if isinstance(module, TakenExperts | Experts) else {}


def is_frozen(module: nn.Module) -> bool:
    """Returns whether a module is one of experts that are frozen."""
    return any(isinstance(layer.weight, FrozenWeight) for layer in layers_in(module).values())


def become(kind: type[nn.Linear], layer: nn.Linear) -> None:
    """Makes a layer one of another class, without the attributes that only an octile.torch.Linear has."""
    if is_called_by_accelerate(layer):
        layer._old_forward = MethodType(kind.forward, layer)
    else:
        layer.__dict__.pop("forward", None)
    for name in own_state():
        layer.__dict__.pop(name, None)
    layer.__class__ = kind
