"""No operand is read beyond its end, and no caller's text becomes part of a problem's: what is not as a call says is
refused with a sentence, by the package and by the operators themselves."""

import numpy
import pytest
import torch

import octile.numpy as on
import octile.torch as ot
from octile._types import TensorType
from octile.torch.frozen import product

ops = torch.ops.octile
ROWS = numpy.random.default_rng(0).standard_normal((64, 512), numpy.float32)
A, B = on.quantize(ROWS), on.quantize(ROWS[:16], granularity="128x128")
X = torch.from_numpy(ROWS)
TA, TB = ot.quantize(X), ot.quantize(X[:16], granularity="128x128")


class Words(str):
    """A text that is not what it is compared as."""

    def __str__(self):
        return "128 batch=64"

    def __format__(self, spec):
        return "128 batch=64"


def wide(codes):
    """Returns the codes as columns of a wider array, of which the rest is 0x7f."""
    whole = numpy.full((codes.shape[0], 2 * codes.shape[1]), 0x7F, numpy.uint8)
    whole[:, : codes.shape[1]] = codes
    return whole[:, : codes.shape[1]]


# ---- octile.numpy

VIEWS = {
    "columns of a wider array": A._replace(codes=wide(A.codes)),
    "Fortran order": A._replace(codes=numpy.asfortranarray(A.codes), scales=numpy.asfortranarray(A.scales)),
    "unaligned": A._replace(codes=numpy.frombuffer(b"x" + A.codes.tobytes(), numpy.uint8)[1:].reshape(64, 512)),
    "swapped bytes": A._replace(scales=A.scales.astype(A.scales.dtype.newbyteorder())),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_have_the_values_that_they_show(name):
    assert numpy.array_equal(on.gemm(VIEWS[name], B), on.gemm(A, B))
    assert numpy.array_equal(on.dequantize(VIEWS[name]), on.dequantize(A))


def test_every_second_row_is_every_second_row():
    q = on.quantize(ROWS, granularity="tensor")
    for step in (2, -1):
        some = q._replace(codes=q.codes[::step], shape=q.codes[::step].shape)
        assert numpy.array_equal(on.dequantize(some), on.dequantize(q)[::step])


class Subclass(numpy.ndarray):
    pass


INPUTS = {
    "rows backwards": ROWS[::-1],
    "columns backwards": ROWS[:, ::-1],
    "one row again and again": numpy.broadcast_to(ROWS[:1], ROWS.shape),
    "one column again and again": numpy.broadcast_to(ROWS[:, :1], ROWS.shape),
    "read-only": numpy.frombuffer(ROWS.tobytes(), numpy.float32).reshape(ROWS.shape),
    "memoryview": memoryview(ROWS),
    "subclass": ROWS.view(Subclass),
    "swapped bytes of float16": ROWS.astype(">f2"),
    "columns alone": ROWS[:, :0],
    "tensor": X,
}


@pytest.mark.parametrize("name", INPUTS)
def test_input_that_was_not_made_here_is_what_numpy_shows(name):
    x = INPUTS[name]
    q, plain = on.quantize(x), on.quantize(numpy.ascontiguousarray(x, numpy.asarray(x).dtype.newbyteorder("=")))
    assert type(q.codes) is numpy.ndarray
    assert numpy.array_equal(q.codes, plain.codes) and numpy.array_equal(q.scales, plain.scales)


def test_swapped_bytes_of_bfloat16_are_swapped():
    # NumPy's own casts ignore the byte order of ml_dtypes' types.
    bfloat16 = numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)

    def swapped(array):
        return array.byteswap().view(bfloat16.newbyteorder())

    x = ROWS.astype(bfloat16)
    assert numpy.array_equal(on.quantize(swapped(x)).codes, on.quantize(x).codes)
    q = on.quantize(ROWS, scales="bf16")
    assert numpy.array_equal(on.dequantize(q._replace(scales=swapped(q.scales))), on.dequantize(q))


NOT_INPUTS = [
    (numpy.ma.masked_array(ROWS, mask=ROWS > 0), TypeError, "x is of type MaskedArray; allowed is numpy.ndarray"),
    (None, TypeError, "x is of type NoneType; allowed is numpy.ndarray"),
    ([[1.0], [1.0, 2.0]], TypeError, "x is of type list; allowed is an argument of numpy.asarray()"),
    (X.clone().requires_grad_(), TypeError, "x is of type Tensor; allowed is an argument of numpy.asarray()"),
    (ROWS.astype(object), ValueError, "x.dtype is 'object'"),
    (ROWS.astype("f8"), ValueError, "x.dtype is 'float64'"),
    (ROWS.astype("c8"), ValueError, "x.dtype is 'complex64'"),
    (numpy.zeros((4, 4), [("x", "f4")]), ValueError, "x.dtype is 'void32'"),
    (numpy.float32(3), ValueError, "x.ndim is 0; allowed is 2"),
    (ROWS[None], ValueError, "x.ndim is 3; allowed is 2"),
]


