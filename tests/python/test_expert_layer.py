"""The module ``Experts``: state, delayed scaling, and what a sentry sees of it and of the functions."""

import copy
import io
import math
import warnings

import pytest
import torch
from torch import nn

import octile.torch as ot
from octile.torch.nonfinite import Counts

E, N, K = 3, 32, 64
DELAYED = ot.Recipe("delayed", warmup=1, history=4)
RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise", "delayed")


def offsets_of(sizes):
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


def data(sizes, size=1.0):
    tokens = sum(sizes)
    return torch.randn(tokens, K) * size, torch.randn(tokens, N) * size


def pass_both_ways(layer, x, dy, *offsets):
    x = x.detach().requires_grad_()
    layer.zero_grad()
    y = layer(x, *offsets)
    y.backward(dy)
    return y.detach(), x.grad, layer.weight.grad


@pytest.mark.parametrize("recipe", [DELAYED, ot.Recipe("delayed", scales="f32", warmup=2, history=2, margin=1)])
def test_delayed_experts_are_layers_of_their_own(recipe):
    layer = ot.Experts(E, K, N, recipe=recipe)
    alone = [ot.Linear(K, N, bias=False, recipe=recipe) for _ in range(E)]
    for g, one in enumerate(alone):
        one.weight.data = layer.weight.data[g].clone()
    for step, sizes in enumerate([(7, 40, 3), (1, 0, 130), (16, 5, 64), (9, 9, 9), (0, 0, 2)]):
        x, dy = data(sizes, size=4.0 ** (1 - step))
        x[: sizes[0]] *= 100  # groups of different ranges
        results = pass_both_ways(layer, x, dy, offsets_of(sizes))
        begin = 0
        for g, (one, size) in enumerate(zip(alone, sizes, strict=True)):
            rows = slice(begin, begin + size)
            begin += size
            wanted = pass_both_ways(one, x[rows], dy[rows])
            for ours, theirs in zip((results[0][rows], results[1][rows], results[2][g]), wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4 * size**0.5)
        with torch.no_grad():  # the step, by hand
            layer.weight[2] *= 2
            alone[2].weight *= 2
        assert [ot.update_scales(one) for one in (*alone, layer)] == [1] * (E + 1)
        assert layer._scaling.scales.t().equal(torch.stack([one._scaling.scales for one in alone]))
    assert len(set(layer._scaling.scales[0].tolist())) > 1


def test_maxima_of_experts_are_kept_one_by_one():
    layer = ot.Experts(E, K, N, recipe=DELAYED)
    sizes = (4, 0, 6)
    x, dy = data(sizes)
    pass_both_ways(layer, x, dy, offsets_of(sizes))
    of_x, of_dy = layer._scaling.latest
    maxima = [part.abs().max() if len(part) else torch.zeros(()) for part in (*x.split(sizes), *dy.split(sizes))]
    assert of_x.tolist() == maxima[:E] and of_dy.tolist() == maxima[E:]
    ot.update_scales(layer)
    assert layer._scaling.scales[0, 1] == layer._scaling.scales[1, 1] == 1  # never had a token


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_state_is_the_weight_alone(recipe):
    layer = ot.Experts(E, K, N, recipe=recipe)
    assert list(layer.state_dict()) == ["weight"] and layer.weight.shape == (E, N, K)
    assert f"recipe={recipe}" in repr(layer) and "experts=3" in repr(layer)
    x, dy = data((7, 0, 9))
    offsets = offsets_of((7, 0, 9))
    for _ in range(2):
        pass_both_ways(layer, x, dy, offsets)
        ot.update_scales(layer)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    with torch.no_grad():
        wanted = layer(x, offsets)
        for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
            assert other(x, offsets).equal(wanted)
        empty = ot.Experts(E, K, N, device="meta", recipe=recipe).to_empty(device="cpu")
        empty.load_state_dict(layer.state_dict())
        if recipe != "delayed":  # whose new layer warms up
            assert empty(x, offsets).equal(wanted) and ot.experts(x, layer.weight, offsets, recipe).equal(wanted)


