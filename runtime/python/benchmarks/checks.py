"""What the checks of this folder have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch

import octile.torch as ot


def passes(
    layer: ot.Linear | ot.Experts, x: torch.Tensor, dy: torch.Tensor, *offsets: torch.Tensor
) -> list[torch.Tensor]:
    """Returns y, dx and dw of a layer. offsets: those of the groups of Experts."""
    x = x.detach().requires_grad_()
    y = layer(x, *offsets)
    return [y.detach(), *torch.autograd.grad(y, (x, layer.weight), dy)]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Returns whether the tensors have the same bits."""
    return all(p.equal(q) for p, q in zip(a, b, strict=True))


def all_hold(checks: dict[str, Callable[[], bool]], good: str = "good") -> bool:
    """Runs the checks and prints a line for each: its name, and ``good`` or that the results differ."""
    results = []
    for name, check in checks.items():
        results.append(check())
        print(f"{name}: {good if results[-1] else 'DIFFERS'}", flush=True)
    return all(results)
