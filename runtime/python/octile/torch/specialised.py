"""Modules of a model that compute the same by another forward, while they stay what they are to the model."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import nn


class Specialised(nn.Module):
    """The first base that a module's class gets, by ``specialise``. One class serves all modules of a kind, so that
    torch.compile compiles them once; forwards of instances it would compile one by one. Other instances of that class,
    such as slices of an ``nn.Sequential``, lack the attribute ``own`` and compute as the class does."""

    own: str
    _is_on: bool  # False: the class's forward computes, because ``set_fp8`` says so

    def fused_forward(self, kind: type, *inputs, **named):
        """Computes what ``kind.forward(self, *inputs, **named)`` does."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol):
        reduced = super().__reduce_ex__(protocol)
        if "_specialises" not in vars(type(self)):  # a class derived from that of ``specialise``
            return reduced
        return _bare, type(self)._specialises, *reduced[2:]


class Recognised(Specialised):
    """A module that computes by ``fused_forward`` where a ``Snapshot`` holds. Copies and unpickled modules, whose class
    may compute something else by now, are recognised again."""

    own = "_fused"
    recognise: Callable[[nn.Module], object]  #: specialises a module of its own class, if it can

    def __reduce_ex__(self, protocol):
        make, arguments, state, *others = super().__reduce_ex__(protocol)
        if isinstance(state, dict) and self.own in state:
            state = state | {self.own: None}
        return make, arguments, state, *others

    def __setstate__(self, state):
        super().__setstate__(state)
        if self.own in self.__dict__:
            recognise = self.recognise
            restore(self)
            recognise(self)


def specialise(module: nn.Module, base: type[Specialised], own: object) -> None:
    """Lets a module compute by ``base.fused_forward``, under the name of its class. own: its attribute ``base.own``."""
    module.__dict__[base.own] = own
    module.__dict__.setdefault("_is_on", True)
    module.__class__ = _class_of(base, type(module))


def restore(module: nn.Module) -> None:
    """Gives a specialised module its own class again."""
    if isinstance(module, Specialised):
        module.__dict__.pop(module.own, None)
        module.__class__ = type(module)._specialises[1]


@functools.cache
def _class_of(base: type[Specialised], kind: type) -> type:
    @functools.wraps(kind.forward)  # torch.export names inputs by its arguments
    def forward(self, *inputs, **named):
        if base.own in self.__dict__:
            return self.fused_forward(kind, *inputs, **named)
        return kind.forward(self, *inputs, **named)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (base, kind), names | {"forward": forward, "_specialises": (base, kind)})


def _bare(base: type[Specialised], kind: type) -> nn.Module:
    """Returns a specialised module whose attributes are set next."""
    made = _class_of(base, kind)
    return made.__new__(made)
