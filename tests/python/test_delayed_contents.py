"""Layers of recipe "delayed" whose weight gets other contents, and states that are saved and loaded."""

import copy
import io

import pytest
import torch
from torch import nn

import octile.torch as ot

WARMUP = 3
DELAYED = ot.Recipe("delayed", warmup=WARMUP, history=8)


def net(recipe=DELAYED):
    torch.manual_seed(1)
    sizes = (128, 256, 128)
    layers = [nn.Linear(128, sizes[1], bias=False), nn.ReLU(), nn.Linear(sizes[1], sizes[2], bias=False)]
    model = nn.Sequential(*layers).bfloat16()
    if recipe is not None:
        ot.convert(model, recipe, min_dims=16, preset="all-linear")
    return model


def tokens(count=32):
    return torch.randn(count, 128, dtype=torch.bfloat16)


def train(model, steps=WARMUP + 2, lr=0.0, run=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        (run or model)(tokens()).float().square().mean().backward()
        optimizer.step()
    return model


def steps_of(model):
    return [layer._scaling.steps for layer in model if isinstance(layer, ot.Linear)]


def error(model, state, x, run=None):
    """Returns the relative error of a model's output with these weights."""
    plain = net(None)
    plain.load_state_dict(state)
    with torch.no_grad():
        y, made = plain(x).float(), (run or model)(x).float()
    return ((made - y).norm() / y.norm()).item()


def assign(model, state):
    model.load_state_dict(state, assign=True)


def swap(model, state):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.load_state_dict(state)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def copy_in_place(model, state):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])


def set_data(model, state):
    for name, parameter in model.named_parameters():
        parameter.data = state[name].clone()


def replace(model, state):
    for index in (0, 2):
        model[index].weight = nn.Parameter(state[f"{index}.weight"].clone())


def merge_adapter(model, state):
    for name, parameter in model.named_parameters():
        parameter.data += state[name] - parameter.data


def tell(model, state):
    for name, parameter in model.named_parameters():
        parameter.data.copy_(state[name])
    ot.weights_changed()


COUNTED = [nn.Module.load_state_dict, assign, swap, copy_in_place, set_data, replace, tell]


@pytest.mark.parametrize("growth", [16, 1 / 16])
@pytest.mark.parametrize("write", [*COUNTED, merge_adapter], ids=lambda write: write.__name__)
def test_eval_computes_with_new_contents(write, growth):
    model = train(net())
    state = {name: value * growth for name, value in model.state_dict().items()}
    write(model.eval(), state)
    assert error(model, state, tokens()) < 0.06


@pytest.mark.parametrize("write", COUNTED, ids=lambda write: write.__name__)
def test_training_warms_up_with_new_contents(write):
    model = train(net())
    assert steps_of(model) == [WARMUP + 2] * 2
    state = {name: value * 16 for name, value in model.state_dict().items()}
    write(model, state)
    x = tokens()
    for count in range(1, WARMUP + 2):
        assert error(model, state, x) < 0.06
        train(model, 1)
        assert steps_of(model) == [count] * 2
    assert model[0]._scaling.delayed


def test_contents_that_nothing_counts_are_right_after_a_step():
    model = train(net())
    state = {name: value * 16 for name, value in model.state_dict().items()}
    merge_adapter(model, state)
    with torch.no_grad():  # of the weight itself, from the first call on
        y = tokens()
        first = model[0](y).float()
        wanted = nn.functional.linear(y, state["0.weight"]).float()
    assert (first - wanted).norm() < 0.06 * wanted.norm()
    train(model, 1)
    assert error(model, state, tokens()) < 0.06


@pytest.mark.parametrize("training", [True, False])
def test_compiled_models_compute_with_new_contents(training):
    torch._dynamo.reset()
    model = net()
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    train(model, run=run)
    run.train(training)
    error(model, model.state_dict(), tokens(), run)  # compiled before
    state = {name: value * 16 for name, value in model.state_dict().items()}
    copy_in_place(model, state)
    assert error(model, state, tokens(), run) < 0.06


