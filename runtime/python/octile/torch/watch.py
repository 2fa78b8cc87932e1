"""The side of a sentry that layers need: a place for the words that it watches, and calls that it runs in their
stead."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from octile.torch.compiled import keep_address


class Watch(ABC):
    """A layer's knowledge of its sentry."""

    each_call = False  # the host checks each product

    def __init__(self, words: torch.Tensor) -> None:
        self.words = words  # int32 [3], as ``linear_of`` takes them
        self.paused = False  # the layer computes without FP8, at any setting
        self.was_plain = False  # it did so in a call of this step
        self.each_call = False  # products are looked at one by one, not once a step
        keep_address(words)

    @abstractmethod
    def linear(self, x, weight, bias, code, scaling, plain=0) -> torch.Tensor:
        """Returns what ``linear_of`` does, and marks products that are not finite."""

    @abstractmethod
    def experts(self, x, weight, offsets, code, scaling, transposed=False, plain=0) -> torch.Tensor:
        """Returns what ``experts_of`` does, and marks products that are not finite."""

    def pauses_call(self) -> bool:
        """Returns whether the call that asks has to compute without FP8, and notes that it does."""
        if self.paused:
            self.was_plain = True
        return self.paused

    def __reduce__(self):
        return _nobody, ()  # pickled with a parameter, which is watched where it was made


def _nobody() -> None:
    return None


def watch_of(weight: torch.Tensor) -> Watch | None:
    """Returns what a sentry has put on a parameter whose functional calls it watches."""
    return getattr(weight, "octile_watch", None)
