"""The functional operators: their bits are those of the C API, and they trace."""

import ctypes
import math

import numpy
import pytest
import torch

import octile
import octile.numpy as on
import octile.torch as ot
from octile import _c
from octile._types import FORMATS, SCALE_FORMATS, TensorType, codes_shape

GRANULARITIES = ("tensor", "row", "1x128", "128x128", "1x32", "32x32")
TYPES = [(g, s) for g in GRANULARITIES for s in FORMATS[g]]


def same(a, b):
    """Compares a tensor with an array by their bytes."""
    return a.contiguous().view(torch.uint8).numpy().tobytes() == b.tobytes()


@pytest.mark.parametrize("granularity, scales", TYPES)
@pytest.mark.parametrize("dtype, word", [(torch.float8_e4m3fn, "e4m3"), (torch.float8_e5m2, "e5m2")])
def test_quantized_bits_are_those_of_the_c_api(granularity, scales, dtype, word):
    for rows, cols in ((1, 16), (77, 200), (129, 512)):
        x = torch.randn(rows, cols)
        ours = ot.quantize(x, dtype, granularity, scales, "both")
        theirs = on.quantize(x.numpy(), word, granularity, scales, "both")
        for a, b in zip(ours, theirs, strict=True):
            assert same(a.codes, b.codes) and same(a.scales, b.scales)
            assert a.shape == b.shape and a.type == b.type
            assert same(a.dequantize(), on.dequantize(b))
        for output, a in zip(("row", "col"), ours, strict=True):
            alone = ot.quantize(x, dtype, granularity, scales, output)
            assert same(alone.codes, a.codes.view(torch.uint8).numpy())
            assert same(alone.scales, a.scales.view(torch.uint8).numpy())


@pytest.mark.parametrize("granularity, scales", TYPES)
def test_layout_formulas_are_the_librarys(granularity, scales):
    numbers = {g: i + 1 for i, g in enumerate(GRANULARITIES)}
    kind = TensorType.of("e4m3", granularity, scales)
    for rows, cols in ((0, 128), (1, 1), (77, 200), (128, 128), (129, 4096)):
        for transposed in (False, True):
            layout = _c.Layout(struct_size=ctypes.sizeof(_c.Layout))
            _c.check(
                _c.api().octile_quantized_layout_query(
                    1, numbers[granularity], SCALE_FORMATS[scales], rows, cols, int(transposed), ctypes.byref(layout)
                )
            )
            # The package gives the stride of row-wise codes itself.
            expected = layout.data_rows, layout.data_ld if transposed else cols
            assert codes_shape(rows, cols, transposed) == expected
            shape = (cols, rows) if transposed else (rows, cols)
            assert kind.scale_shape(*shape) == (layout.scale_rows, layout.scale_ld)


def test_x_may_have_a_row_stride_and_any_float_type():
    wide = torch.randn(40, 512)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = wide.to(dtype)[:, 128:384]
        assert same(ot.quantize(x).codes, ot.quantize(x.contiguous()).codes.view(torch.uint8).numpy())
    assert same(ot.quantize(wide.t()).codes, ot.quantize(wide.t().contiguous()).codes.view(torch.uint8).numpy())


@pytest.mark.parametrize("granularity", ["tensor", "128x128", "32x32"])
def test_transposing_changes_no_code(granularity):
    row, col = ot.quantize(torch.randn(77, 200), granularity=granularity, output="both")
    flipped = ot.transpose(row)
    assert same(flipped.codes, col.codes.view(torch.uint8).numpy())
    assert flipped.scales.equal(col.scales) and flipped.shape == (200, 77)


@pytest.mark.parametrize("dtype, word", [(torch.float32, "fp32"), (torch.float16, "fp16"), (torch.bfloat16, "bf16")])
def test_gemm_bits_are_those_of_the_c_api(dtype, word):
    x, w = torch.randn(77, 200), torch.randn(48, 200)
    d = ot.gemm(ot.quantize(x), ot.quantize(w, granularity="128x128"), dtype)
    expected = on.gemm(on.quantize(x.numpy()), on.quantize(w.numpy(), granularity="128x128"), word)
    assert same(d, expected)


