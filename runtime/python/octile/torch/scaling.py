"""State of the recipe "delayed": scales of a layer's X and dY, and the maxima that later scales are made from."""

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
    """Memory for states. Rows are given once, so that a write that is still to come goes to its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[torch.device, int], _Row] = {}

    def take(self, device: torch.device, elements: int) -> _Row:
        """Returns a row of zeros, float32, at least ``elements`` long, that belongs to nobody."""
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


class _Shard(NamedTuple):
    """The contents of a sharded weight on this rank."""

    local: weakref.ref[torch.Tensor]
    versions: tuple[int, ...]  # of the DTensor, whose operations count there, and of the local tensor

    def is_same(self, other: _Shard) -> bool:
        return self.local() is other.local() and self.versions == other.versions


class Scaling:
    """The state that a layer of recipe "delayed" keeps from step to step. It is neither a parameter nor a buffer:
    checkpoints do not have it. Copies and pickles of the layer do.

    values: float32 [(2 + 2 * history) * experts] on the layer's device, as runtime/python/torch/scaling.h lays it out,
    or None while the layer's weight is on the meta device; experts is 1 for a plain layer. steps: updates so far.

    It belongs to the contents that an optimizer made of the weight's first ones. Once they are others, calls scale by
    the tensors' own maxima, and the next update begins the warm-up anew. The operators see writes of a plain weight;
    of one that FSDP2 shards this object compares the shard's version when it is gathered.
    """

    def __init__(self, recipe: Recipe, experts: int = 1) -> None:
        self.recipe, self.experts = recipe, experts
        self.steps = 0
        self.values: torch.Tensor | None = None
        self.at: _Row | None = None  # where ``values`` lies
        self.layer: weakref.ref | None = None  # whose weight it is
        self.shard: _Shard | None = None  # that it belongs to
        self.group: torch.distributed.ProcessGroup | None = None
        self.turn = 0  # in reductions, the same on all ranks
        self._choose()
        _live.add(self)

    def __getstate__(self) -> dict:
        values = None if self.values is None else self.values.clone()
        # A group is the process's, not the layer's, and an array is several layers'.
        return self.__dict__ | {"group": None, "values": values, "at": None, "layer": None, "shard": None}

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
        self.delayed = self.steps >= self.recipe.warmup
        self.code = self.recipe.code if self.delayed else self.recipe.current_code

    def place(self, device: torch.device) -> None:
        """Makes the state on ``device``, or moves it there. Does nothing for the meta device."""
        if device.type == "meta" or (self.values is not None and self.values.device == device):
            return
        values = self.values
        if values is None or values.device.type == "meta":
            count = 2 * self.experts
            values = torch.zeros(count + count * self.recipe.history, dtype=torch.float32, device=device)
            values[:count] = 1
        self._adopt(values, device)

    def weight_is(self, layer: nn.Module, weight: nn.Parameter, before: nn.Parameter | None) -> None:
        """Says that ``weight`` is the layer's now, and ``before`` was, or that it was moved where it is."""
        self.layer = weakref.ref(layer)
        self.place(weight.device)
        if not self.is_real:
            return
        if is_sharded(weight) or (before is not None and is_sharded(before)):  # by FSDP2, which gathers it
            sharded = weight if is_sharded(weight) else before
            if self.shard is None:
                self.follow(sharded)
            ops.scales_belong(self.values, None, False)
            if not self.shard.is_same(_contents(sharded)):
                ops.scales_are_old(self.values)
        elif before is None or before is weight:
            ops.scales_belong(self.values, None, True)
        else:
            self.begin_anew()

    def follow(self, weight: torch.Tensor | None) -> None:
        """Belongs to the contents that the layer's weight has now, or without it to those that the next call finds."""
        sharded = weight is not None and is_sharded(weight)
        self.shard = _contents(weight) if sharded else None
        if self.is_real:
            ops.scales_belong(self.values, None if sharded else weight, not sharded)

    def begin_anew(self) -> None:
        """Forgets all that was recorded, because the weight has other contents: the warm-up begins again."""
        is_new = not self.is_due and self.steps == 0
        self.steps, self.shard = 0, None
        self._choose()
        if self.is_real:
            if not is_new:
                self.values.zero_()
                self.values[: 2 * self.experts] = 1
            ops.scales_were_old(self.values)
            ops.scales_belong(self.values, None, True)

    def resume(self, steps: int, values: torch.Tensor) -> None:
        """Goes on from a state that belongs to the contents which the next call finds."""
        self.values.copy_(values)
        self.steps = steps
        self._choose()
        ops.maxima_recorded(self.values)
        ops.scales_were_old(self.values)
        layer = None if self.layer is None else self.layer()
        weight = None if layer is None else layer.weight
        self.follow(weight if weight is not None and is_sharded(weight) else None)

    def leave_old(self) -> None:
        """Forgets the steps before this one, if the weight has other contents since."""
        if not ops.scales_were_old(self.values):
            return
        count, rows = self.experts, self.recipe.history * self.experts
        for first in (2 * count, 2 * count + rows):
            self.values[first + count : first + rows].zero_()
        self.steps = 0

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
        """The factors of x and dy when they are quantised: float32 [2], of ``Experts`` [2, experts]."""
        if self.values is None:
            return None
        scales = self.values[: 2 * self.experts]
        return scales if self.experts == 1 else scales.view(2, self.experts)

    @property
    def latest(self) -> list[torch.Tensor]:
        """Maxima of this step: views [experts] of x and of dy."""
        count, second = self.experts, (2 + self.recipe.history) * self.experts
        return [self.values[2 * count : 3 * count], self.values[second : second + count]]

    @property
    def is_due(self) -> bool:
        """Whether a call has recorded a maximum since this was last asked."""
        return self.is_real and ops.maxima_recorded(self.values)

    @property
    def is_real(self) -> bool:
        """Whether ``values`` is in memory: not on the meta device, and not traced."""
        return type(self.values) is torch.Tensor and self.values.device.type != "meta"

    def move_on(self) -> None:
        """Counts a step, after its update."""
        self.steps += 1
        self._choose()


