"""Finds layers that are given a tensor which an attention keeps for its own backward, by the calls of the code around
them."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator

import torch
from torch import nn

#: Functions, and the registry of transformers, whose result their own backward keeps.
_ATTENTION = frozenset(
    (
        "ALL_ATTENTION_FUNCTIONS",
        "flash_attn_func",
        "flash_attn_varlen_func",
        "flash_attn_qkvpacked_func",
        "flex_attention",
        "memory_efficient_attention",
        "scaled_dot_product_attention",
    )
)


def behind_attention(model: nn.Module) -> set[nn.Module]:
    """Returns of each module with an attention the linear layer that its forward calls first behind that, and not
    before: it is given the attention's result."""
    found = set()
    for module in model.modules():
        # transformers' eager attention is made of products, which keep their operands and not their result.
        if getattr(getattr(module, "config", None), "_attn_implementation", None) == "eager":
            continue
        names = _names_in_forward(module)
        attends = [name in _ATTENTION or _attends(module._modules.get(name)) for name in names]
        first = attends.index(True) if True in attends else len(names)
        behind = [module._modules.get(name) for name in names[first + 1 :] if name not in names[:first]]
        found.update([child for child in behind if isinstance(child, nn.Linear)][:1])
    return found


def _attends(child: nn.Module | None) -> bool:
    """Returns whether a child is an attention without layers of its own."""
    return child is not None and not child._modules and not _ATTENTION.isdisjoint(_names_in_forward(child))


def _names_in_forward(module: nn.Module) -> tuple[str, ...]:
    """Returns the names that the forward of a module's class calls, in the order of the calls; none if its source is
    not there."""
    if isinstance(module, torch.jit.ScriptModule):
        return ()
    return _names_called(inspect.unwrap(type(module).forward))


@functools.cache
def _names_called(function: Callable) -> tuple[str, ...]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ()
    return tuple(_names_of(tree))


def _names_of(node: ast.AST) -> Iterator[str]:
    """Yields the parts of the names of called functions. A call comes behind those in its arguments."""
    if not isinstance(node, ast.Call):
        for child in ast.iter_child_nodes(node):
            yield from _names_of(child)
        return
    for child in (*node.args, *node.keywords):
        yield from _names_of(child)
    for part in ast.walk(node.func):
        if isinstance(part, ast.Call):
            yield from _names_of(part)
        elif isinstance(part, ast.Attribute | ast.Name):
            yield part.attr if isinstance(part, ast.Attribute) else part.id
