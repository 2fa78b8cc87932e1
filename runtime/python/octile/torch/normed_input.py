"""Inputs of layers that an RMS norm or a layer norm computed: backward makes their transposed FP8 copy again, from the
tensors that the norm keeps for its own backward. So nothing of such an input is kept."""

from __future__ import annotations

from typing import NamedTuple

import torch

from octile.torch._operators import ops
from octile.torch.compiled import constant
from octile.torch.derivatives import batched_by_loop
from octile.torch.shared_input import stream_of

#: Types of results that a quantiser rounds as the norm does.
TYPES = (torch.bfloat16, torch.float32)


class Readers:
    """The layers that read one result of a norm. In backward the first makes the copy, and the last frees it."""

    def __init__(self) -> None:
        self.count = self.left = 0
        self.key: tuple = ()
        self.copy: tuple[torch.Tensor, torch.Tensor] | None = None

    def copy_of(self, kept: tuple, code: int) -> tuple[torch.Tensor, torch.Tensor]:
        key = code, stream_of(kept[0])
        if self.copy is None or self.key != key:
            self.copy, self.key, self.left = _quantized(*kept, code=code), key, self.count
        made = self.copy
        self.left -= 1
        if self.left <= 0:
            self.copy = None
        return made


class Origin(NamedTuple):
    """The tensors that a norm computed its result from. None of it has gradients."""

    #: x, what each row is multiplied by, and a weight of x's type or of float32; of a layer norm also the rows' means,
    #: and a bias of x's type.
    kept: tuple[torch.Tensor, ...]
    readers: Readers | None  #: None while PyTorch traces, which merges equal calls


class _Result(NamedTuple):
    origin: Origin
    versions: tuple[int, int]  #: of the result and of x, as the norm left them


def remember(y: torch.Tensor, x: torch.Tensor, rstd, weight, mean=None, bias=None) -> torch.Tensor:
    """Returns y, the result of a norm of the last dimension, with a note of its origin if autograd records it. mean: of
    a layer norm, and bias too, if it has one."""
    if not (torch.is_grad_enabled() and y.requires_grad) or y.dtype not in TYPES:
        return y
    if torch.compiler.is_compiling():
        _trace_whole()
        y = _noted(y)
        y.octile_traced = (x, rstd, weight, *_of_layer_norm(weight, mean, bias))
    else:
        # Copies of the parameters, because FSDP may free the norm's before the layer's backward.
        weight, bias = (t.detach().clone() if t is not None and t.is_leaf else t for t in (weight, bias))
        kept = x, rstd, weight, *_of_layer_norm(weight, mean, bias)
        y.octile_result = _Result(Origin(tuple(t.detach() for t in kept), Readers()), (y._version, x._version))
    return y


def _of_layer_norm(weight, mean, bias) -> tuple[torch.Tensor, ...]:
    if mean is None:
        return ()
    return mean, torch.full_like(weight, -0.0) if bias is None else bias  # -0 leaves a product as it is


def origin_of(given: torch.Tensor, x: torch.Tensor) -> Origin | None:
    """Returns the origin of a layer's input, of which x is a cast or itself, or None if no norm computed it, or it or
    the norm's input has changed since. Each answer counts as a reader."""
    if x.dtype != given.dtype:
        return None
    if torch.compiler.is_compiling():
        traced = getattr(given, "octile_traced", None)
        if traced is None:
            return None
        _trace_whole()
        return Origin(_unchanged(given, *traced), None)
    result = getattr(given, "octile_result", None)
    if result is None or result.versions != (given._version, result.origin.kept[0]._version):
        return None
    result.origin.readers.count += 1
    return result.origin


def copy_of(readers: Readers | None, kept: tuple, code: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the transposed FP8 copy, codes and flat scales, of a norm's result. kept: as of ``Origin``."""
    return _quantized(*kept, code=code) if readers is None else readers.copy_of(kept, code)


def _quantized(x, rstd, weight, *of_layer_norm, code: int) -> tuple[torch.Tensor, torch.Tensor]:
    # A weight of float32 is that of a norm of a bfloat16 x which is computed in float32.
    return ops.quantize_normed(x.to(weight.dtype), rstd, weight, code, x.dtype == torch.bfloat16, *of_layer_norm)


@constant
def _trace_whole() -> None:
    """Lets torch.compile, which calls this while it traces, put the next two functions into its graph as they are. It
    does not know if a tensor has changed. AOTAutograd, which runs them, counts the changes of tensors that it traces."""
    for function in (_noted, _unchanged):
        torch.compiler.allow_in_graph(function)


def _noted(y: torch.Tensor) -> torch.Tensor:
    """Returns y as a tensor of this trace. A tensor of another trace may have been changed outside of this one."""
    y = y.view_as(y)
    y.octile_noted = y._version
    return y


def _unchanged(y, x, rstd, weight, *of_layer_norm) -> tuple[torch.Tensor, ...]:
    """Returns what is kept of y's origin. If y has changed, that is y itself, with ones and zeros that leave it so."""
    if getattr(y, "octile_noted", None) == y._version:
        return tuple(t.detach() for t in (x, rstd, weight, *of_layer_norm))
    zeros = tuple(torch.full_like(t, -0.0) for t in of_layer_norm)
    return y.detach(), torch.ones_like(rstd), torch.ones_like(weight), *zeros


batched_by_loop(ops.quantize_normed)
