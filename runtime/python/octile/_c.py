"""The C API by ctypes: what ``octile.numpy`` uses, on the host device. ``octile/octile.h`` documents the structs."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache

from octile._paths import library

UNSUPPORTED = 2
INVALID_ARGUMENT = 1


class Layout(ctypes.Structure):
    """octile_quantized_layout"""

    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_int64) for name in ("data_rows", "data_ld", "data_bytes", "scale_rows", "scale_ld", "scale_bytes")
    ]


class TensorTypeNumbers(ctypes.Structure):
    """octile_tensor_type"""

    _fields_ = [("dtype", c_int), ("granularity", c_int), ("scale_format", c_int)]


class RecipeRow(ctypes.Structure):
    """octile_recipe"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("activation", TensorTypeNumbers),
        ("weight", TensorTypeNumbers),
        ("gradient", TensorTypeNumbers),
        ("promote_forward", c_int32),
        ("promote_backward", c_int32),
        ("delayed", c_int32),
    ]


LOSS_SUMS = [
    (name, c_double) for name in ("signal", "noise", "rest_signal", "rest_noise", "bulk_signal", "bulk_noise")
] + [(name, c_int64) for name in ("nonzero", "flushed", "saturated", "blocks", "set_by_one")]


class LossBlock(ctypes.Structure):
    """octile_loss_block"""

    _fields_ = [(name, c_int64) for name in ("row", "col", "rows", "cols")] + [
        ("noise_share", c_double),
        ("flushed_share", c_double),
        ("amax", c_double),
        ("set_by_one", c_int64),
    ]


class LossNumbers(ctypes.Structure):
    """octile_loss"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("elements", c_int64),
        ("zeros", c_int64),
        ("nans", c_int64),
        ("infinities", c_int64),
        ("amax", c_double),
        *LOSS_SUMS,
        ("worst_count", c_int64),
        ("worst", LossBlock * 4),
    ]


class SourceScales(ctypes.Structure):
    """octile_quantize_source_scales"""

    _fields_ = [("struct_size", c_size_t), ("x_scale", c_void_p), ("x_scale_ld", c_int64)]


class Delayed(ctypes.Structure):
    """octile_quantize_delayed"""

    _fields_ = [("struct_size", c_size_t), ("encode_scale", POINTER(c_float))]


class QuantizeArgs(ctypes.Structure):
    """octile_quantize_args"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", c_int64),
        ("x", c_void_p),
        ("ldx", c_int64),
        ("q", c_void_p),
        ("ldq", c_int64),
        ("scale", c_void_p),
        ("scale_ld", c_int64),
        ("q_transposed", c_void_p),
        ("scale_transposed", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("skip", c_void_p),
        ("groups", c_void_p),
        ("delayed", POINTER(Delayed)),
        ("fused", c_void_p),
        ("source_scales", POINTER(SourceScales)),
        ("monitor", c_void_p),
        ("change", c_void_p),
        ("gather", c_void_p),
    ]


class GemmArgs(ctypes.Structure):
    """octile_gemm_args without features"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", c_int64),
        ("a", c_void_p),
        ("lda", c_int64),
        ("a_scale", c_void_p),
        ("a_scale_ld", c_int64),
        ("b", c_void_p),
        ("ldb", c_int64),
        ("b_scale", c_void_p),
        ("b_scale_ld", c_int64),
        ("bias", c_void_p),
        ("d", c_void_p),
        ("ldd", c_int64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("flags", c_uint32),
        ("sm_limit", c_int32),
        ("groups", c_void_p),
        ("batch", c_void_p),
        ("d_scales", c_void_p),
        ("monitor", c_void_p),
    ]


class LayerDesc(ctypes.Structure):
    """octile_layer_desc"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("recipe", c_char_p),
        ("n", c_int64),
        ("k", c_int64),
        ("experts", c_int64),
        ("dtype", c_int),
        ("weight_dtype", c_int),
        ("weight_gradient_dtype", c_int),
        ("accumulate", c_int32),
        ("bias_dtype", c_int),
        ("sentry", c_int32),
        ("history", c_int64),
    ]


