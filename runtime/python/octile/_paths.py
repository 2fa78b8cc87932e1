"""Where the files are that an installation consists of."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).absolute().parent


def library() -> Path:
    """Returns the path of ``liboctile.so.0``, for programs that use the C API."""
    return _PACKAGE / "lib" / "liboctile.so.0"


def command() -> Path:
    """Returns the path of the command ``octile``."""
    return _PACKAGE / "bin" / "octile"


def include_directory() -> Path:
    """Returns the folder of ``octile/octile.h``."""
    return _PACKAGE / "include"


def extension() -> Path:
    """Returns the path of the operators' library, which ``octile.torch`` loads."""
    return _PACKAGE / "_octile_torch.so"


def jax_handlers() -> Path:
    """Returns the path of the handlers' library, which ``octile.jax`` loads."""
    return _PACKAGE / "_octile_jax.so"
