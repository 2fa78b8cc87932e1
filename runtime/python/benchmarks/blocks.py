"""Four Llama-3-8B blocks on a GPU: the time of a training step in BF16 and in FP8, and what it keeps in memory.

    python blocks.py                                  # eager and compiled, BF16, octile, and torchao if installed
    python blocks.py --tokens 8192 --recipes blockwise,blockwise_hybrid

A step is forward, backward and an SGD update of BF16 weights, which makes every weight new. The rounds of all variants
are interleaved. Under torch.compile the distribution's compiler may be needed: CC=gcc CXX=g++. Prints a JSON object a
variant, the cold start (to the end of the first step, kernels included) among them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

import octile.torch as ot

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD = 4096, 14336, 32, 8, 128


class Block(nn.Module):
    """A block of Llama-3-8B, without rotary embeddings, which no linear layer sees."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x [1, tokens, width] after the block."""
        h = self.norm1(x)
        q, k, v = (
            p(h).view(1, -1, n, HEAD).transpose(1, 2)
            for p, n in ((self.q, HEADS), (self.k, KV_HEADS), (self.v, KV_HEADS))
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(h.transpose(1, 2).reshape(1, -1, WIDTH))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def model_of(variant: str) -> nn.Module:
    """Returns four blocks in BF16 on the GPU, converted as the variant says: bf16, a recipe, or torchao:<recipe>."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = nn.Sequential(*(Block() for _ in range(4))).to(torch.bfloat16)
    if variant.startswith("torchao:"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(variant.split(":")[1]))
    elif variant != "bf16":
        # A preset for names: "gate" is no router here.
        print(json.dumps({"converted": len(ot.convert(model, variant, preset="all-linear").converted)}), flush=True)
    return model


class Variant:
    """A model with its step."""

    def __init__(self, name: str, compiled: bool, x: torch.Tensor) -> None:
        self.name, self.x = name + (" compiled" if compiled else " eager"), x
        begin = time.time()
        self.model = model_of(name)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6, fused=True)
        self.forward = torch.compile(self.model) if compiled else self.model
        torch.cuda.synchronize()
        self.step()
        torch.cuda.synchronize()
        self.cold_seconds = time.time() - begin
        for _ in range(4):
            self.step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.kept = self.forward(self.x)
        self.kept_bytes = torch.cuda.memory_allocated() - before
        del self.kept

    def step(self) -> None:
        """Forward, backward, and the optimizer."""
        self.forward(self.x).float().square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def milliseconds(self, steps: int) -> float:
        """Returns the time of a step."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(steps):
            self.step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--recipes", default="blockwise")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--modes", default="eager,compiled")
    options = parser.parse_args()
    names = ["bf16", *options.recipes.split(",")]
    try:
        import torchao  # noqa: F401

        names += ["torchao:rowwise", "torchao:tensorwise"]
    except ImportError:
        print(json.dumps({"torchao": "not installed"}), flush=True)
    x = torch.randn(1, options.tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
    print(json.dumps({"card": torch.cuda.get_device_name(), "torch": torch.__version__, "tokens": options.tokens}))
    for mode in options.modes.split(","):
        variants = [Variant(name, mode == "compiled", x) for name in names]
        times: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for variant in variants:
                times.setdefault(variant.name, []).append(variant.milliseconds(3))
        base = statistics.median(times[variants[0].name])
        for variant in variants:
            step = statistics.median(times[variant.name])
            print(
                json.dumps(
                    {
                        "variant": variant.name,
                        "step_ms": round(step, 2),
                        "of_bf16": round(base / step, 3),
                        "kept_MiB": round(variant.kept_bytes / 2**20),
                        "cold_s": round(variant.cold_seconds, 2),
                    }
                ),
                flush=True,
            )
        del variants
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
