"""Keeps the FP8 copies of parameters, so that a weight is quantised once an optimizer step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from octile._types import wrong_type
from octile.torch._operators import ops
from octile.torch.held_weight import HeldWeight, Sharing
from octile.torch.schedule import layers_of

#: Which FP8 copies of a weight outlast a forward pass with gradients.
COPIES = ("none", "rowwise", "both")


class Rule(NamedTuple):
    """When the copies of a weight are used again."""

    trusted: bool = False  #: as ``trust_weights`` says
    copies: str = "both"  #: one of ``COPIES``


RULE = Rule()


@dataclass
class _Kept:
    """The record of a parameter: where its memory is, and the finaliser that forgets it when the parameter is gone."""

    address: int
    token: int
    gone: weakref.finalize
    rule: Rule
    shares_input: bool = False  # other weights have the same input
    is_part: bool = False  # of this rank: the memory is that of the local tensor


_kept: dict[int, _Kept] = {}  # by the parameter's id


def _known(parameter: torch.Tensor) -> list[_Kept | _Gathered]:
    return [known for known in (_kept.get(id(parameter)), _gathered.get(id(parameter))) if known is not None]


def kept(parameter: torch.Tensor) -> _Kept | _Gathered | Sharing | None:
    """Returns what is kept of a parameter."""
    if isinstance(parameter, HeldWeight):
        return parameter.sharing
    return _kept.get(id(parameter)) or _gathered.get(id(parameter))


def forget(parameter: torch.Tensor) -> None:
    """Forgets the copies of a parameter, so that nothing refers to it."""
    if id(parameter) in _kept:
        _kept[id(parameter)].gone()


def keep(parameter: torch.Tensor, rule: Rule = RULE, is_part: bool = False) -> None:
    """Lets calls with this parameter share its FP8 copies until its contents change, and frees them with it, or when
    it has other memory.

    Every forward pass sees if the contents have changed, whoever wrote them: those that PyTorch counted no write of are
    compared on the device, with a fingerprint of the contents that the copies were made from. ``trust_weights`` leaves
    that out. Parameters that are not plain tensors in memory, such as DTensors and those on the meta device, are not
    kept: they are quantised by each call. For what FSDP2 gathers from them see ``replaced``. is_part: the parameter is
    a DTensor whose local tensor calls are given. It is compared in any case, because PyTorch does not count all writes
    to it.
    """
    known = _kept.get(id(parameter))
    memory = parameter._local_tensor if is_part else parameter
    if not _is_plain(memory, torch.Tensor if is_part else nn.Parameter):
        if known is not None:
            known.gone()
        return
    address = memory.data_ptr()
    if known is not None:
        if known.address == address:
            obey(parameter, rule)
            return
        known.gone()
    token = ops.keep_weight(memory)
    gone = weakref.finalize(parameter, _forget, id(parameter), token)
    gone.atexit = False  # the driver may be gone by then
    _kept[id(parameter)] = _Kept(address, token, gone, RULE, is_part=is_part)
    obey(parameter, rule)


def follow(parameter: torch.Tensor) -> None:
    """Keeps a parameter that is kept where its memory is now, which is another once something else was assigned to
    ``parameter.data``."""
    known = _kept.get(id(parameter))
    if known is None:
        return
    memory = parameter._local_tensor if known.is_part else parameter
    if known.address != memory.data_ptr():
        keep(parameter, known.rule, known.is_part)


def obey(parameter: torch.Tensor, rule: Rule) -> None:
    """Lets the copies of a parameter be used by this rule."""
    for known in _known(parameter):
        if getattr(known, "is_part", False):
            rule = rule._replace(trusted=False)
        if known.rule.trusted != rule.trusted:
            ops.trust_weight(known.token, rule.trusted)
        if known.rule.copies != rule.copies:
            ops.keep_copies(known.token, COPIES.index(rule.copies))
        known.rule = rule


def trust_weights(model: nn.Module, trusted: bool = True) -> None:
    """Declares that writes to the weights of a model's FP8 layers are counted by PyTorch or reported.

    Their FP8 copies are then used without a comparison, in CUDA graphs too, until PyTorch has counted a write, a
    ``torch.optim`` optimizer that has the weight has made a step, ``load_state_dict`` was called, the layer was
    switched between ``train()`` and ``eval()``, or ``weights_changed()`` was called. Other writes are not detected,
    such as those to ``weight.data``, by collectives of ``torch.distributed``, or by a CUDA graph: call
    ``weights_changed()`` after them. ``trusted=False`` reverts it. Copies of the model are not trusted.

    Captured graphs detect changes that precede them in stream order: on the streams on which the optimizer made its
    step, or ``weights_changed()`` was called. An optimizer's step may be captured too. Each device supports 16,384
    trusted weights in graphs; replays quantise any others.
    """
    if not isinstance(trusted, bool):
        raise wrong_type("trusted", trusted, "bool")
    for layer in layers_of(model):
        layer.set_rule(trusted=trusted)


def let_swap(parameter: nn.Parameter | None) -> None:
    """Forgets the copies of a parameter that PyTorch is going to swap with another, if it is told to swap on
    conversion: it refuses tensors with weak references. ``keep`` knows it again."""
    if torch.__future__.get_swap_module_params_on_conversion():
        forget(parameter)


def replaced(before: nn.Parameter | None, after: nn.Parameter, rule: Rule = RULE) -> None:
    """Says that ``after`` is the weight of a layer now, and ``before`` was. FSDP2 puts a gathered weight in the place
    of its shards, and the shards back before it frees the gathered memory."""
    known = _gathered.get(id(before))
    if known is not None:
        ops.release_weight(before, known.token)
    if before is not None and _is_sharded(before) and (id(after) in _gathered or _is_plain(after)):
        _gather(after, before)
        obey(after, rule)
    else:
        keep(after, rule)


@dataclass
class _Gathered:
    """The source of a gathered weight: the local shard and its version at that time."""

    token: int
    shard: weakref.ref[torch.Tensor]
    version: int
    rule: Rule = RULE
    shares_input: bool = False


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


def _is_plain(parameter: torch.Tensor, kind: type[torch.Tensor] = nn.Parameter) -> bool:
    if type(parameter) is not kind or type(parameter.data) is not torch.Tensor:
        return False
    if parameter.layout is not torch.strided or parameter.is_nested:
        return False
    return parameter.device.type in ("cpu", "cuda") and parameter.numel() > 0 and not parameter.is_inference()


def _forget(identity: int, token: int) -> None:
    _kept.pop(identity, None)
    ops.forget_weight(token)


def weights_changed() -> None:
    """Reports writes to weights that PyTorch does not count: the next use of each trusted weight quantises it again.
    Replays detect this if they follow the current streams; see ``trust_weights``. It also applies to weights that
    ``octile.torch.distributed.shard_fp8`` gathers in FP8; then all ranks must call it."""
    ops.weights_changed()
    _tell_shardings()


class _Listener(Protocol):
    def weights_changed(self) -> None: ...


_shardings: weakref.WeakSet[_Listener] = weakref.WeakSet()


def when_weights_changed(listener: _Listener) -> None:
    """Lets ``weights_changed()``, and each step of an optimizer, tell an object, as long as it lives."""
    _shardings.add(listener)


def _tell_shardings() -> None:
    for sharding in list(_shardings):
        sharding.weights_changed()


def weight_changed(weight: torch.Tensor | None) -> None:
    """Says so of one weight, as far as it is trusted."""
    _changed([weight])


def _changed(parameters: Iterable[torch.Tensor]) -> None:
    trusted = [known.token for parameter in parameters for known in _known(parameter) if known.rule.trusted]
    for token in trusted:
        ops.weight_changed(token)
    if trusted:
        ops.replays_see_changes()


def _after_step(optimizer: torch.optim.Optimizer, *_) -> None:
    # A compiled step is traced, and counts its writes itself.
    if torch.compiler.is_compiling():
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    _changed(parameters)
    _tell_shardings()
    for parameter in parameters:
        follow(parameter)


register_optimizer_step_post_hook(_after_step)
