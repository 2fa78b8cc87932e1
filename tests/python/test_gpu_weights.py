"""When a device's FP8 copies of weights are made, and who waits for them: streams, threads, replays of CUDA graphs, and
FSDP2. Every test compares bits with a layer that shares nothing."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gpu import DEVICES, assert_equal, data, passes, sizes
from timing import captured
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import octile.torch as ot

quantizations = torch.ops.octile.weight_quantizations
gpu = pytest.mark.gpu
trust = pytest.mark.parametrize("trusted", [False, True])


def layer_of(device, n=None, k=None, recipe="blockwise"):
    n, k = (n, k) if n else sizes(device)
    return ot.Linear(k, n, bias=False, device=device, dtype=torch.bfloat16, recipe=recipe)


def fresh(layer, x, dy):
    """Returns y, dx and dw of a layer that nobody keeps copies of."""
    x = x.detach().requires_grad_()
    weight = layer.weight.detach().clone().requires_grad_()
    y = ot.linear(x, weight, recipe=layer.recipe)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), dy)]


@DEVICES
def test_threads_use_the_copies_that_one_of_them_makes(device):
    layer, (x, dy) = layer_of(device), data(device, *sizes(device))

    def one(_):
        if device == "cpu":
            return passes(layer, x, dy)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            made = passes(layer, x, dy)
        stream.synchronize()
        return made

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            layer.weight.data.neg_()
            wanted = fresh(layer, x, dy)
            if device == "cuda":
                torch.cuda.synchronize()
            before = quantizations()
            for made in pool.map(one, range(8)):
                assert_equal(made, wanted)
            assert quantizations() == before + 1


@gpu
def test_streams_wait_for_copies_of_a_busy_stream():
    """Memory is not given away under a stream that reads it."""
    n, k = sizes("cuda")
    layer, (x, dy) = layer_of("cuda"), data("cuda", n, k)
    wanted = [fresh(layer, x, dy)]
    with torch.no_grad():
        layer.weight.mul_(2)
    wanted.append(fresh(layer, x, dy))
    with torch.no_grad():
        layer.weight.div_(2)
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    big = torch.randn(8192, 8192, device="cuda").bfloat16()
    big @ big
    torch.cuda.synchronize()
    for turn in range(6):
        before = quantizations()
        with torch.cuda.stream(a):
            for _ in range(5):
                big @ big  # some milliseconds, in which b would read copies that are not made
            first = passes(layer, x, dy)
        with torch.cuda.stream(b):
            second = passes(layer, x, dy)
            for _ in range(5):
                big @ big
            third = passes(layer, x, dy)
        assert quantizations() - before in (1, 2)  # new to PyTorch, and the first one that is compared
        # The weight changes behind both, its old copies go, and others take their memory on a.
        a.wait_stream(b)
        with torch.cuda.stream(a), torch.no_grad():
            layer.weight.mul_(2 if turn % 2 == 0 else 0.5)
            with torch.enable_grad():
                passes(layer, x, dy)
            torch.full((4 * n * k,), 255, dtype=torch.uint8, device="cuda")
            layer.weight.add_(0)  # new to PyTorch, the same to us
        torch.cuda.synchronize()
        for made in (first, second, third):
            assert_equal(made, wanted[turn % 2])


class Captured:
    """A microbatch in a CUDA graph, or a forward pass."""

    def __init__(self, layer, x, dy):
        self.layer, self.x, self.dy = layer, x, dy
        self.graph, self.made = captured(self.run, 2)

    def run(self):
        if self.dy is not None:
            return passes(self.layer, self.x, self.dy)
        with torch.no_grad():
            return [self.layer(self.x)]

    def wanted(self):
        if self.dy is not None:
            return fresh(self.layer, self.x, self.dy)
        with torch.no_grad():
            return [ot.linear(self.x, self.layer.weight.clone(), recipe=self.layer.recipe)]

    def assert_replays(self):
        """Replays twice, and compares with fresh copies both times."""
        for _ in range(2):
            for tensor in self.made:
                tensor.zero_()
            self.graph.replay()
            assert_equal([t.clone() for t in self.made], self.wanted())


@gpu
@pytest.mark.parametrize("decoding", [False, True])
@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise", "rowwise"])
@trust
def test_replays_see_every_change(trusted, recipe, decoding):
    """Replays of two graphs, eager steps between them, and every way in which a weight changes."""
    n, k = sizes("cuda")
    layer = layer_of("cuda", recipe=recipe)
    ot.trust_weights(layer, trusted)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    batches = [data("cuda", n, k, tokens=tokens) for tokens in (300, 77)]
    graphs = [Captured(layer, x, None if decoding else dy) for x, dy in batches]

    def step():
        layer.weight.grad = torch.randn_like(layer.weight)
        optimizer.step()

    def hidden():
        layer.weight.data.mul_(0.5)
        if trusted:
            ot.weights_changed()

    changes = {
        "nothing": lambda: None,
        "step": step,
        "eager between": lambda: passes(layer, *batches[0]),
        "step, then eager": lambda: (step(), passes(layer, *batches[0])),
        "hidden": hidden,
        "hidden, then a step": lambda: (hidden(), step()),
        "a step, then hidden": lambda: (step(), passes(layer, *batches[0]), hidden()),
        "there and back": lambda: (hidden(), passes(layer, *batches[0]), layer.weight.data.mul_(2), hidden()),
        "load_state_dict": lambda: layer.load_state_dict({"weight": torch.randn(n, k)}),
    }
    for change in changes.values():
        change()
        for graph in graphs:
            graph.assert_replays()
        assert_equal(passes(layer, *batches[1]), fresh(layer, *batches[1]))
    if decoding and not trusted:
        torch.cuda.synchronize()
        before = quantizations()
        for graph in graphs:
            graph.assert_replays()
        assert quantizations() == before + 2 * len(graphs)  # by fresh() alone


@gpu
@trust
def test_an_optimizer_in_a_graph_of_its_own(trusted):
    """It is captured before the graph of the microbatch."""
    layer = layer_of("cuda")
    ot.trust_weights(layer, trusted)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.weight.grad = torch.randn_like(layer.weight)
    optimizer.step()
    torch.cuda.synchronize()
    step, _ = captured(optimizer.step, 0)
    x, dy = data("cuda", *sizes("cuda"))
    graph = Captured(layer, x, dy)
    for replay in (lambda: None, step.replay) * 3:
        replay()
        graph.assert_replays()
        assert_equal(passes(layer, x, dy), fresh(layer, x, dy))


@gpu
def test_reduce_overhead_trains_as_an_eager_model():
    n, k = sizes("cuda")
    torch._dynamo.reset()
    models = [nn.Sequential(layer_of("cuda", n, k), layer_of("cuda", k, n)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    forwards = [models[0], torch.compile(models[1], mode="reduce-overhead")]
    x, _ = data("cuda", n, k)
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        losses = []
        for forward, optimizer in zip(forwards, optimizers, strict=True):
            loss = forward(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
        assert losses[0].equal(losses[1])
    assert_equal(list(models[0].parameters()), list(models[1].parameters()))


@gpu
def test_a_replay_skips_a_weight_that_is_trusted():
    """It does not see a write that nobody told of."""
    layer = layer_of("cuda")
    ot.trust_weights(layer)
    graph = Captured(layer, *data("cuda", *sizes("cuda")))
    graph.graph.replay()
    before = graph.made[0].clone()
    layer.weight.data.mul_(2)
    graph.graph.replay()
    assert graph.made[0].equal(before)
    ot.weights_changed()
    graph.graph.replay()
    assert not graph.made[0].equal(before)


@DEVICES
@pytest.mark.parametrize("reshard", [False, True])
def test_weights_that_fsdp_gathers(device, reshard, one_rank):
    """They give the bits of others, and are quantised as often as docs/torch_reference.md says."""
    n, k = sizes(device)
    model = nn.Sequential(layer_of(device, n, k), nn.GELU(), layer_of(device, k, n))
    sharded = copy.deepcopy(model)
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=init_device_mesh(device, (1,)), reshard_after_forward=reshard)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.5, foreach=False) for one in (model, sharded)]
    for _ in range(3):
        batches = [data(device, n, k)[0] for _ in range(2)]
        counts = []
        for one, optimizer in zip((model, sharded), optimizers, strict=True):
            before = quantizations()
            for x in batches:
                one(x).square().mean().backward()
            counts.append(quantizations() - before)
            optimizer.step()
            optimizer.zero_grad()
        # Freed weights are quantised by each pass; the first layer's backward needs no weight.
        assert counts == [2, 6 if reshard else 2]
        assert_equal(list(model.parameters()), [p.full_tensor() for p in sharded.parameters()])
