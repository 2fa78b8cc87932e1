"""FP8 copies of weights while other models and other threads are at work."""

from __future__ import annotations

import threading

import pytest
import torch

import octile.torch as ot


def events():
    """Returns what happens to another model meanwhile, and word that all weights have changed, each as a call."""
    other = ot.Linear(64, 64)
    state = other.state_dict()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        other(torch.ones(2, 64)).sum().backward()
        optimizer.step()

    return {
        "mode": lambda: other.train(not other.training),
        "load": lambda: other.load_state_dict(state),
        "step": step,
        "told": ot.weights_changed,
    }


@pytest.mark.parametrize("event", ["mode", "load", "step", "told"])
def test_threads_read_no_copy_that_is_being_made_again(event):
    happens = events()[event]
    layer, x = ot.Linear(512, 512), torch.randn(32, 512)
    with torch.no_grad():
        expected = layer(x)
    stop, wrong, calls = threading.Event(), [], []

    def infer():
        with torch.no_grad():
            while not stop.is_set():
                if not torch.equal(layer(x), expected):
                    wrong.append(1)
                calls.append(1)

    threads = [threading.Thread(target=infer) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(calls) < 300 and all(thread.is_alive() for thread in threads):
        happens()
    stop.set()
    for thread in threads:
        thread.join()
    assert len(calls) >= 300 and not wrong


def test_a_step_on_a_flat_buffer_changes_the_weights_in_it():
    flat = torch.nn.Parameter(torch.randn(64 * 128 + 64 * 64))
    layers = [ot.Linear(128, 64, bias=False), ot.Linear(64, 64, bias=False)]
    layers[0].weight = torch.nn.Parameter(flat.data[: 64 * 128].view(64, 128))
    layers[1].weight = torch.nn.Parameter(flat.data[64 * 128 :].view(64, 64))
    optimizer = torch.optim.SGD([flat], lr=1.0)
    x = [torch.randn(4, 128), torch.randn(4, 64)]
    with torch.no_grad():
        before = [layer(given) for layer, given in zip(layers, x, strict=True)]
    flat.grad = 2 * flat.detach()  # so that the step negates the weights
    optimizer.step()
    with torch.no_grad():
        after = [layer(given) for layer, given in zip(layers, x, strict=True)]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, -new)
