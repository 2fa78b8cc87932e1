"""Norms of a converted model, computed by PyTorch's fused kernels: one forward instead of six, and x kept for backward
in its own type instead of in float32. FP8 layers keep nothing of their results, nor of those of ``nn.LayerNorm``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from octile.torch.derivatives import is_in_forward_mode, is_transformed
from octile.torch.norm_proof import SHAPES, proven_types
from octile.torch.normed_input import remember
from octile.torch.snapshot import Snapshot
from octile.torch.specialised import Recognised, restore, specialise

_EPSILONS = ("variance_epsilon", "eps", "epsilon")
_HALF = (torch.bfloat16, torch.float16)
_rms_norm = torch.ops.aten._fused_rms_norm.default


class _Rms(torch.autograd.Function):
    """weight x / rms(x) over the last dimension, computed in float32 and rounded once, and 1 / rms of each row. Keeps
    that and x. weight: of x's type, or float32."""

    @staticmethod
    def forward(ctx, x, weight, epsilon):
        y, reciprocal = _rms_norm(x.to(weight.dtype), weight.shape, weight, epsilon)
        ctx.save_for_backward(x, weight, reciprocal)
        ctx.epsilon = epsilon
        ctx.mark_non_differentiable(reciprocal)
        return y.to(x.dtype), reciprocal

    @staticmethod
    def backward(ctx, dy, _):
        x, weight, reciprocal = ctx.saved_tensors
        needs_x, needs_weight = needs = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():
            return *_differentiable_gradients(exact_rms, ctx.epsilon, (x, weight), needs, dy), None
        if x.is_cuda:
            given = dy.to(weight.dtype), x.to(weight.dtype)
            dx, dw = torch.ops.aten._fused_rms_norm_backward(*given, weight.shape, reciprocal, weight, list(needs))
            return None if dx is None else dx.to(x.dtype), dw, None
        normed, dy = x.float() * reciprocal, dy.float()
        scaled = dy * weight.float()
        dx = (scaled - normed * (scaled * normed).mean(-1, keepdim=True)) * reciprocal
        dw = (dy * normed).flatten(0, -2).sum(0) if needs_weight else None
        return dx.to(x.dtype) if needs_x else None, None if dw is None else dw.to(weight.dtype), None


def _differentiable_gradients(exact: Callable, epsilon: float, inputs: tuple, needs: tuple, dy: torch.Tensor) -> tuple:
    """Returns the gradients of x and the parameters, which will be differentiated again."""
    x, *parameters = inputs
    with torch.enable_grad():
        y = exact(x, epsilon, *parameters).to(x.dtype)
    wanted = [tensor for tensor, needed in zip(inputs, needs, strict=True) if needed]
    gradients = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return tuple(next(gradients) if needed else None for needed in needs)


def exact_rms(x: torch.Tensor, epsilon: float, weight: torch.Tensor, offset: float = 0.0) -> torch.Tensor:
    """Returns (weight + offset) x / rms(x), computed in float32, or in float64 if x is."""
    x, weight = (t.float() if t.dtype in _HALF else t for t in (x, weight))
    return (weight + offset) * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon))


def _fused_rms(x: torch.Tensor, epsilon: float, weight: torch.Tensor, offset: float = 0.0) -> torch.Tensor:
    """Returns the same in x's type, rounded once."""
    if offset:  # added in float32: 1 + weight has few bits of a small weight in another type
        weight = weight.float() + offset
    is_compiling = torch.compiler.is_compiling()
    if not torch.is_grad_enabled():
        if is_compiling:
            return nn.functional.rms_norm(x.to(weight.dtype), weight.shape, weight, epsilon).to(x.dtype)
        return _rms_norm(x.to(weight.dtype), weight.shape, weight, epsilon)[0].to(x.dtype)
    if is_compiling:  # torch.compile fuses it with its neighbours
        y, reciprocal = _rms_norm(x.to(weight.dtype), weight.shape, weight, epsilon)
        y = y.to(x.dtype)
    else:
        y, reciprocal = _Rms.apply(x, weight, epsilon)
    return remember(y, x, reciprocal, weight)