@pytest.mark.parametrize("x, error, sentence", NOT_INPUTS, ids=[sentence for _, _, sentence in NOT_INPUTS])
def test_numpy_refuses_what_is_no_input(x, error, sentence):
    with pytest.raises(error) as raised:
        on.quantize(x)
    assert f"octile: {sentence}" in str(raised.value)


def test_input_of_another_byte_order_or_address_is_the_same_input():
    for x in (ROWS.astype(">f4"), numpy.frombuffer(b"x" + ROWS.tobytes(), numpy.uint8)[1:].view("f4").reshape(64, 512)):
        assert numpy.array_equal(on.quantize(x).codes, A.codes)


def replaced(**fields):
    return A._replace(**fields)


NUMPY = [
    (replaced(shape=(40000, 512)), ValueError, "codes.shape is (64, 512); allowed is (40000, 512 or more)"),
    (replaced(codes=A.codes[:, :300]), ValueError, "codes.shape is (64, 300); allowed is (64, 512 or more)"),
    (replaced(codes=A.codes[0]), ValueError, "codes.shape is (512,)"),
    (replaced(codes=A.codes.astype(numpy.int32)), ValueError, "codes.dtype is 'int32'; allowed"),
    (replaced(codes=A.codes.tolist()), TypeError, "codes is of type list"),
    (replaced(scales=numpy.zeros(1, numpy.float32)), ValueError, "scales.shape is (1,); allowed is (4, 64)"),
    (replaced(scales=A.scales[:, :60]), ValueError, "scales.shape is (4, 60)"),
    (replaced(scales=A.scales.astype(numpy.float64)), ValueError, "scales.dtype is 'float64'"),
    (replaced(scales=None), TypeError, "scales is of type NoneType"),
    (replaced(scales=numpy.ma.masked_array(A.scales, mask=A.scales > 0)), TypeError, "scales is of type MaskedArray"),
    (replaced(codes=numpy.ma.masked_array(A.codes, mask=A.codes > 3)), TypeError, "codes is of type MaskedArray"),
    (replaced(scales=numpy.float32(1)), TypeError, "scales is of type float32"),
    (replaced(scales=A.scales.view("i4")), ValueError, "scales.dtype is 'int32'"),
    (replaced(codes=memoryview(A.codes)), TypeError, "codes is of type memoryview"),
    (replaced(codes=A.codes.view("S1")), ValueError, "codes.dtype is 'bytes8'"),
    (replaced(shape=(64, 256)), ValueError, "scales.shape is (4, 64); allowed is (2, 64)"),
    (replaced(shape=(2**64, 512)), ValueError, "codes.shape is (64, 512); allowed is (18446744073709551616, 512"),
    (replaced(shape=(64, 512.0)), ValueError, "shape is (64, 512.0); allowed is (rows, cols), integers"),
    (replaced(shape=(-64, 512)), ValueError, "shape is (-64, 512)"),
    (replaced(shape=64), ValueError, "shape is 64"),
    (replaced(type="e4m3:1x128:pow2"), TypeError, "type is of type str"),
    (A.codes, TypeError, "is of type ndarray; allowed is octile.numpy.Quantized"),
    (None, TypeError, "is of type NoneType"),
    (TA, TypeError, "is of type Quantized; allowed is octile.numpy.Quantized"),
]


@pytest.mark.parametrize("q, error, sentence", NUMPY, ids=[sentence for _, _, sentence in NUMPY])
def test_numpy_refuses_what_is_no_such_operand(q, error, sentence):
    for name, call in (
        ("q", lambda: on.dequantize(q)),
        ("a", lambda: on.gemm(q, B)),
        ("b", lambda: on.gemm(A, q)),
    ):
        with pytest.raises(error) as raised:
            call()
        assert str(raised.value).startswith(f"octile: {name}") and sentence in str(raised.value)


# ---- texts

INJECTED = "128 batch=64", Words("128"), Words("nothing"), "128\0", "", " 128", 129, True, 128.0, b"128"


