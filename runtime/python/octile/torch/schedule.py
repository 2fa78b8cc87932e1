"""When a model computes in FP8: a hand-off at a step, and back for a cool-down."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from octile._types import refuse
from octile.torch.modules import Linear


def set_fp8(model: nn.Module, enabled: bool) -> int:
    """Lets every ``octile.torch.Linear`` of ``model`` compute in FP8, or as ``nn.Linear`` does, from the next call on.
    Returns the number of layers. A compiled model is compiled again for each of the two."""
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    for layer in layers:
        layer.fp8 = bool(enabled)
    return len(layers)


@dataclass
class Schedule:
    """FP8 from step ``begin`` up to, but without, step ``end``; before and after, layers compute as ``nn.Linear``.

    >>> schedule = Schedule(model, begin=500, end=9_500)
    >>> for n in range(10_000):
    ...     schedule.step(n)
    """

    model: nn.Module
    begin: int = 0
    end: int | None = None  #: None: FP8 to the last step

    def __post_init__(self) -> None:
        if self.begin < 0 or (self.end is not None and self.end < self.begin):
            raise refuse("begin, end", (self.begin, self.end), "are 0 <= begin <= end")

    def step(self, number: int) -> bool:
        """Says that step ``number`` begins. Returns whether it is in FP8."""
        enabled = self.begin <= number and (self.end is None or number < self.end)
        set_fp8(self.model, enabled)
        return enabled