class _Layer(torch.autograd.Function):
    """Computes what ``_layer`` does. Keeps x, and of each row the mean and what it is multiplied by."""

    @staticmethod
    def forward(ctx, x, weight, bias, epsilon):
        y, mean, rstd = _layer(x, epsilon, weight, bias)
        ctx.save_for_backward(x, mean, rstd, weight, bias)
        ctx.epsilon = epsilon
        ctx.mark_non_differentiable(mean, rstd)
        return y, mean, rstd

    @staticmethod
    def backward(ctx, dy, *_):
        x, mean, rstd, *parameters = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            inputs = x, *(p for p in parameters if p is not None)
            made = _differentiable_gradients(exact_layer, ctx.epsilon, inputs, needs[: len(inputs)], dy)
            return *made, *(None,) * (4 - len(made))
        weight, bias = parameters
        if not x.is_cuda:  # whose kernel takes no float32 of the rows of other types
            dy, values, weight, bias = (None if t is None else t.float() for t in (dy, x, weight, bias))
        else:
            values = x
        rows = weight.shape, mean, rstd
        made = torch.ops.aten.native_layer_norm_backward(dy, values, *rows, weight, bias, list(needs))
        return *(t.to(x.dtype) if needed else None for t, needed in zip(made, needs, strict=True)), None