_HANDLE = POINTER(c_void_p)
_SIGNATURES = {
    "octile_library_create": [c_void_p, _HANDLE],
    "octile_plan_create": [c_void_p, c_char_p, c_char_p, _HANDLE],
    "octile_plan_workspace_size": [c_void_p, c_int64, POINTER(c_size_t)],
    "octile_plan_quantized_layout": [c_void_p, c_int64, c_int64, c_int32, POINTER(Layout)],
    "octile_quantized_layout_query": [c_int, c_int, c_int, c_int64, c_int64, c_int32, POINTER(Layout)],
    "octile_recipe_at": [c_int32, POINTER(RecipeRow)],
    "octile_measure_loss": [
        *(c_int, c_void_p, c_int64, c_int64, c_int64),
        *(POINTER(TensorTypeNumbers), c_int32, c_double, POINTER(POINTER(LossNumbers))),
    ],
    "octile_layer_create": [c_void_p, c_char_p, POINTER(LayerDesc), _HANDLE],
    "octile_layer_destroy": [c_void_p],
    "octile_layer_problems": [c_void_p, c_uint32, c_char_p, POINTER(c_size_t)],
    "octile_quantize_run": [c_void_p, POINTER(QuantizeArgs), c_void_p],
    "octile_gemm_run": [c_void_p, POINTER(GemmArgs), c_void_p],
}


@cache
def api() -> ctypes.CDLL:
    """Returns the library, opened when first needed."""
    opened = ctypes.CDLL(str(library()))
    for name, arguments in _SIGNATURES.items():
        getattr(opened, name).argtypes = arguments
    for name in ("octile_last_error", "octile_status_name"):
        getattr(opened, name).restype = c_char_p
    return opened


def version() -> str:
    """Returns the version of the library in use, such as "0.1.0"."""
    numbers = [c_int() for _ in range(3)]
    api().octile_version(*map(byref, numbers))
    return ".".join(str(number.value) for number in numbers)


def check(status: int) -> None:
    """Raises what a status means: ValueError, NotImplementedError or RuntimeError, with the library's sentence."""
    if status == 0:
        return
    text = f"{api().octile_status_name(status).decode()}: {api().octile_last_error().decode()}"
    raise {INVALID_ARGUMENT: ValueError, UNSUPPORTED: NotImplementedError}.get(status, RuntimeError)(text)


def recipes() -> list[RecipeRow]:
    """Returns the recipes of the library, in its order."""
    rows = []
    while True:
        row = RecipeRow(struct_size=ctypes.sizeof(RecipeRow))
        if api().octile_recipe_at(len(rows), byref(row)) != 0:
            return rows
        rows.append(row)


class _Handles:
    """The library handle of this process and its plans. A handle belongs to the process that made it, and none is
    destroyed: see rules 13 and 15 of the header."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: c_void_p | None = None
        self.plans: dict[str, c_void_p] = {}

    def opened(self) -> c_void_p:
        """Returns the library handle. The caller holds the lock."""
        if self.library is None:
            handle = c_void_p()
            check(api().octile_library_create(None, byref(handle)))
            self.library = handle
        return self.library

    def plan(self, problem: str) -> c_void_p:
        with self.lock:
            if problem not in self.plans:
                plan = c_void_p()
                check(api().octile_plan_create(self.opened(), b"host", problem.encode(), byref(plan)))
                self.plans[problem] = plan
            return self.plans[problem]

    def layer(self, desc: LayerDesc) -> c_void_p:
        with self.lock:
            layer = c_void_p()
            check(api().octile_layer_create(self.opened(), b"host", byref(desc), byref(layer)))
            return layer


_handles = _Handles()


def _begin_anew() -> None:
    global _handles
    _handles = _Handles()


# Another thread of the parent may have held the lock, which nobody would release in the child.
os.register_at_fork(after_in_child=_begin_anew)


def host_plan(problem: str) -> c_void_p:
    """Returns this process's plan of a problem on the device "host"."""
    return _handles.plan(problem)


#: Uses of a layer (octile_layer_use).
KEEP_X, KEEP_W, INPUT_GRADIENT, WEIGHT_GRADIENT, WITHOUT_FORWARD, WITHOUT_BACKWARD = 1, 2, 4, 8, 32, 64


def layer_problems(desc: LayerDesc, uses: int) -> list[str]:
    """Returns the problems behind the uses of a layer on the device "host", in the order of its calls."""
    layer = _handles.layer(desc)
    try:
        size = c_size_t()
        check(api().octile_layer_problems(layer, uses, None, byref(size)))
        text = ctypes.create_string_buffer(size.value)
        check(api().octile_layer_problems(layer, uses, text, byref(size)))
    finally:
        api().octile_layer_destroy(layer)
    return text.value.decode().splitlines()


def workspace(plan: c_void_p, tokens: int) -> ctypes.Array:
    """Returns memory for one call."""
    size = c_size_t()
    check(api().octile_plan_workspace_size(plan, tokens, byref(size)))
    return (c_float * (size.value // 4 + 8))()
