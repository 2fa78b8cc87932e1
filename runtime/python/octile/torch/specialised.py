"""Modules of a model that compute the same by another forward, while they stay what they are to the model."""

from __future__ import annotations

import functools

from torch import nn


class Specialised(nn.Module):
    """What a module's class gets as its first base, by ``specialise``. One class serves all modules of a kind, so that
    torch.compile compiles them once; forwards of instances it would compile one by one."""

    def fused_forward(self, kind: type, *inputs, **named):
        """Computes what ``kind.forward(self, *inputs, **named)`` does."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol):
        return _bare, type(self).__bases__, self.__getstate__()


def specialise(module: nn.Module, base: type[Specialised]) -> None:
    """Lets a module compute by ``base.fused_forward``, under the name of its class."""
    module.__class__ = _class_of(base, type(module))


def restore(module: nn.Module) -> None:
    """Gives a specialised module its own class again."""
    if isinstance(module, Specialised):
        module.__class__ = type(module).__bases__[1]


@functools.cache
def _class_of(base: type[Specialised], kind: type) -> type:
    @functools.wraps(kind.forward)  # torch.export names inputs by its arguments
    def forward(self, *inputs, **named):
        return self.fused_forward(kind, *inputs, **named)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (base, kind), names | {"forward": forward})


def _bare(base: type[Specialised], kind: type) -> nn.Module:
    """Returns a specialised module whose attributes are set next."""
    made = _class_of(base, kind)
    return made.__new__(made)
