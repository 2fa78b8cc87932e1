"""``ShardWeight``: a rank's part of a weight that FSDP2 gathers in FP8."""

from __future__ import annotations

import functools
import inspect
from typing import Protocol

import torch
from torch.utils._pytree import tree_map_only

from octile.torch.held_weight import HeldWeight


class Traveller(Protocol):
    """The owner of a shard: a weight that travels in FP8."""

    def codes(self) -> torch.Tensor:
        """Returns what FSDP2 gathers."""

    def gathered(self, codes: torch.Tensor, dtype: torch.dtype, out: HeldWeight | None) -> HeldWeight:
        """Returns the whole weight of gathered codes."""


class ShardWeight(torch.Tensor):
    """The master of a rank's rows of a weight: a plain tensor of the same memory, which FSDP2 asks for the data to
    gather.

    Operations see the plain tensor, and results are plain tensors, but for ``detach()`` and ``data``, and for the two
    operations by which FSDP2 pads a shard. A layer wraps the local tensor of each parameter that ``fully_shard`` makes,
    and of the ones that ``to_empty``, ``to`` and ``load_state_dict(assign=True)`` make of it.
    """

    plain: torch.Tensor
    traveller: Traveller

    @staticmethod
    def of(plain: torch.Tensor, traveller: Traveller) -> ShardWeight:
        """Returns the part of a traveller whose values are ``plain``."""
        made = torch.Tensor._make_subclass(ShardWeight, plain)
        made.plain, made.traveller = plain, traveller
        made.fsdp_pre_all_gather = _PreAllGather(traveller)
        return made

    def fsdp_post_all_gather(self, outputs, metadata, param_dtype, *, out=None):
        """Returns the whole weight, as FSDP2 asks: the codes are the memory that was gathered into."""
        weight = self.traveller.gathered(outputs[0], param_dtype, out)
        return None if out is not None else (weight, ())

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        writes, returns_written = _writes_of(function)
        written = [args[i] if i < len(args) else kwargs.get(name) for i, name in writes]
        result = function(*tree_map_only(ShardWeight, _plain, args), **tree_map_only(ShardWeight, _plain, kwargs))
        if function in _KEEP and type(args[0]) is ShardWeight:
            return ShardWeight.of(result, args[0].traveller)
        return written[0] if returns_written else result

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"ShardWeight({self.plain!r})"

    # Copies and pickles are plain tensors, which nobody needs this package for.

    def __deepcopy__(self, memo) -> torch.Tensor:
        return self.plain.clone()

    def __reduce_ex__(self, protocol):
        return self.plain.__reduce_ex__(protocol)


class _PreAllGather:
    """``fsdp_pre_all_gather``: FSDP2 asks for its signature before every call."""

    __signature__ = inspect.signature(lambda mesh, outer_size, outer_stride, module, mp_policy: None)

    def __init__(self, traveller: Traveller) -> None:
        self.traveller = traveller

    def __call__(self, mesh, outer_size, outer_stride, module, mp_policy) -> tuple[tuple[torch.Tensor], None]:
        return (self.traveller.codes(),), None


_ATEN = torch.ops.aten
_KEEP = frozenset((_ATEN.detach.default, _ATEN.alias.default, _ATEN.new_zeros.default, _ATEN.slice.Tensor))


def _plain(shard: ShardWeight) -> torch.Tensor:
    return shard.plain


@functools.cache
def _writes_of(function) -> tuple[list[tuple[int, str]], bool]:
    """Returns the arguments that an operation writes, and whether it returns the first of them."""
    arguments, returns = function._schema.arguments, function._schema.returns
    writes = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    is_returned = len(returns) == 1 and returns[0].alias_info is not None and returns[0].alias_info.is_write
    return writes, bool(writes) and is_returned


def gathered_weight(codes: torch.Tensor, scales: torch.Tensor, kind, dtype: torch.dtype) -> HeldWeight:
    """Returns a weight whose codes are uint8 of its shape in memory that was gathered into."""
    return HeldWeight(codes.view(torch.float8_e4m3fn), scales, kind, dtype)