def test_gemm_adds_to_out_and_adds_a_bias():
    a, b = ot.quantize(torch.randn(33, 256)), ot.quantize(torch.randn(48, 256), granularity="128x128")
    exact = a.dequantize().double() @ b.dequantize().double().t()
    out = torch.randn(33, 48)
    before = out.clone()
    assert ot.gemm(a, b, out=out) is out
    torch.testing.assert_close(out.double(), exact + before, rtol=1e-5, atol=1e-4)
    bias = torch.randn(48)
    torch.testing.assert_close(ot.gemm(a, b, torch.float32, bias).double(), exact + bias, rtol=1e-5, atol=1e-4)


def test_gemm_of_transposed_copies_sums_over_the_tokens():
    dy, x = torch.randn(77, 64), torch.randn(77, 128)
    a, b = ot.quantize(dy, output="col"), ot.quantize(x, output="col")
    dw = ot.gemm(a, b, torch.float32, tokens="k")
    torch.testing.assert_close(dw.double(), a.dequantize().double() @ b.dequantize().double().t(), rtol=1e-5, atol=1e-4)


X = torch.ones(32, 256)
BAD = [
    (lambda: ot.quantize(X[0]), ValueError, "x.dim() is 1; allowed is 2"),
    (lambda: ot.quantize(X, torch.int8), ValueError, "dtype is torch.int8; allowed are"),
    (lambda: ot.quantize(X.double()), ValueError, "x.dtype is torch.float64; allowed are"),
    (lambda: ot.quantize(X, granularity="2x2"), ValueError, "granularity is '2x2'; allowed are"),
    (lambda: ot.quantize(X, scales="e8m0"), ValueError, "scales is 'e8m0'; allowed with '1x128' are"),
    (lambda: ot.quantize(X, output="up"), ValueError, "output is 'up'; allowed are"),
    (lambda: ot.quantize(X).dequantize(torch.int8), ValueError, "dtype is torch.int8; allowed are"),
    (lambda: ot.gemm(ot.quantize(X), ot.quantize(X[:, :128])), ValueError, "b.shape is (32, 128); allowed is (n, 256)"),
    (lambda: ot.gemm(ot.quantize(X), ot.quantize(X), out=X), ValueError, "out is (32, 256); allowed is contiguous"),
    (lambda: ot.gemm(ot.quantize(X), ot.quantize(X), bias=X[0]), ValueError, "bias is (256,); allowed is (32,) on cpu"),
    (lambda: ot.gemm(ot.quantize(X), ot.quantize(X), tokens="n"), ValueError, "tokens is 'n'; allowed are"),
    (lambda: ot.gemm(ot.quantize(X)._replace(scales=X), ot.quantize(X)), ValueError, "a.scales is (32, 256); allowed"),
    (lambda: ot.gemm(ot.quantize(X)._replace(codes=X), ot.quantize(X)), ValueError, "a.codes.dtype is torch.float32"),
    (lambda: ot.gemm(ot.quantize(X), ot.quantize(X[:7])), ValueError, "n is 7; allowed are multiples of 8"),
    (lambda: ot.gemm(*[ot.quantize(X, granularity="128x128")] * 2), NotImplementedError, "no recipe keeps both"),
    (lambda: ot.linear(X, torch.ones(100, 256)), ValueError, "weight is [100, 256]; allowed are multiples of 16"),
    (lambda: ot.linear(X, torch.ones(16, 16)), ValueError, "last dimension of x is 256; with this weight 16 is"),
    (lambda: ot.linear(X, torch.ones(16, 256), torch.ones(8)), ValueError, "bias is [8]; allowed is [16]"),
    (lambda: ot.linear(X.int(), torch.ones(16, 256)), ValueError, "x.dtype is torch.int32; allowed are torch.bfloat16"),
    (lambda: ot.linear(X, torch.ones(16, 256), recipe="int4"), ValueError, "recipe is 'int4'; allowed are 'blockwise'"),
    (lambda: ot.Recipe(scales="f16"), ValueError, "scales is 'f16'; allowed are"),
    (lambda: on.quantize(X.double().numpy()), ValueError, "x.dtype is 'float64'; allowed are"),
    (lambda: on.quantize(X[0].numpy()), ValueError, "x.ndim is 1; allowed is 2"),
    (lambda: on.quantize(X.numpy(), output="up"), ValueError, "output is 'up'; allowed are"),
]


