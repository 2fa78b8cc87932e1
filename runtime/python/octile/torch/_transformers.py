"""Which versions of transformers the package serves, and what it says of others."""

from __future__ import annotations

import warnings
from functools import cache

#: The versions between which its tests ran. Both are (major, minor).
OLDEST, NEWEST = (5, 21), (5, 24)


@cache
def check_version() -> None:
    """Raises ImportError without transformers, or if it is older than what the package serves. Warns once of a newer
    one, whose parts may have moved."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ImportError("octile: transformers is not installed", name="transformers") from None
    text = transformers.__version__
    version = tuple(int(number) for number in text.split(".")[:2])
    served = f"{_text(OLDEST)} to {_text(NEWEST)}"
    if version < OLDEST:
        raise ImportError(f"octile: transformers is {text}; served are {served}", name="transformers")
    if version > NEWEST:
        warnings.warn(f"octile: transformers is {text}; tested are {served}", stacklevel=3)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