def test_weights_are_quantised_once_a_step():
    layer, x = ot.Experts(E, K, N), data((7, 0, 9))[0]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    count = torch.ops.octile.weight_quantizations
    for _ in range(2):
        before = count()
        for _ in range(3):
            layer(x.requires_grad_(), offsets_of((7, 0, 9))).square().sum().backward()
        assert count() == before + 1
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(7, 0, 9), (1, 0, 0), (0, 0, 0)])
@pytest.mark.parametrize("first", [False, True])
def test_without_fp8_it_is_the_grouped_gemm_of_pytorch(first, sizes, dtype):
    layer = ot.Experts(E, K, N)
    x, dy = (t.to(dtype) for t in data(sizes))
    offsets = offsets_of((0, *sizes) if first else sizes)
    assert ot.set_fp8(layer, False) == 1
    y, dx, dw = pass_both_ways(layer, x, dy, offsets)
    assert y.dtype == dx.dtype == dtype and dw.dtype == torch.float32
    begin, near = 0, dict(rtol=0.02, atol=0.02) if dtype != torch.float32 else dict(rtol=1e-4, atol=1e-4)
    for g, size in enumerate(sizes):
        rows, begin, weight = slice(begin, begin + size), begin + size, layer.weight[g].detach().to(dtype)
        torch.testing.assert_close(y[rows], x[rows] @ weight.t(), **near)
        torch.testing.assert_close(dx[rows], dy[rows] @ weight, **near)
        torch.testing.assert_close(dw[g], (dy[rows].t() @ x[rows]).float(), **near)


def test_without_fp8_it_takes_gradients_of_all_strides_and_is_cast():
    layer = ot.Experts(E, K, N)
    ot.set_fp8(layer, False)
    for sizes in ((7, 0, 9), (1, 0, 0), (0, 0, 0)):
        x = torch.randn(sum(sizes), K, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x, offsets_of(sizes))
        assert y.dtype == torch.bfloat16
        y.sum().backward()
        assert x.grad.shape == x.shape and (x.grad.numel() == 0 or x.grad.abs().sum() > 0)


