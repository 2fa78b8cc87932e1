"""Marks tensors and functions for torch.compile, without the import of torch._dynamo, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable

import torch


def keep_address(tensor: torch.Tensor) -> None:
    """Lets CUDA graphs of torch.compile read and write the tensor where it is. They copy other inputs. Does what
    ``torch._dynamo.mark_static_address`` does."""
    tensor._dynamo_static_input_type = "unguarded"


def constant(function: Callable) -> Callable:
    """Lets torch.compile call ``function`` while it traces and take the result as a constant. Does what
    ``torch.compiler.assume_constant_result`` does."""
    function._dynamo_marked_constant = True
    return function
