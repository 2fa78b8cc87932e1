"""Ranges of many weights, quantised step by step, each step in one launch: octile/pieces.h for tensors."""

from __future__ import annotations

import enum
import math
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch

from octile._types import TensorType, codes_shape, refuse, round_up
from octile.torch._operators import ops

#: Weights begin at multiples of this number of elements of a buffer.
ALIGN = 64


class Step(enum.IntEnum):
    """A step of octile/pieces.h."""

    AMAX = 1  #: raises the maxima by the ranges
    SCALES = 2  #: makes the scales of whole weights of the maxima
    CAST = 3  #: quantises the ranges
    TRANSPOSE = 4  #: makes the transposed copies of gathered codes


class Range(NamedTuple):
    """The range of a weight [rows, cols] that a rank holds."""

    shape: tuple[int, int]
    start: int  #: its first element in the weight
    x: torch.Tensor  #: its values, contiguous: bfloat16, float16 or float32
    at: int  #: where its codes begin in the buffer of codes


def laid_out(sizes: Sequence[int], align: int = ALIGN) -> tuple[list[int], int]:
    """Returns where parts of these sizes begin in a buffer, at multiples of ``align``, and how long it is."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end = round_up(end + size, align)
    return places, end


def via_bf16(master: torch.dtype, dtype: torch.dtype, argument: str, because: str = "") -> bool:
    """Returns whether masters are rounded to bfloat16 on the way to weights of ``dtype``. Raises ValueError for a dtype
    of which codes are not made."""
    if (master, dtype) == (torch.float32, torch.bfloat16):
        return True
    if dtype not in (master, torch.float32):
        others = torch.bfloat16 if master == torch.float32 else master
        raise refuse(argument, dtype, f"are torch.float32 and {others} with masters of {master} {because}".rstrip())
    return False


class Scales:
    """The maxima and the scales of all blocks of some weights, each in one float32 buffer."""

    def __init__(self, shapes: Sequence[tuple[int, int]], kind: TensorType, device: torch.device) -> None:
        self.kind, self.shapes = kind, [kind.scale_shape(*shape) for shape in shapes]
        self.places, length = laid_out([math.prod(shape) for shape in self.shapes])
        self.amax = torch.zeros(length, dtype=torch.float32, device=device)
        self.scales = torch.ones(length, dtype=torch.float32, device=device)

    def of(self, index: int) -> torch.Tensor:
        """Returns the scales of a weight, in the library's layout: a view of the buffer."""
        shape = self.shapes[index]
        return self.scales[self.places[index] :][: math.prod(shape)].view(shape)


class Transposed:
    """Where the step TRANSPOSE reads gathered codes, and writes the transposed copies of the weights."""

    def __init__(self, shapes: Sequence[tuple[int, int]], kind: TensorType, gathered: torch.Tensor, at: Sequence[int]):
        self.gathered, self.at = gathered, list(at)  #: uint8, and where each weight begins
        self.shapes = [codes_shape(*shape, True) for shape in shapes]
        self.places, length = laid_out([math.prod(shape) for shape in self.shapes])
        self.codes = torch.empty(length, dtype=torch.uint8, device=gathered.device)
        self.scales = Scales([(cols, rows) for rows, cols in shapes], kind, gathered.device)

    def of(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the codes [cols, roundup(rows, 16)], uint8, and the scales of a transposed weight."""
        shape = self.shapes[index]
        return self.codes[self.places[index] :][: math.prod(shape)].view(shape), self.scales.of(index)


class Pieces:
    """Pieces of weights of one type, whose steps are one launch each. They keep their tensors alive, whose addresses
    are those of every run.

    ranges: of each weight, all of one dtype and device. codes: uint8, the buffer that codes are written into.
    scales: those of the weights. via_bf16: float32 values are rounded to bfloat16 before anything else.
    """

    def __init__(
        self,
        ranges: Sequence[Range],
        codes: torch.Tensor,
        scales: Scales,
        via_bf16: bool = False,
        transposed: Transposed | None = None,
    ) -> None:
        self.count = len(ranges)
        self.buffers = [codes, scales.amax, scales.scales]
        columns = [[*r.shape, r.start, r.at, place, place] for r, place in zip(ranges, scales.places, strict=True)]
        if transposed is not None:
            self.buffers += [transposed.gathered, transposed.codes, transposed.scales.scales]
            for i, column in enumerate(columns):
                column += [transposed.at[i], transposed.places[i], transposed.scales.places[i]]
        table = torch.tensor(columns, dtype=torch.int64, device="cpu")
        token = ops.make_pieces([r.x for r in ranges], self.buffers, table, scales.kind.text, via_bf16)
        self._token = token
        weakref.finalize(self, ops.forget_pieces, token).atexit = False  # the driver may be gone by then

    def run(self, step: Step, first: int = 0, count: int | None = None) -> None:
        """Enqueues a step of ``count`` pieces from ``first`` on, by default of all."""
        ops.run_pieces(self.buffers, self._token, step, first, self.count - first if count is None else count)

    def quantize(self, group: torch.distributed.ProcessGroup | None) -> None:
        """Makes the scales of the whole weights, and the codes of the ranges: four launches and one reduction over the
        ranks of ``group``, by default all, each of which calls this. Without torch.distributed the ranges are whole."""
        amax = self.buffers[1]
        amax.zero_()
        self.run(Step.AMAX)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(amax, torch.distributed.ReduceOp.MAX, group)
        self.run(Step.SCALES)
        self.run(Step.CAST)
