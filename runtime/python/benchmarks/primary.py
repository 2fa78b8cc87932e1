"""Checks on a device that weights held in FP8 train as ordinary ones whose masters are rounded, and resume.

    python primary.py                  # on a GPU
    python primary.py --device cpu

models.py times them: --recipes blockwise+primary.
"""

from __future__ import annotations

import argparse
import copy
import sys

import torch
from torch import nn

import octile.torch as ot
from checks import all_hold, equal

STEPS = 4
TOKENS = 300  # no multiple of a block


def model_of(device: str, recipe: str, n: int, k: int) -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(k, n), nn.GELU(), nn.Linear(n, k, bias=False)).to(device, torch.bfloat16)
    ot.convert(model, recipe, min_dims=16)
    return model


def backward(model: nn.Module, step: int, device: str) -> None:
    """Leaves the gradients of a batch that the number of the step decides."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(TOKENS, model[0].in_features, generator=generator).to(device, torch.bfloat16)
    model(x).float().square().mean().backward()


def adamw(parameters: list[torch.Tensor], device: str) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-2, fused=device == "cuda")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, device: str) -> None:
    for step in steps:
        backward(model, step, device)
        optimizer.step()
        optimizer.zero_grad()


def masters_by_hand(device: str, recipe: str, n: int, k: int) -> list[torch.Tensor]:
    """Trains ordinary layers whose weights are float32 masters rounded to bf16. Returns the masters."""
    model = model_of(device, recipe, n, k)
    weights = list(model.parameters())
    masters = [p.detach().float() if p.dim() == 2 else p for p in weights]
    optimizer = adamw(masters, device)
    for step in range(STEPS):
        backward(model, step, device)
        for p, master in zip(weights, masters, strict=True):
            if master is not p:
                master.grad, p.grad = p.grad.float(), None
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, master in zip(weights, masters, strict=True):
                p.copy_(master)
    return masters


def held(device: str, recipe: str, n: int, k: int, master: str = "fp32") -> tuple[nn.Module, torch.optim.Optimizer]:
    model = model_of(device, recipe, n, k)
    optimizer = adamw(list(model.parameters()), device)
    ot.primary_fp8(model, optimizer, master=master)
    return model, optimizer


def masters_of(model: nn.Module) -> list[torch.Tensor]:
    return [getattr(p, "master", p).detach() for p in model.parameters()]


def trains_as_by_hand(device: str, recipe: str, n: int, k: int) -> bool:
    model, optimizer = held(device, recipe, n, k)
    train(model, optimizer, range(STEPS), device)
    return equal(masters_of(model), masters_by_hand(device, recipe, n, k))


def resumes(device: str, master: str, n: int, k: int) -> bool:
    """Goes on from a checkpoint in the middle, and compares with training that was not interrupted."""
    model, optimizer = held(device, "blockwise", n, k, master)
    train(model, optimizer, range(2), device)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(2, STEPS), device)
    other, its_optimizer = held(device, "blockwise", n, k, master)
    other.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    train(other, its_optimizer, range(2, STEPS), device)
    return equal(masters_of(model), masters_of(other))


def compiles(device: str, n: int, k: int) -> bool:
    """Trains the model compiled, and compares with eager training."""
    eager, optimizer = held(device, "blockwise", n, k)
    train(eager, optimizer, range(STEPS), device)
    model, optimizer = held(device, "blockwise", n, k)
    for layer in (model[0], model[2]):
        layer.compile(backend="inductor" if device == "cuda" else "aot_eager")
    train(model, optimizer, range(STEPS), device)
    return equal(masters_of(eager), masters_of(model))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", default="1024,2048", help="n,k")
    options = parser.parse_args()
    device, (n, k) = options.device, map(int, options.size.split(","))
    recipes = "blockwise", "blockwise:f32", "blockwise_hybrid", "tensorwise"
    checks = {f"{recipe}: as by hand": lambda one=recipe: trains_as_by_hand(device, one, n, k) for recipe in recipes}
    checks |= {f"resumes, master {form}": lambda one=form: resumes(device, one, n, k) for form in ("fp32", "bf16+16")}
    checks["compiled"] = lambda: compiles(device, n, k)
    return 0 if all_hold(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
