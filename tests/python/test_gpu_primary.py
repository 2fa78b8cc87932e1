"""Weights held in FP8, on a device, train as ordinary ones whose masters are rounded, and resume."""

import copy

import pytest
import torch
from gpu import DEVICES
from held import Ordinary, adamw, assert_equal, backward, held

STEPS = 4


def optimizer_on(device):
    return lambda parameters: adamw(parameters, fused=device == "cuda")


def held_on(device, **options):
    return held(optimizer_on(device), device=device, **options)[:2]


def train(model, optimizer, steps, device):
    for step in steps:
        backward(model, step, device=device)
        optimizer.step()
        optimizer.zero_grad()


def masters_of(model):
    return [getattr(p, "master", p).detach() for p in model.parameters()]


@DEVICES
@pytest.mark.parametrize("recipe", ["blockwise", "blockwise:f32", "blockwise_hybrid", "tensorwise"])
def test_masters_are_those_by_hand(device, recipe):
    model, optimizer = held_on(device, recipe=recipe)
    train(model, optimizer, range(STEPS), device)
    ordinary = Ordinary(optimizer_on(device), recipe, device=device)
    for step in range(STEPS):
        backward(ordinary.model, step, device=device)
        ordinary.step()
    assert_equal(masters_of(model), [p.detach() for p in ordinary.masters])


@DEVICES
@pytest.mark.parametrize("master", ["fp32", "bf16+16"])
def test_training_goes_on_from_a_checkpoint(device, master):
    model, optimizer = held_on(device, master=master)
    train(model, optimizer, range(2), device)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(2, STEPS), device)
    other, its_optimizer = held_on(device, master=master)
    other.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    train(other, its_optimizer, range(2, STEPS), device)
    assert_equal(masters_of(model), masters_of(other))


@DEVICES
def test_compiled_training_is_eager_training(device):
    torch._dynamo.reset()
    eager, optimizer = held_on(device)
    train(eager, optimizer, range(STEPS), device)
    model, optimizer = held_on(device)
    for layer in (model[0], model[2]):
        layer.compile(backend="inductor" if device == "cuda" else "aot_eager")
    train(model, optimizer, range(STEPS), device)
    assert_equal(masters_of(eager), masters_of(model))
