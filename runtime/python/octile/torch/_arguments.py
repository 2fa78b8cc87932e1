"""Checks of arguments that several modules take."""

from __future__ import annotations

import torch
from torch import nn

from octile._types import refuse, wrong_type

#: Element types of x, weights and biases.
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_FLOATS_TEXT = "are torch.bfloat16, torch.float16 and torch.float32"


def check_model(model: object) -> None:
    """Raises TypeError for what is no module."""
    if not isinstance(model, nn.Module):
        raise wrong_type("model", model, "torch.nn.Module")


def check_flag(value: object, argument: str) -> None:
    """Raises TypeError for what is no bool."""
    if not isinstance(value, bool):
        raise wrong_type(argument, value, "bool")


def check_tensor(x: object, argument: str) -> None:
    """Raises TypeError for what is no tensor, ValueError for one whose elements do not lie in rows in memory."""
    if not isinstance(x, torch.Tensor):
        if isinstance(x, torch.fx.Proxy):
            allowed = "torch.Tensor; a torch.fx.Tracer must take octile.torch.Linear as a leaf, by is_leaf_module"
            raise wrong_type(argument, x, allowed)
        raise wrong_type(argument, x, "torch.Tensor")
    if torch.compiler.is_compiling():  # it allows no question about a layout in a backward pass
        return
    if x.layout is not torch.strided or x.is_nested or x.is_quantized:
        layout = "nested" if x.is_nested else "quantized by PyTorch" if x.is_quantized else str(x.layout)
        raise refuse(argument, layout, "is a tensor of layout torch.strided, neither nested nor quantized by PyTorch")


def check_operands(x: object, weight: torch.Tensor, bias: object) -> None:
    """Raises TypeError or ValueError unless x, the weight and the bias are tensors that one layer may have. The
    operators check their sizes."""
    check_tensor(x, "x")
    if x.dtype not in FLOATS:
        raise refuse("x.dtype", x.dtype, _FLOATS_TEXT)
    _check_operand(weight, "weight", x)
    if bias is not None:
        _check_operand(bias, "bias", x)


def _check_operand(tensor: object, argument: str, x: torch.Tensor) -> None:
    check_tensor(tensor, argument)
    if tensor.dtype not in FLOATS:
        raise refuse(argument + ".dtype", tensor.dtype, _FLOATS_TEXT)
    if tensor.device != x.device:
        raise other_device(argument, tensor, x)


def other_device(argument: str, tensor: torch.Tensor, x: torch.Tensor, of: str = "x") -> ValueError:
    """Returns the error for a tensor that is not where x is."""
    return refuse(argument + ".device", str(tensor.device), f"is that of {of}, {str(x.device)!r}")


def check_main_grad(main_grad: object, weight: torch.Tensor) -> None:
    """Raises TypeError or ValueError unless a weight's gradient can be added to ``main_grad``."""
    check_tensor(main_grad, "main_grad")
    if main_grad.dtype not in (torch.bfloat16, torch.float32):
        raise refuse("main_grad.dtype", main_grad.dtype, "are torch.bfloat16 and torch.float32")
    if main_grad.device != weight.device:
        raise other_device("main_grad", main_grad, weight, "the weight")
    if main_grad.shape != weight.shape or not main_grad.is_contiguous():
        raise refuse("main_grad", tuple(main_grad.shape), f"is contiguous {tuple(weight.shape)}")
