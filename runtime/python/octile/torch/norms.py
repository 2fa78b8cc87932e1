"""RMS norms of a converted model, computed by PyTorch's fused kernels: one forward instead of six, and x kept for backward
in its own type instead of in float32. FP8 layers keep nothing of their results."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from octile.torch.derivatives import is_in_forward_mode, is_transformed
from octile.torch.normed_input import remember
from octile.torch.specialised import Specialised, specialise

_EPSILONS = ("variance_epsilon", "eps", "epsilon")
_ROWS = 3  # of the input by which a norm is recognised


class _Norm(torch.autograd.Function):
    """weight x / rms(x) over the last dimension, computed in float32 and rounded once, and 1 / rms of each row. Keeps
    that and x."""

    @staticmethod
    def forward(ctx, x, weight, epsilon):
        y, reciprocal = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, epsilon)
        ctx.save_for_backward(x, weight, reciprocal)
        ctx.mark_non_differentiable(reciprocal)
        return y, reciprocal

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, _):
        x, weight, reciprocal = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        if x.is_cuda:
            needs = [needs_x, needs_weight]
            return *torch.ops.aten._fused_rms_norm_backward(dy, x, weight.shape, reciprocal, weight, needs), None
        normed, dy = x.float() * reciprocal, dy.float()
        scaled = dy * weight.float()
        dx = (scaled - normed * (scaled * normed).mean(-1, keepdim=True)) * reciprocal
        dw = (dy * normed).flatten(0, -2).sum(0) if needs_weight else None
        return dx.to(x.dtype) if needs_x else None, None if dw is None else dw.to(weight.dtype), None


class FusedNorm(Specialised):
    """A norm that computes (weight + offset) x / rms(x). Other calls
    than those of one tensor of the weight's type take the class's own forward, as do calls under autocast, of
    torch.func and in forward mode."""

    weight: nn.Parameter
    _fused: tuple[float, float]  # epsilon and offset

    def fused_forward(self, kind: type, *inputs, **named) -> torch.Tensor:
        x, weight = inputs[0] if len(inputs) == 1 and not named else None, self.weight
        if not self._serves(x, weight):
            return kind.forward(self, *inputs, **named)
        epsilon, offset = self._fused
        if offset:
            weight = weight + offset
        if not torch.compiler.is_compiling():
            y, reciprocal = _Norm.apply(x, weight, epsilon)
        elif torch.is_grad_enabled():  # torch.compile fuses it with its neighbours
            y, reciprocal = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, epsilon)
        else:
            return nn.functional.rms_norm(x, weight.shape, weight, epsilon)
        return remember(y, x, reciprocal, weight)

    def _serves(self, x: object, weight: object) -> bool:
        return (
            isinstance(x, torch.Tensor)
            and isinstance(weight, torch.Tensor)
            and x.dtype == weight.dtype
            and not hasattr(x, "to_local")
            and not hasattr(weight, "to_local")
            and not torch.is_autocast_enabled(x.device.type)
            and not is_transformed()
            and not is_in_forward_mode()
        )


def fuse_norms(model: nn.Module) -> list[str]:
    """Gives the RMS norms of a model, found by what they compute, fused forwards. Returns their names."""
    fused = []
    for name, module in model.named_modules():
        settings = _settings_of(module)
        if settings is not None:
            module.__dict__["_fused"] = settings
            specialise(module, FusedNorm)
            fused.append(name)
    return fused


def _settings_of(module: nn.Module) -> tuple[float, float] | None:
    """Returns the epsilon and the offset of an RMS norm that has the forward of its class, or None for other modules."""
    if isinstance(module, FusedNorm) or type(module).__module__.startswith("torch."):
        return None
    if "forward" in module.__dict__ or module._modules:
        return None
    weight = module._parameters.get("weight")
    if len(module._parameters) != 1 or module._buffers or weight is None or weight.dim() != 1:
        return None
    for name in _EPSILONS:
        epsilon = getattr(module, name, None)
        if isinstance(epsilon, float):
            return next(((epsilon, offset) for offset in (0.0, 1.0) if _computes(module, epsilon, offset)), None)
    return None


@torch.no_grad()
def _computes(module: nn.Module, epsilon: float, offset: float) -> bool:
    """Returns whether a module's forward is that norm, by its result for small rows, where epsilon counts, and large."""
    size = module.weight.numel()
    twin = copy.copy(module)
    waves = torch.sin(torch.arange((_ROWS + 1) * size, dtype=torch.float32, device="cpu") * 0.7).view(_ROWS + 1, size)
    twin.__dict__["_parameters"] = {"weight": nn.Parameter(waves[0].clone(), requires_grad=False)}
    x = waves[1:] * torch.tensor([[epsilon**0.5], [1.0], [100.0]], device="cpu")
    wanted = nn.functional.rms_norm(x, (size,), waves[0] + offset, epsilon)
    try:
        given = type(module).forward(twin, x)
        return isinstance(given, torch.Tensor) and given.shape == x.shape and torch.allclose(given, wanted, rtol=1e-4)
    except Exception:  # whatever a stranger's forward may raise: then it is no such norm
        return False
