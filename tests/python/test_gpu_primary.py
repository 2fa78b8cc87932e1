"""Weights held in FP8, on a device, train as ordinary ones whose masters are rounded, and resume."""

import copy

import pytest
import torch
from gpu import DEVICES, assert_equal
from torch import nn

import octile.torch as ot

STEPS = 4
TOKENS = 300  # no multiple of a block


def model_of(device, recipe):
    n, k = (1024, 2048) if device == "cuda" else (144, 272)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(k, n), nn.GELU(), nn.Linear(n, k, bias=False)).to(device, torch.bfloat16)
    ot.convert(model, recipe, min_dims=16)
    return model


def backward(model, step, device):
    """Leaves the gradients of a batch that the number of the step decides."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(TOKENS, model[0].in_features, generator=generator).to(device, torch.bfloat16)
    model(x).float().square().mean().backward()


def adamw(parameters, device):
    return torch.optim.AdamW(parameters, lr=1e-2, fused=device == "cuda")


def train(model, optimizer, steps, device):
    for step in steps:
        backward(model, step, device)
        optimizer.step()
        optimizer.zero_grad()


def masters_by_hand(device, recipe):
    """Trains ordinary layers whose weights are float32 masters rounded to bf16. Returns the masters."""
    model = model_of(device, recipe)
    weights = list(model.parameters())
    masters = [p.detach().float() if p.dim() == 2 else p for p in weights]
    optimizer = adamw(masters, device)
    for step in range(STEPS):
        backward(model, step, device)
        for p, master in zip(weights, masters, strict=True):
            if master is not p:
                master.grad, p.grad = p.grad.float(), None
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, master in zip(weights, masters, strict=True):
                p.copy_(master)
    return masters


def held(device, recipe="blockwise", master="fp32"):
    model = model_of(device, recipe)
    optimizer = adamw(list(model.parameters()), device)
    ot.primary_fp8(model, optimizer, master=master)
    return model, optimizer


def masters_of(model):
    return [getattr(p, "master", p).detach() for p in model.parameters()]


@DEVICES
@pytest.mark.parametrize("recipe", ["blockwise", "blockwise:f32", "blockwise_hybrid", "tensorwise"])
def test_masters_are_those_by_hand(device, recipe):
    model, optimizer = held(device, recipe)
    train(model, optimizer, range(STEPS), device)
    assert_equal(masters_of(model), masters_by_hand(device, recipe))


@DEVICES
@pytest.mark.parametrize("master", ["fp32", "bf16+16"])
def test_training_goes_on_from_a_checkpoint(device, master):
    model, optimizer = held(device, master=master)
    train(model, optimizer, range(2), device)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(2, STEPS), device)
    other, its_optimizer = held(device, master=master)
    other.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    train(other, its_optimizer, range(2, STEPS), device)
    assert_equal(masters_of(model), masters_of(other))


@DEVICES
def test_compiled_training_is_eager_training(device):
    torch._dynamo.reset()
    eager, optimizer = held(device)
    train(eager, optimizer, range(STEPS), device)
    model, optimizer = held(device)
    for layer in (model[0], model[2]):
        layer.compile(backend="inductor" if device == "cuda" else "aot_eager")
    train(model, optimizer, range(STEPS), device)
    assert_equal(masters_of(eager), masters_of(model))
