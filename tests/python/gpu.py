"""Tests that run on a GPU, and on the host if there is none: the device of each, and what they compare."""

import pytest
import torch
from timing import captured

import octile.torch as ot

#: A test of it runs on the host, and on a GPU if there is one.
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def sizes(device):
    """Returns n and k of a layer: large enough on a GPU that kernels overlap, small on the host."""
    return (1024, 2048) if device == "cuda" else (64, 128)


def data(device, n, k, size=1.0, tokens=300):
    """Returns x and dy of a layer in bfloat16."""
    x, dy = torch.randn(tokens, k) * size, torch.randn(tokens, n) * size
    return x.to(device, torch.bfloat16), dy.to(device, torch.bfloat16)


def passes(layer: ot.Linear | ot.Experts, x, dy, *offsets, parameters=None):
    """Returns y, dx and the gradients of the parameters, by default of the weight."""
    x = x.detach().requires_grad_()
    y = layer(x, *offsets)
    return [y.detach(), *torch.autograd.grad(y, (x, *(parameters or [layer.weight])), dy)]


def assert_equal(a, b):
    """Holds if the tensors have the same bits."""
    assert len(a) == len(b)
    for p, q in zip(a, b, strict=True):
        assert p.equal(q)


def assert_replayed(step):
    """Holds if a graph of a step, which is captured without a warm-up, gives what the step gives."""
    expected = step()
    graph, made = captured(step, warm=0)
    for result in made:
        result.zero_()
    graph.replay()
    assert_equal(made, expected)


def assert_close(a, b, most):
    """Holds if each tensor is the other's within a relative error of its norm."""
    for p, q in zip(a, b, strict=True):
        p, q = p.cpu().double(), q.cpu().double()
        assert (p - q).norm() <= most * q.norm()