@pytest.mark.parametrize("value", INJECTED, ids=repr)
def test_no_word_of_a_caller_reaches_a_problem(value):
    for gemm, a, b in ((on.gemm, A, B), (ot.gemm, TA, TB)):
        if value == "128":
            assert numpy.array_equal(numpy.asarray(gemm(a, b, promote=value).tolist()), gemm(a, b).tolist())
            continue
        with pytest.raises(ValueError, match="^octile: promote is "):
            gemm(a, b, promote=value)
    with pytest.raises((ValueError, TypeError)):
        TensorType("e4m3", "1x128", value)
    for call in (lambda: on.gemm(A, B, value), lambda: on.dequantize(A, value)):
        with pytest.raises(ValueError, match="^octile: dtype is "):
            call()


def test_promote_may_be_a_number():
    assert ot.gemm(TA, TB, promote=64).equal(ot.gemm(TA, TB, promote="64"))
    assert numpy.array_equal(on.gemm(A, B, promote=numpy.int64(64).item()), on.gemm(A, B, promote="64"))


# ---- octile.torch

TORCH = [
    (TA._replace(scales=TA.scales.double()), ValueError, "scales.dtype is torch.float64; allowed with e4m3:1x128:pow2"),
    (TA._replace(scales=TA.scales.bfloat16()), ValueError, "scales.dtype is torch.bfloat16"),
    (TA._replace(scales=TA.scales.view(torch.uint8)), ValueError, "scales.dtype is torch.uint8"),
    (TA._replace(scales=TA.scales[:, :60]), ValueError, "scales is (4, 60)"),
    (TA._replace(scales=TA.scales.t().contiguous().t()), ValueError, "scales is (4, 64); allowed is contiguous"),
    (TA._replace(scales=TA.scales.to("meta")), ValueError, "scales.device is device(type='meta'); allowed is cpu"),
    (TA._replace(scales=A.scales), TypeError, "scales is of type ndarray"),
    (TA._replace(codes=TA.codes[::2]), ValueError, "codes is (32, 512)"),
    (TA._replace(codes=TA.codes.view(torch.float8_e5m2)), ValueError, "codes.dtype is torch.float8_e5m2"),
    (TA._replace(shape=(40000, 512)), ValueError, "codes is (64, 512); allowed is contiguous, [40000, 512 or more]"),
    (TA._replace(type=None), TypeError, "type is of type NoneType"),
    (TA._replace(scales=TA.scales[:1].expand(4, 64)), ValueError, "scales is (4, 64); allowed is contiguous"),
    (TA._replace(scales=TA.scales.to_sparse()), ValueError, "scales is 'torch.sparse_coo'; allowed is a tensor of"),
    (TA._replace(scales=TA.scales.to(torch.float8_e8m0fnu)), ValueError, "scales.dtype is torch.float8_e8m0fnu"),
    (TA._replace(codes=TA.codes.view(torch.float8_e4m3fnuz)), ValueError, "codes.dtype is torch.float8_e4m3fnuz"),
    (TA._replace(codes=TA.codes.to("meta")), ValueError, "scales.device is device(type='cpu'); allowed is meta"),
    (TA._replace(codes=TA.codes.t()), ValueError, "codes is (512, 64); allowed is contiguous"),
    (X, TypeError, "is of type Tensor; allowed is octile.torch.functional.Quantized"),
    (A, TypeError, "is of type Quantized; allowed is octile.torch.functional.Quantized"),
]


@pytest.mark.parametrize("q, error, sentence", TORCH, ids=[sentence for _, _, sentence in TORCH])
def test_torch_refuses_what_is_no_such_operand(q, error, sentence):
    calls = ("q", lambda: ot.dequantize(q)), ("a", lambda: ot.gemm(q, TB)), ("b", lambda: ot.gemm(TA, q))
    for name, call in (*calls, ("q", lambda: ot.transpose(q))):
        with pytest.raises(error) as raised:
            call()
        assert str(raised.value).startswith(f"octile: {name}") and sentence in str(raised.value)


# ---- tensors that are not strided, or whose memory is not their values

W = torch.randn(32, 512)
ODD = {
    "torch.sparse_coo": X.to_sparse,
    "torch.sparse_csr": X.to_sparse_csr,
    "torch._mkldnn": X.to_mkldnn,
    "nested": lambda: torch.nested.nested_tensor([X, X[:3]]),
    "quantized by PyTorch": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ODD)
