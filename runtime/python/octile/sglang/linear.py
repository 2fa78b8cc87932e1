"""``BlockLinear``: a block-FP8 linear layer of SGLang that ``octile.torch.block_fp8_linear`` computes.

The module needs SGLang; ``register`` imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled
from sglang.srt.layers.quantization.fp8_utils import get_fp8_gemm_runner_backend

import octile.torch
from octile._engines import FIRST
from octile.torch.engine_layers import MOST_TOKENS, this_device, why_refused, why_unprepared

_BLOCK = (128, 128)


def chosen(
    theirs: Callable, weight_block_size: Sequence[int] | None = None, act_scale_ue8m0: bool = False
) -> BlockLinear | None:
    """Returns the layer in place of the function that SGLang has chosen, or None, which keeps the function. So does
    ``--fp8-gemm-backend``."""
    if isinstance(theirs, BlockLinear) or act_scale_ue8m0 or not stands_first():
        return None
    if not get_fp8_gemm_runner_backend().is_auto():
        return None
    if weight_block_size is not None and tuple(weight_block_size) != _BLOCK:
        return None
    return BlockLinear(theirs)


def stands_first() -> bool:
    """Returns whether this process has a GPU on which Octile's kernels stand before SGLang's."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() in FIRST


def loaded(_: object, method: object, layer: torch.nn.Module, **_others: object) -> None:
    """Has the kernels of a layer prepared, whose weight is loaded."""
    linear = getattr(method, "w8a8_block_fp8_linear", None)
    if isinstance(linear, BlockLinear):
        scale = getattr(layer, "weight_scale_inv", None)
        scale = layer.weight_scale if scale is None else scale
        linear.prepare(layer.weight, scale, getattr(layer, "orig_dtype", None) or torch.bfloat16)


class BlockLinear:
    """Computes layers that are prepared, for 1 to ``MOST_TOKENS`` tokens, so that no later call compiles. SGLang's own
    function computes all others, and inputs that come quantised."""

    def __init__(self, theirs: Callable) -> None:
        self.theirs = theirs
        self.func = getattr(theirs, "func", theirs)  # SGLang lays weights out for it
        self.served: set[tuple[tuple[int, int], torch.dtype]] = set()

    def prepare(self, weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> None:
        """Adds a layer to those that are served, if its kernels can be had. dtype: of its input."""
        if weight.dim() != 2 or weight.dtype != torch.float8_e4m3fn or scale.dtype != torch.float32:
            return
        n, k = weight.shape
        fits = tuple(scale.shape) == (-(-n // 128), -(-k // 128)) and scale.is_contiguous() and weight.is_contiguous()
        if not fits or why_refused((n, k), dtype, _BLOCK, (1, 128), unit=16):
            return
        if why_unprepared(n, k, MOST_TOKENS, dtype, True, this_device()) is None:
            self.served.add(((n, k), dtype))

    def __call__(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        block_size: Sequence[int],
        weight_scale: torch.Tensor,
        input_scale: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        **others: object,
    ) -> torch.Tensor:
        """Returns input weight^T + bias: [..., n], of input's dtype."""
        is_served = (tuple(weight.shape), input.dtype) in self.served
        if not is_served or input_scale is not None or others or is_batch_invariant_mode_enabled():
            return self.theirs(input, weight, block_size, weight_scale, input_scale, bias, **others)
        y = octile.torch.block_fp8_linear(input, weight, weight_scale)
        return y if bias is None else y + bias
