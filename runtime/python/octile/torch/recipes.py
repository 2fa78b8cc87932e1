"""Recipes: in which FP8 types a linear layer keeps activations, weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING

from octile._types import TensorType, refuse

if TYPE_CHECKING:
    from torch import nn

    from octile.torch.schedule import Schedule

# In the order of kRecipes in runtime/python/torch/recipes.cc: activation, weight and gradient.
_ROWS = {
    "blockwise": (("e4m3", "1x128"), ("e4m3", "128x128"), ("e4m3", "1x128")),
    "blockwise_hybrid": (("e4m3", "1x128"), ("e4m3", "128x128"), ("e5m2", "1x128")),
    "tensorwise": (("e4m3", "tensor"), ("e4m3", "tensor"), ("e5m2", "tensor")),
    "rowwise": (("e4m3", "row"), ("e4m3", "row"), ("e4m3", "row")),
    "mxfp8": (("e4m3", "1x32"), ("e4m3", "1x32"), ("e4m3", "1x32")),
    "delayed": (("e4m3", "tensor"), ("e4m3", "tensor"), ("e5m2", "tensor")),
}
_FP32_SCALES = 16  # kFp32Scales in recipes.h
_AMAX = {"largest": 0, "latest": 1}  # octile_amax_choice


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


@dataclass(frozen=True)
class Recipe:
    """How a linear layer is quantised.

    name: "blockwise" (activations and gradients in 1x128 blocks, weights in 128x128, all E4M3, as DeepSeek-V3 was
    trained), "blockwise_hybrid" (the same with E5M2 gradients), "tensorwise" (a scale for each tensor, E5M2
    gradients), "delayed" (the same, with scales from the maxima of earlier steps), "rowwise" (a scale for each row) or
    "mxfp8" (1x32 blocks, for interoperability: slow on Hopper).

    scales: "pow2" keeps scales as powers of two, "f32" does not. mxfp8 has E8M0 scales in either case.

    The others are of "delayed"; see ``octile.torch.update_scales``.
    """

    name: str = "blockwise"
    scales: str = "pow2"
    warmup: int = 16  #: steps in which scales come from the tensors themselves, at least 1
    history: int = 1024  #: steps whose maxima are remembered, 1 to 65536
    amax: str = "largest"  #: which maximum a scale is made from: "largest" of the history, or the "latest"
    margin: int = 0  #: a scale leaves room for 2^margin times the maximum, -126 to 126

    def __post_init__(self) -> None:
        if self.name not in _ROWS:
            raise refuse("recipe", self.name, "are " + ", ".join(map(repr, _ROWS)))
        if self.scales not in ("pow2", "f32"):
            raise refuse("scales", self.scales, "are 'pow2' and 'f32'")
        for name, low, high in (("warmup", 1, 2**31 - 1), ("history", 1, 65536), ("margin", -126, 126)):
            if not _is_integer(getattr(self, name), low, high):
                raise refuse(name, getattr(self, name), f"are integers from {low} to {high}")
        if self.amax not in _AMAX:
            raise refuse("amax", self.amax, "are " + ", ".join(map(repr, _AMAX)))
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if not self.is_delayed and value != field.default:
                raise refuse(field.name, value, f"is {field.default!r} with recipe {self.name!r}: it is of 'delayed'")

    @property
    def code(self) -> int:
        """The number that operators take."""
        return list(_ROWS).index(self.name) + (_FP32_SCALES if self.scales == "f32" else 0)

    @property
    def is_delayed(self) -> bool:
        """Whether layers keep a history of maxima."""
        return self.name == "delayed"

    @property
    def amax_code(self) -> int:
        """The number of ``amax`` that operators take."""
        return _AMAX[self.amax]

    @property
    def activation(self) -> TensorType:
        """The type of X."""
        return self._type(0)

    @property
    def weight(self) -> TensorType:
        """The type of W."""
        return self._type(1)

    @property
    def gradient(self) -> TensorType:
        """The type of dY."""
        return self._type(2)

    def schedule(self, model: nn.Module, begin: int = 0, end: int | None = None) -> Schedule:
        """Returns the ``octile.torch.Schedule`` of the layers of this recipe: FP8 from step ``begin`` up to, but
        without, step ``end``."""
        from octile.torch.schedule import Schedule  # which needs the layers, which need recipes

        return Schedule(model, begin, end, self)

    def _type(self, role: int) -> TensorType:
        dtype, granularity = _ROWS[self.name][role]
        return TensorType.of(dtype, granularity, "e8m0" if granularity == "1x32" else self.scales)


def as_recipe(recipe: Recipe | str) -> Recipe:
    """Returns the recipe itself, or the one of this name with its default settings."""
    return recipe if isinstance(recipe, Recipe) else Recipe(recipe)


def stateless(recipe: Recipe | str, function: str) -> Recipe:
    """Returns the recipe for a function that keeps nothing from call to call. Raises NotImplementedError for
    "delayed"."""
    recipe = as_recipe(recipe)
    if recipe.is_delayed:
        raise NotImplementedError(
            f"octile: recipe is 'delayed', whose maxima a layer keeps; {function}() keeps nothing: use "
            f"octile.torch.{function.capitalize()}, or recipe 'tensorwise'"
        )
    return recipe


@cache
def recipe_of(code: int) -> Recipe:
    """Returns the recipe of a number that ``Recipe.code`` gave, with default settings."""
    return Recipe(list(_ROWS)[code % _FP32_SCALES], "f32" if code >= _FP32_SCALES else "pow2")
