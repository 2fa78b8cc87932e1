"""What a report says of memory: bytes that converted layers keep of their inputs for backward."""

from __future__ import annotations

from torch import nn

from octile.torch.gated_modules import FusedMlp
from octile.torch.modules import Linear
from octile.torch.recipes import Recipe

#: Bytes of a scale for each element of an FP8 copy, by granularity; one for each row or tensor takes next to nothing.
_SCALE_BYTES = {"1x128": 4 / 128, "1x32": 1 / 32}


def kept_of_inputs(model: nn.Module, layers: dict[Linear, str], recipe: Recipe) -> tuple[int, int]:
    """Returns the bytes a token that a training step keeps of the layers' inputs, as ``nn.Linear`` and now. layers: with
    a name of each. Layers of one module with the same in_features count as layers with one input. What attention keeps
    in any case counts in neither."""
    products = {
        id(module._modules[module._fused.structure.layers[1]])
        for module in model.modules()
        if isinstance(module, FusedMlp)
    }
    copied = 1 + _SCALE_BYTES.get(recipe.activation.granularity, 0)
    before, after = {}, {}
    for layer, name in layers.items():
        if layer.keeps_input:
            continue
        key = name.rpartition(".")[0], layer.in_features
        before[key] = layer.in_features * layer.weight.element_size()
        after[key] = 0 if id(layer) in products else round(layer.in_features * copied)
        if recipe.is_delayed:  # whose layers have scales of their own, and a copy each
            after[name] = after.pop(key)
    return sum(before.values()), sum(after.values())