def test_tensors_of_other_layouts_are_refused_with_a_sentence(layout):
    x = ODD[layout]()
    calls = {
        "x": (lambda: ot.quantize(x), lambda: ot.linear(x, W), lambda: ot.experts(x, W[None], torch.tensor([64]))),
        "weight": (lambda: ot.linear(X, x), lambda: ot.experts(X, x, torch.tensor([64]))),
        "bias": (lambda: ot.linear(X, W, x), lambda: ot.gemm(TA, TB, bias=x)),
        "out": (lambda: ot.gemm(TA, TB, out=x),),
    }
    for name, of_argument in calls.items():
        for call in of_argument:
            with pytest.raises(ValueError, match=f"^octile: {name} is '{layout}'; allowed is a tensor of layout"):
                call()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [name for name in ODD if name != "quantized by PyTorch"])
def test_a_layer_is_given_a_weight_of_another_layout_and_its_own_again(layout):
    layer = ot.Linear(512, 64)
    weight, y = layer.weight, layer(X)
    layer.weight = torch.nn.Parameter(ODD[layout]())
    for call in (layer, torch.no_grad()(layer)):
        with pytest.raises(ValueError, match=f"^octile: weight is '{layout}'; allowed is a tensor of layout"):
            call(X)
    layer.weight = weight
    assert layer(X).equal(y)


def test_a_tensor_that_is_read_with_another_sign_is_read_so():
    x, bias = torch.complex(X, X).conj().imag, torch.complex(X[0, :32], X[0, :32]).conj().imag
    assert x.is_neg() and bias.is_neg()
    assert ot.dequantize(ot.quantize(x)).equal(-ot.dequantize(TA))
    assert ot.linear(x, W, bias).equal(-ot.linear(X, W, X[0, :32]))


class Labelled(torch.Tensor):
    pass


def test_subclasses_of_tensors_are_tensors():
    q = TA._replace(codes=TA.codes.as_subclass(Labelled), scales=torch.nn.Parameter(TA.scales))
    assert ot.gemm(q, TB, torch.float32).equal(ot.gemm(TA, TB, torch.float32))
    assert ot.linear(X.as_subclass(Labelled), W).equal(ot.linear(X, W))


# ---- the operators themselves

KIND, CODES, SCALES = TA.type.text, TA.codes, TA.scales
D = torch.empty(64, 16)


def gemm_out(a=CODES, a_scale=SCALES, a_type=KIND, b=TB.codes, b_scale=TB.scales, b_type=TB.type.text, bias=None, d=D,
             k=512, tokens="m", accumulate=False, promote="128"):  # fmt: skip
    return lambda: ops.gemm_out(a, a_scale, a_type, b, b_scale, b_type, bias, d, k, tokens, accumulate, promote)


def layer(recipe=0, **changed):
    """Returns the call of linear_backward with the tensors that linear_forward kept, of 5 tokens of a layer [32,
    64]."""
    x, w, dy = torch.ones(5, 64), torch.ones(32, 64), torch.ones(5, 32)
    _, codes, scales = ops.linear_forward(x, w, None, recipe, True, True)
    kept = {"dy": dy, "x_codes": codes, "x_scales": scales} | {n: f(codes, scales) for n, f in changed.items()}
    return lambda: ops.linear_backward(kept["dy"], w, kept["x_codes"], kept["x_scales"], recipe, True, True, False)


def experts(recipe=0, **changed):
    x, w, dy, ends = torch.ones(5, 64), torch.ones(2, 32, 64), torch.ones(5, 32), torch.tensor([0, 3, 5]).int()
    _, codes, scales = ops.experts_forward(x, w, ends, recipe, True, True)
    kept = {"x_codes": codes, "x_scales": scales} | {n: f(codes, scales) for n, f in changed.items()}
    return lambda: ops.experts_backward(dy, w, ends, kept["x_codes"], kept["x_scales"], recipe, True, True)


