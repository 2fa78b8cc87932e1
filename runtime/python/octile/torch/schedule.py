"""When a model computes in FP8: a hand-off at a step, and back for a cool-down."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from octile._types import refuse
from octile.torch._arguments import check_flag, check_model
from octile.torch.recipes import as_recipe
from octile.torch.specialised import Specialised


class Switched(nn.Module):
    """A layer that computes in FP8, or as PyTorch does."""

    fp8: bool  #: False: the layer computes as PyTorch does, in the input's dtype
    recipe: object  # an octile.torch.Recipe
    _is_scheduled: bool  # a schedule has set fp8


def layers_of(model: nn.Module, recipe: object = None) -> list[Switched]:
    """Returns the FP8 layers of ``model``, or those of one recipe, each once."""
    check_model(model)
    layers = [module for module in model.modules() if isinstance(module, Switched)]
    return [layer for layer in layers if recipe is None or layer.recipe == recipe]


class Switch(int):
    """The number of layers that were switched. As a context it sets them back at its end."""

    _before: list[tuple[nn.Module, dict[str, bool]]]

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, *_) -> None:
        for module, switches in self._before:
            module.__dict__.update(switches)


def set_fp8(model: nn.Module, enabled: bool) -> Switch:
    """Makes every ``Linear`` and ``Experts`` of ``model`` compute in FP8, or as PyTorch does, from the next call on. In
    the latter case MLPs and norms that ``convert`` has fused also compute as PyTorch does, and the model has the same
    bits as before ``convert``. Returns the number of layers. ``with set_fp8(model, False):`` restores each layer at the
    end of the block. A compiled model is compiled once for each mode, and CUDA graphs keep the mode that they
    captured."""
    check_model(model)
    check_flag(enabled, "enabled")
    return _switch(model, enabled, None, False)


def _switch(model: nn.Module, enabled: bool, recipe: object, scheduled: bool) -> Switch:
    """Switches the layers of a recipe, and with None all of them and what is fused. Returns the number of layers."""
    layers = layers_of(model, recipe)
    switches: list[tuple[nn.Module, dict[str, bool]]] = [
        (layer, {"fp8": enabled, "_is_scheduled": scheduled}) for layer in layers
    ]
    for module in model.modules() if recipe is None else ():
        if isinstance(module, Specialised):
            switches.append((module, {"_is_on": enabled}))
    switch = Switch(len(layers))
    switch._before = [(module, {name: module.__dict__.get(name, True) for name in names}) for module, names in switches]
    for module, values in switches:
        module.__dict__.update(values)
    return switch


@dataclass
class Schedule:
    """FP8 from step ``begin`` up to, but without, step ``end``; before and after, layers compute as ``nn.Linear``.

    >>> schedule = Schedule(model, begin=500, end=9_500)
    >>> for n in range(10_000):
    ...     schedule.step(n)

    Only the step's number decides, so a run that is resumed at any step behaves like an uninterrupted one. A layer of
    recipe "delayed" warms up from ``begin`` on, because it records nothing before. Parameters and optimizers do not
    change.
    """

    model: nn.Module
    begin: int = 0
    end: int | None = None  #: None: FP8 to the last step
    recipe: object = None  #: an octile.torch.Recipe or a name: only layers of it; None: all

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise refuse(name, value, "are integers" + (" and None" if name == "end" else ""))
        if self.begin < 0 or (self.end is not None and self.end < self.begin):
            raise refuse("begin, end", (self.begin, self.end), "are 0 <= begin <= end")
        if self.recipe is None:
            return
        self.recipe = as_recipe(self.recipe)
        if not layers_of(self.model, self.recipe):
            raise refuse("model", type(self.model).__name__, f"is a model with layers of {self.recipe}")

    def step(self, number: int) -> bool:
        """Says that step ``number``, at least 0, begins. Returns whether it is in FP8."""
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise refuse("number", number, "are integers of at least 0")
        enabled = self.begin <= number and (self.end is None or number < self.end)
        _switch(self.model, enabled, self.recipe, True)
        return enabled
