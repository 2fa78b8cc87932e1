"""Recipes whose input or weight gradients are computed as ``nn.Linear`` does."""

import copy

import pytest
import torch
from torch import nn

import octile.torch as ot

BOTH = "blockwise:dx=bf16:dw=bf16"


def pair(recipe, bias=True, dtype=torch.bfloat16):
    """Returns an FP8 layer, and nn.Linear with the same parameters."""
    plain = nn.Linear(96, 48, bias=bias, dtype=dtype)
    return ot.Linear.from_linear(copy.deepcopy(plain), recipe), plain


def gradients(layer, x, dy):
    layer.zero_grad()
    x = x.detach().requires_grad_()
    layer(x).backward(dy)
    return x.grad, *[p.grad for p in layer.parameters()]


def data(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, 96, dtype=dtype), torch.randn(*shape, 48, dtype=dtype)


@pytest.mark.parametrize("name", ["blockwise", "tensorwise:f32", "rowwise", "mxfp8"])
def test_gradients_without_fp8_have_the_bits_of_pytorch(name):
    x, dy = data(2, 33)
    fp8, plain = pair(name)
    of_fp8, of_plain = gradients(fp8, x, dy), gradients(plain, x, dy)
    for which, exact in (("dw=bf16", [1]), ("dx=bf16", [0]), ("dx=bf16:dw=bf16", [0, 1, 2])):
        layer = ot.Linear.from_linear(copy.deepcopy(plain), f"{name}:{which}")
        assert layer(x).equal(fp8(x))
        made = gradients(layer, x, dy)
        for index, gradient in enumerate(made):
            assert gradient.equal((of_plain if index in exact else of_fp8)[index]), (which, index)
    assert ot.linear(x, plain.weight, plain.bias, f"{name}:dw=bf16").equal(fp8(x))


def test_the_input_is_kept_for_a_weight_gradient_alone():
    x, dy = data(64)
    kept = {}
    for recipe in ("blockwise", "blockwise:dw=bf16", "blockwise:dx=bf16", BOTH):
        saved = []
        layer = pair(recipe)[0]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            layer(x.requires_grad_())
        kept[recipe] = sum(t.numel() * t.element_size() for t in saved if t is not layer.weight)
        of_x = [t for t in saved if t.data_ptr() == x.data_ptr()]
        assert len(of_x) == ("dw" in recipe)
    assert kept["blockwise:dw=bf16"] == kept[BOTH] == x.numel() * 2
    assert kept["blockwise:dx=bf16"] == kept["blockwise"] < x.numel() * 2


def test_compiled_layers_have_the_same_bits():
    torch._dynamo.reset()
    layer = nn.Sequential(pair("rowwise:dw=bf16")[0], ot.Linear(48, 48, dtype=torch.bfloat16, recipe=BOTH))
    x, dy = data(40)
    wanted = [g.clone() for g in gradients(layer, x, dy)]
    layer.compile(backend="aot_eager", fullgraph=True)
    assert all(a.equal(b) for a, b in zip(gradients(layer, x, dy), wanted, strict=True))


def test_main_grad_masters_and_autocast():
    layer, plain = pair("rowwise:dw=bf16", bias=False)
    x, dy = data(40)
    dw = gradients(plain, x, dy)[1]
    layer.weight.main_grad = torch.ones(48, 96)
    assert gradients(layer, x, dy)[1] is None
    assert layer.weight.main_grad.equal(dw.float() + 1)
    layer, plain = pair(BOTH, dtype=torch.float32)
    for one, results in ((layer, []), (plain, [])):
        with torch.autocast("cpu", torch.bfloat16):
            y = one(x.float())
        y.backward(dy)
        results += [one.weight.grad, one.bias.grad]
    assert layer.weight.grad.dtype == torch.float32 and layer.weight.grad.equal(plain.weight.grad)


@pytest.mark.parametrize("which", ["dw=bf16", "dx=bf16", "dx=bf16:dw=bf16"])
def test_transforms_of_func_have_the_same_bits(which):
    layer = pair("blockwise:" + which)[0]
    x, dy = data(40)
    wanted = gradients(layer, x, dy)

    def loss(weight, x):
        return (torch.func.functional_call(layer, {"weight": weight}, x) * dy).sum()

    dw, dx = torch.func.grad(loss, (0, 1))(layer.weight.detach(), x)
    assert dx.equal(wanted[0]) and dw.equal(wanted[1])


