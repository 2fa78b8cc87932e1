"""Calls of the library's quantisers and GEMMs in programs of XLA."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from octile._paths import jax_handlers

#: The attribute "parts" of a call: operands and results beside those that every call has (jax/handlers.cc).
ROW, COL, SUMS, BIAS, OFFSETS = 1, 2, 4, 8, 16


def register() -> None:
    """Tells XLA of the handlers: on its backend "cpu" they run on the library's host device, on CUDA on the GPU. JAX
    passes them on when it makes a backend. Raises ImportError if this installation has none."""
    if not jax_handlers().exists():
        raise ImportError(
            "octile was built where jaxlib was not installed, and has no handlers for it: "
            "pip install 'jax>=0.10', then install octile again with --no-build-isolation"
        )
    handlers = ctypes.CDLL(str(jax_handlers()))
    for platform, prepares in (("cpu", ()), ("CUDA", ("initialize",))):
        for target in ("quantize", "gemm"):
            stages = {stage: stage for stage in ("instantiate", *prepares)} | {"execute": target}
            functions = {
                stage: jax.ffi.pycapsule(handlers[f"octile_{platform.lower()}_{name}"])
                for stage, name in stages.items()
            }
            jax.ffi.register_ffi_target("octile_" + target, functions, platform=platform)


def aligned(*arrays: jax.Array) -> list[jax.Array]:
    """Returns the arrays so that each varies over the mesh axes that one of them varies over. In a shard_map the
    gradients of a shared weight are so added; elsewhere nothing varies."""
    axes = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    union = frozenset().union(*axes)
    return [
        array if of_array == union else jax.lax.pcast(array, tuple(union - of_array), to="varying")
        for array, of_array in zip(arrays, axes, strict=True)
    ]


def call(
    target: str, operands: Sequence[jax.Array], results: Sequence[tuple[tuple[int, ...], str]], problem: str,
    tokens: int, parts: int, groups: int = 0,
) -> list[jax.Array]:  # fmt: skip
    """Returns the results, shapes and dtypes, of a problem; zeros without tokens, for which the library does nothing.
    Under vmap the call runs once for each example."""
    if tokens == 0:
        zeros = [jnp.zeros(shape, dtype) for shape, dtype in results]
        return aligned(*operands, *zeros)[len(operands) :]
    operands = aligned(*operands)
    kind = jax.typeof(operands[0])
    place = {}
    if kind.manual_axis_type.varying:
        whole = jax.NamedSharding(kind.sharding.mesh, jax.P())
        place = {"sharding": whole, "manual_axis_type": kind.manual_axis_type}
    shapes = [jax.ShapeDtypeStruct(shape, dtype, **place) for shape, dtype in results]
    run = jax.ffi.ffi_call("octile_" + target, shapes, vmap_method="sequential")
    return run(*operands, problem=problem, tokens=tokens, parts=parts, groups=groups)


register()
