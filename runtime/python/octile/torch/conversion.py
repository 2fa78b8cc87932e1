"""``convert``: swaps the linear layers of a model, and says what it did and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from octile._types import is_integer, one_of, refuse, token_range, wrong_type
from octile.torch._arguments import check_model
from octile.torch.modules import MULTIPLE, NEVER, Linear
from octile.torch.recipes import Recipe, as_recipe
from octile.torch.thresholds import MEASURED, measured

#: Presets: modules with such a name in their dotted path stay as they are.
PRESETS = {
    "deepseek-v3": re.compile(r"embed\w*|lm_head|output_layer|router|gate"),
    "all-linear": re.compile(r"(?!)"),
}


@dataclass
class Report:
    """What ``convert`` did: converted and skipped modules by their names, with the reason."""

    recipe: Recipe
    converted: dict[str, str] = field(default_factory=dict)  #: name to sizes, and from how many tokens on
    skipped: dict[str, str] = field(default_factory=dict)  #: name to reason
    thresholds: str | None = None  #: what the thresholds were measured on; None if ``min_dims`` was given
    min_dims: int | None = None  #: the integer ``min_dims`` that converts every layer which the thresholds leave

    def __str__(self) -> str:
        reasons: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(name)
        lines = [f"{len(self.converted)} linear layers to {self.recipe.name}, {len(self.skipped)} not"]
        if self.thresholds is not None:
            lines.append(f"  thresholds: {self.thresholds}")
        for sizes, count in Counter(self.converted.values()).items():
            lines.append(f"  {count} of {sizes}")
        for reason, names in reasons.items():
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            lines.append(f"  {reason}: {shown}")
        if self.min_dims is not None:
            call = f"convert(model, min_dims={self.min_dims})"
            lines.append(f"  {call} asks no thresholds, and converts these layers too")
        return "\n".join(lines)


def convert(
    model: nn.Module,
    recipe: Recipe | str = "blockwise",
    filter: Callable[[str, nn.Linear], bool] | None = None,
    min_dims: int | str = "auto",
    preset: str = "deepseek-v3",
    tokens: int | tuple[int, int] | None = None,
) -> Report:
    """Swaps every ``nn.Linear`` of ``model`` that gains for an ``octile.torch.Linear`` on the same parameters.

    preset: "deepseek-v3" leaves embeddings, the output layer and routers as they are, by name; "all-linear" leaves
    none. filter: called with a layer's dotted name and the layer; only those it returns True for are converted. Layers
    whose sizes are no multiples of 16, subclasses of ``nn.Linear``, and layers whose weight another module uses stay
    too. ``model`` itself must not be an ``nn.Linear``, because it is changed in place. Weights may be on the meta
    device.

    min_dims: with "auto" the measurement in ``octile.torch.thresholds`` decides. A layer is converted if FP8 gains at
    some number of tokens, and its calls with fewer compute as ``nn.Linear`` does (``Linear.least_tokens``). tokens: how
    many a call has, (least, most) or one number; layers that do not gain at the most stay as they are. An integer
    ``min_dims`` is the least of in_features and out_features, and all calls are FP8.
    """
    check_model(model)
    recipe = as_recipe(recipe)
    if isinstance(model, nn.Linear):
        raise refuse("model", type(model).__name__, "is a module that contains linear layers; use Linear.from_linear")
    preset = one_of("preset", preset, PRESETS)
    if filter is not None and not callable(filter):
        raise wrong_type("filter", filter, "a function of a name and a layer, or None")
    gains = _gains_of(recipe, min_dims, tokens)
    report = Report(recipe, thresholds=gains.source)
    shared = _shared_weights(model)
    made: dict[int, Linear] = {}  # a layer at two places of the model stays one layer
    layers = [(n, m) for n, m in model.named_modules(remove_duplicate=False) if isinstance(m, nn.Linear)]
    for name, layer in layers:
        reason = _reason_to_stay(name, layer, filter, preset, shared)
        if reason is None:
            reason = gains.reason_to_stay(layer)
            if reason is not None and gains.source is not None:
                sizes = [layer.in_features, layer.out_features]
                report.min_dims = min(sizes if report.min_dims is None else [*sizes, report.min_dims])
        if reason is not None:
            report.skipped[name] = reason
            continue
        least, told = gains.least_tokens(layer)
        if id(layer) not in made:
            made[id(layer)] = Linear.from_linear(layer, recipe, least_tokens=least)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[id(layer)])
        report.converted[name] = f"[{layer.out_features}, {layer.in_features}]{told}"
    return report


class _BySize:
    """Converts by the smaller of in_features and out_features."""

    source = None

    def __init__(self, smallest: int) -> None:
        self.smallest = smallest

    def reason_to_stay(self, layer: nn.Linear) -> str | None:
        small = min(layer.in_features, layer.out_features) < self.smallest
        return f"in_features or out_features is below {self.smallest}" if small else None

    def least_tokens(self, layer: nn.Linear) -> tuple[tuple[int, int], str]:
        return (0, 0), ""


class _ByMeasurement:
    """Converts by the measured thresholds, for calls of lo to hi tokens."""

    def __init__(self, recipe: str, lo: int, hi: int | None) -> None:
        self.table, self.recipe, self.lo, self.hi = measured(), recipe, lo, hi
        of = recipe if recipe in self.table.points else MEASURED
        self.source = f"{of} as measured on {self.table.card}"

    def _least(self, layer: nn.Linear) -> list[int | None]:
        sizes = layer.out_features, layer.in_features
        return [self.table.least_tokens(*sizes, self.recipe, training) for training in (True, False)]

    def reason_to_stay(self, layer: nn.Linear) -> str | None:
        least = min((tokens for tokens in self._least(layer) if tokens is not None), default=None)
        if least is None:
            return "too small to gain at any measured number of tokens"
        if self.hi is not None and self.hi < least:
            return f"gains from {least} tokens on, and calls have at most {self.hi}"
        return None

    def least_tokens(self, layer: nn.Linear) -> tuple[tuple[int, int], str]:
        training, forward = self._least(layer)
        told = f" from {training} tokens on" if training is not None else " without gradients"
        if forward != training and forward is not None:
            told += f", {forward} in eval()"
        least = [NEVER if tokens is None else tokens if tokens > self.lo else 0 for tokens in (training, forward)]
        return (least[0], least[1]), told


def _gains_of(recipe: Recipe, min_dims: int | str, tokens: int | tuple[int, int] | None) -> _BySize | _ByMeasurement:
    if min_dims != "auto":
        if not is_integer(min_dims):
            raise refuse("min_dims", min_dims, "are an integer from 0 on and 'auto'")
        if tokens is not None:
            raise refuse("tokens", tokens, "is None with an integer min_dims, which converts for all numbers of tokens")
        return _BySize(min_dims)
    if tokens is None:
        return _ByMeasurement(recipe.name, 0, None)
    lo, hi = token_range(tokens, or_one=True)
    return _ByMeasurement(recipe.name, lo, hi)


def _shared_weights(model: nn.Module) -> set[int]:
    """Returns the ids of parameters that modules other than linear layers have too, such as tied embeddings."""
    return {id(p) for m in model.modules() if not isinstance(m, nn.Linear) for p in m.parameters(recurse=False)}


def _reason_to_stay(name, layer, filter, preset, shared) -> str | None:
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
    return None