def is_sharded(weight: torch.Tensor) -> bool:
    """Returns whether a weight is a DTensor, as FSDP2 makes them."""
    return hasattr(weight, "to_local")


def _contents(weight: torch.Tensor) -> _Shard:
    local = weight._local_tensor  # to_local() would take part in autograd
    return _Shard(weakref.ref(local), tuple(-1 if t.is_inference() else t._version for t in (weight, local)))


def is_capturing(device: torch.device) -> bool:
    """Returns whether the current stream is captured into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _reduce(states: list[Scaling], group: torch.distributed.ProcessGroup) -> None:
    """Raises this step's maxima to the largest of the group, in one reduction."""
    views = [view for state in states for view in state.latest]
    joined = torch.cat(views)
    torch.distributed.all_reduce(joined, torch.distributed.ReduceOp.MAX, group)
    torch._foreach_copy_(views, list(joined.split([view.numel() for view in views])))


def _update(states: list[Scaling], stepped: set[int] | None = None) -> int:
    """Ends a step. stepped: the ids of the parameters that it has written, by default all weights."""
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
    for state in due:
        state.leave_old()
    _launch(due)
    for state in due:
        state.move_on()
    ended = set(map(id, due))
    for state in states:
        layer = None if state.layer is None else state.layer()
        weight = None if layer is None else layer.weight
        if weight is not None and (stepped is None or id(weight) in stepped):
            state.follow(weight)
        elif id(state) in ended:
            state.follow(None)  # others write it, such as from a master
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

    Every step of a ``torch.optim`` optimizer does it for all models, in a CUDA graph at each replay. Call it after
    other optimizers, and after steps that torch.compile has compiled. All calls with gradients between two updates
    (microbatches, and the recomputation of activation checkpointing) raise one maximum for each operand. A layer
    without such a call since its last update does not change, so several optimizers of a model count as one step. New
    scales are computed on the device, on the current stream, and the host does not wait. During the first
    ``recipe.warmup`` updates layers scale by the tensors' own maxima; the switch compiles a compiled model again. Not
    thread-safe: no other thread may call the layers meanwhile.
    """
    return _update(_states_of(model))


def reduce_scales(model: nn.Module, group: torch.distributed.ProcessGroup | None = None) -> int:
    """Makes the ranks of ``group``, by default all, share the scales of the model's layers of recipe "delayed". From
    now on every update first takes the largest maxima of the ranks, in one reduction for all layers of a group. All
    ranks must update at the same steps. Returns the number of layers. Call it again for copies of the model."""
    states = _states_of(model)
    if not torch.distributed.is_initialized():
        raise RuntimeError("octile: reduce_scales needs torch.distributed.init_process_group")
    if not states:
        raise refuse("model", type(model).__name__, "is a model with layers of recipe 'delayed'")
    for state in states:
        state.group, state.turn = torch.distributed.group.WORLD if group is None else group, next(_turns)
    return len(states)


def _after_step(optimizer: torch.optim.Optimizer, *_) -> None:
    if _live and not torch.compiler.is_compiling():
        _update(list(_live), {id(parameter) for group in optimizer.param_groups for parameter in group["params"]})


register_optimizer_step_post_hook(_after_step)
