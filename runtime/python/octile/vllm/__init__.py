"""A plug-in of vLLM: Octile computes its block-FP8 linear layers. docs/serving.md says which.

vLLM calls ``register`` in every process, as an entry point of the group ``vllm.general_plugins``.
"""

from __future__ import annotations

import importlib
import logging
import os

__all__ = ["register"]

_logger = logging.getLogger(__name__)

#: Switches the plug-in off if it is "0".
VARIABLE = "OCTILE_VLLM"
_KERNELS = "vllm.model_executor.kernels.linear"
#: Compute capabilities on which the kernel stands before vLLM's own.
_FIRST = ((8, 9), (9, 0))


def register() -> None:
    """Registers the kernel for vLLM's type "fp8_block" on CUDA.

    It stands before vLLM's own kernels on Hopper and Ada, and behind them on other GPUs, where it serves what they all
    refuse. Further calls change nothing. With ``OCTILE_VLLM=0`` in the environment nothing is done. If this vLLM or the
    package lacks a part, the reason is logged and vLLM stays as it is.
    """
    if os.environ.get(VARIABLE) == "0":
        return
    try:
        theirs = importlib.import_module(_KERNELS)
        platforms = importlib.import_module("vllm.platforms")
        cuda = platforms.PlatformEnum.CUDA
        kernels = theirs._POSSIBLE_FP8_BLOCK_KERNELS.setdefault(cuda, [])
        from octile.vllm.linear import OctileFp8BlockScaledMMKernel as ours

        if ours not in kernels:
            theirs.register_linear_kernel(ours, cuda, "fp8_block")
        capability = platforms.current_platform.get_device_capability()
        if capability is not None and tuple(capability) in _FIRST:  # it is at the end
            kernels.remove(ours)
            kernels.insert(0, ours)
    except (ImportError, AttributeError, TypeError, ValueError, OSError) as error:
        _logger.warning("octile: vLLM's FP8 layers stay with its own kernels: %s", str(error).partition("\n")[0])
