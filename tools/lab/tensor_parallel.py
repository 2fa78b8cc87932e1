"""Tensor parallelism whose activations travel in FP8, on several GPUs of a machine: bits, time of the input, a block.

    torchrun --nproc-per-node 2 tensor_parallel.py
    torchrun --nproc-per-node 2 tensor_parallel.py --recipes blockwise,tensorwise --compile
    python tensor_parallel.py --device cpu --size tiny --tokens 256 --widths 64 --rounds 1

Checks that a Llama block whose activations are sent as FP8 codes has the bits of one that gathers them in BF16 and
quantises afterwards: the output and its input's gradient in the last step of --warm-steps and one more, and the weights
behind it. Then prints a record each (records.py), rounds of all variants interleaved: the time in which a layer's input
is quantised and gathered, beside gathering BF16 and quantising afterwards, which it should take at most 0.6 of; and a
training step of a block, beside PyTorch's BF16 styles. Exits with 1 if bits differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from models import SIZES, Trained, blocks
from ranks import equal, everywhere, joined
from records import Records, parser_of, peer_of, protocol_of
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

import octile.torch as ot
from octile.torch.distributed import OctileColwiseParallel, OctilePrepareInput, OctileRowwiseParallel
from octile.torch.distributed.operands import X, arrived, quantize, send
from octile.torch.distributed.ranks import Ranks, gather_tokens, ranks_of, rows_of
from octile.torch.recipes import as_recipe


COLUMNS = "attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"
ROWS = "attention.o", "mlp.down"


def block_of(variant: str, mesh: DeviceMesh, options) -> nn.Module:
    """Returns a block, always the same. variant: "bf16", by PyTorch's styles; or "<recipe> <wire>"."""
    block = blocks(options.size, options.device, 1)[0]
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


def trained(variant: str, mesh: DeviceMesh, options) -> Trained:
    """Returns a block that trains, with the results of its last step in ``results``."""
    results: list[torch.Tensor] = []

    def make() -> tuple:
        block, x = block_of(variant, mesh, options), part(options, mesh, SIZES[options.size].width).requires_grad_()
        forward = torch.compile(block) if options.compile else block

        def loss() -> torch.Tensor:
            y = forward(x)
            results[:] = [y.detach()]
            return y.float().square().mean()

        def after_step() -> None:
            results.extend([x.grad, *(p.detach().to_local() for p in block.parameters())])
            x.grad = None

        return block, torch.optim.SGD(block.parameters(), lr=1e-2), loss, after_step

    block = Trained(make, options)
    block.results = results
    return block


def same_bits(recipe: str, mesh: DeviceMesh, options) -> bool:
    """Returns whether both ways of sending have the same bits, on every rank. Attention adds in a fixed order here."""
    torch.use_deterministic_algorithms(True)
    runs = [trained(f"{recipe} {wire}", mesh, options) for wire in ("fp8", "bf16")]
    torch.use_deterministic_algorithms(False)
    return everywhere(equal(*(run.results for run in runs)), options.device)


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
    steps = {name: trained(name, mesh, options).step for name in names}
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


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=16384, help="of all ranks")
    parser.add_argument("--widths", default="4096,8192", help="k of the inputs that are timed")
    parser.add_argument("--recipes", default="blockwise")
    parser.add_argument("--size", default="llama", choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--times", type=int, default=20, help="inputs of a round")
    parser.add_argument("--warm-steps", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    recipes, good = options.recipes.split(","), True
    with joined(options.device) as is_first:
        mesh = init_device_mesh(options.device, (dist.get_world_size(),))
        records = Records(options.records, options.device) if is_first else None

        def add(*words, peers, **details) -> None:
            if records is not None:
                records.add(*words, peers=peers, torch=torch.__version__, **details)

        for recipe in recipes:
            holds = same_bits(recipe, mesh, options)
            good &= holds
            if is_first:
                said = "those of BF16 that is quantised afterwards" if holds else "DIFFER"
                print(f"bits {recipe}: {said}", flush=True)
            time_inputs(recipe, mesh, options, add)
        time_blocks(recipes, mesh, options, add)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
