"""The state that a module's forward may read, noted when the module is recognised: each call can tell if it still
holds."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
#: Attributes of every module: its mode, and tables, which are looked at as such.
_OF_MODULES = frozenset(nn.Module().__dict__)
_CONTAINERS = (list, tuple, dict)
#: Values that are looked at as a whole: nobody changes them in place, or it does not matter.
_WHOLE = (*_SCALARS, type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, torch.Tensor, nn.Module)


class _Parts(NamedTuple):
    """The contents of a list, a tuple, a dictionary or another object."""

    kind: type
    keys: tuple
    values: tuple


class Snapshot:
    """The names in a module's dictionaries and the values of its attributes, what its forward reaches of its class, and
    the same of its children. A module that still has all of them computes what it did: the values of parameters do not
    matter, nor do its mode, in both of which it was recognised, and hooks around the module itself.

    kind: the module's class. apart: names of children that the caller looks at."""

    def __init__(self, module: nn.Module, kind: type, apart: tuple[str, ...] = ()) -> None:
        state, reached = module.__dict__, _Reached(kind)
        self.kind, self.forward = kind, kind.forward
        values = [(name, value) for name, value in state.items() if _counts(name)]
        # Names that the forward does not reach count too, as far as they cost next to nothing.
        self.values = tuple(item for item in values if not isinstance(item[1], _CONTAINERS))
        self.parts = tuple((name, _parts_of(value)) for name, value in values if name in reached.names)
        self.parts = tuple((name, parts) for name, parts in self.parts if isinstance(parts, _Parts))
        self.methods = tuple(item for item in reached.methods.items() if item[0] != "forward")
        self.overridden = tuple(reached.overridden)
        self.absent = tuple(name for name in sorted(reached.asked) if not hasattr(module, name))
        self.parameters, self.buffers = _nones(module._parameters), _nones(module._buffers)
        self.names = list(module._modules)
        children = [(name, child) for name, child in module._modules.items() if name not in apart]
        self.children = tuple((name, None if c is None else Snapshot(c, type(c))) for name, c in children)
        self.known, self.size = frozenset(state), len(state)

    def holds(self, module: nn.Module) -> bool:
        """Returns whether a module, of ``kind`` or of a class derived from it, has all that it had."""
        state, kind, children = module.__dict__, type(module), module._modules
        if self.kind.forward is not self.forward or len(children) != len(self.names):
            return False
        for name, value in self.values:
            now = state.get(name, Snapshot)
            if now is not value and not _equal(now, value):
                return False
        for name, value in self.methods:
            now = getattr(kind, name, Snapshot)
            if now is not value and not _equal(now, value):
                return False
        for owner, name, value in self.overridden:
            if owner.__dict__.get(name) is not value:
                return False
        for table, names in ((module._parameters, self.parameters), (module._buffers, self.buffers)):
            if len(table) != len(names) or (names and _nones(table) != names):
                return False
        if self.names and list(children) != self.names:
            return False
        for name, snapshot in self.children:
            child = children[name]
            if child is None or snapshot is None:
                if child is not snapshot:
                    return False
            elif type(child) is not snapshot.kind or is_watched(child) or not snapshot.holds(child):
                return False
        for name in self.absent:
            if hasattr(module, name):
                return False
        for name, parts in self.parts:
            if not _has(state.get(name), parts):
                return False
        # torch.compile cannot read the names of all attributes. New ones that the forward asks for are in ``absent``.
        return torch.compiler.is_compiling() or len(state) == self.size or self._knows_all(state)

    def has_tensors(self) -> bool:
        """Returns whether the module has a buffer, or a tensor or module among its attributes. A forward may ask for
        their contents, which are not compared."""
        values = [value for _, value in (*self.values, *self.parts)]
        return any(not is_none for _, is_none in self.buffers) or any(map(_contains_tensors, values))

    def key(self) -> tuple:
        """Returns what is equal for modules that compute the same. It has a hash if the values of attributes have."""
        return self.kind, self.forward, self.values, self.parts, self.methods, self.overridden

    def _knows_all(self, state: dict) -> bool:
        """Returns whether no attribute is new, except the notes of libraries under names with an underscore."""
        if any(name not in self.known and not name.startswith("_") for name in state):
            return False
        self.size = len(state)
        return True


