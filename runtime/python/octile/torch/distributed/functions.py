"""Linear layers of a tensor-parallel group, with their gradients: what is computed, sent and kept by each pass."""

from __future__ import annotations

from typing import NamedTuple

import torch

from octile.torch._operators import CODES, ops
from octile.torch.derivatives import once_differentiable
from octile.torch.distributed.operands import (
    DY,
    Copies,
    Operand,
    W,
    X,
    arrived,
    has_tensor_scales,
    quantize,
    send,
    weight_gradient,
)
from octile.torch.distributed.ranks import (
    Ranks,
    gather_tokens,
    rows_of,
    scatter_sum,
    total,
    whole_shape,
)

_NUMBERS = {dtype: number for number, dtype in CODES.items()}


class Arrivals:
    """The tensors that the backward passes of layers with the same input have gathered, until the last of them has read
    it."""

    def __init__(self) -> None:
        self.layers = 0  # that have this input
        self.readers = 0  # that have not read it
        self.whole: Operand | None = None


class Prepared(NamedTuple):
    """The input of layers that share the features: all ranks' tokens in FP8, and what backward needs of them."""

    ticket: torch.Tensor  #: stands for the whole input in autograd. It has its sizes, and no memory
    row: Operand
    kept: Operand  #: the transposed copy of this rank's tokens, or of all
    kept_is_whole: bool
    ranks: Ranks
    arrivals: Arrivals | None


class _Prepare(torch.autograd.Function):
    """Gathers a tensor as codes, or as it is if its blocks lie on several ranks. Its gradient is summed over the ranks,
    of which each keeps its tokens."""

    @staticmethod
    def forward(ctx, x, code, ranks, sends, keep):
        ctx.ranks = ranks
        if sends:
            made = quantize(x, code, X, ranks, True, keep)
            rows = rows_of(x, ranks)
            row, kept = arrived(send(made.row, rows, x.shape[-1], ranks, False), ranks), made.transposed
        else:
            made = quantize(gather_tokens(x, ranks), code, X, None, True, keep)
            row, kept = made.row, made.transposed
        # Any other reader sees that it is not an input.
        ticket = x.new_full((), torch.nan).expand(whole_shape(x, ranks, x.shape[-1]))
        ctx.mark_non_differentiable(*row, *kept)
        ctx.set_materialize_grads(False)
        return ticket, *row, *kept

    @staticmethod
    def backward(ctx, dx, *_):
        return None if dx is None else scatter_sum(dx, ctx.ranks), None, None, None, None


def prepare(x: torch.Tensor, code: int, ranks: Ranks, sends: bool, keep: bool) -> Prepared:
    """Quantises this rank's tokens x [..., k] and gathers all. sends: as codes; otherwise x is gathered and then
    quantised. keep: backward passes of weights follow."""
    ticket, *copies = _Prepare.apply(x, code, ranks, sends, keep)
    arrivals = None if torch.compiler.is_compiling() else Arrivals()
    return Prepared(ticket, Operand(*copies[:2]), Operand(*copies[2:]), not sends, ranks, arrivals)


