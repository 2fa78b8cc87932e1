"""Hand-off between BF16 and FP8."""

import pytest
import torch
from torch import nn

import octile.torch as ot


def test_layers_follow_the_schedule():
    model, x = nn.Sequential(ot.Linear(64, 32), nn.ReLU(), ot.Linear(32, 16, bias=False)), torch.randn(9, 64)
    fp8 = model(x)
    plain = nn.functional.linear(nn.functional.linear(x, model[0].weight, model[0].bias).relu(), model[2].weight)
    schedule = ot.Schedule(model, begin=2, end=4)
    states = []
    for step in range(6):
        states.append(schedule.step(step))
        assert model(x).equal(fp8 if states[-1] else plain)
    assert states == [False, False, True, True, False, False]
    assert ot.set_fp8(model, True) == 2 and model(x).equal(fp8)


def test_without_fp8_the_input_decides_the_type_and_gradients_flow():
    layer = ot.Linear(64, 32)
    ot.set_fp8(layer, False)
    y = layer(torch.randn(9, 64, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.float32 and layer.bias.grad.eq(9).all()


def test_the_switch_is_part_of_what_is_compiled():
    torch._dynamo.reset()
    layer, x = ot.Linear(64, 32), torch.randn(9, 64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for enabled in (True, False, True):
        ot.set_fp8(layer, enabled)
        assert compiled(x).equal(layer(x))


@pytest.mark.parametrize("begin, end", [(-1, None), (5, 4)])
def test_bad_arguments_are_named(begin, end):
    with pytest.raises(ValueError, match=r"begin, end is .*; allowed are 0 <= begin <= end"):
        ot.Schedule(nn.Module(), begin, end)


@pytest.mark.parametrize("arguments, sentence", [
    (("1", None), "begin is '1'; allowed are integers"),
    ((0, 1.5), "end is 1.5; allowed are integers and None"),
])  # fmt: skip
def test_steps_are_integers(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        ot.Schedule(nn.Module(), *arguments)
    for number in (-1, 0.5, True):
        with pytest.raises(ValueError, match=f"number is {number}; allowed are integers of at least 0"):
            ot.Schedule(nn.Module()).step(number)


def test_a_recipe_schedules_its_own_layers():
    rows, blocks = ot.Recipe("rowwise"), ot.Recipe("blockwise")
    model = nn.Sequential(ot.Linear(64, 32, recipe=rows), ot.Linear(32, 32, recipe=blocks))
    first, second = ot.Schedule(model, 1, 3, rows), ot.Schedule(model, 2, recipe=blocks)
    states = []
    for step in range(4):
        assert (first.step(step), second.step(step)) == (model[0].fp8, model[1].fp8)
        states.append((model[0].fp8, model[1].fp8))
    assert states == [(False, False), (True, False), (True, True), (False, True)]
    with pytest.raises(ValueError, match="model is 'Sequential'; allowed is a model with layers of Recipe"):
        ot.Schedule(model, recipe="tensorwise")


def train(model, steps, schedule=None, before=lambda step: None):
    """Trains on a stream of batches that the step's number decides. Returns the losses."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(64, 64, generator=generator)
        if schedule is not None:
            schedule.step(step)
        before(step)
        loss = (model(x) - x[:, :32].roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def model_of(kind):
    torch.manual_seed(0)
    return nn.Sequential(ot.Linear(64, 128, recipe=kind), nn.GELU(), ot.Linear(128, 32, recipe=kind))


def test_hand_off_and_cool_down_in_one_run():
    """Steps outside the range are those of a model without FP8, and the loss goes on from where FP8 left it."""
    plain, scheduled = model_of("blockwise"), model_of("blockwise")
    ot.set_fp8(plain, False)
    wanted, losses = train(plain, range(60)), train(scheduled, range(60), ot.Schedule(scheduled, 20, 50))
    assert losses[:21] != wanted[:21] and losses[:20] == wanted[:20]
    assert all(abs(a / b - 1) < 0.02 for a, b in zip(losses, wanted, strict=True))
    assert not any(layer.fp8 for layer in (scheduled[0], scheduled[2]))


def test_delayed_scaling_warms_up_at_the_hand_off():
    model = model_of(ot.Recipe("delayed", warmup=2, history=4))
    seen = []
    schedule = ot.Schedule(model, 3, 7, model[0].recipe)
    train(model, range(9), schedule, lambda step: seen.append((model[0]._scaling.steps, model[0]._scaling.delayed)))
    assert seen == [(0, False)] * 4 + [(1, False), (2, True), (3, True), (4, True), (4, True)]


def test_weights_that_change_in_cool_down_are_seen_by_later_fp8():
    model, x = model_of("blockwise"), torch.randn(9, 64)
    model(x).sum().backward()
    ot.set_fp8(model, False)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    ot.set_fp8(model, True)
    fresh = model_of("blockwise")
    fresh.load_state_dict(model.state_dict())
    assert model(x).equal(fresh(x))
