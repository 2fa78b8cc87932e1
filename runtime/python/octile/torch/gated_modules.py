"""Finds the MLPs of a model by what their forward computes, and lets them run as ``gated_mlp`` does."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from octile.torch.gated import BLOCK, Weights, mlp_of
from octile.torch.gated_trace import Structure, structure_of
from octile.torch.modules import Linear
from octile.torch.specialised import Specialised, restore, specialise

_COMPARED = (bool, int, float, str, type(None))


class Fused(NamedTuple):
    """An MLP as it was found: its children by their names, and the attributes that its forward may read."""

    structure: Structure
    others: tuple[type, ...]  #: classes of ``structure.others``
    attributes: dict[str, object]


class FusedMlp(Specialised):
    """An MLP whose activation a quantiser computes. A call does what the class's forward does wherever the MLP is not
    what it was, or where a hook or a switch of a child has to see the child's own call."""

    _fused: Fused

    def fused_forward(self, kind: type, *inputs, **named):
        is_known = kind.forward is type(self).forward.__wrapped__ and len(inputs) == 1 and not named
        if is_known and isinstance(inputs[0], torch.Tensor):
            layers = _layers_now(self, self._fused)
            if layers is not None and not _compute_themselves(layers, inputs[0]):
                return _run(inputs[0], layers, self._fused.structure)
        return kind.forward(self, *inputs, **named)


def _layers_now(module: nn.Module, fused: Fused) -> list[Linear] | None:
    """Returns the MLP's linear layers, or None if the MLP may compute something else by now."""
    if module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks:
        return None
    children, state = module._modules, module.__dict__
    layers = [children.get(name) for name in fused.structure.layers]
    if any(type(layer) is not Linear or _is_watched(layer) for layer in layers):
        return None
    for name, kind in zip(fused.structure.others, fused.others, strict=True):
        other = children.get(name)
        if type(other) is not kind or _is_watched(other):
            return None
        if (kind is nn.Dropout and other.p != 0) or (kind is nn.GELU and other.approximate != "tanh"):
            return None
    for name, value in fused.attributes.items():
        now = state.get(name)
        if now is not value and not (type(value) in _COMPARED and type(now) is type(value) and now == value):
            return None
    return layers


def _is_watched(child: nn.Module) -> bool:
    """Returns whether something is called around the child's forward, or in its stead."""
    return bool(
        child._forward_hooks
        or child._forward_pre_hooks
        or child._backward_hooks
        or child._backward_pre_hooks
        or "forward" in child.__dict__
    )


def _compute_themselves(layers: list[Linear], x: torch.Tensor) -> bool:
    """Returns whether a layer's own call would be another than a plain FP8 one of the same recipe."""
    least, code = 0, layers[0]._code
    for layer in layers:
        watch = layer._watch
        if layer._is_plain() or layer._scaling is not None or layer._code != code:
            return True
        if watch is not None and watch.each_call:
            return True
        least = max(least, layer.least_tokens_now())
    return least > 0 and x.numel() < least * layers[0].in_features


def _run(x: torch.Tensor, layers: list[Linear], structure: Structure) -> torch.Tensor:
    gate, down, up = layers if len(layers) == 3 else (*layers, None)
    code = gate._call_state(x)[0]
    for layer in layers[1:]:
        layer._call_state(x)
    weights = Weights(
        gate.weight, down.weight, None if up is None else up.weight,
        gate.bias, down.bias, None if up is None else up.bias,
    )  # fmt: skip
    words = [None if layer is None or layer._watch is None else layer._watch.words for layer in (gate, down, up)]
    return mlp_of(x, weights, structure.activation, code, tuple(words))


def fuse(module: nn.Module) -> str | None:
    """Lets the MLP run fused from its next call on, or returns why it does not."""
    if isinstance(module, FusedMlp):
        restore(module)
    if "forward" in module.__dict__:
        return "it has a forward of its own"
    structure = structure_of(module)
    if isinstance(structure, str):
        return structure
    layers = [module._modules[name] for name in structure.layers]
    reason = _why_not(module, structure, layers)
    if reason is None:
        others = tuple(type(module._modules[name]) for name in structure.others)
        attributes = {
            name: value for name, value in module.__dict__.items() if not name.startswith("_") and name != "training"
        }
        module.__dict__["_fused"] = Fused(structure, others, attributes)
        specialise(module, FusedMlp)
    return reason


def _why_not(module: nn.Module, structure: Structure, layers: list[nn.Linear]) -> str | None:
    for name, layer in zip(structure.layers, layers, strict=True):
        if type(layer) is not Linear:
            return f"its {name} is not converted"
        if layer._code is None or layer._code != layers[0]._code:
            return f"its {name} has another recipe"
        if layer._scaling is not None:
            return "recipe 'delayed' has its activation computed by PyTorch"
    if structure.up is not None and layers[0].out_features % BLOCK:
        return f"its inner size is no multiple of {BLOCK}"
    gated = structure.gated and structure.up is None
    if layers[0].out_features != layers[1].in_features * (2 if gated else 1):
        return "the sizes of its layers do not fit"
    return None


def fused_mlps(model: nn.Module) -> list[tuple[Structure, list[Linear]]]:
    """Returns the MLPs of a model that run fused now, as far as their children say so."""
    found = []
    for module in model.modules():
        layers = _layers_now(module, module._fused) if isinstance(module, FusedMlp) else None
        if layers is not None:
            found.append((module._fused.structure, layers))
    return found


def fuse_all(model: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Fuses the MLPs of a model. Returns their names, and those of the modules that look like MLPs by the sizes of
    their linear layers and stay as they are, with the reason."""
    fused, others = [], {}
    for name, module in model.named_modules():
        if not _is_candidate(module):
            continue
        name, reason = name or "model", fuse(module)
        if reason is None:
            fused.append(name)
        else:
            others[name] = reason
    return fused, others


def _is_candidate(module: nn.Module) -> bool:
    layers = [child for child in module.children() if isinstance(child, nn.Linear)]
    if len(layers) not in (2, 3) or not any(type(layer) is Linear for layer in layers):
        return False
    for down in layers:
        first = [layer for layer in layers if layer is not down]
        sizes = {(layer.in_features, layer.out_features) for layer in first}
        k, n = first[0].in_features, first[0].out_features
        if len(sizes) == 1 and n in (down.in_features, 2 * down.in_features) and n != k:
            return True
    return False