DELAYED, TENSORWISE = ot.Recipe("delayed").code, ot.Recipe("tensorwise").code
BLOCK = torch.ones(16, 512).to(torch.float8_e4m3fn), torch.ones(1, 4)
OPERATORS = [
    (lambda: ops.quantize_one(X, "e4m3:1x128:pow2 out=col", False), "type is 'e4m3:1x128:pow2 out=col'"),
    (lambda: ops.quantize_one(X, "e4m3:1x128", False), "type is 'e4m3:1x128'; allowed is a type of three parts"),
    (lambda: ops.quantize_both(X, "e4m3:1x128:pow2:"), "type is 'e4m3:1x128:pow2:'"),
    (lambda: ops.quantize_one(X.int(), KIND, False), "x has an element type"),
    (lambda: ops.quantize_one(CODES, KIND, False), "x has an element type"),
    (lambda: ops.quantize_one(X[0], KIND, False), "x is [512]; allowed is a matrix"),
    (lambda: ops.quantize_one(X.t(), KIND, False), "x has strides (1, 512)"),
    (lambda: ops.quantize_both(X[:1].expand(64, 512), KIND), "x has strides (0, 1)"),
    (lambda: ops.dequantize(CODES, SCALES, KIND, 513, 5), "codes is [64, 512]; allowed is [64, 513 or more]"),
    (lambda: ops.dequantize(CODES, SCALES[:, :60].contiguous(), KIND, 512, 5), "codes_scale is [4, 60]"),
    (lambda: ops.dequantize(CODES, SCALES.half(), KIND, 512, 5), "codes_scale has another element type"),
    (lambda: ops.dequantize(CODES, SCALES, "e5m2:1x128:pow2", 512, 5), "codes has another element type"),
    (lambda: ops.dequantize(CODES, SCALES, KIND, -1, 5), "cols is -1"),
    (lambda: ops.dequantize(CODES, SCALES, KIND, 512, 1), "result is 1; allowed are"),
    (lambda: ops.dequantize(X, SCALES, KIND, 512, 5), "codes has another element type"),
    (lambda: ops.transpose(CODES, SCALES, KIND, 1024), "codes is [64, 512]; allowed is [64, 1024 or more]"),
    (gemm_out(promote="128 batch=2"), "promote is '128 batch=2'; allowed are '32'"),
    (gemm_out(tokens="n"), "tokens is 'n'; allowed are 'm', 'k'"),
    (gemm_out(a_type="f32 group=masked"), "a_type is 'f32 group=masked'"),
    (gemm_out(k=1024), "a is [64, 512]; allowed is [64, 1024 or more]"),
    (gemm_out(d=torch.empty(65, 16)), "a is [64, 512]; allowed is [65, 512 or more]"),
    (gemm_out(d=torch.empty(64, 24)), "b is [16, 512]; allowed is [24, 512 or more]"),
    (gemm_out(d=torch.empty(64, 16, dtype=torch.int32)), "d has an element type"),
    (gemm_out(d=torch.empty(16, 64).t()), "d has strides"),
    (gemm_out(a_scale=SCALES[:2].contiguous()), "a_scale is [2, 64]"),
    (gemm_out(b_scale=TB.scales.double()), "b_scale has another element type"),
    (gemm_out(bias=torch.ones(8)), "bias is [8]; allowed is [16]"),
    (gemm_out(bias=torch.ones(16).half()), "bias is float16"),
    (layer(x_codes=lambda codes, _: codes[:, :8].contiguous()), "x_codes is [64, 8]; allowed is"),
    (layer(x_codes=lambda codes, _: codes.float()), "x_codes is [64, 16]"),
    (layer(x_scales=lambda _, scales: scales[:1]), "x_scales is [1]; allowed is contiguous, of 64 elements"),
    (layer(x_scales=lambda _, scales: scales.half()), "x_scales has another element type"),
    (layer(dy=lambda *_: torch.ones(37, 32)), "x_codes is [64, 16]"),
    (experts(x_codes=lambda codes, _: codes[:, :64].contiguous()), "x_codes is [64, 64]"),
    (experts(x_scales=lambda _, scales: scales[:64]), "x_scales is [64]; allowed is contiguous, of 128 elements"),
    (experts(TENSORWISE, x_scales=lambda _, scales: scales[:1]), "x_scales is [1]; allowed is contiguous, of 2"),
    (lambda: product(X, BLOCK[0][0], BLOCK[1]), "weight is [512]; allowed is [n, 512]"),
    (lambda: product(X, BLOCK[0], BLOCK[1][:, :2]), "w_scales is [1, 2]; allowed is contiguous, of 4 elements"),
    (lambda: ops.update_scales(torch.ones(1, 6), 1, DELAYED, 0, 2**32), "margin is 4294967296"),
    (lambda: ops.update_scales(torch.ones(1, 6), 1, DELAYED, 9, 0), "choice is 9"),
    (lambda: ops.update_scales(torch.ones(6), 1, DELAYED, 0, 0), "states has 1 dimensions; allowed are 2"),
    (lambda: ops.update_scales(torch.ones(1, 6), 2**62, DELAYED, 0, 0), "experts is 4611686018427387904"),
    (lambda: ops.linear_forward(X, torch.ones(16, 512), None, 99, False, False), "recipe is 99"),
    (lambda: ops.linear_forward(X, X[None], None, 0, False, False), "weight is [1, 64, 512]; allowed is [n, 512]"),
]


