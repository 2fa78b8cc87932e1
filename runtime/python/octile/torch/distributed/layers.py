"""FP8 layers of which every rank of a group has a part. ``tensor_parallel`` makes them of ``octile.torch.Linear``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from octile._types import refuse
from octile.torch._arguments import check_tensor
from octile.torch.calls import FP8
from octile.torch.distributed.functions import Prepared, column, plain_gather, plain_scatter, prepare, row
from octile.torch.distributed.operands import BLOCK, can_send
from octile.torch.distributed.ranks import Ranks, rows_of
from octile.torch.gated_modules import FusedMlp
from octile.torch.functional import as_operands, plain_linear
from octile.torch.modules import Linear
from octile.torch.specialised import Specialised, restore, specialise
from octile.torch.weights import keep


class ShardedLinear(Linear):
    """An ``octile.torch.Linear`` whose weight is a DTensor. in_features and out_features are those of the whole."""

    word: str
    divided: str  #: the features of which each rank has a part
    weight_placement: Shard
    bias_placement: Shard | Replicate
    ranks: Ranks
    wire: str
    sent: str  #: how the last call sent activations
    is_gathered: bool  #: whether FSDP2 gathers the part of a rank

    @classmethod
    def take_over(cls, linear: Linear, ranks: Ranks, wire: str) -> None:
        """Makes a layer one of this class, before its parameters are divided."""
        linear.__class__ = cls
        linear.__dict__.update(ranks=ranks, wire=wire, sent="not sent yet", is_gathered=False, _given=None)

    def _weight_is(self, weight: nn.Parameter, before: nn.Parameter | None = None) -> None:
        super()._weight_is(weight, before)
        if not isinstance(weight, DTensor):
            return
        if weight.device_mesh.ndim > 1:  # FSDP2 has divided the parts again, and gathers them into memory that it frees
            self.__dict__["is_gathered"] = True
        elif not self.is_gathered:
            keep(weight, self._rule, is_part=True)

    def computed_shape(self) -> tuple[int, int]:
        n, k = super().computed_shape()
        return (n // self.ranks.size, k) if self.divided == "out_features" else (n, k // self.ranks.size)

    def _operands(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns x in autocast's dtype, and this rank's parts of weight and bias."""
        weight = self.weight.to_local()
        bias = None if self.bias is None else self.bias.to_local()
        x, bias = as_operands(x, weight, bias)
        return x, weight, bias

    def _computes_plain(self, x: torch.Tensor, ranks: int) -> bool:
        """Returns whether a call with x on each of this number of ranks computes without FP8."""
        if self._watch is not None:
            raise NotImplementedError(
                "octile: a sentry watches a tensor-parallel layer, whose products it does not see; sentries are of "
                "models without such layers"
            )
        if not torch.compiler.is_compiling() and getattr(self.weight, "main_grad", None) is not None:
            raise NotImplementedError(
                "octile: weight.main_grad of a tensor-parallel layer is set; its gradient goes to weight.grad alone, so "
                "the attribute must be absent or None"
            )
        least = self.least_tokens_now()
        plain = self._is_plain() or (least > 0 and x.numel() * ranks < least * x.shape[-1])
        if plain:
            self._note_plain()
        elif not torch.compiler.is_compiling():
            self._calls[FP8] += 1
        return plain

    def local_input(self, x: torch.Tensor, features: int) -> torch.Tensor:
        """Returns this rank's part of x, checked. What PyTorch's own styles return may be a DTensor."""
        check_tensor(x, "x")
        if isinstance(x, DTensor):
            x = x.to_local()
        if x.dim() < 2 or x.dim() - 1 <= self.ranks.dim:
            raise refuse("x.dim()", x.dim(), f"are {max(2, self.ranks.dim + 2)} and more, by sequence_dim")
        if x.shape[-1] != features:
            raise refuse("x.shape", tuple(x.shape), f"is [..., {features}]")
        return x

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.word} of {self.ranks.size} ranks"


def way_of(x: torch.Tensor, ranks: Ranks, wire: str) -> tuple[bool, str]:
    """Returns whether this rank's tokens x are sent as FP8 codes, and how a report says it."""
    if wire == "bf16":
        return False, "sent as they are, as wire says"
    rows = rows_of(x, ranks)
    if can_send(rows):
        return True, "sent in FP8"
    return False, f"sent as they are: {rows.inner} tokens on each rank are not a multiple of {BLOCK}"


class Whole(NamedTuple):
    """An input that was gathered as it is, for layers that compute without FP8."""

    x: torch.Tensor


