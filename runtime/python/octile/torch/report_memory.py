"""The memory in a report: bytes that converted layers keep of their inputs for backward."""

from __future__ import annotations

from collections import Counter

from torch import nn

from octile.torch.gated_modules import fused_mlps
from octile.torch.modules import Linear
from octile.torch.norms import FusedNorm
from octile.torch.normed_input import TYPES
from octile.torch.recipes import Recipe

#: Bytes of a scale for each element of an FP8 copy, by granularity; one for each row or tensor takes next to nothing.
_SCALE_BYTES = {"1x128": 4 / 128, "1x32": 1 / 32}


def kept_of_inputs(model: nn.Module, layers: dict[Linear, str], recipe: Recipe) -> tuple[int, int]:
    """Returns the bytes a token that a training step keeps of the layers' inputs, as ``nn.Linear`` and now. layers: with
    a name of each. Layers of one module with the same in_features count as layers with one input, and each norm of
    this size beside the module as one that computes it. Tensors that attention keeps in any case count in neither."""
    products = {id(down) for _, (_, down, *_) in fused_mlps(model)}
    copied = 1 + _SCALE_BYTES.get(recipe.activation.granularity, 0)
    before, after = {}, {}
    for layer, name in layers.items():
        if layer.keeps_input:
            continue
        key = name.rpartition(".")[0], layer.in_features
        before[key] = layer.in_features * layer.weight.element_size()
        if recipe.dw == "bf16":
            after[key] = before[key]
            continue
        after[key] = 0 if id(layer) in products else round(layer.in_features * copied)
        if recipe.is_delayed:  # whose layers have scales of their own, and a copy each
            after[name] = after.pop(key)
    if not recipe.is_delayed and not recipe.plain:
        after.update(dict.fromkeys(_behind_norms(model, list(after)), 0))
    return sum(before.values()), sum(after.values())


def _behind_norms(model: nn.Module, inputs: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Returns those of the inputs that norms compute."""
    found = []
    for name, module in model.named_modules():
        norms = Counter(
            child.weight.numel()
            for child in module.children()
            if isinstance(child, FusedNorm) and child.weight.dtype in TYPES
        )
        for size, count in norms.items():
            beside = [key for key in inputs if key[1] == size and name in (key[0], key[0].rpartition(".")[0])]
            found += beside[:count]
    return found