@pytest.mark.parametrize("call, sentence", OPERATORS, ids=[sentence for _, sentence in OPERATORS])
def test_operators_refuse_what_they_would_read_beyond(call, sentence):
    with pytest.raises(ValueError) as raised:
        call()
    assert sentence in str(raised.value)


def test_operators_take_padded_rows():
    padded = torch.zeros(64, 1024, dtype=torch.uint8)
    padded[:, :512] = CODES.view(torch.uint8)
    codes = padded.view(torch.float8_e4m3fn)[:, :512]
    assert ops.dequantize(codes, SCALES, KIND, 512, 5).equal(ot.dequantize(TA))
    d = torch.zeros(64, 32)[:, :16]
    gemm_out(a=codes, d=d)()
    assert d.equal(ot.gemm(TA, TB, torch.float32))


# ---- arguments of other types than are meant

MODEL = torch.nn.Sequential(torch.nn.Linear(64, 32))
LAYERS, DOUBLE = torch.nn.Sequential(ot.Linear(64, 32)), torch.nn.Sequential(ot.Linear(64, 32, dtype=torch.float64))
OTHERS = [
    (lambda: ot.convert(None), TypeError, "model is of type NoneType; allowed is torch.nn.Module"),
    (lambda: ot.convert({"a": MODEL}), TypeError, "model is of type dict"),
    (lambda: ot.convert(MODEL, filter=["0"], min_dims=16), TypeError, "filter is of type list"),
    (lambda: ot.convert(MODEL, tokens=1e4), ValueError, "tokens is 10000.0; allowed are a number"),
    (lambda: ot.convert(MODEL, tokens=(1, 2, 3)), ValueError, "tokens is (1, 2, 3)"),
    (lambda: ot.convert(MODEL, min_dims=True), ValueError, "min_dims is True"),
    (lambda: ot.convert(MODEL, recipe=7), TypeError, "recipe is of type int"),
    (lambda: ot.convert(MODEL, preset=None), ValueError, "preset is None"),
    (lambda: ot.warmup(MODEL, tokens=128), ValueError, "tokens is 128; allowed are (lo, hi) with 0 <= lo <= hi"),
    (lambda: ot.warmup(None, tokens=(1, 2)), TypeError, "model is of type NoneType"),
    (lambda: ot.warmup(MODEL, tokens=(1, 2), dtype="bf16"), ValueError, "dtype is 'bf16'"),
    (lambda: ot.sentry(None), TypeError, "model is of type NoneType"),
    (lambda: ot.set_fp8(3, True), TypeError, "model is of type int"),
    (lambda: ot.update_scales(None), TypeError, "model is of type NoneType"),
    (lambda: ot.block_fp8_state_dict(None), TypeError, "model is of type NoneType"),
    (lambda: ot.quantize(None), TypeError, "x is of type NoneType; allowed is torch.Tensor"),
    (lambda: ot.quantize(ROWS), TypeError, "x is of type ndarray"),
    (lambda: ot.gemm(TA, TB, bias=[1.0] * 16), TypeError, "bias is of type list"),
    (lambda: ot.gemm(TA, TB, out=ROWS), TypeError, "out is of type ndarray"),
    (lambda: ot.linear(ROWS, torch.ones(16, 512)), TypeError, "x is of type ndarray"),
    (lambda: ot.linear(X, ROWS), TypeError, "weight is of type ndarray"),
    (lambda: ot.experts(X, torch.ones(2, 16, 512), [3, 5]), TypeError, "offsets is of type list"),
    (lambda: ot.Linear(128)(None), TypeError, "out_features"),
    (lambda: ot.Linear(128, 64)(None), TypeError, "x is of type NoneType"),
    (lambda: ot.Linear(128.0, 64), ValueError, "in_features is 128.0"),
    (lambda: ot.Linear.from_linear(None), TypeError, "linear is of type NoneType"),
    (lambda: ot.Experts("2", 64, 32), ValueError, "experts is '2'"),
    (lambda: ot.Linear.from_linear(MODEL[0], least_tokens=3), ValueError, "least_tokens is 3; allowed are three"),
    (lambda: ot.Linear.from_linear(MODEL[0], least_tokens=(0, -1)), ValueError, "least_tokens is (0, -1)"),
    (lambda: ot.set_fp8(MODEL, "no"), TypeError, "enabled is of type str; allowed is bool"),
    (lambda: ot.set_fp8(MODEL, None), TypeError, "enabled is of type NoneType"),
    (lambda: ot.Schedule(MODEL, recipe=3), TypeError, "recipe is of type int"),
    (lambda: ot.Schedule(LAYERS, recipe="fp4"), ValueError, "recipe is 'fp4'"),
    (lambda: ot.warmup(MODEL, (1, 2**31)), ValueError, "allowed are (lo, hi) with 0 <= lo <= hi < 2**31"),
    (lambda: ot.warmup(MODEL, (1, 2), training="no"), TypeError, "training is of type str; allowed is bool"),
    (lambda: ot.warmup(LAYERS, (1, 2), main_grad=torch.float16), ValueError, "main_grad is torch.float16; allowed are"),
    (lambda: ot.warmup(DOUBLE, (1, 2)), ValueError, "the weight of '0'.dtype is torch.float64"),
    (lambda: ot.sentry(LAYERS, weights=3), TypeError, "weights is of type int; allowed is a list of names"),
    (lambda: ot.sentry(LAYERS, weights=[3]), TypeError, "a name of weights is of type int"),
    (lambda: ot.sentry(LAYERS, group="world"), TypeError, "group is of type str; allowed is torch.distributed.Process"),
    (lambda: ot.sentry(ot.Linear(64, 32)).run(None), TypeError, "closure is of type NoneType"),
    (lambda: ot.reduce_scales(None), TypeError, "model is of type NoneType"),
    (lambda: ot.export_hf(LAYERS, 3), TypeError, "path is of type int; allowed is str or os.PathLike"),
    (
        lambda: ot.export_hf(LAYERS, "/dev/null/x", shard_bytes="1"),
        ValueError,
        "shard_bytes is '1'; allowed are integers from 1",
    ),
    (lambda: ot.export_hf(LAYERS, "/dev/null/x", shard_bytes=0), ValueError, "shard_bytes is 0"),
]