@pytest.mark.parametrize("recipe", ["rowwise:dw=bf16", "blockwise:dw=bf16", "blockwise:dx=bf16", BOTH])
@pytest.mark.parametrize("transposed", [False, True])
def test_experts_have_the_bits_of_pytorch(recipe, transposed):
    weight = torch.randn(3, 64, 32, dtype=torch.bfloat16)
    weight = (weight if transposed else weight.transpose(1, 2).contiguous()).requires_grad_()
    x, dy = torch.randn(50, 64, dtype=torch.bfloat16), torch.randn(50, 32, dtype=torch.bfloat16)
    ends = torch.tensor([20, 20, 50], dtype=torch.int32)

    def run(call):
        weight.grad, own = None, x.detach().requires_grad_()
        call(own).backward(dy)
        return own.grad, weight.grad

    columns = weight if transposed else weight.transpose(1, 2)
    wanted = run(lambda x: torch._grouped_mm(x, columns, offs=ends))
    made = run(lambda x: ot.grouped_mm(x, columns, ends, recipe=recipe))
    if "dx" in recipe:
        assert made[0].equal(wanted[0])
    if "dw" in recipe:
        assert made[1].equal(wanted[1])
    for ours, theirs in zip(made, wanted, strict=True):
        assert (ours.float() - theirs.float()).norm() < 0.06 * theirs.float().norm()


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def test_convert_takes_them_and_says_what_is_kept():
    model = nn.Sequential(Mlp()).bfloat16()
    plain = copy.deepcopy(model)
    report = ot.convert(model, "tensorwise:dw=bf16", min_dims=16, preset="all-linear")
    assert report.unfused == {"0": "recipe 'tensorwise:dw=bf16' has its activation computed by PyTorch"}
    assert "3 linear layers to tensorwise:dw=bf16" in str(report) and report.kept == (384, 384)
    assert "recipe=tensorwise, dw=bf16" in repr(model)
    x = torch.randn(40, 64, dtype=torch.bfloat16)
    for one in (model, plain):
        one(x).float().square().sum().backward()
    a, b = model[0].down.weight.grad.float(), plain[0].down.weight.grad.float()
    assert 0 < (a - b).norm() < 0.1 * b.norm()
    weights = [p.detach() for p in (plain[0].gate.weight, plain[0].up.weight, plain[0].down.weight)]
    assert ot.gated_mlp(x, *weights, recipe="blockwise:dw=bf16").shape == x.shape


def test_a_sentry_marks_them():
    layer = pair(BOTH)[0]
    model = nn.Sequential(layer)
    watch = ot.sentry(model)
    x, dy = data(32)
    dy[0, 0] = torch.inf
    gradients(model, x, dy)
    with pytest.warns(UserWarning, match="products of 1 layers"):
        watch.step()
    counts = watch.counts["0"]
    assert (counts.output, counts.input_gradient, counts.weight_gradient) == (0, 1, 1)


def test_recipes_and_their_text():
    for text in ("rowwise:dw=bf16", "blockwise:f32:dx=bf16:dw=bf16", "tensorwise:f32"):
        layer = ot.Linear(32, 32, recipe=text)
        assert layer.recipe.text == text and layer.recipe == ot.Recipe(layer.recipe.name, **{
            "scales": "f32" if "f32" in text else "pow2", "dx": "bf16" if "dx" in text else "fp8",
            "dw": "bf16" if "dw" in text else "fp8"})  # fmt: skip
    for text in ("rowwise:dw", "rowwise:dw=fp16", "rowwise:dw=bf16:dw=bf16", "mxfp8:f32", "fp8:dw=bf16"):
        with pytest.raises(ValueError, match="recipe is '.*'; allowed are"):
            ot.Linear(32, 32, recipe=text)
    with pytest.raises(ValueError, match="dw is 'int8'; allowed are 'fp8', 'bf16'"):
        ot.Recipe(dw="int8")
    with pytest.raises(ValueError, match="dw is 'bf16'; allowed is 'fp8' with recipe 'delayed'"):
        ot.Recipe("delayed", dw="bf16")
