"""What the ranks of a tensor-parallel group send each other, and where it lies afterwards."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist

_collectives = torch.ops._c10d_functional


class Ranks(NamedTuple):
    """A group of ranks that share the features of a layer and the tokens of what is between layers."""

    name: str  #: of the process group
    size: int
    dim: int  #: of activations, which each rank has a part of
    coalesced: bool  #: whether several tensors are gathered by one call


def ranks_of(group: dist.ProcessGroup, dim: int) -> Ranks:
    """Returns the ranks of a process group."""
    # gloo gathers several tensors of unequal sizes to wrong places.
    return Ranks(group.group_name, group.size(), dim, dist.get_backend(group) == "nccl")


class Rows(NamedTuple):
    """How a rank's tokens lie in a tensor [..., features]: ``outer`` times ``inner`` rows, where the ranks divide each
    run of ``inner`` of the whole."""

    outer: int
    inner: int

    @property
    def count(self) -> int:
        return self.outer * self.inner


def rows_of(x: torch.Tensor, ranks: Ranks) -> Rows:
    """Returns the rows of a rank's part."""
    return Rows(math.prod(x.shape[: ranks.dim]), math.prod(x.shape[ranks.dim : -1]))


def whole_shape(x: torch.Tensor, ranks: Ranks, features: int) -> list[int]:
    """Returns the sizes of all ranks' tokens, with so many features."""
    shape = [*x.shape[:-1], features]
    shape[ranks.dim] *= ranks.size
    return shape


def start_gather(tensors: list[torch.Tensor], ranks: Ranks) -> list[torch.Tensor]:
    """Starts to gather tensors, each of the same size on every rank, and returns where they arrive: [ranks, ...]. Each
    is to be given to ``wait`` before it is read."""
    flat = [tensor.reshape(1, -1) for tensor in tensors]
    if ranks.coalesced and len(flat) > 1:
        gathered = _collectives.all_gather_into_tensor_coalesced(flat, ranks.size, ranks.name)
    else:
        gathered = [_collectives.all_gather_into_tensor(tensor, ranks.size, ranks.name) for tensor in flat]
    return [whole.view(ranks.size, *part.shape) for whole, part in zip(gathered, tensors, strict=True)]


def wait(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Lets the current stream wait until tensors have arrived, and returns them."""
    return [_collectives.wait_tensor(tensor) for tensor in tensors]


def gather_tokens(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Returns all ranks' tokens of x [..., features]."""
    (whole,) = wait(start_gather([x.contiguous()], ranks))
    if rows_of(x, ranks).outer > 1:
        whole = whole.movedim(0, ranks.dim)
    return whole.reshape(whole_shape(x, ranks, x.shape[-1]))


def start_scatter(partial: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Starts to add the ranks' tensors, and returns where this rank's tokens of the sum arrive; see ``wait``."""
    if math.prod(partial.shape[: ranks.dim]) > 1:
        partial = torch.cat(partial.chunk(ranks.size, ranks.dim))
        shape = list(partial.shape)
        shape[0] //= ranks.size
    else:
        shape = list(partial.shape)
        shape[ranks.dim] //= ranks.size
    rows = partial.reshape(-1, partial.shape[-1])
    return _collectives.reduce_scatter_tensor(rows.contiguous(), "sum", ranks.size, ranks.name).view(shape)


def scatter_sum(partial: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Returns this rank's tokens of the sum of the ranks' tensors [..., features], added in their dtype."""
    return wait([start_scatter(partial, ranks)])[0]


def largest(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Returns the ranks' largest value."""
    return _collectives.wait_tensor(_collectives.all_reduce(value, "max", ranks.name))


def total(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Returns the sum of the ranks' values."""
    return _collectives.wait_tensor(_collectives.all_reduce(value, "sum", ranks.name))
