"""A model's report on itself: its layers, their calls, and the effect of quantising on their operands."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import octile.torch as ot
from octile.torch.calls import REASONS


def model_of(*widths, **options):
    model = nn.Sequential(*(nn.Linear(k, n) for k, n in zip(widths, widths[1:])))
    ot.convert(model, min_dims=16, **options)
    return model


def calls(model, name="0"):
    told = ot.status(model).layers[name]
    return told.fp8, told.plain


# ---- calls


def test_calls_are_counted_by_what_they_did():
    model, x = model_of(64, 32), torch.randn(9, 64)
    assert calls(model) == (0, {})
    model(x)
    model(x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    torch.func.grad(lambda x: model(x).sum())(x)
    assert calls(model) == (4, {})
    ot.set_fp8(model, False)
    model(x)
    ot.set_fp8(model, True)
    schedule = ot.Schedule(model, begin=1)
    for step in range(3):
        schedule.step(step)
        model(x)
    model[0].least_tokens = (20, 20, 20)
    model(x)
    assert calls(model) == (6, {
        "switched off by set_fp8": 1, "outside of the schedule": 1, "fewer tokens than FP8 gains from": 1,
    })  # fmt: skip
    assert ot.status(model, reset=True).layers["0"].fp8 == 6 and calls(model) == (0, {})


def test_a_retreat_and_odd_sizes_are_reasons():
    model, x = nn.Sequential(ot.Linear(64, 32)), torch.randn(9, 64)
    sentry = ot.sentry(model, retreat=1)
    model[0]._watch.paused = True
    model(x)
    sentry.remove()
    assert calls(model) == (0, {"paused by a sentry": 1})
    odd = nn.Sequential(ot.Linear(60, 30, unaligned="bf16"))
    odd(torch.randn(9, 60))
    assert calls(odd) == (0, {"sizes are not multiples of 16": 1})
    assert "without FP8: sizes are not multiples of 16" in str(ot.status(odd))


def test_fused_mlps_and_experts_are_counted():
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 64)

        def forward(self, x):
            return self.down(nn.functional.silu(self.gate(x)) * self.up(x))

    model = nn.Sequential(Mlp(), ot.Experts(2, 64, 32))
    assert ot.convert(model, min_dims=16, preset="all-linear").fused == ["0"]
    model[0](torch.randn(9, 64))
    model[1](torch.randn(9, 64), torch.tensor([4, 9]))
    assert all(calls(model, name) == (1, {}) for name in ("0.gate", "0.up", "0.down", "1"))


def test_counts_make_nobody_compile_again():
    torch._dynamo.reset()
    model, x = model_of(64, 32), torch.randn(9, 64)
    counter = CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for _ in range(3):
        compiled(x)
    ot.set_fp8(model, False)
    for _ in range(3):
        compiled(x)
    assert counter.frame_count == 2 and calls(model) == (0, {})


def test_copies_count_from_zero():
    model = model_of(64, 32)
    model(torch.randn(9, 64))
    assert calls(copy.deepcopy(model)) == calls(pickle.loads(pickle.dumps(model))) == (0, {})
    assert calls(model) == (1, {})


def test_status_says_why_layers_are_not_converted():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.odd, self.lm_head = nn.Linear(64, 64), nn.Linear(64, 7), nn.Linear(64, 64)

    model = Mixed()
    ot.convert(model, min_dims=16)
    model.late = nn.Linear(16, 16)
    model.frozen = ot.FrozenLinear(16, 16)
    model.up(torch.randn(2, 64))
    layers = ot.status(model).layers
    assert layers["odd"].now == "not converted, sizes are not multiples of 16"
    assert layers["lm_head"].now == "not converted, output layer by its name 'lm_head' (preset deepseek-v3)"
    assert layers["late"].now == "not converted, convert was not called with it"
    assert layers["frozen"].now.startswith("FP8, with a frozen weight")
    text = str(ot.status(model))
    assert text.startswith("1 FP8 layers: 1 calls in FP8, 0 without\n  blockwise, now FP8; each 1 calls in FP8: up\n")
    with pytest.raises(TypeError, match="model is"):
        ot.status(5)


# ---- print(model)


def test_a_printed_layer_says_how_it_computes():
    layer = ot.Linear(64, 32, recipe="tensorwise:f32")
    assert repr(layer).endswith("recipe=tensorwise, scales=f32)")
    layer.least_tokens = (2048, 512, 1 << 62)
    assert repr(layer).endswith(", FP8 from 2048 tokens on)")
    layer.eval()
    assert repr(layer).endswith(", without FP8 in eval() mode)")
    ot.set_fp8(layer, False)
    assert repr(layer).endswith(", without FP8: switched off by set_fp8)")
    experts = nn.Sequential(ot.Experts(2, 64, 32))
    ot.Schedule(experts, begin=5).step(0)
    assert "recipe=blockwise, without FP8: outside of the schedule" in repr(experts)
    assert set(REASONS) == set(range(1, 1 + len(REASONS)))


def test_set_fp8_is_a_context():
    model, x = model_of(64, 32, 16), torch.randn(9, 64)
    ot.set_fp8(model[0], False)
    wanted = model(x)
    with ot.set_fp8(model, True) as count:
        assert count == 2 and not model(x).equal(wanted)
        with pytest.raises(KeyError), ot.set_fp8(model, False):
            raise KeyError
        assert model[0].fp8
    assert model(x).equal(wanted) and not model[0].fp8 and model[1].fp8


# ---- underflow


def seen(model, x, dy):
    with ot.underflow(model) as found:
        model(x).backward(dy)
    return found.layers


@pytest.mark.parametrize("recipe", ["blockwise", "blockwise_hybrid", "tensorwise", "rowwise", "mxfp8"])
def test_flushed_values_are_those_that_quantising_makes_zero(recipe):
    torch.manual_seed(0)
    layer = ot.Linear(128, 128, recipe=recipe, bias=False)
    x = torch.randn(16, 128) * torch.exp2(torch.randint(-30, 1, (16, 128)).float())
    x[0] = 0
    dy = torch.randn(16, 128) * torch.exp2(torch.randint(-40, 1, (16, 128)).float())
    found = seen(nn.Sequential(layer), x.requires_grad_(), dy)["0"]
    kinds = layer.recipe.activation, layer.recipe.weight, layer.recipe.gradient
    for key, values, kind in zip(("x", "w", "dy"), (x.detach(), layer.weight.detach(), dy), kinds):
        dtype = torch.float8_e4m3fn if kind.dtype == "e4m3" else torch.float8_e5m2
        again = ot.dequantize(ot.quantize(values, dtype, kind.granularity, kind.scales))
        flushed = int(((again == 0) & (values != 0)).sum())
        assert found[key].values == int((values != 0).sum()) and found[key].saturated == 0
        assert found[key].flushed == flushed / found[key].values
    assert found["x"].flushed > 0 and found["dy"].flushed > 0
    assert ("x.T" in found) == ("dy.T" in found) == (recipe != "tensorwise")


def test_gradients_in_e5m2_flush_less_than_in_e4m3():
    dy = torch.exp2(-torch.arange(128).float() / 4).repeat(4, 1)  # over 32 powers of two
    flushed = {}
    for recipe in ("blockwise", "blockwise_hybrid"):
        model = model_of(128, 128, recipe=recipe)
        flushed[recipe] = seen(model, torch.randn(4, 128, requires_grad=True), dy)["0"]["dy"].flushed
    assert flushed["blockwise"] > 0.3 and flushed["blockwise_hybrid"] == 0


def test_transposed_copies_flush_small_tokens():
    dy = torch.exp2(-torch.arange(128).float())[:, None].repeat(1, 128)  # a row has one size, a column has all
    found = seen(model_of(128, 128), torch.randn(128, 128, requires_grad=True), dy)["0"]
    assert found["dy"].flushed == 0 and found["dy.T"].flushed > 0.8 and found["w"].values == 128 * 128


def test_delayed_scales_saturate():
    recipe = ot.Recipe("delayed", warmup=1, history=4)
    model = model_of(64, 32, recipe=recipe)
    x = torch.randn(16, 64)
    model(x).sum().backward()
    ot.update_scales(model)
    found = seen(model, (64 * x).requires_grad_(), torch.ones(16, 32))["0"]
    assert found["x"].saturated > 0.5 and found["w"].saturated == 0


def test_what_is_seen_changes_nothing_and_prints():
    torch.manual_seed(0)
    model, x = model_of(64, 32, 16), torch.randn(9, 64, requires_grad=True)
    wanted = model(x)
    with ot.underflow(model) as found:
        y = torch.compile(model)(x)
        y.sum().backward()
        ot.set_fp8(model[1], False)
    assert y.equal(wanted) and model[0]._watch is None
    assert set(found.layers["0"]) == {"x", "w", "dy", "x.T", "dy.T"} and "layer" in str(found) and "  0" in str(found)
    with ot.underflow(model[1:]) as nothing:
        model[1](torch.randn(3, 32))
    assert str(nothing) == "no call was in FP8" and not nothing.layers


def test_experts_are_seen_by_their_groups():
    experts = ot.Experts(2, 64, 32, recipe="tensorwise")
    x = torch.randn(8, 64, requires_grad=True)
    with torch.no_grad():
        x[:4] *= 2.0**-40  # of the first expert, which has a scale of its own
        x[6:] *= 2.0**80  # behind the last group
    with ot.underflow(experts) as found:
        experts(x, torch.tensor([4, 6]))[:6].sum().backward()
    assert found.layers[""]["x"] == (6 * 64, 0.0, 0.0) and found.layers[""]["w"].values == 2 * 64 * 32


def test_what_cannot_be_watched_is_refused():
    with pytest.raises(ValueError, match="is a model with octile.torch.Linear or Experts in it"):
        with ot.underflow(nn.Sequential(nn.ReLU())):
            pass
    model = model_of(64, 32)
    ot.sentry(model)
    with pytest.raises(ValueError, match="is a model without a sentry"):
        with ot.underflow(model):
            pass