class _Column(torch.autograd.Function):
    """A layer whose outputs the ranks divide. Its gradient of the input is this rank's part of a sum."""

    @staticmethod
    def forward(ctx, ticket, weight, bias, codes, scales, kept_codes, kept_scales, code, prepared):
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        held, w_scales = _weight_of(weight, code, prepared.ranks)
        like = _like(ticket, ticket.shape)  # the ticket itself would be given memory by a compiler
        y = ops.linear_forward(like, held, bias, code, False, needs_x, None, None, codes, scales, w_scales)[0]
        ctx.save_for_backward(weight, kept_codes, kept_scales, *_kept_weight(held, w_scales))
        ctx.code, ctx.ranks = code, prepared.ranks
        ctx.kept_is_whole, ctx.arrivals = prepared.kept_is_whole, prepared.arrivals
        ctx.bias_dtype = None if bias is None else bias.dtype
        if needs_weight and ctx.arrivals is not None:
            ctx.arrivals.layers += 1
            ctx.arrivals.readers += 1
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, saved, dy):
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        weight, code, ranks = saved[0], ctx.code, ctx.ranks
        coming = _coming(ctx, Operand(*saved[1:3]), dy, weight.shape[1]) if needs_weight else None
        made = quantize(dy, code, DY, ranks, needs_x, needs_weight, needs_bias)
        dx = _input_gradient(made.row, dy, weight, saved[3:], code) if needs_x else None
        dw = None
        if needs_weight:
            dw = weight_gradient(made.transposed, _here(ctx, coming), code, weight, dy.numel() // dy.shape[-1])
        return dx, dw, made.sums.to(ctx.bias_dtype) if needs_bias else None, *(None,) * 6


def column(prepared: Prepared, weight: torch.Tensor, bias: torch.Tensor | None, code: int) -> torch.Tensor:
    """Returns all tokens' x weight^T + bias: [..., n], of the input's dtype. weight: [n, k], this rank's rows."""
    copies = *prepared.row, *prepared.kept
    rest = Prepared(None, None, None, *prepared[3:])  # those that are not tensors
    return _Column.apply(prepared.ticket, weight, bias, *copies, code, rest)


def _coming(ctx, kept: Operand, dy: torch.Tensor, columns: int):
    """Starts to gather the transposed copy of the input, unless it is here."""
    if ctx.kept_is_whole:
        return kept
    arrivals = ctx.arrivals
    if arrivals is not None and arrivals.whole is not None:
        return arrivals.whole
    rows = rows_of(dy, ctx.ranks)
    return send(kept, rows._replace(inner=rows.inner // ctx.ranks.size), columns, ctx.ranks, True)


def _here(ctx, coming) -> Operand:
    """Returns the transposed copy, which the other layers with this input read too."""
    whole = coming if isinstance(coming, Operand) else arrived(coming, ctx.ranks)
    arrivals = ctx.arrivals
    if arrivals is not None and not ctx.kept_is_whole:
        arrivals.readers -= 1
        arrivals.whole = whole if arrivals.readers > 0 else None
        if arrivals.readers <= 0:
            arrivals.readers = arrivals.layers  # of another backward pass of the same graph
    return whole


class _Row(torch.autograd.Function):
    """A layer whose inputs the ranks divide. Its output is summed over the ranks, of which each keeps its tokens."""

    @staticmethod
    def forward(ctx, x, weight, bias, code, ranks, sends):
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        made = quantize(x, code, X, ranks, True, needs_weight)
        held, w_scales = _weight_of(weight, code, ranks)
        partial = ops.linear_forward(x, held, None, code, False, needs_x, None, None, *made.row, w_scales)[0]
        y = scatter_sum(partial, ranks)
        ctx.save_for_backward(weight, *made.transposed, *_kept_weight(held, w_scales))
        ctx.code, ctx.ranks, ctx.sends = code, ranks, sends
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y if bias is None else y + bias.to(y.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, saved, dy):
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        weight, code, ranks = saved[0], ctx.code, ctx.ranks
        made, row, transposed = _gradients_of_all(ctx, dy, needs_x, needs_weight, needs_bias)
        whole = _like(dy, whole_shape(dy, ranks, dy.shape[-1]))
        dx = dw = None
        if needs_x:
            dx = _input_gradient(row(), whole, weight, saved[3:], code)
        if needs_weight:
            dw = weight_gradient(transposed(), Operand(*saved[1:3]), code, weight, whole.numel() // whole.shape[-1])
        return dx, dw, total(made.sums, ranks).to(ctx.bias_dtype) if needs_bias else None, None, None, None


def _gradients_of_all(ctx, dy: torch.Tensor, needs_x: bool, needs_weight: bool, needs_bias: bool):
    """Returns this rank's copies of dY, and two functions that return those of all tokens. Both directions are sent,
    of which the second travels under the first product: a sixteenth of a byte an element more than bf16, and each rank
    quantises its own tokens only."""
    code, ranks = ctx.code, ctx.ranks
    if ctx.sends:
        made = quantize(dy, code, DY, ranks, needs_x, needs_weight, needs_bias)
        rows, n = rows_of(dy, ranks), dy.shape[-1]
        row = send(made.row, rows, n, ranks, False) if needs_x else None
        transposed = send(made.transposed, rows, n, ranks, True) if needs_weight else None
        return made, lambda: arrived(row, ranks), lambda: arrived(transposed, ranks)
    made = quantize(dy, code, DY, ranks, True, False, True) if needs_bias else None
    if not needs_x and not needs_weight:
        return made, None, None
    whole = quantize(gather_tokens(dy, ranks), code, DY, None, needs_x, needs_weight)
    return made, lambda: whole.row, lambda: whole.transposed


def row(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, code: int, ranks: Ranks, sends: bool
) -> torch.Tensor:
    """Returns this rank's tokens of x weight^T + bias: [..., n]. x: [..., k], all tokens; weight: [n, k], this rank's
    columns. sends: gradients are gathered as codes; otherwise as they are, and then quantised."""
    return _Row.apply(x, weight, bias, code, ranks, sends)


def _weight_of(weight: torch.Tensor, code: int, ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the weight as operators take it: itself, or codes with the scale of the whole weight."""
    if not has_tensor_scales(code):
        return weight, None
    made: Copies = quantize(weight, code, W, ranks, True, False)
    return made.row


def _like(x: torch.Tensor, shape) -> torch.Tensor:
    """Returns a tensor of these sizes, with x's dtype and device and no memory. Operators ask it nothing else."""
    return x.new_empty(()).expand(shape)


def _kept_weight(held: torch.Tensor, scales: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    return () if scales is None else (held, scales)


def _input_gradient(
    dy: Operand, like: torch.Tensor, weight: torch.Tensor, held: tuple[torch.Tensor, ...], code: int
) -> torch.Tensor:
    """Returns dX of dY's row-wise copy. like: has dX's leading sizes and dtype. held: the weight's codes and scale, if
    forward has made them."""
    nothing = like.new_empty(0, dtype=torch.uint8)
    codes, scales = held if held else (weight, None)
    copies = *dy, nothing, nothing, like, dy.codes.shape[1], 0, codes, nothing, nothing
    return ops.quantized_backward(*copies, code, True, False, None, scales, _NUMBERS[weight.dtype])[0]


class _Gather(torch.autograd.Function):
    """Gathers tokens as they are, for layers that compute without FP8."""

    @staticmethod
    def forward(ctx, x, ranks):
        ctx.ranks = ranks
        return gather_tokens(x, ranks)

    @staticmethod
    def backward(ctx, dx):
        return scatter_sum(dx, ctx.ranks), None


class _Scatter(torch.autograd.Function):
    """Sums over the ranks, of which each keeps its tokens."""

    @staticmethod
    def forward(ctx, y, ranks):
        ctx.ranks = ranks
        return scatter_sum(y, ranks)

    @staticmethod
    def backward(ctx, dy):
        return gather_tokens(dy, ctx.ranks), None


def plain_gather(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Returns all ranks' tokens of x."""
    return _Gather.apply(x, ranks)


def plain_scatter(y: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Returns this rank's tokens of the sum of the ranks' tensors."""
    return _Scatter.apply(y, ranks)
