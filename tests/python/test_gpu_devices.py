"""Two GPUs of one process: layers on both, interleaved and in threads, give the bits of one GPU.

The GPUs are of one kind. Every test does the same work on the first device alone and spread over both, with the first
as the current one throughout. Without GPUs both are the host.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gpu import assert_equal
from torch import nn

import octile.torch as ot
from octile.torch.frozen import product

WIDTH = 256
GPUS = ("cuda:0", "cuda:1")
PAIRS = pytest.mark.parametrize(("first", "second"), [("cpu", "cpu"), pytest.param(*GPUS, marks=pytest.mark.gpu(2))])
one_seed = threading.Lock()  # threads share the generator that seeds weights


class Chain(nn.Module):
    """Layers whose inputs follow them from device to device."""

    def __init__(self, devices, recipe):
        super().__init__()
        layers = [nn.Linear(WIDTH, WIDTH, bias=i % 2 == 0) for i in range(6)]
        for i, layer in enumerate(layers):
            layer.to(devices[i % len(devices)], torch.bfloat16)
        self.layers = nn.ModuleList(ot.Linear.from_linear(layer, recipe) for layer in layers)

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x.to(layer.weight.device)))
        return x


def train(devices, recipe="blockwise"):
    """Returns the losses and weights of some steps of two microbatches."""
    with one_seed:
        torch.manual_seed(0)
        model = Chain(devices, recipe)
        data = [torch.randn(tokens, WIDTH).bfloat16() for tokens in (7, 300)]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    results = []
    for _ in range(4):
        for x in data:
            loss = model(x.to(devices[0])).float().square().mean()
            loss.backward()
            results.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return [t.cpu() for t in (*results, *(p.detach() for p in model.parameters()))]


def operators(device):
    """Returns what each operator gives on a device."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape):
        return torch.randn(*shape, generator=generator).bfloat16().to(device)

    x, w, grouped = random(300, WIDTH), random(256, WIDTH), random(3, 256, WIDTH).requires_grad_()
    a, a_t = ot.quantize(x, output="both")
    b = ot.quantize(w, granularity="128x128")
    offsets = torch.tensor([100, 100, 290], device=device)
    y = ot.experts(x, grouped, offsets)
    y[:290].float().square().sum().backward()
    scales = b.scales[:, : WIDTH // 128].contiguous()
    served = product(x, b.codes, scales)
    codes = (a.codes, a_t.codes, ot.transpose(b).codes)
    others = (a.scales, ot.dequantize(a), ot.gemm(a, b), y[:290].detach(), grouped.grad, served)
    return [t.cpu() for t in (*(c.view(torch.uint8) for c in codes), *others)]


@PAIRS
@pytest.mark.parametrize("recipe", ["blockwise", "blockwise_hybrid", "tensorwise", "rowwise"])
def test_layers_on_two_devices(first, second, recipe):
    assert_equal(train([first], recipe), train([first, second], recipe))


@PAIRS
def test_the_second_alone(first, second):
    assert_equal(train([first]), train([second]))


@PAIRS
def test_operators(first, second):
    assert_equal(operators(first), operators(second))


@PAIRS
def test_threads_train_at_once(first, second):
    alone = train([first])
    with ThreadPoolExecutor(2) as pool:
        for results in pool.map(lambda device: train([device]), (first, second)):
            assert_equal(results, alone)


@pytest.mark.gpu(2)
def test_replays_take_turns():
    """A layer is captured on each GPU, and both are replayed while weights change."""
    graphs, layers, made = [], [], []
    for device in GPUS:
        torch.manual_seed(0)
        with torch.cuda.device(device):
            layer = ot.Linear.from_linear(nn.Linear(WIDTH, WIDTH).to(device, torch.bfloat16))
            x = torch.arange(77 * WIDTH, device=device).view(77, WIDTH).remainder(101).div(50).bfloat16()
            ot.trust_weights(layer)
            layer(x.requires_grad_()).sum().backward()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # The stream is its own, because PyTorch keeps one to capture on, of the first device.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                y = layer(x)
        graphs.append(graph)
        layers.append(layer)
        made.append(y)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.5) for layer in layers]
    for _ in range(3):
        for device, graph, optimizer in zip(GPUS, graphs, optimizers, strict=True):
            with torch.cuda.device(device):
                graph.replay()
                optimizer.step()
                graph.replay()
        assert made[0].cpu().equal(made[1].cpu())
