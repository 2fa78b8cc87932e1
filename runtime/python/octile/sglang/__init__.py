"""A plug-in of SGLang: Octile computes its block-FP8 linear layers. docs/serving.md says which.

SGLang calls ``register`` in every process, as an entry point of the group ``sglang.srt.plugins``.
"""

from __future__ import annotations

import pkgutil

from octile._engines import plug_in

__all__ = ["register"]

#: Switches the plug-in off if it is "0".
VARIABLE = "OCTILE_SGLANG"
_REGISTRY = "sglang.srt.plugins.hook_registry.HookRegistry"
_AFTER = "sglang.srt.plugins.hook_registry.HookType.AFTER"
# Functions of SGLang: one returns the function of a layer, the others are called once its weight is loaded.
_DISPATCH = "sglang.srt.layers.quantization.fp8_utils.dispatch_w8a8_block_fp8_linear"
_LOADED = (
    "sglang.srt.layers.quantization.fp8.Fp8LinearMethod.process_weights_after_loading",
    "sglang.srt.layers.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_fp8.CompressedTensorsW8A8Fp8"
    ".process_weights_after_loading",
)


def register() -> None:
    """Hooks the kernel behind the functions by which SGLang chooses one for layers of blocks, and loads their weights.

    On Hopper and Ada it computes the layers that it serves. On other GPUs the hooks change nothing, because SGLang has
    kernels for all layers. With ``OCTILE_SGLANG=0`` in the environment nothing is done. If this SGLang or the package
    lacks a part, one line in the log says which, and SGLang stays as it is.
    """
    plug_in("SGLang", VARIABLE, _register)


def _register() -> None:
    registry, after = pkgutil.resolve_name(_REGISTRY), pkgutil.resolve_name(_AFTER)
    for target in (_DISPATCH, *_LOADED):
        pkgutil.resolve_name(target)
    from octile.sglang.linear import chosen, loaded

    registry.register(_DISPATCH, chosen, after)
    for target in _LOADED:
        registry.register(target, loaded, after)