def test_steps_are_not_new_contents():
    """Takes steps of an optimizer, of one that has masters, and by hand."""
    model = train(net(), steps=6, lr=0.1)
    assert steps_of(model) == [6, 6] and model[0]._scaling.delayed
    masters = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    for _ in range(3):
        model.zero_grad()
        model(tokens()).float().square().mean().backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        copy_in_place(model, dict(zip(model.state_dict(), masters, strict=True)))
    assert steps_of(model) == [9, 9]
    for _ in range(3):
        model(tokens()).float().square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.99)
        assert ot.update_scales(model) == 2
    model(tokens()).float().square().mean().backward()
    assert ot.update_scales(model) == 2 and steps_of(model) == [13, 13]


def test_what_moves_or_is_only_read_goes_on():
    model = train(net(), steps=6)
    model.float().bfloat16()
    model.load_state_dict({"0.bias": torch.zeros(1)}, strict=False)  # none of the weights
    train(model.eval().train(), 1)
    assert steps_of(model) == [7, 7]
    model[0].load_state_dict(model[0].state_dict())
    assert steps_of(model) == [0, 7]
    train(model, 1)
    assert steps_of(model) == [1, 8]


def test_experts_compute_with_new_contents():
    layer = ot.Experts(2, 64, 32, dtype=torch.bfloat16, recipe=DELAYED)
    x, ends = tokens(8)[:, :64], torch.tensor([4, 8], dtype=torch.int32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(WARMUP + 1):
        layer(x.requires_grad_(), ends).float().square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        layer.weight.mul_(16)
        wanted = torch.cat([x[:4] @ layer.weight[0].t(), x[4:] @ layer.weight[1].t()]).float()
        assert (layer(x, ends).float() - wanted).norm() < 0.09 * wanted.norm()
    layer(x, ends).float().square().mean().backward()
    optimizer.step()
    assert layer._scaling.steps == 1


# ---- states that are saved


def run_on(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("done", [WARMUP - 1, WARMUP + 2])
def test_resumed_runs_have_the_bits_of_those_that_went_on(done):
    batches = [tokens() * 3**i for i in range(done + 5)]
    model, resumed = net(), net()
    optimizer, other = (torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (model, resumed))
    run_on(model, optimizer, batches[:done])
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict(), ot.scales_state_dict(model)), file)
    run_on(model, optimizer, batches[done:])
    run_on(resumed, other, batches[:1])
    weights, moments, scales = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert list(weights) == ["0.weight", "2.weight"]
    resumed.load_state_dict(weights)
    other.load_state_dict(moments)
    assert ot.load_scales_state_dict(resumed, scales) == 2
    assert steps_of(resumed) == [done, done]
    run_on(resumed, other, batches[done:])
    assert all(a.equal(b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
    assert all(a._scaling.values.equal(b._scaling.values) for a, b in ((model[0], resumed[0]), (model[2], resumed[2])))


def test_states_of_experts_are_saved():
    layer = ot.Experts(3, 64, 32, recipe=DELAYED)
    layer(torch.randn(6, 64), torch.tensor([2, 2, 6])).sum().backward()
    assert ot.update_scales(layer) == 1
    state, other = ot.scales_state_dict(layer), ot.Experts(3, 64, 32, recipe=DELAYED)
    assert list(state) == [""] and ot.load_scales_state_dict(other, state) == 1
    assert other._scaling.values.equal(layer._scaling.values) and other._scaling.steps == 1


def test_states_of_others_are_refused():
    model = train(net(), 1)
    before, state = model[0]._scaling.values.clone(), ot.scales_state_dict(train(net(), 2))
    bad = [
        (3, TypeError, "state is of type int"),
        ({"0": state["0"]}, ValueError, "state is 'one without layer 2'; allowed is one of the same 2 layers of recipe 'delayed'; 1 are missing, 0 more"),
        (state | {"4": state["0"]}, ValueError, "state is 'one with layer 4'"),
        (state | {"2": {}}, ValueError, "dictionary of 'steps' and 'values'"),
        (state | {"2": state["2"] | {"steps": -1}}, ValueError, "are integers from 0 on"),
        (state | {"2": state["2"] | {"values": torch.ones(6)}}, ValueError, r"is float32 \[18\]: 8 steps"),
    ]
    for given, error_type, sentence in bad:
        with pytest.raises(error_type, match=sentence):
            ot.load_scales_state_dict(model, given)
        assert model[0]._scaling.values.equal(before) and steps_of(model) == [1, 1]
