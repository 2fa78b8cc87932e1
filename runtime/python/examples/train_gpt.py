"""Trains a small byte-level GPT on the sources of Python's standard library, in FP8 or without.

    python train_gpt.py                                  # a tiny model on the CPU, about a minute
    python train_gpt.py --recipe none                    # the same in BF16 or FP32, to compare
    python train_gpt.py --device cuda --width 768 --layers 12 --steps 2000 --context 1024 --batch 16

The only lines that know of FP8 are in `convert_to_fp8`. Weights stay FP32; activations are BF16 on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import octile.torch as ot


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns x [batch, context, width] after the block."""
        batch, context, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, context, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, context, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A byte-level GPT: 256 tokens, learned positions, output tied to nothing."""

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.lm_head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the logits [batch, context, 256] of tokens [batch, context]."""
        x = self.embed(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


def convert_to_fp8(model: nn.Module, recipe: str, min_dims: int | str) -> None:
    """Swaps the linear layers of the blocks, and prints what was swapped."""
    print(ot.convert(model, recipe, min_dims=min_dims))


def read_text() -> torch.Tensor:
    """Returns the bytes of the standard library's sources, in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in root.rglob("*.py") if "site-packages" not in p.parts and "test" not in p.parts)
    return torch.frombuffer(bytearray(b"".join(p.read_bytes() for p in files)), dtype=torch.uint8)


def batch_of(text: torch.Tensor, step: int, batch: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and the tokens that follow them, the same ones in a step of every run."""
    generator = torch.Generator().manual_seed(step)
    begins = torch.randint(len(text) - context - 1, (batch,), generator=generator)
    rows = torch.stack([text[b : b + context + 1] for b in begins.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """Returns a warm-up over 2 % of the steps, then a cosine to a tenth."""
    warm = max(1, options.steps // 50)
    if step < warm:
        return options.lr * (step + 1) / warm
    done = (step - warm) / max(1, options.steps - warm)
    return options.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def train(options: argparse.Namespace) -> list[float]:
    """Returns the loss of every step, in nats a byte."""
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    model = Gpt(options.width, options.layers, options.heads, options.context).to(device)
    if options.recipe != "none":
        convert_to_fp8(model, options.recipe, options.min_dims)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    step_of = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    text, losses, begin = read_text(), [], time.time()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        tokens, targets = (t.to(device) for t in batch_of(text, step, options.batch, options.context))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = step_of(tokens)
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if step % options.print_every == 0 or step == options.steps - 1:
            print(f"step {step:5}  loss {loss.item():.4f}  {time.time() - begin:6.1f} s", flush=True)
        if options.seconds and time.time() - begin > options.seconds:
            break
    return torch.stack(losses).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="blockwise", help="a recipe of octile.torch, or none")
    parser.add_argument("--min-dims", default=64, type=lambda text: text if text == "auto" else int(text))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long; 0: after --steps")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--print-every", type=int, default=20)
    parser.add_argument("--losses", help="file for the options and the loss of every step, as JSON")
    options = parser.parse_args()
    losses = train(options)
    if options.losses:
        Path(options.losses).write_text(json.dumps({"options": vars(options), "losses": losses}) + "\n")


if __name__ == "__main__":
    main()
