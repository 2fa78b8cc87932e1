"""transformers' ``Conv1D``, the linear layers of GPT-2: which of a model ``convert`` takes, and what they become."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import nn

from octile.torch.expert_conversion import Gains, Sizes
from octile.torch.expert_modules import again, taken_class
from octile.torch.functional import linear_of
from octile.torch.layer import MULTIPLE, Layer, WeightOwner
from octile.torch.modules import has_forward_of_class, is_called_by_accelerate, why_no_operand
from octile.torch.recipes import Recipe


class TransposedLinear(WeightOwner, Layer):
    """A layer y = x weight + bias with a weight [in, out], computed in FP8, of a class that is also transformers'.

    Each pass copies the weight as [out, in] and quantises that, and its gradient is copied back: four bytes an element
    are read and written more than by a ``Linear`` in BF16. No FP8 copy is kept. Names and shapes of the state stay.
    """

    taken_from: type[nn.Module]
    least_tokens: tuple[int, int, int]  #: as that of ``Linear``

    def _take(self, recipe: Recipe, least_tokens: tuple[int, int, int]) -> None:
        self._set_up(recipe, True)
        self.__dict__["_by_convert"] = True
        self.__dict__["least_tokens"] = least_tokens
        self._weight_is(self.weight)

    def _change_recipe(self, recipe: Recipe, least_tokens: tuple[int, int, int]) -> None:
        self._set_up_again(recipe)
        self.__dict__["least_tokens"] = least_tokens
        self._weight_is(self.weight)

    def _leave(self) -> None:
        """Becomes what it was before it was converted."""
        empty = TransposedLinear.__new__(TransposedLinear)
        empty._set_up(self.recipe, True)
        for name in (*vars(empty), "least_tokens"):
            self.__dict__.pop(name, None)
        self.__class__ = self.taken_from

    def _weight_is(self, weight: nn.Parameter, before: nn.Parameter | None = None) -> None:
        if self._scaling is not None:  # a call reads a copy of the weight, so nothing of it is kept
            self._scaling.weight_is(self, weight, before)

    def set_rule(self, **changes) -> None:
        self.__dict__["_rule"] = self._rule._replace(**changes)

    def computed_shape(self) -> tuple[int, int]:
        """Returns the sizes of the weight [out, in] that calls compute with."""
        return self.weight.shape[1], self.weight.shape[0]

    def least_now(self) -> int:
        return self.least_tokens[0 if self.training else 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x weight + bias: [..., out]."""
        watch = self._watch
        if self._is_plain() or x.numel() < self.least_now() * x.shape[-1]:
            self._note_plain()
            return self.taken_from.forward(self, x)
        code, state = self._call_state(x)
        if watch is not None:
            return watch.linear(x, self.weight.t(), self.bias, code, state, self.recipe.plain)
        return linear_of(x, self.weight.t(), self.bias, code, state, plain=self.recipe.plain)

    def extra_repr(self) -> str:
        out, inner = self.computed_shape()
        return f"in_features={inner}, out_features={out}, weight=[in, out], {self._recipe_text()}"

    def __repr__(self) -> str:
        return nn.Module.__repr__(self)

    def __reduce_ex__(self, protocol):
        _, _, *rest = super().__reduce_ex__(protocol)
        return again, (type(self).__bases__[0], self.taken_from), *rest


def conv1d() -> type[nn.Module] | None:
    """Returns transformers' ``Conv1D``, or None if that is not imported: then no model has one."""
    library = sys.modules.get("transformers.pytorch_utils")
    return None if library is None else library.Conv1D


def find_transposed(
    model: nn.Module, recipe: Recipe, gains: Gains, reason_by_name: Callable[[list[str], nn.Module], str | None]
) -> list[tuple[nn.Module, list[str], str | None, bool]]:
    """Returns such layers of a model, their names, why they stay, or None, and whether that is because of their sizes
    and the thresholds. Nothing is changed."""
    kind = conv1d()
    if kind is None:
        return []
    names: dict[nn.Module, list[str]] = defaultdict(list)
    owners: dict[int, int] = defaultdict(int)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, kind):
            names[module].append(name)
    for module in model.modules():
        for parameter in module._parameters.values():
            owners[id(parameter)] += 1
    found = []
    for layer, its in names.items():
        reason = _why_not(layer, kind, recipe, owners) or reason_by_name(its, layer)
        small = None if reason is not None else gains.reason_to_stay(sizes_of(layer))
        found.append((layer, its, reason or small, small is not None and gains.source is not None))
    return found


def sizes_of(layer: nn.Module) -> Sizes:
    return Sizes(layer.weight.shape[1], layer.weight.shape[0])


def _why_not(layer: nn.Module, kind: type[nn.Module], recipe: Recipe, owners: dict[int, int]) -> str | None:
    if isinstance(layer, TransposedLinear):
        if layer.recipe == recipe:
            return "is converted already"
        return None if layer._sharding is None else "is converted already, and shard_fp8 knows it"
    if type(layer) is not kind:
        return f"is a {type(layer).__name__}, whose forward may differ"
    if "parametrizations" in layer._modules:
        return "has a parametrization of " + ", ".join(layer._modules["parametrizations"])
    if is_called_by_accelerate(layer):
        return "is called by a hook of accelerate"
    if not has_forward_of_class(layer):
        return "has a forward of its own"
    for name in ("weight", "bias"):
        if layer._parameters.get(name) is None:
            return f"has no {name}"
        if (reason := why_no_operand(name, layer._parameters[name])) is not None:
            return reason
    if owners[id(layer.weight)] > 1:
        return "shares its weight with another module"
    if any(size % MULTIPLE or size == 0 for size in layer.weight.shape):
        return f"sizes are not multiples of {MULTIPLE}"
    return None


def take(layer: nn.Module, recipe: Recipe, least_tokens: tuple[int, int, int]) -> None:
    """Converts a layer, or gives it another recipe."""
    if isinstance(layer, TransposedLinear):
        layer._change_recipe(recipe, least_tokens)
        return
    layer.__dict__.pop("forward", None)  # the class's own
    layer.__class__ = taken_class(TransposedLinear, type(layer))
    layer._take(recipe, least_tokens)
