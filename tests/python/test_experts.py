"""Experts: groups of tokens, each with a weight of its own."""

import pytest
import torch
from reference import assert_close, layer

import octile.torch as ot

RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise")
SIZES = {
    "some": (7, 0, 129, 1, 64),
    "none": (0, 0, 0, 0, 0),
    "one has all": (0, 0, 200, 0, 0),
}


def offsets_of(sizes):
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


def parts(tensor, sizes):
    return tensor.split(list(sizes)) if sum(sizes) else [tensor] * len(sizes)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_each_group_is_a_layer_of_its_own(recipe, sizes):
    n, k, tokens = 144, 272, sum(sizes)
    x = torch.randn(tokens, k, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(len(sizes), n, k, requires_grad=True)
    dy = torch.randn(tokens, n, dtype=torch.bfloat16)
    y = ot.experts(x, weight, offsets_of(sizes), recipe)
    y.backward(dy)
    assert y.shape == (tokens, n) and y.dtype == x.grad.dtype == torch.bfloat16
    assert weight.grad.dtype == torch.float32
    begin = 0
    for g, size in enumerate(sizes):
        rows = slice(begin, begin + size)
        begin += size
        if size == 0:
            assert weight.grad[g].eq(0).all()
            continue
        expected = layer(x[rows], weight[g], None, dy[rows], recipe)
        for actual, wanted in zip((y[rows], x.grad[rows], weight.grad[g]), expected[:3], strict=True):
            assert_close(actual, wanted)


def test_both_forms_of_offsets_and_unassigned_rows():
    x, weight = torch.randn(40, 64), torch.randn(3, 32, 64)
    ends = torch.tensor([7, 7, 33])
    y = ot.experts(x, weight, ends)
    assert y[:33].equal(ot.experts(x, weight, torch.tensor([0, 7, 7, 33], dtype=torch.int32))[:33])
    assert y[:7].equal(ot.linear(x[:7], weight[0])) and y[7:33].equal(ot.linear(x[7:33], weight[2]))


def test_weights_of_experts_are_kept_and_main_grad_collects():
    from octile.torch.weights import keep

    weight = torch.nn.Parameter(torch.randn(3, 32, 64))
    keep(weight)
    weight.main_grad = torch.zeros_like(weight)
    x, offsets = torch.randn(40, 64), torch.tensor([7, 7, 40])
    plain = weight.detach().clone().requires_grad_()
    before = torch.ops.octile.weight_quantizations()
    for _ in range(2):
        ot.experts(x, weight, offsets).sum().backward()
    assert torch.ops.octile.weight_quantizations() == before + 1
    ot.experts(x, plain, offsets).sum().backward()
    torch.testing.assert_close(weight.main_grad, 2 * plain.grad)
    assert weight.grad is None


def test_experts_trace_with_dynamic_sizes():
    torch._dynamo.reset()
    weight = torch.randn(3, 32, 64, requires_grad=True)
    traced = torch.compile(ot.experts, fullgraph=True, dynamic=True, backend="aot_eager")
    for ends in ([7, 7, 40], [100, 150, 300]):
        x = torch.randn(ends[-1], 64, requires_grad=True)
        results = []
        for call in (ot.experts, traced):
            y = call(x, weight, torch.tensor(ends))
            results.append([y.detach(), *torch.autograd.grad(y.square().sum(), (x, weight))])
        assert all(a.equal(b) for a, b in zip(*results, strict=True))


X, W = torch.ones(8, 64), torch.ones(2, 32, 64)
ENDS = torch.tensor([3, 8])


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: ot.experts(X, W[0], ENDS), "weight.shape is (32, 64); allowed is (experts, n, k)"),
        (lambda: ot.experts(X[:, :32], W, ENDS), "x is [8, 32]; with weights [2, 32, 64] [tokens, 64] is allowed"),
        (lambda: ot.experts(X, W[:, :7], ENDS), "weight is [2, 7, 64]; allowed n and k are multiples of 16 above 0"),
        (lambda: ot.experts(X, W[:0], ENDS[:0]), "weight is [0, 32, 64]; allowed are 1 expert and more"),
        (lambda: ot.experts(X, W, ENDS[:1]), "offsets.shape is (1,); allowed are (2,) and (3,)"),
        (lambda: ot.experts(X, W, ENDS.float()), "offsets.dtype is torch.float32; allowed are torch.int32"),
    ],
)
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(ValueError) as raised:
        call()
    assert sentence in str(raised.value)


def test_a_copy_of_other_tokens_is_refused():
    ops, offsets = torch.ops.octile, torch.tensor([0, 3, 8], dtype=torch.int32)
    _, codes, scales = ops.experts_forward(X, W, offsets, 0, True, True)
    with pytest.raises(ValueError, match=r"x_codes is \[64, 256\]; .* these tokens kept, contiguous \[64, 384\]"):
        ops.experts_backward(torch.ones(200, 32), W, offsets, codes, scales, 0, True, True)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_rowwise_experts_whose_weights_are_frozen(sizes):
    n, k, tokens = 144, 272, sum(sizes)
    x = torch.randn(tokens, k, dtype=torch.bfloat16, requires_grad=True)
    weight, dy = torch.randn(len(sizes), n, k), torch.randn(tokens, n, dtype=torch.bfloat16)
    y = ot.experts(x, weight, offsets_of(sizes), "rowwise")
    y.backward(dy)
    with torch.no_grad():
        assert y.equal(ot.experts(x, weight.requires_grad_(), offsets_of(sizes), "rowwise"))
    begin = 0
    for g, size in enumerate(sizes):
        rows = slice(begin, begin + size)
        begin += size
        if size > 0:
            expected = layer(x[rows], weight[g], None, dy[rows], "rowwise")
            for actual, wanted in zip((y[rows], x.grad[rows]), expected[:2], strict=True):
                assert_close(actual, wanted)


def test_recipes_that_the_library_has_not_for_groups():
    with pytest.raises(NotImplementedError) as raised:
        ot.experts(X, W, ENDS, "mxfp8")
    assert str(raised.value) == (
        "octile: recipe is 'mxfp8'; of groups the library has blockwise, blockwise_hybrid, tensorwise, rowwise"
    )
    with pytest.raises(NotImplementedError) as raised:
        ot.experts(X, W.clone().requires_grad_(), ENDS, "rowwise")
    assert str(raised.value) == (
        "octile: recipe is 'rowwise'; of groups the library has with weight gradients blockwise, blockwise_hybrid, "
        "tensorwise"
    )
    with pytest.raises(NotImplementedError, match="recipe is 'delayed', whose maxima a layer keeps"):
        ot.experts(X, W, ENDS, "delayed")


@pytest.mark.parametrize("scales", ["pow2", "f32"])
@pytest.mark.parametrize("recipe", (*RECIPES, "rowwise"))
def test_both_kinds_of_scales(recipe, scales):
    recipe = ot.Recipe(recipe, scales)
    y = ot.experts(X * 3, W, ENDS, recipe)
    for rows, g in ((slice(0, 3), 0), (slice(3, 8), 1)):
        assert y[rows].equal(ot.linear(X[rows] * 3, W[g], recipe=recipe))
