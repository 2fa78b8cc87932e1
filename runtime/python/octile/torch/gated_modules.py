"""Finds the MLPs of a model by the computation of their forward, and lets them run as ``gated_mlp`` does."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from octile.torch.derivatives import is_unusual
from octile.torch.gated import BLOCK, Weights, mlp_of, output_of
from octile.torch.gated_trace import OTHER, Structure, structure_of
from octile.torch.modules import Linear
from octile.torch.snapshot import Snapshot, has_global_hooks, is_watched
from octile.torch.specialised import Recognised, restore, specialise


class Fused(NamedTuple):
    """An MLP as it was recognised."""

    structure: Structure
    snapshot: Snapshot
    sizes: tuple[tuple[int, int], ...]  #: in_features and out_features of ``structure.layers``


class FusedMlp(Recognised):
    """An MLP whose activation a quantiser computes. A call does what the class's forward does wherever the MLP is not
    what it was, or where a hook or a switch of a child has to see the child's own call."""

    _fused: Fused

    def fused_forward(self, kind: type, *inputs, **named):
        if len(inputs) == 1 and not named and isinstance(inputs[0], torch.Tensor):
            layers = _layers_now(self, self._fused)
            if layers is not None and not _compute_themselves(layers, inputs[0], self._fused.structure):
                return _run(inputs[0], layers, self._fused.structure)
        return kind.forward(self, *inputs, **named)


def _layers_now(module: nn.Module, fused: Fused) -> list[Linear] | None:
    """Returns the MLP's linear layers, or None if the MLP may compute something else by now."""
    if has_global_hooks() or not fused.snapshot.holds(module):
        return None
    layers = [module._modules[name] for name in fused.structure.layers]
    for layer, sizes in zip(layers, fused.sizes, strict=True):
        if type(layer) is not Linear or is_watched(layer) or (layer.in_features, layer.out_features) != sizes:
            return None
    return layers


def _compute_themselves(layers: list[Linear], x: torch.Tensor, structure: Structure) -> bool:
    """Returns whether a layer's own call would be another than a plain FP8 one of the same recipe."""
    least, code = 0, layers[0]._code
    for layer in layers:
        watch = layer._watch
        if layer._is_plain() or layer._scaling is not None or layer.recipe.plain or layer._code != code:
            return True
        if watch is not None and watch.each_call:
            return True
        least = max(least, layer.least_tokens_now())
    if structure.reads_dtype and any(layer.weight.dtype != x.dtype for layer in layers):
        return True
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
    words = tuple(None if layer is None or layer._watch is None else layer._watch.words for layer in (gate, down, up))
    if not torch.is_grad_enabled() and not is_unusual():
        try:
            return output_of(x, *weights, structure.activation, code, *words)
        except (RuntimeError, TypeError, ValueError, AttributeError):
            pass  # what follows says why, or takes these tensors
    return mlp_of(x, weights, structure.activation, code, words)


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
    snapshot = Snapshot(module, type(module), apart=structure.layers)
    reason = "it has tensors of its own" if snapshot.has_tensors() else _why_not(structure, layers)
    if reason is None:
        sizes = tuple((layer.in_features, layer.out_features) for layer in layers)
        specialise(module, FusedMlp, Fused(structure, snapshot, sizes))
    return reason


FusedMlp.recognise = staticmethod(fuse)


def _why_not(structure: Structure, layers: list[nn.Linear]) -> str | None:
    for name, layer in zip(structure.layers, layers, strict=True):
        if type(layer) is not Linear:
            return f"its {name} is not converted"
        if layer._code is None or layer._code != layers[0]._code:
            return f"its {name} has another recipe"
        if layer._scaling is not None or layer.recipe.plain:
            return f"recipe {layer.recipe.text!r} has its activation computed by PyTorch"
    if structure.up is not None and layers[0].out_features % BLOCK:
        return f"its inner size is not a multiple of {BLOCK}"
    gated = structure.gated and structure.up is None
    if layers[0].out_features != layers[1].in_features * (2 if gated else 1):
        return "the sizes of its layers do not fit"
    return None


def fused_mlps(model: nn.Module) -> list[tuple[Structure, list[Linear]]]:
    """Returns the MLPs of a model that run fused now, in so far as nothing but a call's input decides."""
    found = []
    for module in model.modules():
        fused = module.__dict__.get("_fused") if isinstance(module, FusedMlp) else None
        layers = None if fused is None else _layers_now(module, fused)
        if layers is not None:
            found.append((module._fused.structure, layers))
    return found


def fuse_all(model: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Fuses the MLPs of a model. Returns their names, and those of MLPs that stay as they are, with the reason."""
    fused, others = [], {}
    for name, module in model.named_modules():
        layers = [child for child in module.children() if isinstance(child, nn.Linear)]
        if not any(type(layer) is Linear for layer in layers) or not _inputs_and_outputs(layers):
            continue
        name, reason = name or "model", fuse(module)
        if reason is None:
            fused.append(name)
        elif _is_mlp(module, layers, reason):
            others[name] = reason
    return fused, others


def _inputs_and_outputs(layers: list[nn.Linear]) -> list[tuple[int, int]]:
    """Returns how many inputs and outputs an MLP of two or three layers may have, by their sizes."""
    found = []
    for down in layers if len(layers) in (2, 3) else ():
        sizes = {(layer.in_features, layer.out_features) for layer in layers if layer is not down}
        k, n = min(sizes)
        if len(sizes) == 1 and n in (down.in_features, 2 * down.in_features) and n != k:
            found.append((k, down.out_features))
    return found


def _is_mlp(module: nn.Module, layers: list[nn.Linear], reason: str) -> bool:
    """Returns whether a module that is not fused has no parameters but those of its linear layers. One of which nothing
    else is known has as many outputs as inputs too, as MLPs of transformers have."""
    of_layers = {id(parameter) for layer in layers for parameter in layer.parameters()}
    if any(id(parameter) not in of_layers for parameter in module.parameters()):
        return False
    return reason != OTHER or any(k == n for k, n in _inputs_and_outputs(layers))