def gather_input(x: torch.Tensor, layers: list[ColumnLinear], ranks: Ranks, wire: str) -> Prepared | Whole:
    """Gathers this rank's tokens x for all of these layers."""
    for layer in layers:
        if layer._code != layers[0]._code or layer.ranks != ranks or layer.wire != wire:
            allowed = "is the same for all layers with this input: recipe, mesh, sequence_dim and wire"
            raise refuse("OctileColwiseParallel", (layer.recipe.name, layer.ranks, layer.wire), allowed)
    if any(layer._computes_plain(x, ranks.size) for layer in layers):
        for layer in layers:
            layer.sent = "sent as they are, computed without FP8"
        return Whole(plain_gather(as_operands(x, None, None)[0], ranks))
    x = as_operands(x, None, None)[0]
    sends, text = way_of(x, ranks, wire)
    keep = torch.is_grad_enabled() and any(layer.weight.requires_grad for layer in layers)
    for layer in layers:
        layer.sent = text
    return prepare(x, layers[0]._code, ranks, sends, keep)


class ColumnLinear(ShardedLinear):
    """Each rank has a part of the outputs; see ``OctileColwiseParallel``."""

    word = "column"
    divided = "out_features"
    weight_placement = bias_placement = Shard(0)
    _given: Prepared | Whole | None  # by the module that calls the layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns all tokens of this rank's outputs, of this rank's tokens x, or of the tensor that
        ``OctilePrepareInput`` made of them."""
        x = self.local_input(x, self.in_features)
        given = self._given
        if given is None:
            given = gather_input(x, [self], self.ranks, self.wire)
        elif not is_given(x, given):
            allowed = "is the tensor that OctilePrepareInput gives to the module that calls this layer"
            raise refuse("x", f"another tensor of {tuple(x.shape)}", allowed)
        if isinstance(given, Whole):
            return plain_linear(given.x, *self._operands(given.x)[1:])
        _, weight, bias = self._operands(given.ticket)
        ticket = given.ticket if self._given is None else x  # the one that has been through the module
        return column(given._replace(ticket=ticket), weight, bias, self._code)


def is_given(x: torch.Tensor, given: Prepared | Whole) -> bool:
    """Returns whether x stands for the gathered tensor. Views and what autograd makes of it count."""
    if isinstance(given, Whole):
        return x.shape == given.x.shape
    # torch.compile gives results of autograd functions strides of its own.
    return x.shape == given.ticket.shape and (torch.compiler.is_compiling() or not any(x.stride()))


class RowLinear(ShardedLinear):
    """Each rank has a part of the inputs; see ``OctileRowwiseParallel``."""

    word = "row"
    divided = "in_features"
    weight_placement = Shard(1)
    bias_placement = Replicate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns this rank's tokens of the output, of all tokens x of this rank's inputs."""
        x = self.local_input(x, self.in_features // self.ranks.size)
        dim, size = self.ranks.dim, self.ranks.size
        if x.shape[dim] % size:
            raise refuse("x.shape", tuple(x.shape), f"has a multiple of {size} in dimension {dim}, for {size} ranks")
        x, weight, bias = self._operands(x)
        if self._computes_plain(x, 1):
            self.sent = "sent as they are, computed without FP8"
            y = plain_scatter(plain_linear(x, weight, None), self.ranks)
            return y if bias is None else y + bias.to(y.dtype)
        sends, self.sent = way_of(x.narrow(dim, 0, x.shape[dim] // size), self.ranks, self.wire)
        return row(x, weight, bias, self._code, self.ranks, sends)


class PreparedModule(Specialised):
    """A module whose forward is called with the tensor that ``OctilePrepareInput`` makes of its input. A hook would not
    do, because torch.compile would leave a hook of the module that it is given out of its graph."""

    own = "_argument"
    _argument: int | str  #: of forward, by its place or name
    _ranks: Ranks
    _wire: str
    _was_fused: bool  #: an MLP whose activation a quantiser computed

    def fused_forward(self, kind: type, *inputs, **named):
        layers = [layer for layer in self.modules() if isinstance(layer, ColumnLinear)]
        if not layers:
            allowed = "is on a module of layers with OctileColwiseParallel"
            raise refuse("OctilePrepareInput", f"on a {kind.__name__}", allowed)
        place, count = self._argument, len(inputs)
        by_name = isinstance(place, str)
        if not (place in named if by_name else place < count):
            given = f"{count} by place, and {sorted(named)} by name"
            raise refuse("argument", place, f"is one that forward is given; it is given {given}")
        x = layers[0].local_input(named[place] if by_name else inputs[place], layers[0].in_features)
        given = gather_input(x, layers, self._ranks, self._wire)
        x = given.x if isinstance(given, Whole) else given.ticket
        if by_name:
            named = named | {place: x}
        else:
            inputs = (*inputs[:place], x, *inputs[place + 1 :])
        for layer in layers:
            layer._given = given
        try:
            return kind.forward(self, *inputs, **named)
        finally:
            for layer in layers:
                layer._given = None


def prepare_input(module: nn.Module, argument: int | str, ranks: Ranks, wire: str) -> None:
    """Lets a module be called with this rank's tokens, and gathers them for the layers below it. An MLP that computes
    as one function calls its layers again."""
    was_fused = isinstance(module, FusedMlp)
    restore(module)
    module.__dict__.update(_ranks=ranks, _wire=wire, _was_fused=was_fused)
    specialise(module, PreparedModule, argument)
