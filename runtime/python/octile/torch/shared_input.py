"""Layers that are called with the same input, such as q, k and v, quantise it once."""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple

import torch

from octile.torch._operators import ops
from octile.torch.weights import kept


class Copies(NamedTuple):
    """An input in FP8: codes and flat scales, and those of the transposed copy, empty without gradients of a weight."""

    codes: torch.Tensor
    scales: torch.Tensor
    transposed: torch.Tensor
    transposed_scales: torch.Tensor


class _Last(threading.local):
    """The input of this thread's last call, and the weights that it was multiplied with since it was another's turn."""

    x: weakref.ref[torch.Tensor] | None = None
    version = -1
    weights: tuple[object, ...] = ()  # what is kept of them
    key: tuple = ()
    keeps = False
    copies: Copies | None = None


_last = _Last()


def shared_input(given: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, code: int, keep: bool) -> Copies | None:
    """Returns the copies of x that calls with other weights share, or None if no other call has had this weight's
    inputs so far. given: the caller's tensor, of which x is a cast or itself. keep: with the transposed copy.

    Only results that autograd has recorded are shared, not buffers, which others may write where PyTorch does not count
    it. Copies serve each weight once, so that the same tensor with other contents in the next step is quantised again.
    """
    entry = kept(weight)
    if entry is None or given.grad_fn is None or given.numel() == 0:
        _last.x = _last.copies = None
        return None
    version = given._version
    is_same = _last.x is not None and _last.x() is given and _last.version == version
    if is_same and all(other is not entry for other in _last.weights):
        _last.weights = *_last.weights, entry
        for other in _last.weights:
            other.shares_input = True
    else:
        _last.x, _last.version = weakref.ref(given), version
        _last.weights, _last.copies = (entry,), None
    if not entry.shares_input:
        return None
    key = code, x.dtype, stream_of(x)
    if _last.copies is None or _last.key != key or (keep and not _last.keeps):
        _last.copies = Copies(*ops.quantize_input(x, code, True, keep))
        _last.key, _last.keeps = key, keep
    return _last.copies


def stream_of(x: torch.Tensor) -> tuple[int, bool] | None:
    """Returns what orders the work on copies: the stream, and whether it is captured."""
    if not x.is_cuda:
        return None
    return torch._C._cuda_getCurrentRawStream(x.device.index), torch.cuda.is_current_stream_capturing()
