"""The recipe "delayed": scales from the maxima of earlier steps, and what becomes of them."""

import copy
import gc
import io
import math

import pytest
import torch
from reference import assert_close
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import octile.torch as ot
from octile.torch._operators import ops

LARGEST = torch.tensor([448.0, 57344.0])  # of the formats of x and dy


def recipe(warmup=1, history=4, **settings):
    return ot.Recipe("delayed", warmup=warmup, history=history, **settings)


def maxima_of(*tensors):
    return torch.stack([t.detach().float().abs().max() for t in tensors])


def step(layer, x, dy):
    """Runs forward and backward and ends the step. Returns y, the gradients and the maxima of x and dy."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y = layer(x)
    y.backward(dy)
    ot.update_scales(layer)
    return (y.detach(), x.grad, layer.weight.grad, layer.bias.grad), maxima_of(x, dy)


def cast(x, scale, dtype):
    """Returns x as FP8 with a given scale sees it, in FP64."""
    limit = torch.finfo(dtype).max
    return (x.detach().float() * scale).clamp(-limit, limit).to(dtype).double() / scale.double()


def cast_weight(layer):
    """Returns the weight as a layer sees it that has fp32 scales or powers of two."""
    scale = 448 / layer.weight.detach().float().abs().max()
    if layer.recipe.scales == "pow2":
        scale = 2.0 ** scale.log2().floor()
    return cast(layer.weight, scale, torch.float8_e4m3fn)


def data(size=1.0, tokens=40):
    return torch.randn(tokens, 64, dtype=torch.bfloat16) * size, torch.randn(tokens, 32, dtype=torch.bfloat16) * size


@pytest.mark.parametrize("settings", [{}, {"margin": 2}, {"amax": "latest"}, {"history": 1}])
@pytest.mark.parametrize("scales", ["pow2", "f32"])
def test_scales_are_made_from_the_history(settings, scales):
    layer = ot.Linear(64, 32, recipe=recipe(scales=scales, **settings))
    assert layer._scaling.scales.tolist() == [1, 1]
    history = []
    for size in (1, 8, 0.5, 0.25, 2, 0.1, 0.1, 0.1, 0.1):
        history.append(step(layer, *data(size))[1])
        kept = history[-1:] if settings.get("amax") == "latest" else history[-settings.get("history", 4) :]
        wanted = LARGEST / torch.stack(kept).amax(0) * 2.0 ** -settings.get("margin", 0)
        if scales == "pow2":
            wanted = torch.tensor([2.0 ** math.floor(math.log2(v)) for v in wanted])
        torch.testing.assert_close(layer._scaling.scales, wanted, rtol=2**-22, atol=0)


@pytest.mark.parametrize("tokens", [1, 7, 77, 129])
def test_products_after_warmup_take_the_scales_of_earlier_steps(tokens):
    layer = ot.Linear(64, 32, recipe=recipe(scales="f32"))
    step(layer, *data())
    scales = layer._scaling.scales.clone()
    x, dy = data(1.5, tokens)  # beyond the maxima: some values saturate
    (y, dx, dw, db), _ = step(layer, x, dy)
    qx, qw = cast(x, scales[0], torch.float8_e4m3fn), cast_weight(layer)
    qdy, bias = cast(dy, scales[1], torch.float8_e5m2), layer.bias.detach().double()
    for actual, a, b, more in ((y, qx, qw.t(), bias), (dx, qdy, qw, 0), (dw, qdy.t(), qx, 0)):
        size = a.abs() @ b.abs() + (more if isinstance(more, int) else more.abs())
        assert_close(actual, (a @ b + more, size))
    assert_close(db, (dy.double().sum(0), dy.double().abs().sum(0)))


def test_warmup_scales_by_the_tensors_themselves():
    layer, current = ot.Linear(64, 32, recipe=recipe(warmup=3)), ot.Linear(64, 32, recipe="tensorwise")
    current.load_state_dict(layer.state_dict(), strict=True)
    same = []
    for size in (1, 9, 0.1, 40):
        x, dy = data(size)
        ours, theirs = step(layer, x, dy)[0], step(current, x, dy)[0]
        same.append(all(a.equal(b) for a, b in zip(ours, theirs, strict=True)))
    assert same == [True, True, True, False]
    assert layer._scaling.steps == 4


def test_microbatches_raise_one_maximum():
    layer = ot.Linear(64, 32, recipe=recipe(scales="f32"))
    batches = [data(size) for size in (1, 4, 2)]
    for x, dy in batches:
        layer(x.requires_grad_()).backward(dy)
    assert ot.update_scales(layer) == 1
    wanted = LARGEST / torch.stack([maxima_of(x, dy) for x, dy in batches]).amax(0)
    torch.testing.assert_close(layer._scaling.scales, wanted, rtol=2**-22, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_changes_nothing(reentrant):
    direct = nn.Sequential(ot.Linear(64, 32, recipe=recipe()), ot.Linear(32, 32, recipe=recipe()))
    again = copy.deepcopy(direct)
    for size in (1, 3, 0.2, 0.1):
        x, dy = data(size)
        results = []
        for model, run in ((direct, direct), (again, lambda x: checkpoint(again, x, use_reentrant=reentrant))):
            model.zero_grad()
            run(x.detach().requires_grad_()).backward(dy)
            ot.update_scales(model)
            results.append([p.grad for p in model.parameters()] + [layer._scaling.values for layer in model])
        assert all(a.equal(b) for a, b in zip(*results, strict=True))
        assert [layer._scaling.steps for layer in (*direct, *again)] == [direct[0]._scaling.steps] * 4


def test_an_optimizer_step_updates_what_was_used():
    used, idle = ot.Linear(64, 32, recipe=recipe()), ot.Linear(64, 32, recipe=recipe())
    weights = torch.optim.SGD([used.weight, idle.weight], lr=0.1)
    biases = torch.optim.SGD([used.bias, idle.bias], lr=0.1)
    for count in (1, 2, 3):
        used(data()[0]).sum().backward()
        weights.step()
        biases.step()  # of the same step
        assert (used._scaling.steps, idle._scaling.steps) == (count, 0)


def test_calls_without_gradients_record_nothing():
    layer = ot.Linear(64, 32, recipe=recipe())
    step(layer, *data())
    x, _ = data(100)
    before = layer._scaling.values.clone()
    with torch.no_grad():
        y = layer(x)
        current = layer.eval()(x)
    wanted = cast(x, before[0], torch.float8_e4m3fn) @ cast_weight(layer).t() + layer.bias.detach().double()
    assert_close(y, (wanted, torch.full(y.shape, 1e4, dtype=torch.float64)))
    assert current.equal(ot.linear(x, layer.weight, layer.bias, "tensorwise").detach())
    assert layer._scaling.values.equal(before) and ot.update_scales(layer) == 0


def test_values_that_are_not_finite_do_not_enter_the_history():
    layer = ot.Linear(64, 32, recipe=recipe(scales="f32"))
    x, dy = data()
    largest = x.abs().max().float()
    x[3, 5], x[4, 6] = math.nan, math.inf
    step(layer, x, dy)
    assert largest == x[torch.isfinite(x)].abs().max()
    torch.testing.assert_close(layer._scaling.scales[0], 448 / largest, rtol=2**-22, atol=0)


def test_fp8_off_pauses_the_history():
    layer = ot.Linear(64, 32, recipe=recipe(warmup=2))
    step(layer, *data())
    ot.set_fp8(layer, False)
    step(layer, *data(100))
    assert layer._scaling.steps == 1
    ot.set_fp8(layer, True)
    step(layer, *data())
    assert layer._scaling.steps == 2 and layer._scaling.delayed


# ---- where state is, and is not


def test_checkpoints_have_weight_and_bias_alone():
    ours, theirs = nn.Sequential(ot.Linear(64, 32, recipe="delayed")), nn.Sequential(nn.Linear(64, 32))
    step(ours[0], *data())
    assert list(ours.state_dict()) == ["0.weight", "0.bias"] and list(ours.buffers()) == []
    theirs.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(theirs.state_dict(), strict=True)


def test_copies_and_pickles_go_on_alone():
    layer = ot.Linear(64, 32, recipe=recipe(warmup=2))
    step(layer, *data())
    file = io.BytesIO()
    torch.save(layer, file)
    others = copy.deepcopy(layer), torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    x, dy = data(3)
    for _ in range(2):
        results = [step(one, x, dy)[0] for one in (layer, *others)]
        for other in results[1:]:
            assert all(a.equal(b) for a, b in zip(results[0], other, strict=True))
    assert {one._scaling.steps for one in (layer, *others)} == {3}
    assert len({one._scaling.values.data_ptr() for one in (layer, *others)}) == 3


def test_meta_device_and_casts():
    with torch.device("meta"):
        layer = ot.Linear(64, 32, recipe=recipe())
    assert layer._scaling.values is None and ot.update_scales(layer) == 0
    layer.to_empty(device="cpu").load_state_dict(nn.Linear(64, 32).state_dict())
    layer.bfloat16()
    step(layer, *data())
    assert layer._scaling.values.dtype == torch.float32 and layer._scaling.steps == 1
    with torch.device("meta"):
        layer = ot.Linear(64, 32, recipe=recipe())
    layer.load_state_dict(nn.Linear(64, 32).state_dict(), assign=True)
    step(layer, *data())
    assert layer._scaling.steps == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_layers_record_and_switch(backend):
    torch._dynamo.reset()
    model = nn.Sequential(*(ot.Linear(64, 64, recipe=recipe(warmup=2)) for _ in range(3)))
    other = copy.deepcopy(model)
    compiled = torch.compile(other, fullgraph=True, dynamic=True, backend=backend)
    for index, tokens in enumerate((40, 77, 40, 129, 33)):
        x = torch.randn(tokens, 64) * (index + 1)
        grads = []
        for run, parameters in ((model, model.parameters()), (compiled, other.parameters())):
            run.zero_grad()
            run(x).square().sum().backward()
            grads.append([p.grad for p in parameters])
        assert all(a.equal(b) for a, b in zip(*grads, strict=True))
        assert ot.update_scales(model) == ot.update_scales(other) == 3
        assert all(a._scaling.values.equal(b._scaling.values) for a, b in zip(model, other, strict=True))


def test_layers_of_a_kind_share_a_compiled_graph():
    torch._dynamo.reset()
    layers = [ot.Linear(64, 64, recipe=recipe()) for _ in range(12)]
    for _ in range(3):
        for layer in layers:
            layer.compile(fullgraph=True, backend="aot_eager") if layer._compiled_call_impl is None else None
            layer(torch.randn(16, 64)).sum().backward()
        for layer in layers:
            assert ot.update_scales(layer) == 1


def test_trains_like_current_scaling():
    def final(kind):
        torch.manual_seed(0)
        model = nn.Sequential(ot.Linear(64, 128, recipe=kind), nn.GELU(), ot.Linear(128, 32, recipe=kind))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        x, target = torch.randn(256, 64), torch.randn(256, 32)
        for _ in range(60):
            loss = (model(x) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    assert abs(final(recipe(warmup=5, history=16)) / final("tensorwise") - 1) < 0.02


# ---- what is refused

BAD = [
    (dict(warmup=0), "warmup is 0; allowed are integers from 1 to 2147483647"),
    (dict(history=0), "history is 0; allowed are integers from 1 to 65536"),
    (dict(history=2.5), "history is 2.5; allowed are integers"),
    (dict(margin=127), "margin is 127; allowed are integers from -126 to 126"),
    (dict(amax="mean"), "amax is 'mean'; allowed are 'largest', 'latest'"),
    (dict(name="tensorwise", history=7), "history is 7; allowed is 1024 with recipe 'tensorwise': it is of 'delayed'"),
]


@pytest.mark.parametrize("settings, sentence", BAD)
def test_bad_settings_are_named(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        ot.Recipe(**{"name": "delayed", **settings})


def test_functions_without_state_are_refused():
    x, weight = torch.randn(4, 64), torch.randn(32, 64)
    with pytest.raises(NotImplementedError, match=r"recipe is 'delayed', whose maxima a layer keeps; linear\(\) keeps"):
        ot.linear(x, weight, recipe="delayed")
    with pytest.raises(NotImplementedError, match=r"; experts\(\) keeps nothing: use octile.torch.Experts, or"):
        ot.experts(x, weight[None], torch.tensor([4]), "delayed")


def test_operators_name_bad_state():
    x, weight, code = torch.randn(4, 64), torch.randn(32, 64), ot.Recipe("delayed").code
    forward = torch.ops.octile.linear_forward
    with pytest.raises(ValueError, match="scaling is absent; with the recipe 'delayed' it is needed"):
        forward(x, weight, None, code, False, False)
    with pytest.raises(ValueError, match="scaling is given; allowed with the recipes 'delayed' and 'tensorwise'"):
        forward(x, weight, None, 0, False, False, torch.ones(6))
    for bad in (torch.ones(5), torch.ones(2), torch.ones(6, dtype=torch.float16)):
        with pytest.raises(ValueError, match=r"allowed are contiguous float32 \[2 \+ 2 \* history\]"):
            forward(x, weight, None, code, False, False, bad)
    with pytest.raises(ValueError, match="recipe has no scales to update; allowed is 'delayed'"):
        torch.ops.octile.update_scales(torch.ones(1, 6), 1, 0, 0, 0)


def test_reducing_scales_needs_processes_and_layers():
    with pytest.raises(RuntimeError, match="reduce_scales needs torch.distributed.init_process_group"):
        ot.reduce_scales(ot.Linear(64, 32, recipe="delayed"))


@pytest.mark.parametrize("compiled", [False, True])
def test_main_grad_and_the_maxima_are_those_of_grad(compiled):
    torch._dynamo.reset()
    layer = ot.Linear(64, 32, recipe=recipe())
    other = copy.deepcopy(layer)
    other.weight.main_grad = torch.zeros(32, 64)
    run = torch.compile(other, fullgraph=True, backend="aot_eager") if compiled else other
    for size in (1, 5, 0.3):
        x, dy = data(size)
        layer.zero_grad()
        other.weight.main_grad.zero_()
        for call in (layer, run):
            call(x.detach().requires_grad_()).backward(dy)
        assert other.weight.main_grad.equal(layer.weight.grad)
        assert ot.update_scales(layer) == ot.update_scales(other) == 1
        assert layer._scaling.values.equal(other._scaling.values)


def test_autocast_and_warmup():
    layer = ot.Linear(64, 32, recipe=recipe())
    assert ot.warmup(nn.Sequential(layer, copy.deepcopy(layer)), (1, 100)) == 1
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            y = layer(torch.randn(9, 64))
            y.sum().backward()
            assert y.dtype == torch.bfloat16 and ot.update_scales(layer) == 1


def test_steps_that_are_compiled_are_ended_by_hand():
    torch._dynamo.reset()
    layer = ot.Linear(64, 32, recipe=recipe())
    optimizer = torch.optim.SGD(layer.parameters(), lr=torch.tensor(0.1))
    compiled = torch.compile(optimizer.step, backend="aot_eager")
    for count in (1, 2, 3):
        layer(data()[0]).sum().backward()
        compiled()
        assert layer._scaling.steps == count - 1 and ot.update_scales(layer) == 1


def test_what_a_state_recorded_goes_with_it():
    layer = ot.Linear(64, 32, recipe=recipe())
    x, dy = data()
    layer(x).backward(dy)
    values = layer._scaling.values
    storage, count = values.untyped_storage(), values.numel()
    del values, layer
    gc.collect()
    reused = torch.empty(0).set_(storage, 0, (count,))
    assert not ops.maxima_recorded(reused)


class Launches(TorchDispatchMode):
    """Counts the states of each call of update_scales."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.octile.update_scales.default:
            self.counts.append(len(args[0]))
        return func(*args, **(kwargs or {}))


def test_the_layers_of_a_model_are_updated_at_once():
    model = nn.Sequential(*(ot.Linear(64, 64, recipe=recipe(history=5)) for _ in range(4)))
    model[0](torch.randn(8, 64).requires_grad_()).sum().backward()
    with Launches() as first:
        assert ot.update_scales(model) == 1
    for layer in (0, 1, 3):
        model[layer](torch.randn(8, 64)).sum().backward()
    with Launches() as others:
        assert ot.update_scales(model) == 3
    assert first.counts == [1] and others.counts == [2, 1]  # rows that follow each other
    assert [layer._scaling.steps for layer in model] == [2, 1, 0, 1]
    twin = copy.deepcopy(model)
    twin[0](torch.randn(8, 64)).sum().backward()
    before = model[0]._scaling.values.clone()
    assert ot.update_scales(twin) == 1 and model[0]._scaling.values.equal(before)
    stored = io.BytesIO()
    torch.save(model[0], stored)
    assert stored.getbuffer().nbytes < 50_000  # a row, not the array
