"""Dense block-FP8 layers of serving engines: which of them Octile multiplies, and their kernels, had in advance."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

import torch

from octile._engines import first_line
from octile.torch.serving import prepare

_logger = logging.getLogger(__name__)

LEAST_CAPABILITY = 89
#: Numbers of tokens are prepared up to it where an engine states none. Its kernels serve more, too.
MOST_TOKENS = 16384
_DTYPES = (torch.bfloat16, torch.float16)


def why_refused(
    shape: Iterable[int], dtype: torch.dtype, of_weight: Iterable[int], of_x: Iterable[int], unit: int
) -> str | None:
    """Returns why a layer is not served, or None. shape: (n, k) of the weight. dtype: of the output. of_weight, of_x:
    sizes of the blocks that have a scale. unit: of n."""
    if tuple(of_weight) != (128, 128):
        return f"octile: the weight's blocks are {tuple(of_weight)}; allowed are (128, 128)"
    if tuple(of_x) != (1, 128):
        return f"octile: the input's blocks are {tuple(of_x)}; allowed are (1, 128)"
    if dtype not in _DTYPES:
        return f"octile: out_dtype is {dtype}; allowed are torch.bfloat16 and torch.float16"
    n, k = shape
    if n % unit != 0 or k % 16 != 0:
        return f"octile: the weight is ({n}, {k}); allowed are n a multiple of {unit} and k of 16"
    return None


@functools.cache
def why_unprepared(
    n: int, k: int, most_tokens: int, dtype: torch.dtype, linear: bool, device: torch.device
) -> str | None:
    """Has the kernels of a layer prepared for 1 to ``most_tokens`` tokens, and returns why they are not available, or None.
    linear: also those that quantise the input. device: with its index. Each layer is tried once in a process, and a
    failure is logged, because the engine then computes the layer with a kernel of its own."""
    try:
        prepare(n, k, (1, most_tokens), dtype, linear=linear, device=device)
    except (RuntimeError, ValueError) as error:
        reason = f"octile: the kernels of a weight ({n}, {k}) are not available: {first_line(error)}"
        _logger.warning("%s; the engine's own kernel computes the layer", reason)
        return reason
    return None


def this_device() -> torch.device:
    """Returns the current CUDA device, or the host without one."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
