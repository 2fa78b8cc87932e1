"""Matrices of a model that are multiplied and are the weight of no ``nn.Linear``: a report names them, with the reason
why they stay."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

_SMALLEST = 16  # of both sizes; below, no layer gains

#: Modules of PyTorch that multiply matrices, and why these stay.
_REASONS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.MultiheadAttention, "PyTorch's function multiplies it, and calls no layer"),
    (nn.RNNBase, "PyTorch's kernel of the recurrence multiplies it"),
    (nn.RNNCellBase, "PyTorch's kernel of the recurrence multiplies it"),
    (nn.Bilinear, "a product of three tensors"),
    (nn.modules.conv._ConvNd, "a convolution"),
)
#: Modules whose matrices are looked up, or scale element by element.
_NOT_MULTIPLIED = (
    nn.Linear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.LayerNorm,
    nn.modules.batchnorm._NormBase,
    nn.PReLU,
    torch.jit.ScriptModule,
)  # fmt: skip


def is_lazy(parameter: object) -> bool:
    """Returns whether a parameter has no sizes yet, until its module's first call."""
    return isinstance(parameter, UninitializedTensorMixin)


def other_matrices(model: nn.Module, known: set[nn.Module]) -> dict[str, str]:
    """Returns the names of such parameters, to the reason. known: modules of which something else is said."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        if module in known or isinstance(module, _NOT_MULTIPLIED):
            continue
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen or is_lazy(parameter) or not _is_matrix(module, parameter):
                continue
            seen.add(id(parameter))
            found[f"{prefix}.{name}" if prefix else name] = _reason_of(module)
    return found


def _is_matrix(module: nn.Module, parameter: nn.Parameter) -> bool:
    if isinstance(module, nn.modules.conv._ConvNd):
        return parameter.dim() > 2 and min(parameter.shape[:2]) >= _SMALLEST  # no bias, and not one channel each
    return parameter.dim() in (2, 3) and min(parameter.shape[-2:]) >= _SMALLEST


def _reason_of(module: nn.Module) -> str:
    for kind, reason in _REASONS:
        if isinstance(module, kind):
            return f"is of a {type(module).__name__}: {reason}"
    return f"is a parameter of a {type(module).__name__}, which is not a linear layer"
