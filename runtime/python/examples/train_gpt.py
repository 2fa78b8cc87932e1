"""Trains a small byte-level GPT on the sources of Python's standard library, in FP8 or without.

    python train_gpt.py                                  # a tiny model on the CPU, about a minute
    python train_gpt.py --recipe none                    # the same in BF16 or FP32, to compare
    python train_gpt.py --device cuda --width 768 --layers 12 --steps 2000 --context 1024 --batch 16

The only lines that know of FP8 are in `convert_to_fp8` and `evaluate`. Weights stay FP32; activations are BF16 on a
GPU. Every 16th source file is held out. At the end, and every --eval-every steps, the same weights compute the loss of
a fixed set of batches of those files twice: as the model was trained, and without FP8. The second shows what training
in FP8 did to the weights; the first adds the rounding of an FP8 forward pass.
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

HELD_OUT = 16  # every 16th file is held out
EVALUATED_ROWS = 16  # a forward pass of an evaluation, the same windows for any training batch


def rotated(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Returns x [..., context, head] turned by its position: rotary embeddings."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), dim=-1)


class Mlp(nn.Module):
    """A feed-forward layer with GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class GatedMlp(nn.Module):
    """A feed-forward layer as Llama has it, of about as many parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(1, 8 * width // 3 // 128) * 128
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm. Queries and keys are normed, too."""

    def __init__(self, width: int, heads: int, is_gated: bool) -> None:
        super().__init__()
        self.heads = heads
        norm = nn.RMSNorm if is_gated else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = GatedMlp(width) if is_gated else Mlp(width)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Returns x [batch, context, width] after the block. turns: the cosines and sines of each position."""
        batch, context, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, context, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (rotated(F.rms_norm(t, t.shape[-1:]), *turns) for t in (q, k))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, context, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A byte-level GPT: 256 tokens, rotary positions, output tied to nothing. is_gated: with RMS norms and gated MLPs."""

    def __init__(self, width: int, layers: int, heads: int, context: int, is_gated: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads, is_gated) for _ in range(layers))
        self.norm, self.lm_head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:
            down = block.mlp.down_proj if is_gated else block.mlp.down
            for linear in (block.out, down):  # what is added to x, by 2 * layers of them
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * layers))
        half = width // heads // 2
        angles = torch.outer(torch.arange(context), 10_000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the logits [batch, context, 256] of tokens [batch, context]."""
        x = self.embed(tokens)
        turns = self.cosines[: tokens.shape[1]].to(x.dtype), self.sines[: tokens.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x, turns)
        return self.lm_head(self.norm(x))


def convert_to_fp8(model: nn.Module, options: argparse.Namespace) -> None:
    """Swaps the linear layers of the blocks, and prints what was swapped."""
    print(ot.convert(model, options.recipe, min_dims=options.min_dims, fuse=options.fuse))


def read_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the bytes of the standard library's sources in the order of their names: to train on, and held out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in root.rglob("*.py") if "site-packages" not in p.parts and "test" not in p.parts)
    held_out = files[HELD_OUT - 1 :: HELD_OUT]
    parts = [p for p in files if p not in set(held_out)], held_out
    trained, held = (bytearray(b"".join(p.read_bytes() for p in part)) for part in parts)
    return torch.frombuffer(trained, dtype=torch.uint8), torch.frombuffer(held, dtype=torch.uint8)


def batch_of(text: torch.Tensor, step: int, batch: int, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and the tokens that follow them, the same ones in a step of every run."""
    generator = torch.Generator().manual_seed(step)
    begins = torch.randint(len(text) - context - 1, (batch,), generator=generator)
    rows = torch.stack([text[b : b + context + 1] for b in begins.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss of tokens and targets [batch, context], in nats a byte."""
    kind = tokens.device.type
    with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
        logits = model(tokens)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, text: torch.Tensor, options: argparse.Namespace) -> float:
    """Returns the mean loss of --eval-batches batches of windows, which lie evenly over ``text``."""
    count, length = options.eval_batches * EVALUATED_ROWS, options.context + 1
    begins = [i * (len(text) - length) // max(1, count - 1) for i in range(count)]
    rows = torch.stack([text[b : b + length] for b in begins]).to(options.device).long()
    losses = [loss_of(model, part[:, :-1], part[:, 1:]) for part in rows.split(EVALUATED_ROWS)]
    return torch.stack(losses).double().mean().item()


def evaluate(model: nn.Module, text: torch.Tensor, step: int, options: argparse.Namespace) -> dict[str, float]:
    """Returns and prints the held-out losses after ``step`` steps. ``model`` is the one that is not compiled, so that
    its compiled form sees no change. It stays in training mode, in which its layers choose FP8 as in training."""
    as_trained = without_fp8 = held_out_loss(model, text, options)
    if ot.set_fp8(model, False):
        without_fp8 = held_out_loss(model, text, options)
        ot.set_fp8(model, True)
    print(f"step {step:5}  held out: {as_trained:.4f} as trained, {without_fp8:.4f} without FP8", flush=True)
    return {"step": step, "as_trained": as_trained, "without_fp8": without_fp8}


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """Returns a warm-up over a tenth of the steps, then a cosine to 0."""
    warm = max(1, options.steps // 10)
    if step < warm:
        return options.lr * (step + 1) / warm
    done = (step - warm) / max(1, options.steps - warm)
    return options.lr * 0.5 * (1 + math.cos(math.pi * done))


def train(options: argparse.Namespace) -> tuple[list[float], list[dict[str, float]]]:
    """Returns the loss of every step, in nats a byte, and the held-out losses, the last of them after the last step."""
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    model = Gpt(options.width, options.layers, options.heads, options.context, options.gated).to(device)
    if options.recipe != "none":
        convert_to_fp8(model, options)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    step_of = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=device.type == "cuda"
    )
    (text, held_out), losses, evaluated, begin = read_text(), [], [], time.time()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        tokens, targets = (t.to(device) for t in batch_of(text, step, options.batch, options.context))
        loss = loss_of(step_of, tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if step % options.print_every == 0 or step == options.steps - 1:
            print(f"step {step:5}  loss {loss.item():.4f}  {time.time() - begin:6.1f} s", flush=True)
        if options.seconds and time.time() - begin > options.seconds:
            break
        if options.eval_every and len(losses) % options.eval_every == 0 and len(losses) < options.steps:
            evaluated.append(evaluate(model, held_out, len(losses), options))
    if options.eval_batches:
        evaluated.append(evaluate(model, held_out, len(losses), options))
    return torch.stack(losses).tolist(), evaluated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="blockwise", help="a recipe of octile.torch, or none")
    parser.add_argument("--min-dims", default=64, type=lambda text: text if text == "auto" else int(text))
    parser.add_argument("--gated", action="store_true", help="blocks as Llama's: RMS norms and gated MLPs")
    parser.add_argument("--no-fuse", dest="fuse", action="store_false", help="convert(fuse=False)")
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
    parser.add_argument("--eval-every", type=int, default=0, help="steps between held-out losses; 0: at the end")
    parser.add_argument("--eval-batches", type=int, default=32, help=f"of {EVALUATED_ROWS} rows; 0: no held-out losses")
    parser.add_argument("--losses", help="file for the options, the loss of every step and the held-out ones, as JSON")
    options = parser.parse_args()
    if options.eval_every and not options.eval_batches:
        parser.error("--eval-every needs --eval-batches above 0")
    losses, held_out = train(options)
    if options.losses:
        data = {"options": vars(options), "losses": losses, "held_out": held_out}
        Path(options.losses).write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
