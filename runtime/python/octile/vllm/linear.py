"""``OctileFp8BlockScaledMMKernel``: a block-FP8 linear layer of vLLM that ``octile.torch.scaled_mm`` multiplies.

The module needs vLLM; ``register`` imports it.
"""

from __future__ import annotations

import torch
from vllm import envs
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.kernels.linear import Fp8BlockScaledMMLinearKernel
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

import octile.torch
from octile.torch.engine_layers import LEAST_CAPABILITY, MOST_TOKENS, this_device, why_refused, why_unprepared


class AlignedQuantFP8(QuantFP8):
    """vLLM's quantiser whose scales the GEMM reads in place. Without its own kernel, which compiled models leave out
    unless told otherwise, the columns of scales would begin at any float."""

    def forward_native(self, *arguments, **options):
        return self.forward_cuda(*arguments, **options)


class OctileFp8BlockScaledMMKernel(Fp8BlockScaledMMLinearKernel):
    """A layer with a weight [n, k] in blocks of 128 x 128, whose input vLLM quantises in 1x128 blocks.

    When vLLM chooses the kernel of a layer, those for 1 to ``max_num_batched_tokens`` tokens are compiled, or come from
    the cache. So no later call compiles, and captures of CUDA graphs find them. If they cannot be had, vLLM's next
    kernel takes the layer.
    """

    def __init__(self, config) -> None:
        super().__init__(config)
        self.quant_fp8 = AlignedQuantFP8(
            static=False,
            group_shape=config.activation_quant_key.scale.group_shape,
            column_major_scales=True,
            tma_aligned_scales=True,
            use_ue8m0=False,
        )

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Returns whether the kernel runs on this GPU under this configuration, and why not."""
        if not current_platform.is_cuda():
            return False, "octile: the platform is not CUDA"
        if getattr(envs, "VLLM_BATCH_INVARIANT", False):
            return False, "octile: VLLM_BATCH_INVARIANT is set; a row's bits may depend on the number of tokens here"
        if compute_capability is None:
            found = current_platform.get_device_capability()
            compute_capability = 0 if found is None else found.major * 10 + found.minor
        if compute_capability < LEAST_CAPABILITY:
            allowed = f"allowed are {LEAST_CAPABILITY} and more"
            return False, f"octile: the compute capability is {compute_capability}; {allowed}"
        return True, None

    @classmethod
    def can_implement(cls, config) -> tuple[bool, str | None]:
        """Returns whether the layer has kernels, which are prepared, and why not."""
        served, reason = super().can_implement(config)
        if not served:
            return served, reason
        of_weight, of_x = (key.scale.group_shape for key in (config.weight_quant_key, config.activation_quant_key))
        reason = why_refused(config.weight_shape, config.out_dtype, of_weight, of_x, unit=8)
        if reason is None:
            vllm_config = get_current_vllm_config_or_none()
            most = MOST_TOKENS if vllm_config is None else vllm_config.scheduler_config.max_num_batched_tokens
            reason = why_unprepared(*config.weight_shape, most, config.out_dtype, False, this_device())
        return reason is None, reason

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Makes the scales float32."""
        super().process_weights_after_loading(layer)
        parameters = self._get_layer_params(layer)
        name = "weight_scale" if parameters.weight_scale_inv is None else "weight_scale_inv"
        scales = getattr(layer, name)
        if scales.dtype != torch.float32:
            replace_parameter(layer, name, scales.data.to(torch.float32))

    def apply_block_scaled_mm(
        self, A: torch.Tensor, B: torch.Tensor, As: torch.Tensor, Bs: torch.Tensor
    ) -> torch.Tensor:
        """Returns A B^T [m, n] of codes and scales, as ``out_dtype``."""
        return octile.torch.scaled_mm(A, As, B, Bs, dtype=self.config.out_dtype)