@pytest.mark.parametrize("recipe", ["blockwise", DELAYED])
def test_it_traces_with_dynamic_sizes(recipe):
    torch._dynamo.reset()
    layer = ot.Experts(E, K, N, recipe=recipe)
    twin = copy.deepcopy(layer)
    watch = ot.sentry(layer)
    traced = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for sizes in ((7, 0, 33), (100, 50, 150), (1, 2, 3)):
        x, dy = data(sizes)
        for one in (layer, twin):
            one.zero_grad()
        results = []
        for one in (traced, twin):
            grad = x.detach().requires_grad_()
            y = one(grad, offsets_of(sizes))
            y.backward(dy)
            results.append((y, grad.grad))
        assert all(a.equal(b) for a, b in zip(*results, strict=True)) and layer.weight.grad.equal(twin.weight.grad)
        assert ot.update_scales(layer) == ot.update_scales(twin)
        assert not watch.step()


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ((0, K, N), "experts is 0; allowed are 1 and more"),
        ((E, 63, N), "in_features is 63; allowed are multiples of 16 above 0"),
        ((E, K, 0), "out_features is 0; allowed are multiples of 16 above 0"),
    ],
)
def test_bad_sizes_are_named(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        ot.Experts(*arguments)


def test_recipes_that_the_library_has_not_for_groups():
    with pytest.raises(NotImplementedError, match="recipe is 'mxfp8'; of groups the library has .*, delayed, rowwise"):
        ot.Experts(E, K, N, recipe="mxfp8")
    layer = ot.Experts(E, K, N, recipe="rowwise")
    with pytest.raises(NotImplementedError, match="with weight gradients blockwise, .*, delayed$"):
        layer(data((2, 2, 2))[0], offsets_of((2, 2, 2)))
    layer.requires_grad_(False)
    assert layer(data((2, 2, 2))[0], offsets_of((2, 2, 2))).isfinite().all()


def test_warmup_prepares_every_kind_of_experts():
    model = nn.ModuleList([ot.Experts(E, K, N, recipe=name) for name in (*RECIPES, "rowwise")])
    model += [ot.Experts(E, K, N), ot.Linear(K, N)]  # experts like the first ones
    assert ot.warmup(model, (0, 300)) == 6
    assert ot.warmup(model, (0, 300), training=False, dtype=torch.bfloat16, main_grad=torch.float32) == 6
    with pytest.raises(ValueError, match="model is 'on the meta device'; allowed is one in memory"):
        ot.warmup(ot.Experts(E, K, N, device="meta"), (0, 300))


def test_operators_name_bad_state():
    x, weight = data((2, 2, 2))[0], torch.randn(E, N, K)
    offsets = torch.tensor([0, 2, 4, 6], dtype=torch.int32)

    def forward(*state):
        return torch.ops.octile.experts_forward(x, weight, offsets, DELAYED.code, False, False, *state)

    with pytest.raises(ValueError, match="scaling is absent; with the recipe 'delayed' it is needed"):
        forward()
    for bad in (torch.ones(15), torch.ones(6)):
        with pytest.raises(ValueError, match=r"allowed are contiguous float32 \[\(2 \+ 2 \* history\) \* 3\]"):
            forward(bad)
    with pytest.raises(ValueError, match=r"sentry has 2 elements; allowed is contiguous int32 \[3\]"):
        forward(torch.ones(18), torch.zeros(2, dtype=torch.int32))


class Mixture(nn.Module):
    """Experts by a module or by the function, behind a linear layer by the function."""

    def __init__(self, as_module, recipe="blockwise"):
        super().__init__()
        torch.manual_seed(1)
        self.recipe, self.as_module = recipe, as_module
        self.inner = nn.Parameter(torch.randn(K, K) / 8)
        made = ot.Experts(E, K, N, recipe=recipe)
        self.experts = made if as_module else None
        self.grouped = None if as_module else nn.Parameter(made.weight.detach().clone())
        self.sizes = (7, 0, 33)

    def names(self):
        return {"inner", "experts" if self.as_module else "grouped"}

    def forward(self, x):
        x = ot.linear(x, self.inner, recipe="tensorwise" if self.recipe == "delayed" else self.recipe)
        if self.as_module:
            return self.experts(x, offsets_of(self.sizes))
        return ot.experts(x, self.grouped, offsets_of(self.sizes), self.recipe)


WATCHED = {True: ["inner"], False: ["in*", "grouped"]}
CASES = [(True, recipe) for recipe in RECIPES] + [(False, recipe) for recipe in RECIPES[:3]]


def gradients(model, x, dy):
    model.zero_grad()
    x = x.detach().requires_grad_()
    model(x).backward(dy)
    return [x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("as_module, recipe", CASES)
def test_a_step_with_a_nan_is_repeated_without_fp8(as_module, recipe):
    model = Mixture(as_module, recipe)
    watch = ot.sentry(model, weights=WATCHED[as_module])
    assert set(watch.counts) == model.names()
    x, dy = data(model.sizes)
    bad = x.clone()
    bad[3, 5] = math.nan
    inputs, results = [x, bad], []
    with pytest.warns(UserWarning, match="products of 2 layers"):
        watch.run(lambda: results.append(gradients(model, inputs.pop(), dy)))
    assert watch.repeated == 1 and not watch.found_nonfinite
    assert watch.counts["inner"] == Counts(1, 0, 1)  # dy of this layer is finite, and its x is not
    assert watch.counts[(model.names() - {"inner"}).pop()] == Counts(1, 0, 1)
    inner = x @ model.inner.t()
    weight = model.experts.weight if as_module else model.grouped
    wanted = inner[7:].detach().t() @ dy[7:]
    torch.testing.assert_close(results[1][-1][2], wanted.t(), rtol=1e-4, atol=1e-4)
    # The next step is in FP8 again.
    fp8 = watch.run(lambda: gradients(model, x, dy))
    assert not torch.allclose(fp8[-1][2], results[1][-1][2], rtol=1e-4, atol=1e-4) and weight.grad is not None
    watch.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradients(model, bad, dy)[-1].isnan().any()


@pytest.mark.parametrize("spoiled", [(0,), (1, 2)])
@pytest.mark.parametrize("as_module, recipe", CASES)
def test_products_are_computed_again_one_by_one(as_module, recipe, spoiled):
    model = Mixture(as_module, recipe)
    x, dy = data(model.sizes)
    wanted = gradients(copy.deepcopy(model), x, dy)
    watch = ot.sentry(model, check="call", weights=WATCHED[as_module])
    name = (model.names() - {"inner"}).pop()
    one = dict(zip(watch.counts, [layer._watch for layer in watch.layers], strict=True))[name]
    real = one._failed

    def failed(product):  # a mark put there by hand stands for a product that FP8 alone has spoiled
        if product in spoiled:
            one.words[product] = 1
        return real(product)

    one._failed = failed
    with pytest.warns(UserWarning, match="not finite"):
        ours = gradients(model, x, dy)
    assert watch.counts[name] == Counts(*(int(product in spoiled) for product in range(3)))
    assert watch.counts["inner"] == Counts(0, 0, 0)
    assert not watch.step()  # what took their place is finite
    for a, b in zip(ours, wanted, strict=True):
        assert (a - b).norm() <= 0.1 * b.norm()
    assert not ours[-1].equal(wanted[-1])


def test_main_grad_gets_what_takes_a_products_place():
    model = Mixture(False)
    x, dy = data(model.sizes)
    wanted = gradients(copy.deepcopy(model), x, dy)[-1]
    model.grouped.main_grad = torch.ones(E, N, K)
    watch = ot.sentry(model, check="call", weights=["grouped"])
    watch.layers[0]._watch._failed = lambda product: product == 2
    model(x).backward(dy)
    difference = model.grouped.main_grad - 1 - wanted
    assert model.grouped.grad is None and difference.norm() <= 0.06 * wanted.norm()


def test_a_traced_function_marks_and_a_retreat_is_plain():
    torch._dynamo.reset()
    model = Mixture(False)
    watch = ot.sentry(model, weights=WATCHED[False], retreat=1)
    traced = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, dy = data(model.sizes)
    bad = x.clone()
    bad[3, 5] = math.nan
    traced(x).backward(dy)
    assert not watch.step()
    traced(bad).backward(dy)
    with pytest.warns(UserWarning, match="not finite"):
        assert watch.step()
    model.zero_grad()
    with torch.no_grad():
        plain = traced(x)[:7]
        torch.testing.assert_close(plain, x[:7] @ model.inner.t() @ model.grouped[0].t(), rtol=1e-4, atol=1e-4)


def test_copies_and_files_of_functions_weights_have_no_sentry():
    model = Mixture(False)
    watch = ot.sentry(model, weights=WATCHED[False])
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    x, dy = data(model.sizes)
    x[0] = math.nan
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        gradients(other, x, dy)
        assert not watch.step()


@pytest.mark.parametrize(
    "weights, sentence",
    [
        (["nobody"], "weights is 'nobody'; allowed are names of parameters of Mixture, and patterns of them"),
        ("inner", "weights is 'inner'; allowed are lists of names"),
    ],
)
def test_bad_names_of_weights(weights, sentence):
    with pytest.raises(ValueError) as raised:
        ot.sentry(Mixture(False), weights=weights)
    assert sentence in str(raised.value)
