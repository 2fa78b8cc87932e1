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
