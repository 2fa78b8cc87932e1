"""Common parts of the layers' derivatives: which of them a backward pass asks for, and which do not exist."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn

import torch
from torch.autograd import forward_ad

from octile._types import refuse
from octile.torch._arguments import check_main_grad

_WAY_OUT = (
    "compute these calls with octile.torch.set_fp8(model, False), or leave the layers out by the filter of convert"
)


def refuse_second_derivative(*_) -> NoReturn:
    """Raises the error for a gradient that is differentiated: the ``backward`` of functions that return gradients, and
    their ``jvp``."""
    raise NotImplementedError(
        "octile: the gradient of an FP8 layer is differentiated again (create_graph=True, or a derivative of "
        f"torch.func.grad); FP8 layers have first gradients only: {_WAY_OUT}"
    )


def refuse_forward_mode(*_) -> NoReturn:
    """Raises the error for derivatives in forward mode: the ``jvp`` of functions."""
    raise NotImplementedError(
        "octile: an FP8 layer is differentiated in forward mode (torch.func.jvp, jacfwd or hessian, or "
        f"torch.autograd.forward_ad); FP8 layers have gradients only: use vjp or jacrev, or {_WAY_OUT}"
    )


class GradientFunction(torch.autograd.Function):
    """A function that returns gradients, and has none itself."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(refuse_second_derivative)
    jvp = staticmethod(refuse_second_derivative)


def is_transformed() -> bool:
    """Returns whether a transform of ``torch.func`` that differentiates or batches is active."""
    if not torch._C._are_functorch_transforms_active():
        return False
    _leave_uncompiled()
    top = torch._C._functorch.peek_interpreter_stack()
    return top is None or top.key() != torch._C._functorch.TransformType.Functionalize


def is_in_forward_mode() -> bool:
    """Returns whether tensors may have tangents."""
    return forward_ad._current_level >= 0


def is_unusual() -> bool:
    """Returns whether anything beside gradients may change what a call computes: a compiler, autocast, a transform of
    ``torch.func``, or tangents."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_any_autocast_enabled()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def refuse_tangents(*tensors: torch.Tensor | None) -> None:
    """Raises NotImplementedError if a tensor has a tangent."""
    if is_in_forward_mode():
        _leave_uncompiled()
        if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
            refuse_forward_mode()


def _leave_uncompiled() -> None:
    # torch.compile would drop the gradients.
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg="octile: FP8 layers in transforms of torch.func are not compiled")


def refuse_trace() -> None:
    """Raises NotImplementedError if torch.jit.trace records a call with gradients, which it could not save."""
    if torch.jit.is_tracing():
        raise NotImplementedError(
            "octile: torch.jit.trace records an FP8 layer with gradients; trace it under torch.no_grad(), or use "
            "torch.export"
        )


class _Once(torch.autograd.Function):
    """Returns gradients, which raise an error if they are differentiated with regard to the sources of dy or
    x_codes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(dy, x_codes, gradients):
        return gradients

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(refuse_second_derivative)


def differentiable_once(backward: Callable) -> Callable:
    """Returns the backward of a function with the results y and x_codes, which saves the weight, x_codes and more.
    A function that is not linear in x (``ctx.is_linear`` is False) has another tensor for x_codes, made from x.
    Gradients that it returns with create_graph=True raise an error if they are differentiated. ``backward(ctx, saved,
    dy)`` computes them; activation checkpointing gives saved tensors only once."""

    @functools.wraps(backward)
    def once(ctx, dy, _):
        if dy is None:
            return (None,) * len(ctx.needs_input_grad)
        # dx depends on the weight, and dw on x. x_codes leads to both, because it is an output of the function.
        both = not getattr(ctx, "is_linear", True) or all(ctx.needs_input_grad[:2])
        return _first(backward, ctx, (dy,), 1 if both else None)

    return once


def once_differentiable(backward: Callable) -> Callable:
    """The same of a function whose results all have gradients, and which saves first an input that they depend on."""

    @functools.wraps(backward)
    def once(ctx, *dys):
        return _first(backward, ctx, dys, 0)

    return once


def _first(backward: Callable, ctx, dys: tuple, way: int | None) -> tuple:
    """Returns what ``backward`` does. way: of the saved tensors, the one by which a second derivative finds the way to
    the tensors that the gradients depend on beside dy."""
    saved = ctx.saved_tensors
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return backward(ctx, saved, *dys)
    with torch.no_grad():
        gradients = backward(ctx, saved, *dys)
    return _Once.apply(dys[0], None if way is None else saved[way], gradients)


def weight_gradient(ctx) -> tuple[bool, torch.Tensor | None]:
    """Returns whether the backward pass that runs now wants the weight's gradient of a function whose second input is
    the weight, and the ``main_grad`` that it is added to."""
    return wanted_gradient(ctx, 1, ctx.parameter)


def wanted_gradient(ctx, index: int, parameter: torch.Tensor | None) -> tuple[bool, torch.Tensor | None]:
    """Returns the same of the weight that is the input ``index``, none before which is None. parameter: the weight, if
    it is a leaf that requires a gradient."""
    if not ctx.needs_input_grad[index]:
        return False, None
    main_grad = getattr(parameter, "main_grad", None)
    if main_grad is None or torch.compiler.is_compiling():
        return True, main_grad
    # Inputs that need a gradient may not get one: torch.autograd.grad(y, x) asks for one alone.
    wanted, returned = _runs(ctx.next_functions[index][0])
    if not wanted or returned:
        return wanted, None
    check_main_grad(main_grad, parameter)
    return True, main_grad


def _runs(node) -> tuple[bool, bool]:
    """Returns whether the backward pass that runs now computes the gradient of a node, and whether it returns the
    gradient, of a leaf, to a caller of torch.autograd.grad."""
    try:
        return torch._C._will_engine_execute_node(node), False
    except RuntimeError as error:
        return True, "autograd.grad" in str(error)  # else no engine runs: compiled autograd traces


def one_by_one(function: Callable, info, in_dims: tuple, *arguments) -> tuple:
    """Returns what a rule of vmap does: the results of ``function`` for each sample of the batch, stacked."""
    if info.batch_size == 0:
        raise refuse("the batch of torch.vmap", 0, "are 1 sample and more")
    results = [
        function(*(a if d is None else a.select(d, i) for a, d in zip(arguments, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])


def batched_by_loop(operator) -> None:
    """Lets ``operator`` take batches of ``torch.vmap``, such as those of ``is_grads_batched``."""
    name = operator._qualname if isinstance(operator, torch.library.CustomOpDef) else operator._qualified_op_name
    call = operator if isinstance(operator, torch.library.CustomOpDef) else operator.default
    torch.library.register_vmap(name, functools.partial(one_by_one, call))
