"""Tensor parallelism whose activations travel in FP8, on several GPUs of a machine: bits, time of the input, a block.

    torchrun --nproc-per-node 2 tensor_parallel.py           # or: python tensor_parallel.py --ranks 2
    python tensor_parallel.py --recipes blockwise,tensorwise --compile
    python tensor_parallel.py --device cpu --size tiny --tokens 256 --widths 64 --ranks 1 --rounds 1

Checks that a Llama block whose activations are sent as FP8 codes has the bits of one that gathers them in BF16 and
quantises afterwards: outputs, gradients and weights of two steps. Then prints a record each (records.py), rounds of
all variants interleaved: the time in which a layer's input is quantised and gathered, beside gathering BF16 and
quantising afterwards, which it should take at most 0.6 of; and a training step of a block, beside PyTorch's BF16
styles. Exits with 1 if bits differ.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from blocks import SIZES, Mlp, Sizes
from checks import equal
from records import Records, add_option, peer_of, protocol_of
from timing import interleaved
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

import octile.torch as ot
from octile.torch.distributed import OctileColwiseParallel, OctilePrepareInput, OctileRowwiseParallel
from octile.torch.distributed.operands import X, arrived, quantize, send
from octile.torch.distributed.ranks import Ranks, gather_tokens, ranks_of, rows_of
from octile.torch.recipes import as_recipe


class Attention(nn.Module):
    """A causal attention without rotary embeddings, of as many heads as the layers return."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = sizes.head
        self.q, self.o = (nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(sizes.width, sizes.kv_heads * sizes.head, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [batch, tokens, width]."""
        batch, tokens, _ = x.shape
        q, k, v = (layer(x).view(batch, tokens, -1, self.head).transpose(1, 2) for layer in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(h.transpose(1, 2).reshape(batch, tokens, -1))


class Block(nn.Module):
    """A Llama block. Its input and output are a rank's tokens."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(sizes.width), nn.RMSNorm(sizes.width)
        self.attention, self.mlp = Attention(sizes), Mlp(sizes.width, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [batch, tokens / ranks, width]."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


COLUMNS = "attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"
ROWS = "attention.o", "mlp.down"


def block_of(variant: str, mesh: DeviceMesh, options) -> nn.Module:
    """Returns a block, always the same. variant: "bf16", by PyTorch's styles; or "<recipe> <wire>"."""
    torch.manual_seed(0)
    with torch.device(options.device):
        block = Block(SIZES[options.size]).bfloat16()
    if variant == "bf16":
        column, row = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
        prepare = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    else:
        recipe, wire = variant.split()
        ot.convert(block, recipe, preset="all-linear", min_dims=16)
        column, row = OctileColwiseParallel(wire=wire), OctileRowwiseParallel(wire=wire)
        prepare = OctilePrepareInput(wire=wire)
    plan = dict.fromkeys(COLUMNS, column) | dict.fromkeys(ROWS, row)
    plan |= dict.fromkeys(("norm1", "norm2"), SequenceParallel()) | dict.fromkeys(("attention", "mlp"), prepare)
    return parallelize_module(block, mesh, plan)


def part(options, mesh: DeviceMesh, width: int) -> torch.Tensor:
    """Returns this rank's tokens of an input."""
    generator = torch.Generator().manual_seed(mesh.get_local_rank())
    x = torch.randn(1, options.tokens // mesh.size(), width, generator=generator)
    return x.to(options.device, torch.bfloat16)


class Trained:
    """A block with its step."""

    def __init__(self, variant: str, mesh: DeviceMesh, options) -> None:
        self.block = block_of(variant, mesh, options)
        self.x = part(options, mesh, SIZES[options.size].width).requires_grad_()
        self.optimizer = torch.optim.SGD(self.block.parameters(), lr=1e-2)
        self.forward = torch.compile(self.block) if options.compile else self.block

    def step(self) -> None:
        """Forward, backward, and the optimizer."""
        self.optimizer.zero_grad(set_to_none=True)
        self.x.grad = None
        self.y = self.forward(self.x)
        self.y.float().square().mean().backward()
        self.optimizer.step()

    def state(self) -> list[torch.Tensor]:
        """Returns what the last step has computed."""
        return [self.y.detach(), self.x.grad, *(p.detach().to_local() for p in self.block.parameters())]


def same_bits(recipe: str, mesh: DeviceMesh, options) -> bool:
    """Returns whether both ways of sending have the same bits, on every rank. Attention adds in a fixed order here."""
    torch.use_deterministic_algorithms(True)
    runs = [Trained(f"{recipe} {wire}", mesh, options) for wire in ("fp8", "bf16")]
    for run in runs * 2:
        run.step()
    torch.use_deterministic_algorithms(False)
    differs = torch.tensor([0.0 if equal(*(run.state() for run in runs)) else 1.0], device=options.device)
    dist.all_reduce(differs)
    return differs.item() == 0


def inputs(recipe: str, x: torch.Tensor, ranks: Ranks) -> dict[str, Callable[[], None]]:
    """Returns the two ways to make both FP8 copies that a layer's first product and its backward pass need."""
    code, rows, width = as_recipe(recipe).code, rows_of(x, ranks), x.shape[-1]

    def fp8() -> None:
        arrived(send(quantize(x, code, X, ranks, True, True).row, rows, width, ranks, False), ranks)

    def bf16() -> None:
        quantize(gather_tokens(x, ranks), code, X, None, True, True)

    return {"fp8": fp8, "bf16": bf16}


def time_inputs(recipe: str, mesh: DeviceMesh, options, add: Callable[..., None]) -> None:
    """Records the time of a layer's input."""
    ranks = ranks_of(mesh.get_group(), 1)
    for width in map(int, options.widths.split(",")):
        steps = inputs(recipe, part(options, mesh, width), ranks)
        for step in list(steps.values()) * 3:
            step()
        times = interleaved(steps, options.rounds, options.times, options.device)
        add(
            f"TP input ranks={mesh.size()} tokens={options.tokens} k={width} recipe={recipe}",
            "us",
            times["fp8"],
            protocol_of("stream", options.rounds, note=f"a round is {options.times} calls"),
            part="quantise and gather",
            peers=[peer_of("BF16, quantised afterwards", times["bf16"])],
        )


def time_blocks(recipes: list[str], mesh: DeviceMesh, options, add: Callable[..., None]) -> None:
    """Records the time of a block's step."""
    names = ["bf16"] + [f"{recipe} {wire}" for recipe in recipes for wire in ("fp8", "bf16")]
    blocks = {name: Trained(name, mesh, options) for name in names}
    for block in list(blocks.values()) * options.warm_steps:
        block.step()
    steps = {name: block.step for name, block in blocks.items()}
    times = interleaved(steps, options.rounds, 3, options.device)
    in_ms = {name: [us / 1e3 for us in taken] for name, taken in times.items()}
    for recipe in recipes:
        add(
            f"TP block size={options.size} ranks={mesh.size()} tokens={options.tokens} recipe={recipe}",
            "ms",
            in_ms[f"{recipe} fp8"],
            protocol_of("stream", options.rounds, note="a round is 3 steps with an SGD update"),
            part="compiled" if options.compile else "eager",
            peers=[
                peer_of("PyTorch BF16", in_ms["bf16"], torch.__version__),
                peer_of("the recipe, BF16 sent", in_ms[f"{recipe} bf16"]),
            ],
        )


def run(rank: int, options, store: str | None) -> bool:
    """Runs one rank. store: where ranks find each other; None: as torchrun says."""
    backend = "nccl" if options.device == "cuda" else "gloo"
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    where = {} if store is None else {"init_method": f"file://{store}", "rank": rank, "world_size": options.ranks}
    dist.init_process_group(backend, **where)
    mesh = init_device_mesh(options.device, (dist.get_world_size(),))
    records = Records(options.records, options.device) if dist.get_rank() == 0 else None
    recipes, good = options.recipes.split(","), True

    def add(*words, peers, **details) -> None:
        if records is not None:
            records.add(*words, peers=peers, torch=torch.__version__, **details)

    for recipe in recipes:
        holds = same_bits(recipe, mesh, options)
        good &= holds
        if records is not None:
            print(f"bits {recipe}: {'those of BF16 that is quantised afterwards' if holds else 'DIFFER'}", flush=True)
        time_inputs(recipe, mesh, options, add)
    time_blocks(recipes, mesh, options, add)
    dist.destroy_process_group()
    return good


def started(rank: int, options, store: str) -> None:
    """Runs a rank in a process of its own."""
    if not run(rank, options, store):
        sys.exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="processes to start if torchrun has not started this one")
    parser.add_argument("--tokens", type=int, default=16384, help="of all ranks")
    parser.add_argument("--widths", default="4096,8192", help="k of the inputs that are timed")
    parser.add_argument("--recipes", default="blockwise")
    parser.add_argument("--size", default="llama", choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--times", type=int, default=20, help="inputs of a round")
    parser.add_argument("--warm-steps", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    add_option(parser)
    options = parser.parse_args()
    if "RANK" in os.environ:
        return 0 if run(int(os.environ["LOCAL_RANK"]), options, None) else 1
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        if options.ranks == 1:
            return 0 if run(0, options, store) else 1
        try:
            torch.multiprocessing.spawn(started, (options, store), nprocs=options.ranks)
        except torch.multiprocessing.ProcessExitedException:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
