"""GEMMs of groups for engines: each group has the bits of ``scaled_mm``, and scales are read where they lie."""

import pytest
import torch
from gpu import DEVICES, assert_replayed

import octile.torch as ot
from octile.torch.contents import encode

N, K = 264, 400
SIZES = (5, 0, 3, 130)  # rows of groups: the last begins at 8, and none but it fills a tile


def quantized_rows(x, ld):
    """Returns codes [m, k] and scales [m, ceil(k / 128)] with strides (1, ld), in as little memory as these take."""
    q, blocks = ot.quantize(x, scales="f32"), -(-x.shape[1] // 128)
    scales = torch.empty_strided((x.shape[0], blocks), (1, ld), device=x.device)
    return q.codes, scales.copy_(q.scales[:, : x.shape[0]].t())


def weights(device, groups, n=N, k=K):
    """Returns codes [groups, n, k] and scales [groups, ceil(n / 128), ceil(k / 128)]."""
    made = [encode(torch.randn(n, k, device=device), "f32") for _ in range(groups)]
    return tuple(torch.stack(tensors) for tensors in zip(*made, strict=True))


def begins(device, sizes):
    return torch.tensor([0, *sizes], device=device, dtype=torch.int32).cumsum(0).to(torch.int32)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_contiguous_groups_are_products_of_their_rows(device, dtype):
    m = sum(SIZES)
    b, b_scale = weights(device, len(SIZES))
    offsets = begins(device, SIZES)
    a, a_scale = quantized_rows(torch.randn(m, K, device=device), -(-m // 4) * 4 + 4)
    d = ot.scaled_grouped_mm(a, a_scale, b, b_scale, offsets, dtype)
    assert d.shape == (m, N) and d.dtype == dtype
    for group, (lo, hi) in enumerate(zip(offsets.tolist(), offsets[1:].tolist(), strict=False)):
        rows = torch.empty_strided((hi - lo, 4), (1, max(-(-(hi - lo) // 4) * 4, 4)), device=device)
        rows.copy_(a_scale[lo:hi])
        assert d[lo:hi].equal(ot.scaled_mm(a[lo:hi], rows, b[group], b_scale[group], dtype=dtype))
    assert ot.scaled_grouped_mm(a, a_scale, b, b_scale, offsets[1:].long(), dtype).equal(d)
    spread = torch.nn.functional.pad(b_scale, (0, 3), value=float("nan"))[..., :-3]
    assert ot.scaled_grouped_mm(a, a_scale, b, spread, offsets, dtype).equal(d)


@DEVICES
def test_rows_in_no_group_are_not_written(device, monkeypatch):
    b, b_scale = weights(device, 2)
    a, a_scale = quantized_rows(torch.randn(9, K, device=device), 12)
    made = torch.full((9, N), float("nan"), device=device, dtype=torch.bfloat16)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *_, **__: made)
    ot.scaled_grouped_mm(a, a_scale, b, b_scale, begins(device, (2, 3)))
    assert made[5:].isnan().all() and not made[:5].isnan().any()


@DEVICES
@pytest.mark.parametrize("expected", [0, 3, 1000])
def test_masked_groups_are_products_of_their_rows(device, expected, monkeypatch):
    m, room = torch.tensor([5, 0, 3, 130]), 133
    b, b_scale = weights(device, 4)
    a = torch.zeros(4, room, K, device=device).to(torch.float8_e4m3fn)
    ld = 140
    a_scale = torch.full((4, 4, ld), float("nan"), device=device).transpose(1, 2)[:, :room]
    for group, rows in enumerate(m.tolist()):
        codes, scales = quantized_rows(torch.randn(rows, K, device=device), max(-(-rows // 4) * 4, 4))
        a[group, :rows], a_scale[group, :rows] = codes, scales
    made = torch.full((4, room, N), 7.0, device=device, dtype=torch.bfloat16)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", lambda *_, **__: made)
        d = ot.scaled_masked_mm(a, a_scale, b, b_scale, m.to(device), expected)
    for group, rows in enumerate(m.tolist()):
        scales = torch.empty_strided((rows, 4), (1, max(-(-rows // 4) * 4, 4)), device=device)
        scales.copy_(a_scale[group, :rows])
        assert d[group, :rows].equal(ot.scaled_mm(a[group, :rows], scales, b[group], b_scale[group]))
        assert d[group, rows:].eq(7).all()


@DEVICES
def test_groups_of_rows_with_a_scale_each(device):
    x, w = torch.randn(8, K, device=device), torch.randn(2, N, K, device=device)
    a = ot.quantize(x, granularity="row", scales="f32")
    b = [ot.quantize(one, granularity="row", scales="f32") for one in w]
    codes, b_scale = torch.stack([one.codes for one in b]), torch.stack([one.scales[0, :N] for one in b])
    a_scale = a.scales[0, :8].clone()
    parts = [
        ot.scaled_mm(a.codes[lo : lo + 4], a_scale[lo : lo + 4], codes[i], b_scale[i]) for i, lo in enumerate((0, 4))
    ]
    for of_a, of_b in ((a_scale, b_scale), (a_scale[:, None], b_scale[..., None])):
        assert ot.scaled_grouped_mm(a.codes, of_a, codes, of_b, begins(device, (4, 4))).equal(torch.cat(parts))
    masked = a.codes.view(2, 4, K), a_scale.view(2, 4), codes, b_scale
    assert ot.scaled_masked_mm(*masked, torch.full((2,), 4, device=device)).view(8, N).equal(torch.cat(parts))


@DEVICES
def test_experts_quantise_x_as_frozen_ones_do(device):
    n = 272
    x = torch.randn(12, K, device=device).bfloat16()
    b, b_scale = weights(device, 3, n)
    offsets = begins(device, (4, 0, 8))
    y = ot.block_fp8_experts(x, b, b_scale, offsets)
    expected = ot.scaled_grouped_mm(*quantized_rows(x, 12), b, b_scale, offsets)
    assert y.equal(expected) and y.dtype == x.dtype
    assert y[4:].equal(ot.block_fp8_linear(x[4:], b[2], b_scale[2]))


@DEVICES
@pytest.mark.parametrize("expected", [0, 3])
def test_masked_experts_quantise_the_rows_that_exist(device, expected, monkeypatch):
    n, room, counts = 272, 133, torch.tensor([5, 0, 130], dtype=torch.int32)
    b, b_scale = weights(device, 3, n)
    x = torch.randn(3, room, K, device=device).bfloat16()
    for group, rows in enumerate(counts.tolist()):
        x[group, rows:] = float("nan")  # which would make the whole of a tile NaN
    made = torch.full((3, room, n), 7.0, device=device, dtype=torch.bfloat16)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", lambda *_, **__: made)
        ot.block_fp8_masked_experts(x, b, b_scale, counts.to(device), expected)
    for group, rows in enumerate(counts.tolist()):
        assert made[group, :rows].equal(ot.block_fp8_linear(x[group, :rows], b[group], b_scale[group]))
        assert made[group, rows:].eq(7).all()
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    again = ot.block_fp8_masked_experts(strided, b, b_scale, counts.long().to(device), expected)
    assert again[2, :130].equal(made[2, :130])


def test_operators_trace_with_dynamic_shapes():
    b, b_scale = weights("cpu", 2, 272)

    def all_four(x, a, a_scale, offsets, masked, masked_scale, counts):
        return (
            ot.block_fp8_experts(x, b, b_scale, offsets),
            ot.scaled_grouped_mm(a, a_scale, b, b_scale, offsets) + 1,
            ot.scaled_masked_mm(masked, masked_scale, b, b_scale, counts, 3)[:, :2],
            ot.block_fp8_masked_experts(x.expand(2, *x.shape), b, b_scale, counts)[:, :2],
        )

    traced = torch.compile(all_four, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (6, 9, 16):
        aligned = -(-m // 4) * 4
        a, a_scale = quantized_rows(torch.randn(m, K), aligned)
        masked_scale = torch.ones(2, 4, aligned).transpose(1, 2)[:, :m]
        given = torch.randn(m, K), a, a_scale, begins("cpu", (2, m - 2)), torch.stack([a, a]), masked_scale
        counts = torch.tensor([2, m])
        for p, q in zip(all_four(*given, counts), traced(*given, counts), strict=True):
            assert p.equal(q)


@pytest.mark.gpu
def test_prepared_operators_are_captured():
    n, k, m, groups = 512, 1024, 64, 4
    ot.prepare(n, k, (1, m), linear=True, groups=groups)
    ot.prepare(n, k, (1, m), groups=groups, masked=True, linear=True)
    b, b_scale = weights("cuda", groups, n, k)
    x = torch.randn(m, k, device="cuda").bfloat16()
    a, a_scale = quantized_rows(x, m)
    offsets = begins("cuda", (10, 0, 20, 34))
    stack, stack_scale = a.view(groups, 16, k), torch.ones(groups, k // 128, 16, device="cuda").transpose(1, 2)
    counts = torch.full((groups,), 16, device="cuda", dtype=torch.int32)

    def step():
        return (
            ot.scaled_grouped_mm(a, a_scale, b, b_scale, offsets),
            ot.block_fp8_experts(x, b, b_scale, offsets),
            ot.scaled_masked_mm(stack, stack_scale, b, b_scale, counts, 9),
            ot.block_fp8_masked_experts(x.view(groups, 16, k), b, b_scale, counts, 9),
        )

    assert_replayed(step)


def test_prepare_makes_the_plans_of_the_calls():
    ot.prepare(336, 656, (1, 9), groups=3, linear=True)
    ot.prepare(336, 656, (1, 9), torch.float16, groups=3, masked=True, linear=True)
    ot.prepare(336, 656, (1, 9), groups=3, granularity="row")
    prepared = set(ot.problems())
    b, b_scale = weights("cpu", 3, 336, 656)
    offsets, counts = begins("cpu", (2, 3, 4)), torch.tensor([1, 2, 3])
    x = torch.ones(9, 656).bfloat16()
    a, a_scale = quantized_rows(x, 12)
    ot.block_fp8_experts(x, b, b_scale, offsets)
    ot.scaled_grouped_mm(a, a_scale, b, b_scale, offsets)
    ot.scaled_grouped_mm(a, torch.ones(9), b, torch.ones(3, 336), offsets)
    stack = a.repeat(3, 1).view(3, 9, 656), torch.ones(3, 6, 12).transpose(1, 2)[:, :9]
    ot.scaled_masked_mm(*stack, b, b_scale, counts, 2, torch.float16)
    ot.block_fp8_masked_experts(x.half().repeat(3, 1).view(3, 9, 656), b, b_scale, counts, 2)
    added = set(ot.problems()) - prepared
    assert not [text for text in added if "group" in text]


A, B = torch.zeros(6, 256).to(torch.float8_e4m3fn), torch.zeros(2, 136, 256).to(torch.float8_e4m3fn)
A_SCALE, B_SCALE = torch.empty_strided((6, 2), (1, 8)), torch.ones(2, 2, 2)
OFFSETS, COUNTS, ROWS = torch.tensor([0, 2, 6]), torch.tensor([1, 2]), torch.ones(2, 136)
STACK, STACK_SCALE = A.view(2, 3, 256), torch.ones(2, 2, 4).transpose(1, 2)[:, :3]


def grouped(a=A, a_scale=A_SCALE, b=B, b_scale=B_SCALE, offsets=OFFSETS, dtype=torch.bfloat16):
    return lambda: ot.scaled_grouped_mm(a, a_scale, b, b_scale, offsets, dtype)


def masked(a=STACK, a_scale=STACK_SCALE, b=B, b_scale=B_SCALE, counts=COUNTS, expected=0, dtype=torch.bfloat16):
    return lambda: ot.scaled_masked_mm(a, a_scale, b, b_scale, counts, expected, dtype)


def experts(x=torch.zeros(6, 256), b=B[:, :128].contiguous(), b_scale=B_SCALE[:, :1].contiguous(), offsets=OFFSETS):
    return lambda: ot.block_fp8_experts(x, b, b_scale, offsets)


def masked_experts(x=torch.zeros(2, 3, 256), b=B[:, :128].contiguous(), counts=COUNTS, expected=0):
    return lambda: ot.block_fp8_masked_experts(x, b, B_SCALE[:, :1].contiguous(), counts, expected)


def prepare(n=136, k=256, tokens=(1, 8), groups=2, **others):
    return lambda: ot.prepare(n, k, tokens, groups=groups, **others)


BAD = [
    (grouped(a=A.float()), "a.dtype is torch.float32; allowed is torch.float8_e4m3fn"),
    (grouped(a=STACK), "a.shape is (2, 3, 256); allowed is (m, 256) with b (2, 136, 256)"),
    (grouped(b=B[0]), "b.shape is (136, 256); allowed is (groups, n, k), with 1 group or more"),
    (grouped(b=B[:0]), "b.shape is (0, 136, 256); allowed is (groups, n, k), with 1 group or more"),
    (grouped(b=B[:, :100]), "n is 100; allowed are multiples of 8"),
    (grouped(b=B.to("meta")), "b.device is 'meta'; allowed is that of a, 'cpu'"),
    (grouped(a_scale=A_SCALE[:5]), "a_scale.shape is (5, 2); allowed with b_scale (2, 2, 2) is (6, 2)"),
    (grouped(b_scale=B_SCALE.bfloat16()), "b_scale.dtype is torch.bfloat16; allowed is torch.float32"),
    (
        grouped(b_scale=B_SCALE[:, :1]),
        "b_scale.shape is (2, 1, 2); allowed are (2, 2, 2), (2, 136) and (2, 136, 1)",
    ),
    (
        grouped(b_scale=B_SCALE.transpose(1, 2)),
        "b_scale is [2, 2, 2] with strides (4, 1, 2); allowed is [2, 2, 2] with strides (2 * ld, ld, 1), ld 2 or more, "
        "in memory that begins at a multiple of 4 bytes",
    ),
    (grouped(b_scale=ROWS), "a_scale.shape is (6, 2); allowed with scales of rows of b are (6,) and (6, 1)"),
    (
        grouped(a_scale=torch.ones(6), b_scale=torch.ones(2, 272)[:, ::2]),
        "b_scale is [2, 1, 136] with strides (272, 272, 2); allowed is [2, 1, 136] with strides (136, 136, 1), in memo",
    ),
    (
        grouped(a_scale=torch.ones(6), b_scale=torch.ones(2, 140)[:, :136]),
        "b_scale is [2, 1, 136] with strides (140, 136, 1); allowed is [2, 1, 136] with strides (136, 136, 1), in memo",
    ),
    (
        grouped(b=B.transpose(1, 2).contiguous().transpose(1, 2)),
        "b is [2, 136, 256] with strides (34816, 1, 136); allowed is [2, 136, 256] with strides (136 * ld, ld, 1), ld "
        "256 or more and a multiple of 16, in memory that begins at a multiple of 16 bytes",
    ),
    (grouped(offsets=OFFSETS[:1]), "offsets.shape is (1,); allowed are (2,) and (3,)"),
    (grouped(offsets=OFFSETS.float()), "offsets.dtype is torch.float32; allowed are torch.int32 and torch.int64"),
    (grouped(dtype=torch.int8), "dtype is torch.int8; allowed are torch.bfloat16"),
    (masked(a=A), "a.shape is (6, 256); allowed is (2, m, 256) with b (2, 136, 256)"),
    (masked(a_scale=STACK_SCALE[:, :2]), "a_scale.shape is (2, 2, 2); allowed with b_scale (2, 2, 2) is (2, 3, 2)"),
    (
        masked(a_scale=torch.ones(2, 3, 2)),
        "a_scale is [2, 2, 3] with strides (6, 1, 2); allowed is [2, 2, 3] with strides (2 * ld, ld, 1), ld 4 or more "
        "and a multiple of 4, in memory that begins at a multiple of 16 bytes",
    ),
    (
        masked(a_scale=torch.ones(2, 3), b_scale=ROWS),
        "a_scale is [2, 1, 3] with strides (3, 3, 1); allowed is [2, 1, 3] with strides (4, 4, 1), in memory that",
    ),
    (masked(counts=OFFSETS), "counts.shape is (3,); allowed with b (2, 136, 256) is (2,)"),
    (masked(counts=COUNTS.float()), "counts.dtype is torch.float32; allowed are torch.int32 and torch.int64"),
    (masked(expected=-1), "expected is -1; allowed are 0 and more"),
    (masked(dtype=torch.int8), "dtype is torch.int8; allowed are torch.bfloat16"),
    (experts(x=torch.zeros(6, 128)), "x.shape is (6, 128); allowed is (m, 256) with b (2, 128, 256)"),
    (experts(x=A), "x.dtype is torch.float8_e4m3fn; allowed are torch.bfloat16"),
    (experts(b=B, b_scale=B_SCALE), "n is 136; allowed are multiples of 16"),
    (experts(b_scale=torch.ones(2, 128)), "b_scale.shape is (2, 128); allowed is (2, 1, 2)"),
    (experts(b=B[:, :128]), "b.stride() is (34816, 256, 1); allowed is that of a contiguous tensor"),
    (masked_experts(x=torch.zeros(6, 256)), "x.shape is (6, 256); allowed is (2, m, 256) with b (2, 128, 256)"),
    (masked_experts(x=STACK), "x.dtype is torch.float8_e4m3fn; allowed are torch.bfloat16"),
    (masked_experts(b=B[:, :128]), "b.stride() is (34816, 256, 1); allowed is that of a contiguous tensor"),
    (masked_experts(counts=COUNTS[:1]), "counts.shape is (1,); allowed with b (2, 128, 256) is (2,)"),
    (masked_experts(expected=-1), "expected is -1; allowed are 0 and more"),
    (prepare(groups=0), "groups is 0; allowed are None and 1 to 1024"),
    (prepare(groups=None, masked=True), "masked is True; allowed without groups is False"),
    (prepare(bias=torch.float32), "bias is torch.float32; allowed with groups 2 is None"),
]


@pytest.mark.parametrize("call, sentence", BAD, ids=[sentence[:60] for _, sentence in BAD])
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(ValueError) as raised:
        call()
    assert sentence in str(raised.value)


def test_the_operator_refuses_what_the_functions_do_not_pass():
    d, rows = torch.empty(6, 136).bfloat16(), OFFSETS.int()
    types = "e4m3:1x128:f32", "e4m3:128x128:f32"

    def call(d=d, rows=rows, b=B, expected=0):
        torch.ops.octile.grouped_gemm_out(A, A_SCALE.t(), types[0], b, B_SCALE, types[1], rows, d, expected)

    call()
    for given, sentence in (
        ({"d": d[:5]}, "d is [5, 136]; allowed is contiguous [6, 136]"),
        ({"d": d.t().contiguous().t()}, "d is [6, 136]; allowed is contiguous [6, 136]"),
        ({"rows": OFFSETS}, "group_rows is [3]; allowed is int32 [3], contiguous"),
        ({"b": B[0]}, "b is [136, 256]; allowed is [groups, n, k]"),
        ({"expected": 2}, "expected is 2; allowed with contiguous groups is 0"),
    ):
        with pytest.raises(ValueError) as raised:
            call(**given)
        assert sentence in str(raised.value)
    ops, x = torch.ops.octile, torch.zeros(2, 3, 256)
    for arguments, sentence in (
        ((x[0], COUNTS.int(), types[0]), "x is [3, 256]; allowed is contiguous [groups, m, k]"),
        ((x[:, :2], COUNTS.int(), types[0]), "x is [2, 2, 256]; allowed is contiguous [groups, m, k]"),
        ((x, COUNTS, types[0]), "counts is [2]; allowed is int32 [2], contiguous"),
        ((x, OFFSETS.int(), types[0]), "counts is [3]; allowed is int32 [2], contiguous"),
    ):
        with pytest.raises(ValueError) as raised:
            ops.quantize_masked(*arguments)
        assert sentence in str(raised.value)
    with pytest.raises(ValueError, match="quantized is true; allowed is false without masked groups"):
        ops.prepare_gemm(d, None, *types, 136, 256, 1, 2, 2, False, True)
