"""Checks of arguments that several modules take."""

from __future__ import annotations

import torch
from torch import nn

from octile._types import refuse, wrong_type

#: Element types of x, weights and biases.
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
FLOATS_TEXT = "are torch.bfloat16, torch.float16 and torch.float32"


def check_model(model: object) -> None:
    """Raises TypeError for an object that is not a module."""
    if not isinstance(model, nn.Module):
        raise wrong_type("model", model, "torch.nn.Module")


def check_flag(value: object, argument: str) -> None:
    """Raises TypeError for an object that is not a bool."""
    if not isinstance(value, bool):
        raise wrong_type(argument, value, "bool")


def check_tensor(x: object, argument: str) -> None:
    """Raises TypeError for an object that is not a tensor, ValueError for one whose elements do not lie in rows in
    memory."""
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


def check_floats(x: object, argument: str) -> None:
    """Raises TypeError for an object that is not a tensor, and ValueError for one that layers do not compute with. The
    operators check sizes and devices."""
    check_tensor(x, argument)
    if x.dtype not in FLOATS:
        raise refuse(argument + ".dtype", x.dtype, FLOATS_TEXT)


def check_place(first: torch.Tensor, name: str, **others: torch.Tensor | None) -> None:
    """Raises ValueError unless all tensors are on the device of the first."""
    for argument, tensor in others.items():
        if tensor is not None and tensor.device != first.device:
            raise refuse(argument + ".device", str(tensor.device), f"is that of {name}, {str(first.device)!r}")


def check_sizes(tokens: torch.Tensor, name: str, weight: torch.Tensor, shared: int, dims: int) -> None:
    """Raises ValueError unless tokens can be multiplied with the weight, which has ``dims`` dimensions and shares the
    dimension ``shared`` with them."""
    if weight.dim() != dims:
        raise refuse("weight.shape", tuple(weight.shape), "is (n, k)" if dims == 2 else "is (experts, n, k)")
    if tokens.dim() == 0 or (dims == 3 and tokens.dim() != 2):
        raise refuse(f"{name}.dim()", tokens.dim(), "are 1 and more" if dims == 2 else "is 2")
    if tokens.shape[-1] != weight.shape[shared]:
        leading = "..." if dims == 2 else "tokens"
        allowed = f"is ({leading}, {weight.shape[shared]}) with a weight {tuple(weight.shape)}"
        raise refuse(f"{name}.shape", tuple(tokens.shape), allowed)


def check_main_grad(main_grad: object, weight: torch.Tensor) -> None:
    """Raises TypeError or ValueError unless a weight's gradient can be added to ``main_grad``."""
    check_tensor(main_grad, "main_grad")
    if main_grad.dtype not in (torch.bfloat16, torch.float32):
        raise refuse("main_grad.dtype", main_grad.dtype, "are torch.bfloat16 and torch.float32")
    check_place(weight, "the weight", main_grad=main_grad)
    if main_grad.shape != weight.shape or not main_grad.is_contiguous():
        raise refuse("main_grad", tuple(main_grad.shape), f"is contiguous {tuple(weight.shape)}")
