"""``FlatShards``: ranks that hold ranges of one flat buffer of weights gather FP8 codes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from octile._types import is_integer, refuse, wrong_type
from octile.torch._arguments import FLOATS, FLOATS_TEXT, check_tensor
from octile.torch.distributed.agreement import check_ranks_agree
from octile.torch.distributed.pieces import Pieces, Range, Scales, via_bf16
from octile.torch.distributed.shard_weight import gathered_weight
from octile.torch.held_weight import HeldWeight, may_be_held
from octile.torch.recipes import Recipe, as_recipe


class FlatShards:
    """A rank's part of a flat buffer of weights in a sharded optimizer (ZeRO-1, as in Megatron), and the gather buffer
    of FP8 codes that all ranks fill.

        shards = FlatShards([w.shape for w in weights], start, master, gathered, recipe="blockwise", group=group)
        for layer, weight in zip(layers, shards.weights()):
            layer.weight = weight
        ...
        optimizer.step()  # writes master
        shards.quantize()
        dist.all_gather_into_tensor(gathered, shards.codes, group)

    shapes: (n, k) of every weight, multiples of 16, the same on all ranks. start: the rank's first element in the flat
    buffer. master: float32, bfloat16 or float16, contiguous, [length]: its elements from there on; a range may begin
    and end within a row, and be empty. gathered: uint8, contiguous, as long as the flat buffer, which may end in
    padding. recipe: "blockwise", "blockwise_hybrid" or "tensorwise". dtype: of the weights in layers and of gradients;
    if it is bfloat16, float32 masters are rounded to it first. offsets: where each weight begins in the flat buffer, by
    default without gaps. group: the ranks that hold its parts, by default all.

    Codes and scales have the bits of quantising the whole weights. No scale is sent. ``master`` is read and
    ``gathered`` written in place. Raises TypeError, ValueError and NotImplementedError for bad arguments.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        start: int,
        master: torch.Tensor,
        gathered: torch.Tensor,
        recipe: Recipe | str = "blockwise",
        *,
        dtype: torch.dtype = torch.bfloat16,
        offsets: Sequence[int] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        recipe = as_recipe(recipe)
        if not may_be_held(recipe):
            raise NotImplementedError(
                f"octile: recipe is {recipe.name!r}; allowed are those with one set of codes for both "
                "directions, 'blockwise', 'blockwise_hybrid' and 'tensorwise'"
            )
        self.shapes, self.kind, self.dtype, self.group = _sizes_of(shapes), recipe.weight, dtype, group
        self.start, self.master, self.gathered = start, master, gathered
        self.offsets = _offsets_of(self.shapes, offsets)
        _check_buffers(start, master, gathered, self.offsets, self.shapes)
        self._scales = Scales(self.shapes, self.kind, master.device)
        way = via_bf16(master.dtype, dtype, "dtype")
        self._pieces = Pieces(self._ranges(), gathered, self._scales, way)
        self._agreed = False

    @property
    def codes(self) -> torch.Tensor:
        """The rank's part of the gather buffer, uint8 [length]."""
        return self.gathered[self.start : self.start + self.master.numel()]

    @torch.no_grad()
    def quantize(self) -> None:
        """Makes the scales of the whole weights, and this rank's codes in the gather buffer. All ranks call it, after a
        step of the optimizer: four launches and one reduction of the maxima. The caller gathers the codes then, in
        buckets or at once. The first call raises ValueError on all ranks if their shapes or recipes differ."""
        if not self._agreed and dist.is_initialized():
            kind = f"{self.kind.text} by way of {self.dtype} from {self.master.dtype}"
            pairs = zip(self.offsets, self.shapes, strict=True)
            lines = [f"weight {i} of {list(shape)} at {at}, {kind}" for i, (at, shape) in enumerate(pairs)]
            check_ranks_agree(lines, "shapes", self.group, self.master.device)
            self._agreed = True
        self._pieces.quantize(self.group)

    def weights(self) -> list[HeldWeight]:
        """Returns the weights as parameters, whose codes are those of the gather buffer and whose scales are made by
        ``quantize``. Layers of the recipe compute with them, and backward makes the transposed codes and frees them.
        They are good from the first gather on, and follow later ones."""
        made = []
        for i, (at, (n, k)) in enumerate(zip(self.offsets, self.shapes, strict=True)):
            codes = self.gathered[at : at + n * k].view(n, k)
            made.append(nn.Parameter(gathered_weight(codes, self._scales.of(i), self.kind, self.dtype)))
        return made

    def _ranges(self) -> list[Range]:
        """Returns the part of each weight that the rank holds."""
        ranges, end = [], self.start + self.master.numel()
        for at, shape in zip(self.offsets, self.shapes, strict=True):
            first = min(max(at, self.start), end)
            last = max(first, min(at + math.prod(shape), end))
            begin = min(max(first - at, 0), math.prod(shape))
            ranges.append(Range(shape, begin, self.master[first - self.start : last - self.start], first))
        return ranges


def _sizes_of(shapes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    made = [tuple(shape) for shape in shapes]
    if not made:
        raise refuse("shapes", "empty", "are one (n, k) and more")
    for shape in made:
        if len(shape) != 2 or not all(is_integer(size, 1) and size % 16 == 0 for size in shape):
            raise refuse("shapes", shape, "are (n, k), multiples of 16 above 0")
    return made  # type: ignore[return-value]


def _offsets_of(shapes: list[tuple[int, int]], offsets: Sequence[int] | None) -> list[int]:
    if offsets is None:
        offsets, end = [], 0
        for shape in shapes:
            offsets.append(end)
            end += math.prod(shape)
    offsets = list(offsets)
    if len(offsets) != len(shapes) or not all(is_integer(at, 0) for at in offsets):
        raise refuse("offsets", offsets, f"are {len(shapes)} integers from 0 on, one for each of shapes")
    order = sorted(range(len(shapes)), key=offsets.__getitem__)
    for i, j in itertools.pairwise(order):
        if offsets[i] + math.prod(shapes[i]) > offsets[j]:
            raise refuse("offsets", offsets, f"are those of weights that do not overlap, as {i} and {j} do")
    return offsets


def _check_buffers(start: int, master, gathered, offsets: list[int], shapes: list[tuple[int, int]]) -> None:
    check_tensor(master, "master")
    check_tensor(gathered, "gathered")
    if master.dtype not in FLOATS:
        raise refuse("master.dtype", master.dtype, FLOATS_TEXT)
    for name, tensor in (("master", master), ("gathered", gathered)):
        if tensor.dim() != 1 or not tensor.is_contiguous():
            raise refuse(name, tuple(tensor.shape), "is contiguous, of one dimension")
    if gathered.dtype != torch.uint8:
        raise refuse("gathered.dtype", gathered.dtype, "is torch.uint8")
    if gathered.device != master.device:
        raise refuse("gathered.device", str(gathered.device), f"is that of master, {str(master.device)!r}")
    if not is_integer(start):
        raise wrong_type("start", start, "int")
    if not 0 <= start <= gathered.numel() - master.numel():
        most = gathered.numel() - master.numel()
        raise refuse("start", start, f"are 0 to {most}, so that master ends within gathered")
    end = max(at + math.prod(shape) for at, shape in zip(offsets, shapes, strict=True))
    if end > gathered.numel():
        raise refuse("gathered", tuple(gathered.shape), f"has at least {end} elements, where the last weight ends")