def exact_layer(
    x: torch.Tensor, epsilon: float, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns weight (x - mean) / sqrt(variance + epsilon) + bias, computed in float32, or in float64 if x is."""
    x, weight, bias = (t.float() if t is not None and t.dtype in _HALF else t for t in (x, weight, bias))
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    y = weight * ((x - mean) * torch.rsqrt(variance + epsilon))
    return y if bias is None else y + bias


def _layer(x, epsilon: float, weight, bias=None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the same in x's type, and in float32 the mean and 1 / sqrt(variance + epsilon) of each row. It is rounded
    as the quantiser rounds that computes it again: the last product and the sum are one fma."""
    if x.is_cuda:
        return torch.ops.aten.native_layer_norm(x, weight.shape, weight, bias, epsilon)
    values = x.contiguous().float()
    variance, mean = torch.var_mean(values, -1, correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + epsilon)
    y = (values - mean) * rstd
    if bias is None:
        y = y * weight.float()
    else:  # a product of two float32 is exact in float64
        y = (y.double() * weight.double() + bias.double()).float()
    return y.to(x.dtype), mean, rstd


def _fused_layer(
    x: torch.Tensor, epsilon: float, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        y, mean, rstd = _layer(x, epsilon, weight, bias)
    else:
        y, mean, rstd = _Layer.apply(x, weight, bias, epsilon)
    return remember(y, x, rstd, weight, mean, bias)


class Kind(NamedTuple):
    """A norm of the last dimension that is recognised by its computation."""

    name: str  #: in reports
    parameters: tuple[str, ...]  #: of the module, which has no others
    exact: Callable[..., torch.Tensor]  #: of x, epsilon and the parameters, at the precision of x and differentiable
    fused: Callable[..., torch.Tensor]  #: the same by fused kernels
    in_float: bool = False  #: the factor of x is of float32 for any type of the weight
    centred: bool = False  #: a row's mean is subtracted from it


_OFFSET = {"offset": 1.0}
KINDS = (
    Kind("RMS norm", ("weight",), exact_rms, _fused_rms),
    Kind("RMS norm", ("weight",), partial(exact_rms, **_OFFSET), partial(_fused_rms, **_OFFSET), in_float=True),
    Kind("layer norm", ("weight",), exact_layer, _fused_layer, centred=True),
    Kind("layer norm", ("weight", "bias"), exact_layer, _fused_layer, centred=True),
)


class Fused(NamedTuple):
    """A norm as it was recognised."""

    kind: Kind
    epsilon: float
    types: tuple[torch.dtype, ...]  #: of x and the parameters
    snapshot: Snapshot


class FusedNorm(Recognised):
    """A norm of ``KINDS``. Other calls than those of one tensor of the parameters' type take the class's own forward.
    So do calls under autocast, of torch.func and in forward mode, and all while ``set_fp8`` has switched FP8 off."""

    _fused: Fused

    def computed(self) -> Kind | None:
        """Returns what the fused forward computes."""
        fused = self.__dict__.get("_fused")
        return None if fused is None else fused.kind

    def fused_forward(self, kind: type, *inputs, **named) -> torch.Tensor:
        fused = self._fused
        if self._is_on and len(inputs) == 1 and not named and fused.snapshot.holds(self):
            x, parameters = inputs[0], [self._parameters[name] for name in fused.kind.parameters]
            if _serves(x, parameters, fused.types):
                if kind is not nn.LayerNorm:  # which keeps its input itself
                    x = _apart(x, parameters)
                return fused.kind.fused(x, fused.epsilon, *parameters)
        return kind.forward(self, *inputs, **named)


def _apart(x: torch.Tensor, parameters: list) -> torch.Tensor:
    """Returns a copy of an x that models may add to in place from here on: their own norm keeps x in float32."""
    if torch.is_grad_enabled() and x.dtype in _HALF and any(t.requires_grad for t in (x, *parameters)):
        return x.clone(memory_format=torch.contiguous_format)
    return x


def _serves(x: object, parameters: list, types: tuple[torch.dtype, ...]) -> bool:
    if not isinstance(x, torch.Tensor) or x.dtype not in types or x.dim() not in SHAPES or hasattr(x, "to_local"):
        return False
    if x.layout is not torch.strided:
        return False
    for parameter in parameters:
        if not isinstance(parameter, torch.Tensor) or parameter.dtype != x.dtype or hasattr(parameter, "to_local"):
            return False
        if parameter.dim() != 1 or parameter.shape[0] != x.shape[-1]:
            return False
    return not torch.is_autocast_enabled(x.device.type) and not is_transformed() and not is_in_forward_mode()


def fuse_norms(model: nn.Module) -> dict[str, str]:
    """Gives the norms of a model, found by their computation, fused forwards. Returns their names, to their kinds."""
    return {name: module.computed().name for name, module in model.named_modules() if fuse(module)}


def fuse(module: nn.Module) -> bool:
    """Lets a norm run fused from its next call on, and returns whether it does so from now on."""
    if isinstance(module, FusedNorm):
        fused = module.__dict__.get("_fused")
        if fused is not None and fused.snapshot.holds(module):
            return False
        restore(module)
    is_pytorch = type(module).__module__.startswith("torch.") and type(module) is not nn.LayerNorm
    if is_pytorch or "forward" in module.__dict__:
        return False
    parameters = {name: parameter for name, parameter in module._parameters.items() if parameter is not None}
    # A child may be an empty list of modules alone.
    if any(p.dim() != 1 for p in parameters.values()) or not all(map(_is_empty, module.children())):
        return False
    epsilon = next((e for e in (getattr(module, name, None) for name in _EPSILONS) if isinstance(e, float)), None)
    kinds = [kind for kind in KINDS if kind.parameters == tuple(parameters) and epsilon is not None]
    snapshot = Snapshot(module, type(module)) if kinds else None
    for kind in kinds if kinds and not snapshot.has_tensors() else ():
        types = proven_types(module, kind.exact, epsilon, snapshot)
        if parameters[kind.parameters[0]].dtype in types:
            specialise(module, FusedNorm, Fused(kind, epsilon, types, snapshot))
            return True
    return False


def _is_empty(child: nn.Module) -> bool:
    return type(child) in (nn.ModuleList, nn.ModuleDict) and len(child) == 0


FusedNorm.recognise = staticmethod(fuse)