@pytest.mark.parametrize("call, error, sentence", OTHERS, ids=[sentence for _, _, sentence in OTHERS])
def test_arguments_of_wrong_types_are_named(call, error, sentence):
    with pytest.raises(error) as raised:
        call()
    assert sentence in str(raised.value)


# ---- calls of layers


ROUTE = torch.tensor([2, 5])
TOKENS = torch.randn(5, 64)
PLAIN, PLAIN_EXPERTS = ot.Linear(64, 32), ot.Experts(2, 64, 32)
ot.set_fp8(PLAIN, False), ot.set_fp8(PLAIN_EXPERTS, False)
META = torch.device("meta")
FLOATS = "allowed are torch.bfloat16, torch.float16 and torch.float32"


def linear(x=TOKENS, weight=None, bias=None):
    return lambda: ot.linear(x, torch.ones(32, 64) if weight is None else weight, bias)


def groups(x=TOKENS, weight=None, offsets=ROUTE):
    return lambda: ot.experts(x, torch.ones(2, 32, 64) if weight is None else weight, offsets)


CALLS = [
    (lambda: ot.Linear(64, 32)(TOKENS.double()), f"x.dtype is torch.float64; {FLOATS}"),
    (lambda: ot.Linear(64, 32)(TOKENS.to(torch.float8_e4m3fn)), f"x.dtype is torch.float8_e4m3fn; {FLOATS}"),
    (lambda: ot.Linear(64, 32)(TOKENS[:, :32]), "the last dimension of x is 32; with this weight 64 is allowed"),
    (lambda: ot.Linear(64, 32, dtype=torch.float64)(TOKENS), f"weight.dtype is torch.float64; {FLOATS}"),
    (lambda: ot.Experts(2, 64, 32)(TOKENS.bool(), ROUTE), f"x.dtype is torch.bool; {FLOATS}"),
    (linear(weight=torch.ones(32, 64).to(torch.float8_e5m2)), f"weight.dtype is torch.float8_e5m2; {FLOATS}"),
    (linear(bias=torch.ones(32).double()), f"bias.dtype is torch.float64; {FLOATS}"),
    (linear(bias=torch.ones(32).int()), f"bias.dtype is torch.int32; {FLOATS}"),
    (linear(bias=torch.ones(1, 32)), "bias is [1, 32]; allowed is [32]"),
    (linear(torch.tensor(1.0)), "x has no dimension"),
    (linear(weight=torch.ones(64)), "weight is [64]; allowed is [n, 64]"),
    (groups(weight=torch.ones(2, 32, 64).double()), f"weight.dtype is torch.float64; {FLOATS}"),
    (groups(TOKENS[None]), "x is [1, 5, 64]; with weights [2, 32, 64] [tokens, 64] is allowed"),
    (groups(offsets=ROUTE[None]), "offsets.shape is (1, 2); allowed are (2,) and (3,)"),
    # without FP8
    (lambda: PLAIN(TOKENS[:, :32]), "x.shape is (5, 32); allowed is (..., 64) with a weight (32, 64)"),
    (lambda: PLAIN(torch.tensor(1.0)), "x.dim() is 0; allowed are 1 and more"),
    (lambda: PLAIN_EXPERTS(TOKENS[:, :32], ROUTE), "x.shape is (5, 32); allowed is (tokens, 64) with a weight"),
    (lambda: PLAIN_EXPERTS(TOKENS[None], ROUTE), "x.dim() is 3; allowed is 2"),
    (lambda: PLAIN(TOKENS.to(META)), "weight.device is 'cpu'; allowed is that of x, 'meta'"),
    # on different devices
    (lambda: ot.Linear(64, 32, device=META)(TOKENS), "weight.device is 'meta'; allowed is that of x, 'cpu'"),
    (lambda: ot.Linear(64, 32)(TOKENS.to(META)), "weight.device is 'cpu'; allowed is that of x, 'meta'"),
    (lambda: ot.Linear(64, 32, recipe="delayed", device=META)(TOKENS), "weight.device is 'meta'; allowed is that of x"),
    (lambda: ot.Experts(2, 64, 32, device=META)(TOKENS, ROUTE), "weight.device is 'meta'; allowed is that of x, 'cpu'"),
    (linear(bias=torch.ones(32, device=META)), "bias.device is 'meta'; allowed is that of x, 'cpu'"),
    (groups(offsets=ROUTE.to(META)), "offsets.device is 'meta'; allowed is that of x, 'cpu'"),
    (gemm_out(b=TB.codes.to(META)), "b.device is 'meta'; allowed is that of a, 'cpu'"),
    (lambda: ops.dequantize(CODES, SCALES.to(META), KIND, 512, 5), "scales.device is 'meta'"),
    (lambda: product(X, *BLOCK, torch.ones(16, device=META)), "bias.device is 'meta'"),
    # where no operator runs
    (linear(TOKENS[:, :32].to(META), torch.ones(32, 64, device=META)), "x.shape is (5, 32); allowed is (..., 64)"),
    (linear(TOKENS.to(META), torch.ones(2, 32, 64, device=META)), "weight.shape is (2, 32, 64); allowed is (n, k)"),
]


