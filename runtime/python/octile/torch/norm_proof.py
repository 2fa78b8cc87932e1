"""Proves that a module computes a norm, by its results and its gradients for inputs of several shapes and types."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn

from octile.torch.snapshot import Snapshot

_SMALL = 64  #: columns of most inputs, because a proof at a model's size takes seconds
#: Inputs but their last dimension, by their number of dimensions. No two sizes are equal, so that a norm of another
#: dimension computes something else.
SHAPES = {2: (5,), 3: (3, 2), 4: (2, 3, 4)}
#: The largest error of results and of gradients, relative to the norm of a row. A module that computes in 16 bits
#: rounds some five times.
_TOLERANCES = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (2**-6, 2**-5), torch.float16: (2**-8, 2**-7)}


_MOST_PROVEN = 256
_proven: dict[tuple, tuple[torch.dtype, ...]] = {}  #: results by all that a norm may depend on


def proven_types(module: nn.Module, exact: Callable, epsilon: float, snapshot: Snapshot) -> tuple[torch.dtype, ...]:
    """Returns the types of x and the parameters in which a module computes ``exact(x, epsilon, *parameters)`` in
    ``train()`` and in ``eval()`` mode, for inputs of the numbers of dimensions in ``SHAPES``. Changes nothing of it.
    snapshot: of the module."""
    key = exact, epsilon, tuple(parameter.numel() for parameter in _parameters_of(module)), *snapshot.key()
    try:
        if key not in _proven:
            if len(_proven) == _MOST_PROVEN:
                _proven.clear()
            _proven[key] = _prove(module, exact, epsilon)
        return _proven[key]
    except TypeError:  # a value that has no hash
        return _prove(module, exact, epsilon)


def _prove(module: nn.Module, exact: Callable, epsilon: float) -> tuple[torch.dtype, ...]:
    sizes = {parameter.numel() for parameter in _parameters_of(module)}
    if not _takes_one(module) or len(sizes) != 1:
        return ()
    [size] = sizes
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):

        def computes(dtype: torch.dtype, columns: int, shapes=tuple(SHAPES.values())) -> bool:
            try:
                return all(_computes(module, exact, epsilon, dtype, (*shape, columns)) for shape in shapes)
            except Exception:  # noqa: BLE001  (a stranger's forward may raise anything: then it is not such a norm)
                return False

        small = min(size, _SMALL)
        if not computes(torch.float32, small):
            small = size  # its forward may know its size
        types = tuple(dtype for dtype in _TOLERANCES if computes(dtype, small))
        is_proven = small == size or computes(torch.float32, size, shapes=(SHAPES[2],))
        return types if is_proven and torch.float32 in types else ()


def _parameters_of(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module._parameters.values() if parameter is not None]


def _takes_one(module: nn.Module) -> bool:
    """Returns whether forward takes one argument. Others, such as a gate, are there to be given."""
    return len(inspect.signature(type(module).forward).parameters) == 2


def _computes(module: nn.Module, exact: Callable, epsilon: float, dtype: torch.dtype, shape: tuple) -> bool:
    values = [_waves(shape[-1:], 0.7 + i).to(dtype) for i in range(len(_parameters_of(module)))]
    x = _inputs(shape, epsilon).to(dtype)
    wanted = _run(exact, x.double(), [value.double() for value in values], epsilon)
    for training in (True, False):
        twin = _twin(module, values, training)
        before = twin.__dict__.copy()
        given = _run(lambda x, *_, twin=twin: type(twin).forward(twin, x), x, _parameters_of(twin), epsilon)
        after = twin.__dict__
        if after.keys() != before.keys() or any(after[name] is not value for name, value in before.items()):
            return False
        if not _agree(given, wanted, dtype):
            return False
    return True


def _twin(module: nn.Module, values: list[torch.Tensor], training: bool) -> nn.Module:
    """Returns a module of the same class and attributes with other parameters."""
    twin = type(module).__new__(type(module))
    twin.__dict__.update(module.__dict__)
    given = (nn.Parameter(value.clone()) for value in values)
    parameters = {name: None if p is None else next(given) for name, p in module._parameters.items()}
    twin.__dict__.update(_parameters=parameters, training=training)
    return twin


def _run(function: Callable, x: torch.Tensor, parameters: list[torch.Tensor], epsilon: float) -> list[torch.Tensor]:
    """Returns a function's result, and the gradients of x and of the parameters."""
    x = x.clone().requires_grad_()
    parameters = [parameter.requires_grad_() for parameter in parameters]
    y = function(x, epsilon, *parameters)
    # Small, because a row of small elements has large gradients, and without an order in which rows may cancel.
    noise = torch.Generator("cpu").manual_seed(0)
    dy = torch.randn(x.shape, generator=noise, dtype=torch.float32, device="cpu").to(y.dtype) / 64
    return [y.detach(), *torch.autograd.grad(y, (x, *parameters), dy)]


def _agree(given: list, wanted: list, dtype: torch.dtype) -> bool:
    of_result, of_gradients = _TOLERANCES[dtype]
    for i, (a, b) in enumerate(zip(given, wanted, strict=True)):
        if a.dtype != dtype or a.shape != b.shape:
            return False
        error = (a.double() - b).norm(dim=-1) / b.norm(dim=-1)
        if not bool((error <= (of_gradients if i else of_result)).all()):
            return False
    return True


def _inputs(shape: tuple[int, ...], epsilon: float) -> torch.Tensor:
    """Returns rows of small elements, where epsilon counts, and of larger ones."""
    x = _waves(shape, 0.9)
    scales = torch.tensor([max(epsilon, 1e-12) ** 0.5, 1.0, 100.0], device="cpu")
    rows = x.numel() // shape[-1]
    return x * scales.repeat(rows)[:rows].view(*shape[:-1], 1)


def _waves(shape: tuple[int, ...], step: float) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.float32, device="cpu") * step + 0.1).view(shape)
