"""Layers record maxima of delayed scaling and words of a sentry on a device, eager, captured and compiled."""

import copy
import math
import warnings

import pytest
import torch
from gpu import DEVICES, assert_close, assert_equal, data, passes, sizes
from timing import captured
from torch import nn

import octile.torch as ot

DELAYED = ot.Recipe("delayed", warmup=2, history=4)
STEPS = (1, 4, 0.5, 3, 0.1, 0.1)  # how large inputs are, step by step
gpu = pytest.mark.gpu


def layer_of(device, recipe=DELAYED):
    n, k = sizes(device)
    return ot.Linear(k, n, device=device, dtype=torch.bfloat16, recipe=recipe)


def values_of(layer):
    return layer._scaling.values.cpu()


def update_alike(a, b):
    """Ends a step of both layers, after which their states have the same bits."""
    assert ot.update_scales(a) == ot.update_scales(b) == 1
    assert values_of(a).equal(values_of(b))


@pytest.fixture
def quiet():
    """A sentry warns of the values of these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@DEVICES
def test_scales_are_the_hosts(device):
    layer = layer_of(device)
    host = copy.deepcopy(layer).cpu()
    for size in STEPS:  # in warm-up and behind it
        x, dy = data(device, *sizes(device), size)
        assert_close(passes(layer, x, dy), passes(host, x.cpu(), dy.cpu()), 0.01)
        update_alike(layer, host)


@DEVICES
def test_scales_of_experts_are_the_hosts(device, quiet):
    """One expert has no tokens. A sentry marks those of their products that have a NaN."""
    n, k = sizes(device)
    layer = ot.Experts(4, k, n, device=device, dtype=torch.bfloat16, recipe=DELAYED)
    host, watch = copy.deepcopy(layer).cpu(), ot.sentry(layer)
    ends = torch.tensor([7, 7, 170, 300], dtype=torch.int32)
    for step, size in enumerate(STEPS):
        x, dy = data(device, n, k, size)
        assert_close(passes(layer, x, dy, ends.to(device)), passes(host, x.cpu(), dy.cpu(), ends), 0.01)
        update_alike(layer, host)
        assert not watch.step()
        x[3, 5] = math.nan
        passes(layer, x, dy, ends.to(device))
        passes(host, x.cpu(), dy.cpu(), ends)
        update_alike(layer, host)
        assert watch.step().item() == 1 and watch.counts[""] == (step + 1, 0, step + 1)


@gpu
def test_replays_record():
    """Replays use scales that are updated between them, and raise maxima; a capture in warm-up is refused."""
    layer = layer_of("cuda")
    twin = copy.deepcopy(layer)
    x, dy = data("cuda", *sizes("cuda"))
    with pytest.raises(RuntimeError, match="warm-up steps"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        layer(x)
    for _ in range(2):
        for one in (layer, twin):
            passes(one, x, dy)
            ot.update_scales(one)
    graph, made = captured(lambda: passes(layer, x, dy), 0)
    for size in (3, 0.5, 7, 0.1):
        new_x, new_dy = data("cuda", *sizes("cuda"), size)
        x.copy_(new_x)
        dy.copy_(new_dy)
        for one in (layer, twin):
            one.weight.data.neg_()  # which nothing counts
        graph.replay()
        assert_equal(made, passes(twin, x, dy))
        update_alike(layer, twin)


@gpu
def test_replays_in_eval_follow_the_weight():
    """A graph of eval() scales a weight, and an input, by their contents at each replay, whoever wrote them."""
    layer = layer_of("cuda")
    x, dy = data("cuda", *sizes("cuda"))
    for _ in range(3):
        passes(layer, x, dy)
        ot.update_scales(layer)
    graph = torch.cuda.CUDAGraph()
    layer.eval()
    with torch.no_grad():
        layer(x)
        with torch.cuda.graph(graph):
            y = layer(x)
        for size in (16, 1 / 256):
            layer.weight.data.mul_(size)
            x.mul_(size)
            graph.replay()
            assert_close([y], [nn.functional.linear(x, layer.weight, layer.bias)], 0.06)


@gpu
def test_captured_steps_update():
    """A graph of a whole step, the optimizer's included, updates scales by each replay."""
    layer = layer_of("cuda")
    twin = copy.deepcopy(layer)
    x, dy = data("cuda", *sizes("cuda"))
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-3) for one in (layer, twin)]

    def step(one, optimizer):
        one(x).backward(dy)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    for _ in range(3):
        step(twin, optimizers[1])
    graph, _ = captured(lambda: step(layer, optimizers[0]), 3)
    for size in (3, 0.5, 7):
        x.copy_(data("cuda", *sizes("cuda"), size)[0])
        graph.replay()
        step(twin, optimizers[1])
        assert values_of(layer).equal(values_of(twin)) and layer.weight.equal(twin.weight)