@pytest.mark.parametrize("gradients", (True, False))
@pytest.mark.parametrize("call, sentence", CALLS, ids=[sentence for _, sentence in CALLS])
def test_calls_name_their_bad_argument(call, sentence, gradients):
    with torch.set_grad_enabled(gradients), pytest.raises(ValueError) as raised:
        call()
    assert sentence in str(raised.value)


@pytest.mark.parametrize("module", (PLAIN, ot.Linear(100, 7, unaligned="bf16")))
def test_calls_without_fp8_name_what_is_no_tensor(module):
    with pytest.raises(TypeError, match="x is of type list; allowed is torch.Tensor"):
        module([1.0])


def test_layers_on_meta_compute_on_meta():
    x = TOKENS.to(META).requires_grad_()
    for recipe in ("blockwise", "delayed"):
        for y in (
            ot.Linear(64, 32, device=META, recipe=recipe)(x),
            ot.Experts(2, 64, 32, device=META, recipe=recipe)(x, ROUTE.to(META)),
        ):
            assert y.is_meta and y.shape == (5, 32)
            assert torch.autograd.grad(y.sum(), x)[0].is_meta


def test_autocast_makes_no_float_of_other_types():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="x.dtype is torch.int32"):
        ot.Linear(64, 32)(TOKENS.int())


def test_schedules_take_names_of_recipes():
    model = torch.nn.Sequential(ot.Linear(64, 32), ot.Linear(32, 32, recipe="blockwise:f32"))
    for name, layer, other in (("blockwise", *model), ("blockwise:f32", *reversed(model))):
        schedule = ot.Schedule(model, begin=1, recipe=name)
        assert not schedule.step(0) and not layer.fp8 and other.fp8
        assert schedule.step(1) and layer.fp8