@pytest.mark.parametrize("call, error, sentence", BAD, ids=[sentence for _, _, sentence in BAD])
def test_bad_arguments_are_named(call, error, sentence):
    with pytest.raises(error) as raised:
        call()
    assert sentence in str(raised.value)


def test_operators_trace_with_dynamic_shapes():
    def both(x, w):
        row, col = ot.quantize(x, output="both")
        d = ot.gemm(row, ot.quantize(w, granularity="128x128"), torch.float32)
        return d, col.dequantize(), ot.gemm(col, col, torch.float32, tokens="k")

    traced = torch.compile(both, fullgraph=True, dynamic=True, backend="aot_eager")
    w = torch.randn(48, 256)
    for tokens in (7, 129):
        x = torch.randn(tokens, 256)
        for a, b in zip(both(x, w), traced(x, w), strict=True):
            assert a.equal(b)


def test_fake_tensors_have_the_operators_shapes():
    x, w = torch.randn(77, 256), torch.randn(48, 256, requires_grad=True)
    ops, check = torch.ops.octile, ("test_faketensor",)
    for name in ("blockwise", "tensorwise", "rowwise", "mxfp8"):
        code = ot.Recipe(name).code
        torch.library.opcheck(ops.linear_forward, (x, w.detach(), None, code, True, True), test_utils=check)
        torch.library.opcheck(ops.linear_forward, (x, w.detach(), None, code, False, False), test_utils=check)
    for g in GRANULARITIES:
        torch.library.opcheck(ops.quantize_both, (x, f"e4m3:{g}:{FORMATS[g][0]}"), test_utils=check)
    codes, scales = ops.quantize_one(x, "e4m3:128x128:f32", False)
    torch.library.opcheck(ops.transpose, (codes, scales, "e4m3:128x128:f32", 256), test_utils=check)
    torch.library.opcheck(ops.dequantize, (codes, scales, "e4m3:128x128:f32", 256, 3), test_utils=check)


def test_numpy_takes_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = numpy.random.default_rng(0).standard_normal((9, 160)).astype(ml_dtypes.bfloat16)
    ours = ot.quantize(torch.from_numpy(x.view(numpy.uint16)).view(torch.bfloat16))
    assert same(ours.codes, on.quantize(x).codes)
    assert on.dequantize(on.quantize(x), "bf16").dtype == ml_dtypes.bfloat16


def test_numpy_takes_a_given_scale():
    x = numpy.array([[1, 1000, -3, 0.01]], numpy.float32)
    for output in ("row", "col"):
        assert on.quantize(x, "e4m3", "tensor", "f32", output, encode_scale=0.5).scales.ravel()[0] == 2
    restored = on.dequantize(on.quantize(x, "e4m3", "tensor", "f32", encode_scale=0.5))
    assert (restored == [[1, 896, -3, 0.01171875]]).all()
    with pytest.raises(TypeError, match="encode_scale is of type str"):
        on.quantize(x, "e4m3", "tensor", encode_scale="1")


@pytest.mark.parametrize(
    ("scale", "granularity", "sentence"),
    [
        (1.0, "row", "encode_scale is 1.0; allowed is None with granularity 'row'"),
        (0.0, "tensor", "encode_scale is 0.0; allowed are finite numbers above 0 in float32"),
        (1e39, "tensor", r"encode_scale is 1e\+39; allowed are finite numbers"),
        (math.nan, "tensor", "encode_scale is nan; allowed are finite numbers"),
    ],
)
def test_numpy_refuses_other_scales(scale, granularity, sentence):
    with pytest.raises(ValueError, match=sentence):
        on.quantize(numpy.ones((2, 16), numpy.float32), "e4m3", granularity, encode_scale=scale)


def test_version_is_the_librarys():
    assert octile.__version__.count(".") == 2 and octile.library().exists()
