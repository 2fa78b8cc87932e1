"""A plug-in of vLLM: Octile computes its block-FP8 linear layers. docs/serving.md says which.

vLLM calls ``register`` in every process, as an entry point of the group ``vllm.general_plugins``.
"""

from __future__ import annotations

import pkgutil

from octile._engines import FIRST, plug_in

__all__ = ["register"]

#: Switches the plug-in off if it is "0".
VARIABLE = "OCTILE_VLLM"
# vLLM's kernels for layers of blocks, by platform, in the order of choice. Releases before 0.33 have no function that
# adds to them.
_KERNELS = "vllm.model_executor.kernels.linear._POSSIBLE_FP8_BLOCK_KERNELS"
_CUDA = "vllm.platforms.PlatformEnum.CUDA"
_PLATFORM = "vllm.platforms.current_platform"


def register() -> None:
    """Adds the kernel to vLLM's for layers of blocks on CUDA.

    It stands before vLLM's own kernels on Hopper and Ada, and behind them on other GPUs, where it serves what they all
    refuse. Further calls change nothing. With ``OCTILE_VLLM=0`` in the environment nothing is done. If this vLLM or the
    package lacks a part, one line in the log says which, and vLLM stays as it is.
    """
    plug_in("vLLM", VARIABLE, _register)


def _register() -> None:
    kernels = pkgutil.resolve_name(_KERNELS).setdefault(pkgutil.resolve_name(_CUDA), [])
    from octile.vllm.linear import OctileFp8BlockScaledMMKernel as octile_kernel

    capability = pkgutil.resolve_name(_PLATFORM).get_device_capability()
    if octile_kernel not in kernels:
        kernels.insert(0 if capability is not None and tuple(capability) in FIRST else len(kernels), octile_kernel)
