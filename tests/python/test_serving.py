"""GEMMs for engines: scales are read where they lie if a kernel can, results have the bits of ``gemm`` and of frozen layers."""

import pytest
import torch
from gpu import DEVICES, assert_replayed

import octile.torch as ot
from octile.torch.contents import encode

N, K = 264, 400


def blocks(scales, m, ld):
    """Returns packed 1x128 scales [ceil(k / 128), ...] as [m, ceil(k / 128)] with strides (1, ld), in as little memory
    as these take."""
    made = torch.empty_strided((m, scales.shape[0]), (1, ld), device=scales.device)
    return made.copy_(scales[:, :m].t())


def operands(device, m, n=N, k=K, scales="f32"):
    x, w = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    return ot.quantize(x, granularity="1x128", scales=scales), ot.quantize(w, granularity="128x128", scales=scales)


def checkpoint(b):
    """Returns scales of a quantised weight as checkpoints have them."""
    return b.scales[:, : -(-b.shape[1] // 128)].contiguous()


@DEVICES
@pytest.mark.parametrize("m", [0, 1, 7, 8, 129])
def test_block_scales_are_read_where_they_lie(device, m):
    a, b = operands(device, m)
    aligned = -(-m // 4) * 4
    for dtype, bias in (
        (torch.bfloat16, None),
        (torch.float16, torch.randn(N, device=device)),
        (torch.float32, torch.randn(N, device=device).bfloat16()),
    ):
        expected = ot.gemm(a, b, dtype, bias)
        for ld in {max(aligned, 4), aligned + 8} | ({m} if m % 4 == 0 and m > 0 else set()):
            a_scale = blocks(a.scales, m, ld)
            d = ot.scaled_mm(a.codes, a_scale, b.codes, checkpoint(b), bias, dtype)
            assert d.equal(expected)
    spread = torch.nn.functional.pad(checkpoint(b), (0, 3), value=float("nan"))[:, :-3]
    assert ot.scaled_mm(a.codes, blocks(a.scales, m, aligned + 4), b.codes, spread).equal(ot.gemm(a, b))


@DEVICES
@pytest.mark.parametrize("m", [1, 2, 7, 8])
def test_block_scales_that_lie_otherwise_are_copied(device, m):
    a, b = operands(device, m)
    expected = ot.gemm(a, b)
    columns, rows = blocks(a.scales, m, m), checkpoint(b)
    odd = torch.empty(columns.shape[1] * (m + 8) + 1, device=device)[1:].as_strided(columns.shape, (1, m + 8))
    for a_scale in (columns, columns.contiguous(), blocks(a.scales, m, m + 3), odd.copy_(columns)):
        assert ot.scaled_mm(a.codes, a_scale, b.codes, rows).equal(expected)
    assert ot.scaled_mm(a.codes, columns, b.codes, rows.t().contiguous().t()).equal(expected)


@DEVICES
def test_scales_of_rows(device):
    x, w = torch.randn(7, K, device=device), torch.randn(N, K, device=device)
    a, b = (ot.quantize(t, granularity="row", scales="f32") for t in (x, w))
    a_scale, b_scale = a.scales[0, :7].clone(), b.scales[0, :N].clone()
    expected = ot.gemm(a, b, torch.float16)
    for of_a, of_b in ((a_scale, b_scale), (a_scale[:, None], b_scale[:, None])):
        assert ot.scaled_mm(a.codes, of_a, b.codes, of_b, dtype=torch.float16).equal(expected)
    spread = torch.empty(14, device=device)[::2].copy_(a_scale)
    assert ot.scaled_mm(a.codes, spread, b.codes, b_scale, dtype=torch.float16).equal(expected)


@DEVICES
def test_linear_quantises_x_as_a_frozen_layer_does(device):
    x = torch.randn(3, 5, K, device=device).bfloat16()
    codes, scales = encode(torch.randn(272, K, device=device), "f32")
    bias = torch.randn(272, device=device)
    y = ot.block_fp8_linear(x, codes, scales, bias)
    a = ot.quantize(x.view(15, K), scales="f32")
    of_codes = ot.scaled_mm(a.codes, blocks(a.scales, 15, 16), codes, scales, bias)
    assert y.shape == (3, 5, 272) and y.view(15, 272).equal(of_codes)


def test_operators_trace_with_dynamic_shapes():
    _, b = operands("cpu", 4, 272)
    scales = checkpoint(b)

    def both(x, codes, a_scale):
        return ot.block_fp8_linear(x, b.codes, scales), ot.scaled_mm(codes, a_scale, b.codes, scales) + 1

    traced = torch.compile(both, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (6, 9, 16):
        a, _ = operands("cpu", m)
        given = torch.randn(m, K), a.codes, blocks(a.scales, m, -(-m // 4) * 4)
        for p, q in zip(both(*given), traced(*given), strict=True):
            assert p.equal(q)


@pytest.mark.gpu
def test_prepared_operators_are_captured():
    n, k, m = 512, 1024, 24
    ot.prepare(n, k, (1, 64), linear=True)
    a, b = operands("cuda", m, n, k)
    a_scale, b_scale = blocks(a.scales, m, m), checkpoint(b)
    x = torch.randn(m, k, device="cuda").bfloat16()

    def step():
        return ot.scaled_mm(a.codes, a_scale, b.codes, b_scale), ot.block_fp8_linear(x, b.codes, b_scale)

    assert_replayed(step)


def test_prepare_makes_the_plans_of_the_calls():
    ot.prepare(328, 656, (1, 9), torch.float16, torch.float32)
    ot.prepare(328, 656, (1, 9), granularity="row")
    ot.prepare(336, 656, (1, 9), linear=True)
    prepared = set(ot.problems())
    a, b = operands("cpu", 9, 328, 656)
    ot.scaled_mm(a.codes, blocks(a.scales, 9, 12), b.codes, checkpoint(b), torch.ones(328), torch.float16)
    a, b = (ot.quantize(torch.ones(r, 656), granularity="row") for r in (9, 328))
    ot.scaled_mm(a.codes, a.scales[0, :9], b.codes, b.scales[0, :328])
    codes, scales = encode(torch.ones(336, 656), "f32")
    ot.block_fp8_linear(torch.ones(9, 656).bfloat16(), codes, scales)
    ot.scaled_mm(codes[:8], scales[:1].expand(8, 6).t().contiguous().t(), codes, scales)
    assert not [text for text in set(ot.problems()) - prepared if text.startswith("gemm")]


A, B = torch.zeros(6, 256).to(torch.float8_e4m3fn), torch.zeros(136, 256).to(torch.float8_e4m3fn)
A_SCALE, B_SCALE = torch.empty_strided((6, 2), (1, 8)), torch.ones(2, 2)
ROWS = torch.ones(136)


def mm(a=A, a_scale=A_SCALE, b=B, b_scale=B_SCALE, bias=None, dtype=torch.bfloat16):
    return lambda: ot.scaled_mm(a, a_scale, b, b_scale, bias, dtype)


def linear(x=torch.zeros(6, 256), b=B[:128], b_scale=B_SCALE[:1], bias=None):
    return lambda: ot.block_fp8_linear(x, b, b_scale, bias)


BAD = [
    (mm(a=A.float()), "a.dtype is torch.float32; allowed is torch.float8_e4m3fn"),
    (mm(b=B.to(torch.float8_e5m2)), "b.dtype is torch.float8_e5m2; allowed is torch.float8_e4m3fn"),
    (mm(a=A[0]), "a.shape is (256,); allowed is (m, k)"),
    (mm(a=A[:, :128]), "a.shape is (6, 128); allowed is (m, 256) with b (136, 256)"),
    (mm(b=B[:100]), "n is 100; allowed are multiples of 8"),
    (mm(a=A[:, :24], b=B[:, :24]), "k is 24; allowed are multiples of 16"),
    (mm(a_scale=A_SCALE[:5]), "a_scale.shape is (5, 2); allowed with b_scale (2, 2) is (6, 2)"),
    (mm(a_scale=A_SCALE.double()), "a_scale.dtype is torch.float64; allowed is torch.float32"),
    (mm(b_scale=B_SCALE.bfloat16()), "b_scale.dtype is torch.bfloat16; allowed is torch.float32"),
    (mm(b_scale=torch.ones(2, 3)), "b_scale.shape is (2, 3); allowed are (2, 2), (136,) and (136, 1)"),
    (mm(b_scale=ROWS), "a_scale.shape is (6, 2); allowed with b_scale (136,) are (6,) and (6, 1)"),
    (mm(a_scale=torch.ones(6, 1)), "a_scale.shape is (6, 1); allowed with b_scale (2, 2) is (6, 2)"),
    (mm(bias=ROWS.half()), "bias.dtype is torch.float16; allowed are torch.bfloat16 and torch.float32"),
    (mm(bias=ROWS[1:]), "bias.shape is (135,); allowed with n 136 is (136,)"),
    (mm(dtype=torch.int8), "dtype is torch.int8; allowed are torch.bfloat16"),
    (mm(b=B.to("meta")), "b.device is 'meta'; allowed is that of a, 'cpu'"),
    (linear(x=torch.zeros(6, 128)), "x.shape is (6, 128); allowed is (..., 256) with b (128, 256)"),
    (linear(x=torch.zeros(6, 256).int()), "x.dtype is torch.int32; allowed are torch.bfloat16"),
    (linear(b=B), "n is 136; allowed are multiples of 16"),
    (linear(b_scale=B_SCALE), "b_scale.shape is (2, 2); allowed with b (128, 256) is (1, 2)"),
    (linear(b_scale=B_SCALE[:1].double()), "b_scale.dtype is torch.float64; allowed is torch.float32"),
    (linear(b=torch.zeros(128, 512).to(B.dtype)[:, ::2]), "b.stride() is (512, 2); allowed is that of a contiguous"),
    (linear(bias=ROWS), "bias.shape is (136,); allowed with n 128 is (128,)"),
    (lambda: ot.prepare(100, 256, (1, 8)), "n is 100; allowed are multiples of 8"),
    (lambda: ot.prepare(136, 256, (1, 8), linear=True), "n is 136; allowed are multiples of 16"),
    (lambda: ot.prepare(136, 256, (8, 1)), "tokens is (8, 1); allowed are (lo, hi)"),
    (lambda: ot.prepare(136, 256, (1, 8), torch.int8), "dtype is torch.int8; allowed are torch.bfloat16"),
    (lambda: ot.prepare(136, 256, (1, 8), bias=torch.float16), "bias is torch.float16; allowed are None"),
    (lambda: ot.prepare(136, 256, (1, 8), granularity="tensor"), "granularity is 'tensor'; allowed are '128x128', 'r"),
    (lambda: ot.prepare(128, 256, (1, 8), granularity="row", linear=True), "linear is True; allowed with granularity"),
]


@pytest.mark.parametrize("call, sentence", BAD, ids=[sentence[:60] for _, sentence in BAD])
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(ValueError) as raised:
        call()
    assert sentence in str(raised.value)


def test_training_a_weight_of_codes_is_not_prepared():
    sample = torch.empty(0).bfloat16()
    with pytest.raises(ValueError, match="training is true; allowed with a weight of codes is false"):
        torch.ops.octile.prepare_linear(sample, B[:0], None, None, ot.Recipe("blockwise").code, 64, 64, 1, 8, True)
