"""State of the recipe "delayed": scales of a layer's operands, and the maxima that later scales are made from."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from octile._types import refuse
from octile.torch._arguments import check_model
from octile.torch._operators import ops
from octile.torch.compiled import keep_address
from octile.torch.recipes import Recipe

_ROWS = 64  # states that lie in one array, of small ones
_ELEMENTS = 2**20  # of an array, unless one state has more

_turns = itertools.count()
_live: weakref.WeakSet[Scaling] = weakref.WeakSet()


class _Row(NamedTuple):
    """Where a state lies: in a row of an array, beside those of other layers, so that one launch updates them all."""

    array: torch.Tensor
    row: int


class _Arrays:
    """Memory for states. Rows are given once, so that whatever is still to be written is written to its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[torch.device, int], _Row] = {}

    def take(self, device: torch.device, elements: int) -> _Row:
        """Returns a row of zeros, float32, at least ``elements`` long, that is no one's."""
        with self._lock, torch.inference_mode(False):
            if type(torch.empty(0, device=device)) is not torch.Tensor:  # such as under FakeTensorMode
                return _Row(torch.zeros(1, elements, device=device), 0)
            last = self._last.get((device, elements))
            if last is None or last.row + 1 == len(last.array):
                rows = max(1, min(_ROWS, _ELEMENTS // elements))
                taken = _Row(torch.zeros(rows, -(-elements // 4) * 4, dtype=torch.float32, device=device), 0)
            else:
                taken = _Row(last.array, last.row + 1)
            self._last[device, elements] = taken
            return taken


_arrays = _Arrays()


class Scaling:
    """What a layer of recipe "delayed" keeps from step to step. It is no parameter and no buffer: checkpoints do not
    have it. Copies and pickles of the layer do.

    values: float32 [(3 + 3 * history) * experts] on the layer's device, as runtime/python/torch/scaling.h lays it out,
    or None while the layer's weight is on the meta device; experts is 1 for a plain layer. steps: updates so far.
    """

    def __init__(self, recipe: Recipe, experts: int = 1) -> None:
        self.recipe, self.experts = recipe, experts
        self.steps = 0
        self.values: torch.Tensor | None = None
        self.at: _Row | None = None  # where ``values`` lies
        self.group: torch.distributed.ProcessGroup | None = None
        self.turn = 0  # in reductions, the same on all ranks
        self._choose()
        _live.add(self)

    def __getstate__(self) -> dict:
        values = None if self.values is None else self.values.clone()
        # A group is the process's, not the layer's, and an array is several layers'.
        return self.__dict__ | {"group": None, "values": values, "at": None}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._choose()
        if self.values is not None and self.values.device.type != "meta":
            self._adopt(self.values)
        _live.add(self)

    def _adopt(self, values: torch.Tensor, device: torch.device | None = None) -> None:
        """Keeps a copy of ``values`` on a device, by default theirs. The extension forgets what is recorded in it when
        it is gone."""
        self.at = _arrays.take(device or values.device, values.numel())
        self.values = self.at.array[self.at.row, : values.numel()]
        self.values.copy_(values)
        keep_address(self.values)
        weakref.finalize(self.values, ops.forget_maxima, self.values.data_ptr()).atexit = False

    def _choose(self) -> None:
        """Sets the recipe code of the next calls: current scales during warm-up, which record maxima too."""
        warm = self.steps >= self.recipe.warmup
        self.delayed = warm
        self.code = (self.recipe if warm else Recipe("tensorwise", self.recipe.scales)).code

    def place(self, device: torch.device) -> None:
        """Makes the state on ``device``, or moves it there. Does nothing for the meta device."""
        if device.type == "meta" or (self.values is not None and self.values.device == device):
            return
        values = self.values
        if values is None or values.device.type == "meta":
            count = 3 * self.experts
            values = torch.zeros(count + count * self.recipe.history, dtype=torch.float32, device=device)
            values[:count] = 1
        self._adopt(values, device)

    def on(self, device: torch.device) -> torch.Tensor:
        """Returns ``values`` on the device of a call, and moves it there unless PyTorch traces or captures."""
        if self.values is None or self.values.device != device:
            if torch.compiler.is_compiling() or is_capturing(device):
                raise RuntimeError(
                    "octile: the scaling state of a layer is not on the device of its input; call layer.to(device), or "
                    "the layer once, before it is compiled or captured"
                )
            self.place(device)
        return self.values

    def check_capture(self, device: torch.device) -> None:
        """Refuses a capture into a CUDA graph that would keep scaling as in warm-up for good."""
        # A compiled model is compiled again at the end of warm-up, with its CUDA graphs.
        if not self.delayed and not torch.compiler.is_compiling() and is_capturing(device):
            raise RuntimeError(
                f"octile: a layer of recipe 'delayed' was captured into a CUDA graph after {self.steps} of "
                f"{self.recipe.warmup} warm-up steps; capture it after them"
            )

    @property
    def scales(self) -> torch.Tensor | None:
        """What x, the weight and dy are multiplied by when they are quantised: float32 [3], of ``Experts``
        [3, experts]."""
        if self.values is None:
            return None
        scales = self.values[: 3 * self.experts]
        return scales if self.experts == 1 else scales.view(3, self.experts)

    @property
    def latest(self) -> list[torch.Tensor]:
        """Maxima of this step: views [2 * experts] of x and the weight, and [experts] of dy."""
        count, second = self.experts, (3 + 2 * self.recipe.history) * self.experts
        return [self.values[3 * count : 5 * count], self.values[second : second + count]]

    @property
    def is_due(self) -> bool:
        """Whether a call has recorded a maximum since this was last asked."""
        return self.values is not None and ops.maxima_recorded(self.values)

    def move_on(self) -> None:
        """Counts a step, after its update."""
        self.steps += 1
        self._choose()


def is_capturing(device: torch.device) -> bool:
    """Returns whether the current stream is captured into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _reduce(states: list[Scaling], group: torch.distributed.ProcessGroup) -> None:
    """Raises this step's maxima to the largest of the group, in one reduction."""
    views = [view for state in states for view in state.latest]
    joined = torch.cat(views)
    torch.distributed.all_reduce(joined, torch.distributed.ReduceOp.MAX, group)
    torch._foreach_copy_(views, list(joined.split([view.numel() for view in views])))


def _update(states: Iterable[Scaling]) -> int:
    due, grouped = [], {}
    for state in states:
        if state.group is not None:
            if state.values is not None:
                grouped.setdefault(state.group, []).append(state)
        elif state.is_due:
            due.append(state)
    for group, members in sorted(grouped.items(), key=lambda item: min(state.turn for state in item[1])):
        members.sort(key=lambda state: state.turn)
        # All ranks reduce the same states: those of all layers, if one of them has recorded anything.
        if any([state.is_due for state in members]):
            _reduce(members, group)
            due += members
    _launch(due)
    for state in due:
        state.move_on()
    return len(due)


def _launch(due: list[Scaling]) -> None:
    """Makes new scales, in one launch for the states of an array whose rows follow each other."""
    alike: dict[tuple, list[Scaling]] = {}
    for state in due:
        recipe = state.recipe
        key = id(state.at.array), state.experts, recipe.code, recipe.amax_code, recipe.margin
        alike.setdefault(key, []).append(state)
    for (_, experts, *settings), states in alike.items():
        array, elements = states[0].at.array, states[0].values.numel()
        rows = sorted(state.at.row for state in states)
        begins = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1] + 1]
        for begin, end in itertools.pairwise([*begins, len(rows)]):
            ops.update_scales(array[rows[begin] : rows[end - 1] + 1, :elements], experts, *settings)


def _states_of(model: nn.Module) -> list[Scaling]:
    check_model(model)
    states = [getattr(module, "_scaling", None) for module in model.modules()]
    return list({id(state): state for state in states if isinstance(state, Scaling)}.values())


def update_scales(model: nn.Module) -> int:
    """Ends a step of the layers of recipe "delayed": makes new scales from the maxima so far. Returns the number of
    layers updated.

    Every step of a ``torch.optim`` optimizer does it for all models, in a CUDA graph at each replay. Call it after other
    optimizers, and after steps that torch.compile has compiled. All calls with gradients between two updates
    (microbatches, and the recomputation of activation checkpointing) raise one maximum for each operand. A layer without
    such a call since its last update is left as it is, so several optimizers of a model count as one step. New scales
    are computed on the device, on the current stream, and the host does not wait. During the first ``recipe.warmup``
    updates layers scale by the tensors' own maxima; the switch compiles a compiled model again. Not thread-safe: no
    other thread may call the layers meanwhile.
    """
    return _update(_states_of(model))


def reduce_scales(model: nn.Module, group: torch.distributed.ProcessGroup | None = None) -> int:
    """Lets the ranks of ``group``, by default all, share the scales of the model's layers of recipe "delayed". From now
    on every update first takes the largest maxima of the ranks, in one reduction for all layers of a group. All ranks
    update at the same steps. Returns the number of layers. Copies of the model do not share scales until this is
    called for them."""
    states = _states_of(model)
    if not torch.distributed.is_initialized():
        raise RuntimeError("octile: reduce_scales needs torch.distributed.init_process_group")
    if not states:
        raise refuse("model", type(model).__name__, "is a model with layers of recipe 'delayed'")
    for state in states:
        state.group, state.turn = torch.distributed.group.WORLD if group is None else group, next(_turns)
    return len(states)


def _after_step(*_) -> None:
    if not torch.compiler.is_compiling():
        _update(list(_live))


register_optimizer_step_post_hook(_after_step)
