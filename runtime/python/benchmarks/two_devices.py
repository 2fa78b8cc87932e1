"""Two GPUs of one process: layers on both, interleaved and in threads, give the bits of one GPU.

    python two_devices.py
    python two_devices.py --devices cpu,cpu    # a trial without GPUs

The GPUs are of one kind. Every check does the same work on the first device alone and spread over both, with the first
as the current one throughout. Prints a line a check, and exits with 1 if bits differ.
"""

from __future__ import annotations

import argparse
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from checks import all_hold, equal
from torch import nn

import octile.torch as ot

WIDTH = 256
one_seed = threading.Lock()  # threads share the generator that seeds weights


class Chain(nn.Module):
    """Layers whose inputs follow them from device to device."""

    def __init__(self, devices: list[str], recipe: str) -> None:
        super().__init__()
        layers = [nn.Linear(WIDTH, WIDTH, bias=i % 2 == 0) for i in range(6)]
        for i, layer in enumerate(layers):
            layer.to(devices[i % len(devices)], torch.bfloat16)
        self.layers = nn.ModuleList(ot.Linear.from_linear(layer, recipe) for layer in layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [..., WIDTH] on the last layer's device."""
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x.to(layer.weight.device)))
        return x


def train(devices: list[str], recipe: str) -> list[torch.Tensor]:
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


def operators(device: str) -> list[torch.Tensor]:
    """Returns what each operator gives on a device."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).bfloat16().to(device)

    x, w, grouped = random(300, WIDTH), random(256, WIDTH), random(3, 256, WIDTH).requires_grad_()
    a, a_t = ot.quantize(x, output="both")
    b = ot.quantize(w, granularity="128x128")
    offsets = torch.tensor([100, 100, 290], device=device)
    y = ot.experts(x, grouped, offsets)
    y[:290].float().square().sum().backward()
    scales = b.scales[:, : WIDTH // 128].contiguous()
    served = torch.ops.octile.block_fp8_linear(x, b.codes, scales, None, None)
    return [
        t.cpu()
        for t in (
            a.codes.view(torch.uint8), a.scales, a_t.codes.view(torch.uint8), ot.transpose(b).codes.view(torch.uint8),
            ot.dequantize(a), ot.gemm(a, b), y[:290].detach(), grouped.grad, served,
        )
    ]  # fmt: skip


def in_threads(devices: list[str]) -> bool:
    """Trains on both devices at once."""
    with ThreadPoolExecutor(len(devices)) as pool:
        results = list(pool.map(lambda device: train([device], "blockwise"), devices))
    return equal(results[0], results[1])


def replayed(devices: list[str]) -> bool:
    """Captures a layer on each GPU, and replays them in turns while weights change."""
    graphs, layers, made = [], [], []
    for device in devices:
        torch.manual_seed(0)
        with torch.cuda.device(device):
            layer = ot.Linear.from_linear(nn.Linear(WIDTH, WIDTH).to(device, torch.bfloat16))
            x = torch.arange(77 * WIDTH, device=device).view(77, WIDTH).remainder(101).div(50).bfloat16()
            ot.trust_weights(layer)
            layer(x.requires_grad_()).sum().backward()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Of its own stream, because PyTorch keeps one to capture on, of the first device.
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
                y = layer(x)
        graphs.append(graph)
        layers.append(layer)
        made.append(y)
    good = True
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.5) for layer in layers]
    for _ in range(3):
        for device, graph, optimizer in zip(devices, graphs, optimizers, strict=True):
            with torch.cuda.device(device):
                graph.replay()
                optimizer.step()
                graph.replay()
        good &= equal([made[0].cpu()], [made[1].cpu()])
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    options = parser.parse_args()
    first, second = options.devices.split(",")
    checks = {
        f"train {recipe}": lambda recipe=recipe: equal(train([first], recipe), train([first, second], recipe))
        for recipe in ("blockwise", "blockwise_hybrid", "tensorwise", "rowwise")
    }
    checks["the second alone"] = lambda: equal(train([first], "blockwise"), train([second], "blockwise"))
    checks["operators"] = lambda: equal(operators(first), operators(second))
    checks["threads"] = lambda: in_threads([first, second])
    if first != "cpu":
        checks["replays"] = lambda: replayed([first, second])
    return 0 if all_hold(checks, "the same bits") else 1


if __name__ == "__main__":
    sys.exit(main())
