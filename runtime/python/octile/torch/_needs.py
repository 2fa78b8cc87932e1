"""Fails with one sentence if this Python has no PyTorch, or one that is too old for the operators."""

import sys

#: The oldest PyTorch that has the stable ABI of the operators; the same as in pyproject.toml.
OLDEST = (2, 10)


def _refuse(found: str) -> ImportError:
    oldest = ".".join(map(str, OLDEST))
    return ImportError(
        f"octile.torch needs PyTorch {oldest} or newer, and {sys.executable} {found}; this line installs it: "
        f'{sys.executable} -m pip install "torch>={oldest}"',
        name="torch",
    )


try:
    from torch import version
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise _refuse("has none") from None

if tuple(int(number) for number in version.__version__.split("+")[0].split(".")[:2]) < OLDEST:
    raise _refuse(f"has {version.__version__}")
