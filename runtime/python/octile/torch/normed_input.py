"""Inputs of layers that an RMS norm computed: backward makes their transposed FP8 copy again, from what the norm keeps
for its own backward. So nothing of such an input is kept."""

from __future__ import annotations

from typing import NamedTuple

import torch

from octile.torch._operators import ops
from octile.torch.compiled import constant
from octile.torch.derivatives import batched_by_loop
from octile.torch.shared_input import stream_of

#: Of results that a quantiser rounds as the norm does.
TYPES = (torch.bfloat16, torch.float32)


class Readers:
    """The layers that read one result of a norm. In backward the first makes the copy, and the last frees it."""

    def __init__(self) -> None:
        self.count = self.left = 0
        self.key: tuple = ()
        self.copy: tuple[torch.Tensor, torch.Tensor] | None = None

    def copy_of(self, x, rstd, weight, code: int) -> tuple[torch.Tensor, torch.Tensor]:
        key = code, stream_of(x)
        if self.copy is None or self.key != key:
            self.copy, self.key, self.left = _quantized(x, rstd, weight, code), key, self.count
        made = self.copy
        self.left -= 1
        if self.left <= 0:
            self.copy = None
        return made


class Origin(NamedTuple):
    """What a norm computed its result from: x, 1 / rms of each row, and a weight of x's type or of float32. None of
    them has gradients."""

    x: torch.Tensor
    rstd: torch.Tensor
    weight: torch.Tensor
    readers: Readers | None  #: None while PyTorch traces, which merges equal calls


class _Result(NamedTuple):
    origin: Origin
    version: int  #: of the result, as the norm left it


def remember(y: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Returns y, the result of a norm of the last dimension, with a note of its origin if autograd records it."""
    if not (torch.is_grad_enabled() and y.requires_grad) or y.dtype not in TYPES:
        return y
    if torch.compiler.is_compiling():
        _trace_whole()
        y = _noted(y)
        y.octile_traced = (x, rstd, weight)
    else:
        # A copy of the weight, because FSDP may free the norm's before the layer's backward.
        weight = weight.detach().clone() if weight.is_leaf else weight.detach()
        y.octile_result = _Result(Origin(x.detach(), rstd, weight, Readers()), y._version)
    return y


def origin_of(given: torch.Tensor, x: torch.Tensor) -> Origin | None:
    """Returns the origin of a layer's input, of which x is a cast or itself, or None if no norm computed it, or it has
    changed since. Each answer counts as a reader."""
    if x.dtype != given.dtype:
        return None
    if torch.compiler.is_compiling():
        traced = getattr(given, "octile_traced", None)
        if traced is None:
            return None
        _trace_whole()
        return Origin(*_unchanged(given, *traced), None)
    result = getattr(given, "octile_result", None)
    if result is None or result.version != given._version:
        return None
    result.origin.readers.count += 1
    return result.origin


def copy_of(readers: Readers | None, x, rstd, weight, code: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the transposed FP8 copy, codes and flat scales, of a norm's result."""
    if readers is None:
        return _quantized(x, rstd, weight, code)
    return readers.copy_of(x, rstd, weight, code)


def _quantized(x, rstd, weight, code: int) -> tuple[torch.Tensor, torch.Tensor]:
    # A weight of float32 is that of a norm of a bfloat16 x which is computed in float32.
    return ops.quantize_normed(x.to(weight.dtype), rstd, weight, code, x.dtype == torch.bfloat16)


@constant
def _trace_whole() -> None:
    """Lets torch.compile, which calls this while it traces, put the next two functions into its graph as they are. It
    does not know if a tensor has changed. AOTAutograd, which runs them, counts the changes of tensors that it traces."""
    for function in (_noted, _unchanged):
        torch.compiler.allow_in_graph(function)


def _noted(y: torch.Tensor) -> torch.Tensor:
    """Returns y as a tensor of this trace. That of another may have been changed outside of this one."""
    y = y.view_as(y)
    y.octile_noted = y._version
    return y


def _unchanged(y, x, rstd, weight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the origin of y, which is y itself and ones if it has changed."""
    if getattr(y, "octile_noted", None) == y._version:
        return x.detach(), rstd.detach(), weight.detach()
    return y.detach(), torch.ones_like(rstd), torch.ones_like(weight)


batched_by_loop(ops.quantize_normed)
