"""Checks of arguments that several modules take."""

from __future__ import annotations

import torch
from torch import nn

from octile._types import refuse, wrong_type


def check_model(model: object) -> None:
    """Raises TypeError for what is no module."""
    if not isinstance(model, nn.Module):
        raise wrong_type("model", model, "torch.nn.Module")


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
