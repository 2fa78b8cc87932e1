"""Calls the C API by Python's ctypes on torch tensors: quantises, multiplies, compares with torch.

Called with the path of liboctile.so. Exits with 77 (skipped) if torch or a Hopper GPU is missing.
"""

import ctypes
import sys

SKIPPED = 77
OK = 0

try:
    import torch
except ImportError:
    print("torch is not installed")
    sys.exit(SKIPPED)
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    print("no GPU of compute capability 9.0")
    sys.exit(SKIPPED)


class QuantizeArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("rows", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("ldx", ctypes.c_int64),
        ("q", ctypes.c_void_p),
        ("ldq", ctypes.c_int64),
        ("scale", ctypes.c_void_p),
        ("scale_ld", ctypes.c_int64),
        ("q_transposed", ctypes.c_void_p),
        ("scale_transposed", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
    ]


class GemmArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("tokens", ctypes.c_int64),
        ("a", ctypes.c_void_p),
        ("lda", ctypes.c_int64),
        ("a_scale", ctypes.c_void_p),
        ("a_scale_ld", ctypes.c_int64),
        ("b", ctypes.c_void_p),
        ("ldb", ctypes.c_int64),
        ("b_scale", ctypes.c_void_p),
        ("b_scale_ld", ctypes.c_int64),
        ("d", ctypes.c_void_p),
        ("ldd", ctypes.c_int64),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
    ]


class Octile:
    """The calls of this test. A call that fails raises an error with the library's sentence."""

    def __init__(self, path):
        self.api = ctypes.CDLL(path)
        self.api.octile_last_error.restype = ctypes.c_char_p
        self.library = ctypes.c_void_p()
        self.check(self.api.octile_library_create(None, ctypes.byref(self.library)))

    def check(self, status):
        if status != OK:
            raise RuntimeError(f"status {status}: {self.api.octile_last_error().decode()}")

    def plan(self, problem, tokens):
        plan = ctypes.c_void_p()
        self.check(
            self.api.octile_plan_create(self.library, b"cuda", problem.encode(), ctypes.byref(plan))
        )
        count = ctypes.c_int64(tokens)
        self.check(self.api.octile_plan_prepare(plan, count, count, ctypes.c_uint32(0)))
        return plan

    def run(self, call, plan, args):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        args.struct_size = ctypes.sizeof(args)
        self.check(getattr(self.api, call)(plan, ctypes.byref(args), stream))


def round_up(value, multiple):
    return (value + multiple - 1) // multiple * multiple


def quantize(octile, x, granularity):
    rows, cols = x.shape
    blocks = (cols + 127) // 128
    shape = (
        (blocks, round_up(rows, 4))
        if granularity == "1x128"
        else ((rows + 127) // 128, round_up(blocks, 4))
    )
    q = torch.empty(rows, cols, dtype=torch.float8_e4m3fn, device="cuda")
    scale = torch.empty(shape, dtype=torch.float32, device="cuda")
    plan = octile.plan(f"quantize rows=? cols={cols} x=bf16 q=e4m3:{granularity} out=row", rows)
    octile.run(
        "octile_quantize_run",
        plan,
        QuantizeArgs(rows=rows, x=x.data_ptr(), q=q.data_ptr(), scale=scale.data_ptr()),
    )
    octile.check(octile.api.octile_plan_destroy(plan))
    return q, scale


def dequantize(q, scale, granularity):
    rows, cols = q.shape
    if granularity == "1x128":
        factors = scale[:, :rows].t().repeat_interleave(128, 1)[:, :cols]
    else:
        factors = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
    return q.double() * factors.double()


def main():
    torch.manual_seed(1)
    octile = Octile(sys.argv[1])
    m, n, k = 77, 576, 1152
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    a, a_scale = quantize(octile, x, "1x128")
    b, b_scale = quantize(octile, w, "128x128")
    d = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    plan = octile.plan(
        f"gemm m=? n={n} k={k} a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128", m
    )
    octile.run(
        "octile_gemm_run",
        plan,
        GemmArgs(
            tokens=m,
            a=a.data_ptr(),
            a_scale=a_scale.data_ptr(),
            b=b.data_ptr(),
            b_scale=b_scale.data_ptr(),
            d=d.data_ptr(),
        ),
    )
    torch.cuda.synchronize()
    fa, fb = dequantize(a, a_scale, "1x128"), dequantize(b, b_scale, "128x128")
    error = (d.double() - fa @ fb.t()).abs()
    # The tolerance is half a bf16 step of the result plus 2^-12 of the sum of magnitudes (the tensor core's 14 bits).
    bound = (fa @ fb.t()).abs() * 2.0**-8 + (fa.abs() @ fb.abs().t()) * 2.0**-12
    assert bool((error <= bound).all()), f"off by {float((error / bound).max())} of the bound"
    quality = float((fa - x.double()).norm() / x.double().norm())
    assert quality < 0.04, f"quantising lost {quality} of x"
    octile.check(octile.api.octile_plan_destroy(plan))
    octile.check(octile.api.octile_library_destroy(octile.library))
    print("torch tensors go in and out")


main()