#: Hooks around every module's forward: with one of them each layer has to be called.
_GLOBAL_HOOKS = (
    module_hooks._global_forward_hooks,
    module_hooks._global_forward_pre_hooks,
    module_hooks._global_backward_hooks,
    module_hooks._global_backward_pre_hooks,
)


def has_global_hooks() -> bool:
    """Returns whether something is called around the forward of every module."""
    return any(_GLOBAL_HOOKS)


def is_watched(child: nn.Module) -> bool:
    """Returns whether something is called around the child's forward, or in its stead."""
    return bool(
        child._forward_hooks
        or child._forward_pre_hooks
        or child._backward_hooks
        or child._backward_pre_hooks
        or "forward" in child.__dict__
    )


def _counts(name: str) -> bool:
    # Names with two underscores are those that libraries note about modules, such as FSDP2.
    return name not in _OF_MODULES and name != "_fused" and name != "_is_on" and not name.startswith("__")


def _equal(now: object, value: object) -> bool:
    return type(now) is type(value) and type(value) in _SCALARS and now == value


def _nones(table: dict) -> list[tuple[str, bool]]:
    return [(name, value is None) for name, value in table.items()]


def _parts_of(value: object) -> object:
    """Returns the parts of a value, or the value itself if it has none."""
    if isinstance(value, list | tuple):
        return _Parts(type(value), tuple(range(len(value))), tuple(map(_parts_of, value)))
    if isinstance(value, dict):
        return _Parts(type(value), tuple(value), tuple(map(_parts_of, value.values())))
    items = getattr(value, "__dict__", None)
    if isinstance(value, _WHOLE) or not isinstance(items, dict):
        return value
    # Containers in containers are followed, and objects in objects are not.
    items = {key: item for key, item in items.items() if not isinstance(item, _CONTAINERS)}
    return _Parts(type(value), tuple(items), tuple(items.values()))


def _has(now: object, was: object) -> bool:
    if not isinstance(was, _Parts):
        return now is was or _equal(now, was)
    if type(now) is not was.kind:
        return False
    is_container = isinstance(now, _CONTAINERS)
    if is_container and len(now) != len(was.keys):
        return False
    for key, value in zip(was.keys, was.values, strict=True):
        if isinstance(now, list | tuple):
            item = now[key]
        else:
            item = now.get(key, Snapshot) if is_container else getattr(now, key, Snapshot)
        if not _has(item, value):
            return False
    return True


def _contains_tensors(value: object) -> bool:
    if isinstance(value, _Parts):
        return any(map(_contains_tensors, value.values))
    return isinstance(value, torch.Tensor | nn.Module)


class _Reached:
    """The parts of a class that its forward reaches, by the names in its code."""

    def __init__(self, kind: type) -> None:
        self.names: set[str] = set()  #: that the code has, for any use
        self.asked: set[str] = set()  #: strings in it, if it asks for attributes by strings
        self.methods: dict[str, object] = {}  #: of the class, and other attributes of it
        self.overridden: list[tuple[type, str, object]] = []  #: the same of its bases, which super() reaches
        owners = [owner for owner in kind.__mro__ if owner not in nn.Module.__mro__]
        todo = ["forward", "__getattr__", "__getattribute__"]
        while todo:
            name = todo.pop()
            found = [(owner, name, vars(owner)[name]) for owner in owners if name in vars(owner)]
            if name in self.methods or not found:
                continue
            self.methods[name] = getattr(kind, name)
            self.overridden += found[1:]
            for _, _, value in found:
                todo += self._read(value)

    def _read(self, value: object) -> set[str]:
        """Returns the names in the code of a function or property."""
        names = set()
        for code in _codes(value):
            names.update(code.co_names)
            if not {"getattr", "hasattr"}.isdisjoint(code.co_names):
                self.asked.update(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
        self.names |= names | self.asked
        return names | self.asked


def _codes(value: object) -> Iterator[types.CodeType]:
    """Yields the code of a function or property, and of the functions that it contains or wraps."""
    todo, seen = [value], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, types.CodeType):
            yield one
            todo += [constant for constant in one.co_consts if isinstance(constant, types.CodeType)]
        elif isinstance(one, types.FunctionType):
            todo.append(one.__code__)
            todo += [cell.cell_contents for cell in one.__closure__ or () if _is_set(cell)]
        elif isinstance(one, property):
            todo.append(one.fget)
        elif isinstance(one, staticmethod | classmethod | types.MethodType):
            todo.append(one.__func__)


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
