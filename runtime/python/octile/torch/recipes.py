"""Recipes: in which FP8 types a linear layer keeps activations, weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

from octile._recipes import ROWS as _ROWS
from octile._types import TensorType, one_of, refuse, wrong_type

_CODES = {row.name: code for code, row in enumerate(_ROWS)}
_NAMES = tuple(name for name in _CODES if not name.endswith(":f32"))
DX, DW = 1, 2  # gradients that a recipe leaves to PyTorch
_AMAX = {"largest": 0, "latest": 1}  # octile_amax_choice


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


@dataclass(frozen=True)
class Recipe:
    """How a linear layer is quantised.

    name: "blockwise" (activations and gradients in 1x128 blocks, weights in 128x128, all E4M3, as DeepSeek-V3 was
    trained), "blockwise_hybrid" (the same with E5M2 gradients), "tensorwise" (one scale per tensor, E5M2 gradients),
    "delayed" (the same, with scales from the maxima of earlier steps), "rowwise" (one scale per row) or "mxfp8" (1x32
    blocks, for interoperability: slow on Hopper).

    scales: "pow2" keeps scales as powers of two, "f32" does not. mxfp8 has E8M0 scales in either case.

    dx, dw: "fp8", or "bf16" for an input or a weight gradient that is computed as ``nn.Linear`` does, in the input's
    dtype. dw="bf16" keeps the input itself for backward. Both are "fp8" with "delayed".

    The other arguments are for "delayed"; see ``octile.torch.update_scales``.
    """

    name: str = "blockwise"
    scales: str = "pow2"
    warmup: int = 16  #: steps in which scales come from the tensors themselves, at least 1
    history: int = 1024  #: steps whose maxima are remembered, 1 to 65536
    amax: str = "largest"  #: which maximum a scale is made from: "largest" of the history, or the "latest"
    margin: int = 0  #: a scale leaves room for 2^margin times the maximum, -126 to 126
    dx: str = "fp8"
    dw: str = "fp8"

    def __post_init__(self) -> None:
        one_of("recipe", self.name, _NAMES)
        one_of("scales", self.scales, ("pow2", "f32"))
        for name, low, high in (("warmup", 1, 2**31 - 1), ("history", 1, 65536), ("margin", -126, 126)):
            if not _is_integer(getattr(self, name), low, high):
                raise refuse(name, getattr(self, name), f"are integers from {low} to {high}")
        one_of("amax", self.amax, _AMAX)
        for field in fields(self)[2:]:
            value, of_delayed = getattr(self, field.name), field.name not in ("dx", "dw")
            if not of_delayed:
                one_of(field.name, value, ("fp8", "bf16"))
            if self.is_delayed != of_delayed and value != field.default:
                why = "it is of 'delayed'" if of_delayed else "backward records the maxima"
                raise refuse(field.name, value, f"is {field.default!r} with recipe {self.name!r}: {why}")

    @property
    def code(self) -> int:
        """The number that operators take."""
        return _CODES.get(self.name + ":f32", _CODES[self.name]) if self.scales == "f32" else _CODES[self.name]

    @property
    def text(self) -> str:
        """The name that stands for this recipe, without the settings of "delayed"."""
        parts = [self.name, *["f32"] * (self.code != _CODES[self.name])]
        return ":".join(parts + [f"{which}=bf16" for which in ("dx", "dw") if getattr(self, which) == "bf16"])

    @property
    def plain(self) -> int:
        """Which gradients are computed without FP8: a sum of ``DX`` and ``DW``."""
        return DX * (self.dx == "bf16") + DW * (self.dw == "bf16")

    @property
    def current_code(self) -> int:
        """The number of the recipe that scales by the tensors' own maxima, of "delayed"; of others ``code``."""
        return Recipe("tensorwise", self.scales).code if self.is_delayed else self.code

    @property
    def is_delayed(self) -> bool:
        """Whether layers keep a history of maxima."""
        return _ROWS[self.code].delayed

    @property
    def amax_code(self) -> int:
        """The number of ``amax`` that operators take."""
        return _AMAX[self.amax]

    @property
    def activation(self) -> TensorType:
        """The type of X."""
        return _ROWS[self.code].activation

    @property
    def weight(self) -> TensorType:
        """The type of W."""
        return _ROWS[self.code].weight

    @property
    def gradient(self) -> TensorType:
        """The type of dY."""
        return _ROWS[self.code].gradient


_SETTINGS = {"f32": ("scales", "f32"), "dx=bf16": ("dx", "bf16"), "dw=bf16": ("dw", "bf16")}


def as_recipe(recipe: Recipe | str) -> Recipe:
    """Returns the recipe itself, or the one of this name with its default settings. Behind the name there may be ":f32",
    ":dx=bf16" and ":dw=bf16", each once."""
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str):
        raise wrong_type("recipe", recipe, "octile.torch.Recipe or a name")
    name, *parts = recipe.split(":")
    settings = {part: _SETTINGS.get(part) for part in parts}
    if len(settings) < len(parts) or None in settings.values() or ("f32" in settings and name + ":f32" not in _CODES):
        return Recipe(recipe)  # refused
    return Recipe(name, **dict(settings.values()))


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
    return as_recipe(_ROWS[code].name)


def all_codes() -> range:
    """Returns all numbers that ``Recipe.code`` gives."""
    return range(len(_ROWS))
