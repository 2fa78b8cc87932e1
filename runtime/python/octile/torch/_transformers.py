"""Finds the parts of transformers that the package needs in any release, and says which one is missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType, SimpleNamespace


def check_installed() -> None:
    """Raises ImportError without transformers."""
    try:
        import_module("transformers")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ImportError("octile: transformers is not installed", name="transformers") from None


def parts_of(module: str, *names: str) -> SimpleNamespace:
    """Returns parts of a module of transformers by their names, and the module itself as ``module``. A name with "|"
    stands for alternatives, of which all that the release has are returned, as a tuple under the first.

    Raises ImportError that names the release and the first part that it lacks.
    """
    path = f"transformers.{module}"
    try:
        found: ModuleType | None = import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
        raise _lacks(path) from None
    parts = {}
    for name in names:
        alternatives = name.split("|")
        present = [getattr(found, other) for other in alternatives if hasattr(found, other)]
        if not present:
            raise _lacks(f"{path}.{' or '.join(alternatives)}")
        parts[alternatives[0]] = tuple(present) if len(alternatives) > 1 else present[0]
    return SimpleNamespace(module=found, **parts)


def _lacks(part: str) -> ImportError:
    release = getattr(import_module("transformers"), "__version__", "unknown")
    return ImportError(f"octile: transformers {release} has no {part}, which this needs", name="transformers")
