"""The masters in the state of an optimizer, and how they come back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch

from octile._types import refuse
from octile.torch.held_weight import HeldWeight, quantize_again

#: How a state holds a master: itself, or the half of it that a bfloat16 weight has not.
FORMS = ("fp32", "bf16+16")
_WHOLE, _BITS, _TIES, _SUM = "master", "master_bits", "master_ties", "master_sum"
_HALF = -(2**15)  # the lower half of a float32 between two bfloat16, as an int16


def halves_of(master: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns what makes a float32 master of the nearest bfloat16: its lower 16 bits, which of the elements in the
    middle of two were rounded up (their indexes, one in 2^17), and the sum of the bfloat16 as integers, by which
    those of another master are told."""
    upper, lower = _split(master)
    nearest = master.to(torch.bfloat16).view(torch.int16)
    ties = ((lower == _HALF) & (nearest != upper)).view(-1).nonzero().view(-1)
    return {_BITS: lower, _TIES: ties, _SUM: nearest.sum(dtype=torch.int64)}


def joined(nearest: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Returns the master of a bfloat16 tensor and ``halves_of``, or None if they are not of one master."""
    upper = nearest.contiguous().view(torch.int16)
    if upper.shape != state[_BITS].shape or upper.sum(dtype=torch.int64) != state[_SUM].to(upper.device):
        return None
    lower = state[_BITS].to(upper.device)
    down = (lower < 0) & (lower != _HALF)  # the lower half is above the middle, so the nearest is the next one
    down.view(-1)[state[_TIES].to(upper.device)] = True
    pair = torch.stack([lower, upper - down.to(torch.int16)], -1)  # little-endian
    return pair.view(torch.float32).squeeze(-1)


def _split(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pair = master.contiguous().view(torch.int16).view(*master.shape, 2)
    return pair[..., 1].contiguous(), pair[..., 0].contiguous()


class MasterState:
    """The hooks of an optimizer's state. form: returns one of ``FORMS``. stand_in and stand_back: let the masters stand
    in the optimizer's groups in the place of the weights, and take that back."""

    def __init__(self, form: Callable[[], str], stand_in: Callable[[], None], stand_back: Callable[[], None]) -> None:
        self.form, self.stand_in, self.stand_back = form, stand_in, stand_back
        self._loading: dict[int, dict[str, torch.Tensor]] = {}  # by the parameter's number

    def saved(self, optimizer: torch.optim.Optimizer, state_dict: dict) -> dict:
        """Adds the masters to a state."""
        states = dict(state_dict["state"])
        for number, weight in _numbered(optimizer):
            whole = self.form() == "fp32"
            entries = {_WHOLE: weight.master} if whole else halves_of(weight.master)
            states[number] = states.get(number, {}) | entries
        return state_dict | {"state": states}

    def begin_load(self, optimizer: torch.optim.Optimizer, state_dict: dict) -> dict:
        """Takes the masters out of a state, and lets theirs stand in the groups, so that the rest is cast to their
        dtype."""
        groups, given = optimizer.param_groups, state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in given]:
            return state_dict  # PyTorch refuses it
        names = dict(zip(chain(*(g["params"] for g in given)), chain(*(g["params"] for g in groups)), strict=True))
        self._loading, states = {}, {}
        for number, entries in state_dict["state"].items():
            if isinstance(names.get(number), HeldWeight):
                mine = {key: entries[key] for key in (_WHOLE, _BITS, _TIES, _SUM) if key in entries}
                _check_shape(names[number], mine)
                self._loading[id(names[number])] = mine
                entries = {key: value for key, value in entries.items() if key not in mine}
            if entries:
                states[number] = entries
        self.stand_in()
        return state_dict | {"state": states}

    @torch.no_grad()
    def end_load(self, optimizer: torch.optim.Optimizer) -> None:
        """Writes the masters that the state had."""
        self.stand_back()
        loaded = []
        for _, weight in _numbered(optimizer):
            state = self._loading.get(id(weight), {})
            if _WHOLE in state:
                weight.master.copy_(state[_WHOLE])
                loaded.append(weight)
            elif _BITS in state:
                weight.octile_halves = state
                complete(weight)
        quantize_again(loaded)
        self._loading = {}

    @staticmethod
    def check(weights: list[HeldWeight]) -> None:
        """Raises ValueError if lower halves were loaded for other weights than those of the model."""
        waiting = sum(hasattr(weight, "octile_halves") for weight in weights)
        if waiting:
            allowed = "are those of the model's weights: load the model's state that was saved with the optimizer's"
            raise refuse("master_bits of the optimizer's state", f"of other values of {waiting} weights", allowed)


@torch.no_grad()
def complete(weight: HeldWeight) -> None:
    """Makes the master of a weight of the lower half that waits for it, if it is of the weight's values. The codes
    stay, because the values do."""
    state = getattr(weight, "octile_halves", None)
    if state is None:
        return
    master = joined(weight.values(torch.bfloat16), state)
    if master is not None:
        weight.master.copy_(master)
        del weight.octile_halves


def _numbered(optimizer: torch.optim.Optimizer) -> list[tuple[int, HeldWeight]]:
    """Returns the weights in an optimizer's groups that are held in FP8, with their numbers in its state."""
    found: dict[int, tuple[int, HeldWeight]] = {}
    for number, weight in enumerate(chain(*(group["params"] for group in optimizer.param_groups))):
        if isinstance(weight, HeldWeight) and weight.master is not None:
            found.setdefault(id(weight), (number, weight))
    return list(found.values())


def _check_shape(weight: HeldWeight, state: dict[str, torch.Tensor]) -> None:
    for key in (_WHOLE, _BITS):
        if key in state and state[key].shape != weight.shape:
            raise refuse(f"{key} of the optimizer's state", tuple(state[key].shape), f"is {tuple(weight.shape)}")
