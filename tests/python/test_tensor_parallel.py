"""Layers whose features and tokens several processes share, by gloo on the host: activations travel as FP8 codes, and
all bits are those of a run that gathers them as they are and quantises afterwards."""

import copy
import datetime
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import octile.torch as ot
from octile.torch.distributed import (
    OctileColwiseParallel,
    OctilePrepareInput,
    OctileRowwiseParallel,
    tensor_parallel_report,
)

RANKS, WIDTH, HIDDEN, HEADS, STEPS = 4, 128, 256, 8, 10
RECIPES = ("blockwise", "blockwise_hybrid", "tensorwise")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (layer(x).view(batch, tokens, -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(x=self.norm2(x))


def block(mesh, wire, recipe="blockwise"):
    torch.manual_seed(0)
    model = Block().bfloat16()
    ot.convert(model, recipe=recipe, min_dims=16, preset="all-linear")
    column, row = (kind(wire=wire) for kind in (OctileColwiseParallel, OctileRowwiseParallel))
    plan = dict.fromkeys(("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"), column)
    plan |= dict.fromkeys(("attention.o", "mlp.down"), row)
    plan |= {"attention": OctilePrepareInput(wire=wire), "mlp": OctilePrepareInput("x", wire=wire)}
    plan |= dict.fromkeys(("norm1", "norm2"), SequenceParallel())
    return parallelize_module(model, mesh, plan)


def part(mesh, tokens, batch=1, seed=0):
    """This rank's tokens of an input."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(batch, tokens, WIDTH, generator=generator).bfloat16()
    return whole.chunk(mesh.size(), 1)[mesh.get_local_rank()].contiguous()


def step(model, x):
    """Returns the loss, the output and the gradient of x. Only the output is compared between ranks' parts."""
    x = x.clone().requires_grad_()
    y = model(x)
    loss = y.float().square().mean()
    loss.backward()
    return [loss.detach(), y.detach(), x.grad]


def train(model, mesh, tokens, steps, batch=1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    seen = []
    for number in range(steps):
        seen += step(model, part(mesh, tokens, batch, number))
        if number in (0, steps - 1):
            seen += [p.grad.to_local().clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return seen + [p.detach().to_local() for p in model.parameters()]
