"""``convert``: swaps the linear layers of a model, and says what it did and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from octile._types import refuse
from octile.torch.modules import MULTIPLE, Linear
from octile.torch.recipes import Recipe, as_recipe

#: Smallest in_features and out_features that ``min_dims="auto"`` converts. Below, quantising costs what the GEMM saves.
AUTO_MIN_DIMS = 1024

#: Presets: modules with such a name in their dotted path stay as they are.
PRESETS = {
    "deepseek-v3": re.compile(r"embed\w*|lm_head|output_layer|router|gate"),
    "all-linear": re.compile(r"(?!)"),
}


@dataclass
class Report:
    """What ``convert`` did: converted and skipped modules by their names, with the reason."""

    recipe: Recipe
    converted: dict[str, str] = field(default_factory=dict)  #: name to sizes
    skipped: dict[str, str] = field(default_factory=dict)  #: name to reason

    def __str__(self) -> str:
        reasons: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(name)
        lines = [f"{len(self.converted)} linear layers to {self.recipe.name}, {len(self.skipped)} not"]
        for reason, names in reasons.items():
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            lines.append(f"  {reason}: {shown}")
        return "\n".join(lines)


def convert(
    model: nn.Module,
    recipe: Recipe | str = "blockwise",
    filter: Callable[[str, nn.Linear], bool] | None = None,
    min_dims: int | str = "auto",
    preset: str = "deepseek-v3",
) -> Report:
    """Swaps every ``nn.Linear`` of ``model`` that gains for an ``octile.torch.Linear`` on the same parameters.

    preset: "deepseek-v3" leaves embeddings, the output layer and routers as they are, by name; "all-linear" leaves
    none. filter: called with a layer's dotted name and the layer; only those it returns True for are converted.
    min_dims: the least of in_features and out_features; "auto" is ``AUTO_MIN_DIMS``. Layers whose sizes are no
    multiples of 16, subclasses of ``nn.Linear``, and layers whose weight another module uses stay too. ``model``
    itself must not be an ``nn.Linear``, because it is changed in place. Weights may be on the meta device.
    """
    recipe = as_recipe(recipe)
    if isinstance(model, nn.Linear):
        raise refuse("model", type(model).__name__, "is a module that contains linear layers; use Linear.from_linear")
    if preset not in PRESETS:
        raise refuse("preset", preset, "are " + ", ".join(map(repr, PRESETS)))
    if min_dims != "auto" and not isinstance(min_dims, int):
        raise refuse("min_dims", min_dims, "are an integer and 'auto'")
    smallest = AUTO_MIN_DIMS if min_dims == "auto" else min_dims
    report = Report(recipe)
    shared = _shared_weights(model)
    made: dict[int, Linear] = {}  # a layer at two places of the model stays one layer
    layers = [(n, m) for n, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)]
    for name, layer in layers:
        reason = _reason_to_stay(name, layer, filter, smallest, preset, shared)
        if reason is not None:
            report.skipped[name] = reason
            continue
        if id(layer) not in made:
            made[id(layer)] = Linear.from_linear(layer, recipe)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[id(layer)])
        report.converted[name] = f"[{layer.out_features}, {layer.in_features}]"
    return report


def _shared_weights(model: nn.Module) -> set[int]:
    """Returns the ids of parameters that modules other than linear layers have too, such as tied embeddings."""
    return {id(p) for m in model.modules() if not isinstance(m, nn.Linear) for p in m.parameters(recurse=False)}


def _reason_to_stay(name, layer, filter, smallest, preset, shared) -> str | None:
    if isinstance(layer, Linear):
        return "is an octile.torch.Linear already"
    if type(layer) is not nn.Linear:
        return f"is a {type(layer).__name__}, whose forward may differ"
    for word in name.split("."):
        if PRESETS[preset].fullmatch(word):
            return f"preset {preset} leaves {word!r}"
    if id(layer.weight) in shared:
        return "shares its weight with another module"
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
        return "has hooks"
    if filter is not None and not filter(name, layer):
        return "the filter leaves it"
    if layer.in_features % MULTIPLE or layer.out_features % MULTIPLE:
        return "sizes are no multiples of 16"
    if min(layer.in_features, layer.out_features) < smallest:
        return f"in_features or out_features is below {smallest}"
    return None
