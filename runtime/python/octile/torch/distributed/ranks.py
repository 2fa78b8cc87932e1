"""The traffic of the ranks of a tensor-parallel group, and where it lies afterwards."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist

_collectives = torch.ops._c10d_functional


class Ranks(NamedTuple):
    """A group of ranks that share the features of a layer and the tokens between layers."""

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
    """Returns the sizes of all ranks' tokens, with this number of features."""
    shape = [*x.shape[:-1], features]
    shape[ranks.dim] *= ranks.size
    return shape


class Gathering(NamedTuple):
    """Tensors of all ranks on their way: [ranks, ...] each."""

    tensors: list[torch.Tensor]
    work: dist.Work | None  #: what to wait for; None: PyTorch knows it by the tensors


def start_gather(tensors: list[torch.Tensor], ranks: Ranks) -> Gathering:
    """Starts to gather tensors, each of the same size on every rank."""
    if ranks.coalesced and not torch.compiler.is_compiling():
        return _start_at_once(tensors, ranks)
    flat = [tensor.reshape(1, -1) for tensor in tensors]
    if ranks.coalesced and len(flat) > 1:
        gathered = _collectives.all_gather_into_tensor_coalesced(flat, ranks.size, ranks.name)
    else:
        gathered = [_collectives.all_gather_into_tensor(tensor, ranks.size, ranks.name) for tensor in flat]
    wholes = [whole.view(ranks.size, *part.shape) for whole, part in zip(gathered, tensors, strict=True)]
    return Gathering(wholes, None)


def _start_at_once(tensors: list[torch.Tensor], ranks: Ranks) -> Gathering:
    """Asks the process group itself. The traceable form takes twice the host's time, which inputs of 4096 features
    wait for."""
    group = dist.distributed_c10d._resolve_process_group(ranks.name)
    wholes = [tensor.new_empty((ranks.size, *tensor.shape)) for tensor in tensors]
    parts, places = [tensor.reshape(-1) for tensor in tensors], [whole.view(-1) for whole in wholes]
    if len(parts) == 1:
        return Gathering(wholes, group._allgather_base(places[0], parts[0]))
    return Gathering(wholes, group.allgather_into_tensor_coalesced(places, parts))


def wait(gathering: Gathering) -> list[torch.Tensor]:
    """Lets the current stream wait until tensors have arrived, and returns them."""
    if gathering.work is None:
        return [_collectives.wait_tensor(tensor) for tensor in gathering.tensors]
    gathering.work.wait()
    return gathering.tensors


def gather_tokens(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Returns all ranks' tokens of x [..., features]."""
    (whole,) = wait(start_gather([x.contiguous()], ranks))
    if rows_of(x, ranks).outer > 1:
        whole = whole.movedim(0, ranks.dim)
    return whole.reshape(whole_shape(x, ranks, x.shape[-1]))


def start_scatter(partial: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Starts to add the ranks' tensors, and returns where this rank's tokens of the sum arrive, for ``wait_tensor``."""
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
    return _collectives.wait_tensor(start_scatter(partial, ranks))


def largest(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Returns the ranks' largest value."""
    return _collectives.wait_tensor(_collectives.all_reduce(value, "max", ranks.name))


def total(value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Returns the sum of the ranks' values."""
    return _collectives.wait_tensor(_collectives.all_reduce(value, "sum", ranks.name))
