"""Modules that stand for those of a package that is not installed."""

import sys
from types import ModuleType


def stand_in(monkeypatch, parts):
    """Puts modules in the place of a package's. parts: their members, by the module's path."""
    for path, members in parts.items():
        names = path.split(".")
        for i in range(1, len(names)):
            name = ".".join(names[:i])
            if name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
            if i > 1:
                setattr(sys.modules[".".join(names[: i - 1])], names[i - 1], sys.modules[name])
        module = ModuleType(path)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, path, module)
        setattr(sys.modules[".".join(names[:-1])], names[-1], module)
