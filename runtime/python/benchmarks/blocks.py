"""Four Llama-3-8B blocks on a GPU: the time of a training step in BF16 and in FP8, and what it keeps in memory.

    python blocks.py                                  # eager and compiled, BF16, octile, and torchao if installed
    python blocks.py --tokens 8192 --recipes blockwise,blockwise_hybrid
    python blocks.py --device cpu --size tiny --tokens 32 --modes eager --rounds 1

A step is forward, backward and an SGD update of BF16 weights, which makes every weight new. The rounds of all variants
are interleaved. Under torch.compile the distribution's compiler may be needed: CC=gcc CXX=g++. Prints a record a recipe
(records.py), beside BF16 and torchao, the cold start (to the end of the first step, kernels included) among its
details. Exits with 1 if an octile variant's output is not BF16's within FP8's error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import NamedTuple

import torch
from records import Records, add_option, peer_of, protocol_of
from timing import synchronize, wall_us
from torch import nn
from torch.nn import functional as F

import octile.torch as ot


class Sizes(NamedTuple):
    """Of a block."""

    width: int
    hidden: int
    heads: int
    kv_heads: int
    head: int


SIZES = {"llama": Sizes(4096, 14336, 32, 8, 128), "tiny": Sizes(64, 128, 4, 2, 16)}


class Mlp(nn.Module):
    """The MLP of such a block."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [..., width] of x [..., width]."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A block of Llama-3-8B, without rotary embeddings, which no linear layer sees."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, width = sizes, sizes.width
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, sizes.kv_heads * sizes.head, bias=False) for _ in range(2))
        self.mlp = Mlp(width, sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x [1, tokens, width] after the block."""
        heads, kv_heads, head = self.sizes[2:]
        h = self.norm1(x)
        q, k, v = (
            p(h).view(1, -1, n, head).transpose(1, 2)
            for p, n in ((self.q, heads), (self.k, kv_heads), (self.v, kv_heads))
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(h.transpose(1, 2).reshape(1, -1, self.sizes.width))
        return x + self.mlp(self.norm2(x))


def four_blocks(size: str, device: str) -> nn.Module:
    """Returns four blocks in BF16, always the same."""
    torch.manual_seed(0)
    with torch.device(device):
        return nn.Sequential(*(Block(SIZES[size]) for _ in range(4))).to(torch.bfloat16)


def model_of(variant: str, options) -> nn.Module:
    """Returns the blocks, converted as the variant says: bf16, a recipe, or torchao:<recipe>."""
    model = four_blocks(options.size, options.device)
    if variant.startswith("torchao:"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(variant.split(":")[1]))
    elif variant != "bf16":
        # A preset for names: "gate" is no router here.
        report = ot.convert(model, variant, preset="all-linear", min_dims=options.min_dims, fuse=not options.no_fuse)
        counts = {"converted": len(report.converted), "of": 28, "fused_mlps": len(report.fused)}
        print(json.dumps({"variant": variant, **counts}), flush=True)
    return model


class Variant:
    """A model with its step."""

    def __init__(self, name: str, compiled: bool, x: torch.Tensor, options) -> None:
        self.name, self.x, self.device = name + (" compiled" if compiled else " eager"), x, options.device
        begin = time.time()
        self.model = model_of(name, options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, fused=True)
        self.forward = torch.compile(self.model) if compiled else self.model
        self.step()
        synchronize(self.device)
        self.cold_seconds = time.time() - begin
        with torch.no_grad():  # eager, so that nothing is compiled for it
            self.output = self.model(x).float()
        for _ in range(options.warm_steps):
            self.step()
        self.kept_bytes = self.bytes_kept() if self.device == "cuda" else 0

    def bytes_kept(self) -> int:
        """Returns what a forward pass keeps, all of the model together."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        kept = self.forward(self.x)
        taken = torch.cuda.memory_allocated() - before
        del kept
        return taken

    def step(self) -> None:
        """Forward, backward, and the optimizer."""
        self.forward(self.x).float().square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def milliseconds(self, steps: int) -> float:
        """Returns the time of a step."""
        return wall_us(self.step, steps, self.device) / 1e3

    def error_of(self, other: Variant) -> float:
        """Returns the relative difference of the outputs after one step."""
        return ((self.output - other.output).norm() / other.output.norm()).item()


def compare(records: Records, names: list[str], mode: str, x: torch.Tensor, options) -> bool:
    """Records the variants of octile beside the others. Returns whether they compute what BF16 does."""
    variants = [Variant(name, mode == "compiled", x, options) for name in names]
    times: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for variant in variants:
            times.setdefault(variant.name, []).append(variant.milliseconds(3))
    by_name = dict(zip(names, variants, strict=True))
    others = [name for name in names if name == "bf16" or name.startswith("torchao:")]
    peers = [peer_of(name.replace("torchao:", "torchao "), times[by_name[name].name]) for name in others]
    good = True
    for name in [name for name in names if name not in others]:
        variant, error = by_name[name], by_name[name].error_of(variants[0])
        good &= error < 0.1
        records.add(
            f"Llama-3-8B blocks count=4 size={options.size} tokens={options.tokens} recipe={name}",
            "ms",
            times[variant.name],
            protocol_of("stream", options.rounds, note="a round is 3 steps with an SGD update"),
            part=mode,
            peers=peers,
            ok=error < 0.1,
            check="the output beside BF16's",
            output_error=error,
            kept_bytes=variant.kept_bytes,
            bf16_kept_bytes=variants[0].kept_bytes,
            cold_s=variant.cold_seconds,
            bf16_cold_s=variants[0].cold_seconds,
            torch=torch.__version__,
        )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--recipes", default="blockwise")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--warm-steps", type=int, default=4)
    parser.add_argument("--size", default="llama", choices=list(SIZES))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--min-dims", default=16, type=lambda text: text if text == "auto" else int(text))
    parser.add_argument("--no-fuse", action="store_true", help="PyTorch computes the activations")
    add_option(parser)
    options = parser.parse_args()
    names = ["bf16", *options.recipes.split(",")]
    try:
        import torchao

        names += ["torchao:rowwise", "torchao:tensorwise"] if options.device == "cuda" else []
        print(json.dumps({"torchao": torchao.__version__}), flush=True)
    except ImportError:
        print(json.dumps({"torchao": "not installed"}), flush=True)
    x = torch.randn(1, options.tokens, SIZES[options.size].width, device=options.device, dtype=torch.bfloat16)
    records, good = Records(options.records, options.device), True
    for mode in options.modes.split(","):
        good &= compare(records, names, mode, x, options)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
