"""Checks of arguments that several modules take."""

from __future__ import annotations

import torch
from torch import nn

from octile._types import wrong_type


def check_model(model: object) -> None:
    """Raises TypeError for what is no module."""
    if not isinstance(model, nn.Module):
        raise wrong_type("model", model, "torch.nn.Module")


def check_tensor(x: object, argument: str) -> None:
    """Raises TypeError for what is no tensor."""
    if not isinstance(x, torch.Tensor):
        if isinstance(x, torch.fx.Proxy):
            allowed = "torch.Tensor; a torch.fx.Tracer must take octile.torch.Linear as a leaf, by is_leaf_module"
            raise wrong_type(argument, x, allowed)
        raise wrong_type(argument, x, "torch.Tensor")
