"""Keeps the FP8 copies of parameters, so that a weight is quantised once an optimizer step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from octile.torch._operators import ops

# What is kept of each parameter, by id: the address of its memory, and what forgets it when the parameter is gone.
_kept: dict[int, tuple[int, weakref.finalize]] = {}


def keep(parameter: torch.Tensor) -> None:
    """Lets calls with this parameter share its FP8 copies until its contents change, and frees them with it.

    Contents change by writes in place, which PyTorch counts, and by every step of a ``torch.optim`` optimizer. After
    writes that PyTorch does not see (to ``parameter.data``, or from other libraries) call ``weights_changed()``.
    Parameters that are no plain tensors in memory, such as DTensors and those on the meta device, are not kept: they
    are quantised by each call. For what FSDP2 gathers from them see ``replaced``.
    """
    if not _is_plain(parameter):
        return
    address = parameter.data_ptr()
    known = _kept.get(id(parameter))
    if known is not None:
        if known[0] == address:
            return
        known[1]()
    token = ops.keep_weight(parameter)
    gone = weakref.finalize(parameter, _forget, id(parameter), token)
    gone.atexit = False  # the driver may be gone by then
    _kept[id(parameter)] = (address, gone)


def let_swap(parameter: nn.Parameter | None) -> None:
    """Forgets the copies of a parameter that PyTorch is going to swap with another, if it is told to swap on
    conversion: it refuses tensors with weak references. ``keep`` knows it again."""
    if torch.__future__.get_swap_module_params_on_conversion() and id(parameter) in _kept:
        _kept[id(parameter)][1]()


def replaced(before: nn.Parameter | None, after: nn.Parameter) -> None:
    """Says that ``after`` is the weight of a layer now, and ``before`` was. FSDP2 puts a gathered weight in the place
    of its shards, and the shards back before it frees the gathered memory."""
    known = _gathered.get(id(before))
    if known is not None:
        ops.release_weight(before, known.token)
    if before is not None and _is_sharded(before) and (id(after) in _gathered or _is_plain(after)):
        _gather(after, before)
    else:
        keep(after)


@dataclass
class _Gathered:
    """What a gathered weight is made from: the local shard and its version at that time."""

    token: int
    shard: weakref.ref[torch.Tensor]
    version: int


_gathered: dict[int, _Gathered] = {}  # by the gathered parameter's id, which is the same each time


def _is_sharded(parameter: nn.Parameter) -> bool:
    return type(parameter) is not nn.Parameter and hasattr(parameter, "to_local")


def _gather(parameter: nn.Parameter, shards: nn.Parameter) -> None:
    shard = getattr(shards, "_local_tensor", shards)  # to_local() would take part in autograd
    version = -1 if shard.is_inference() else shard._version
    known = _gathered.get(id(parameter))
    if known is None:
        known = _gathered[id(parameter)] = _Gathered(0, weakref.ref(shard), -1)
    same = known.shard() is shard and known.version == version >= 0
    token = ops.gather_weight(parameter, known.token, same)
    if known.token == 0:
        gone = weakref.finalize(parameter, _forget_gathered, id(parameter), token)
        gone.atexit = False
    known.token, known.shard, known.version = token, weakref.ref(shard), version


def _forget_gathered(identity: int, token: int) -> None:
    _gathered.pop(identity, None)
    ops.forget_weight(token)


def _is_plain(parameter: torch.Tensor) -> bool:
    if type(parameter) is not nn.Parameter or type(parameter.data) is not torch.Tensor:
        return False
    return parameter.device.type in ("cpu", "cuda") and parameter.numel() > 0 and not parameter.is_inference()


def _forget(identity: int, token: int) -> None:
    _kept.pop(identity, None)
    ops.forget_weight(token)


def weights_changed() -> None:
    """Says that weights were written where PyTorch does not count it: the next use of each quantises it again. Replays
    that share weights see it if they run behind the current streams; see ``replays_share_weights``."""
    ops.weights_changed()


@contextmanager
def replays_share_weights() -> Iterator[None]:
    """Lets the CUDA graphs captured inside share the FP8 copies of kept weights: their replays quantise a weight once
    between two changes of its contents, not once each.

    >>> with octile.torch.replays_share_weights(), torch.cuda.graph(graph):
    ...     loss = model(x).sum()
    ...     loss.backward()

    A change is a step of a ``torch.optim`` optimizer, eager or in a graph of its own or in this one,
    ``load_state_dict``, a switch between ``train()`` and ``eval()``, or ``weights_changed()``. Replays do not see other
    writes, such as ``weight.copy_()`` between two replays: call ``weights_changed()`` after them, on a stream that the
    next replay runs behind. So must the optimizer's. Each device has room for 16,384 such weights; those beyond are
    quantised by every replay, as all are without this.
    """
    ops.share_weights(True)
    try:
        yield
    finally:
        ops.share_weights(False)


def _after_step(*_) -> None:
    # A compiled step is traced, and counts its writes itself.
    if not torch.compiler.is_compiling():
        ops.weights_changed()


register_optimizer_step_post_hook(_after_step)
