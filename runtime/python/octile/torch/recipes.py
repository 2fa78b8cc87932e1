"""Recipes: in which FP8 types a linear layer keeps activations, weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from octile._types import TensorType, refuse

# In the order of kRecipes in runtime/python/torch/recipes.cc: activation, weight and gradient.
_ROWS = {
    "blockwise": (("e4m3", "1x128"), ("e4m3", "128x128"), ("e4m3", "1x128")),
    "blockwise_hybrid": (("e4m3", "1x128"), ("e4m3", "128x128"), ("e5m2", "1x128")),
    "tensorwise": (("e4m3", "tensor"), ("e4m3", "tensor"), ("e5m2", "tensor")),
    "rowwise": (("e4m3", "row"), ("e4m3", "row"), ("e4m3", "row")),
    "mxfp8": (("e4m3", "1x32"), ("e4m3", "1x32"), ("e4m3", "1x32")),
}
_FP32_SCALES = 16  # kFp32Scales in recipes.h


@dataclass(frozen=True)
class Recipe:
    """How a linear layer is quantised.

    name: "blockwise" (activations and gradients in 1x128 blocks, weights in 128x128, all E4M3, as DeepSeek-V3 was
    trained), "blockwise_hybrid" (the same with E5M2 gradients), "tensorwise" (a scale for each tensor, E5M2
    gradients), "rowwise" (a scale for each row) or "mxfp8" (1x32 blocks, for interoperability: slow on Hopper).

    scales: "pow2" keeps scales as powers of two, "f32" does not. mxfp8 has E8M0 scales in either case.
    """

    name: str = "blockwise"
    scales: str = "pow2"

    def __post_init__(self) -> None:
        if self.name not in _ROWS:
            raise refuse("recipe", self.name, "are " + ", ".join(map(repr, _ROWS)))
        if self.scales not in ("pow2", "f32"):
            raise refuse("scales", self.scales, "are 'pow2' and 'f32'")

    @property
    def code(self) -> int:
        """The number that operators take."""
        return list(_ROWS).index(self.name) + (_FP32_SCALES if self.scales == "f32" else 0)

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

    def _type(self, role: int) -> TensorType:
        dtype, granularity = _ROWS[self.name][role]
        return TensorType.of(dtype, granularity, "e8m0" if granularity == "1x32" else self.scales)


def as_recipe(recipe: Recipe | str) -> Recipe:
    """Returns the recipe itself, or the one of this name with its default scales."""
    return recipe if isinstance(recipe, Recipe) else Recipe(recipe)


@cache
def recipe_of(code: int) -> Recipe:
    """Returns the recipe of a number that ``Recipe.code`` gave."""
    return Recipe(list(_ROWS)[code % _FP32_SCALES], "f32" if code >= _FP32_SCALES else "pow2")
