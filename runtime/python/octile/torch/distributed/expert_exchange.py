"""How rows get to the ranks that have their experts, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from octile.torch._arguments import FLOATS

_DTYPES = tuple(FLOATS)


@dataclass(frozen=True)
class Spread:
    """Experts that lie on the ranks of a group: rank r has those from ``r * local`` on."""

    group: dist.ProcessGroup
    experts: int  #: of all ranks
    columns: int  #: of a row of their input, and of their result
    forward: Callable[..., torch.Tensor]  #: of the module
    fp8: bool  #: rows travel as FP8 messages
    why_not: str = ""  #: why they do not

    def __deepcopy__(self, memo) -> Spread:
        return self

    @property
    def ranks(self) -> int:
        return self.group.size()

    @property
    def local(self) -> int:
        """Experts of a rank."""
        return self.experts // self.ranks


class Call(NamedTuple):
    """The properties of a call that all ranks share."""

    fp8: bool
    columns: int
    dtype: torch.dtype
    input_gradient: bool
    gradients: bool  #: autograd records the call

    def words(self) -> list[int]:
        numbers = self.fp8, self.columns, _DTYPES.index(self.dtype), self.input_gradient, self.gradients
        return [int(number) for number in numbers]

    @staticmethod
    def of(words: list[int]) -> Call:
        fp8, columns, dtype, *gradients = words
        return Call(bool(fp8), columns, _DTYPES[dtype], *map(bool, gradients))

    def __str__(self) -> str:
        sent = "in FP8" if self.fp8 else f"as {self.dtype}"
        gradients = ("with" if self.gradients else "without") + " gradients"
        return f"{self.columns} columns of {self.dtype} {sent}, {gradients}" + ", of x too" * self.input_gradient


class Way(NamedTuple):
    """Where the rows of a call go. Rows arrive from rank after rank, each rank's in the order of its experts."""

    group: dist.ProcessGroup
    sent: list[int]  #: rows to each rank
    received: list[int]  #: rows from each rank
    index: torch.Tensor  #: int32 [received rows]: where the rows arrived, in the order of experts
    places: torch.Tensor  #: int32 [received rows]: the inverse
    offsets: torch.Tensor  #: int32 [local experts + 1]

    @property
    def rows(self) -> int:
        """Rows that this rank sends."""
        return sum(self.sent)


def find_way(spread: Spread, counts: torch.Tensor, call: Call, refused: Exception | None = None) -> Way:
    """Returns the way of a call's rows, which lie in the order of the experts. counts: integers [all experts], the rows
    of each, on the device. Every rank calls this, and waits once for the device.

    refused: why this rank cannot make the call; it is raised behind the exchange, and the other ranks raise too.
    """
    numbers = [0 if refused is None else 1, *call.words()]
    head = counts.new_tensor(numbers, dtype=torch.int64).expand(spread.ranks, -1)
    sent = torch.cat([head, counts.to(torch.int64).view(spread.ranks, -1)], 1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=spread.group)
    table = torch.stack([sent, received]).tolist()
    if refused is not None:
        raise refused
    _check_heads([row[: len(numbers)] for row in table[1]], call)
    of_ranks = [[sum(row[len(numbers) :]) for row in rows] for rows in table]
    return Way(spread.group, *of_ranks, *_orders(received[:, len(numbers) :], sum(of_ranks[1])))


def _check_heads(heads: list[list[int]], call: Call) -> None:
    for rank, (refused, *words) in enumerate(heads):
        if refused:
            raise RuntimeError(f"octile: rank {rank} of the expert-parallel group refused this call of experts")
        if words != call.words():
            raise RuntimeError(
                f"octile: rank {rank} of the expert-parallel group calls its experts with {Call.of(words)}, and this "
                f"rank with {call}; allowed are equal calls on all ranks"
            )


def _orders(counts: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns index, places and offsets. counts: [ranks, local experts]. rows: their sum."""
    arrived = counts.reshape(-1).cumsum(0).view_as(counts) - counts
    by_expert = counts.t().reshape(-1)
    ends = by_expert.cumsum(0)
    shifts = arrived.t().reshape(-1) - (ends - by_expert)
    numbers = torch.arange(rows, device=counts.device)
    index = torch.repeat_interleave(shifts, by_expert, output_size=rows) + numbers
    places = torch.empty_like(index).scatter_(0, index, numbers)
    offsets = torch.nn.functional.pad(ends[counts.shape[0] - 1 :: counts.shape[0]], (1, 0)).to(torch.int32)
    return index.to(torch.int32), places.to(torch.int32), offsets


def exchange(rows: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the rows that the ranks of a group send to this one, of rows [sum of sent, columns]."""
    data = rows.contiguous().view(torch.uint8)
    result = data.new_empty((sum(received), data.shape[1]))
    dist.all_to_all_single(result, data, received, sent, group=group)
    return result.view(rows.dtype)


def to_experts(rows: torch.Tensor, way: Way) -> torch.Tensor:
    """Returns what the rows of all ranks are for this rank's experts, as they arrive."""
    return exchange(rows, way.sent, way.received, way.group)


def to_sources(rows: torch.Tensor, way: Way) -> torch.Tensor:
    """Returns the rows of this rank's tokens, of rows in the order of every rank's experts."""
    return exchange(rows.index_select(0, way.places), way.received, way.sent, way.group)