@pytest.mark.parametrize(
    ("device", "how"),
    [
        ("cpu", {"backend": "aot_eager"}),
        pytest.param("cuda", {"mode": "default"}, marks=gpu),
        pytest.param("cuda", {"mode": "reduce-overhead"}, marks=gpu),
    ],
)
def test_compiled_layers_record(device, how, quiet):
    """A compiled layer's scales are an eager one's, and its sentry sees what is not finite."""
    torch._dynamo.reset()
    layer = layer_of(device)
    twin, watch = copy.deepcopy(layer), ot.sentry(layer)
    compiled = torch.compile(layer, fullgraph=True, **how)
    for step, size in enumerate(STEPS):
        x, dy = data(device, *sizes(device), size)
        x[3, 5] = math.nan if step == 3 else x[3, 5]
        for one, run in ((layer, compiled), (twin, twin)):
            one.weight.data.neg_()  # which is new: a replay records the weight's maximum in any case
            one.zero_grad()
            run(x).backward(dy)
        update_alike(layer, twin)
        assert watch.step().item() == (step == 3)


@DEVICES
def test_bad_steps_are_skipped_without_waiting(device, quiet):
    """A fused optimizer skips a step with a NaN; the host never waits, and hears of it later."""
    layer = layer_of(device, "blockwise")
    watch = ot.sentry(layer)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2, fused=True)
    optimizer.found_inf, optimizer.grad_scale = watch.found_nonfinite, None
    batches = [data(device, *sizes(device)) for _ in range(6)]
    batches[3][0][7, 7] = math.nan
    weights = [layer.weight.detach().clone()]
    passes(layer, *batches[0])  # compiles
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try:
        for x, dy in batches:
            optimizer.zero_grad()
            layer(x).backward(dy)
            watch.step()
            optimizer.step()
            weights.append(layer.weight.detach().clone())
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    same = [a.equal(b) for a, b in zip(weights, weights[1:], strict=False)]
    assert same == [False] * 3 + [True] + [False] * 2 and watch.counts[""].output == 1


@DEVICES
def test_bad_steps_are_repeated(device, quiet):
    """A NaN in one activation: that step has the gradients of BF16, and the next ones FP8's."""
    n, k = sizes(device)
    layer = layer_of(device, "blockwise")
    plain, watch = nn.Linear(k, n, device=device, dtype=torch.bfloat16), ot.sentry(layer)
    plain.load_state_dict(layer.state_dict())
    for step in range(3):
        x, dy = data(device, n, k)
        bad = x.clone()
        bad[3, 5] = math.nan
        inputs = [x, bad] if step == 1 else [x]

        def closure(inputs=inputs, dy=dy):
            layer.zero_grad()
            layer(inputs.pop()).backward(dy)

        watch.run(closure)
        plain.zero_grad()
        plain(x).backward(dy)
        assert layer.weight.grad.equal(plain.weight.grad) == (step == 1)
        assert not watch.found_nonfinite.item()
    assert watch.repeated == 1
