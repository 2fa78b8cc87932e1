"""Parts that the plug-ins of serving engines share. PyTorch is not imported: engines load plug-ins in every process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

_logger = logging.getLogger(__name__)

#: Compute capabilities on which Octile's dense kernels stand before an engine's own.
FIRST = ((8, 9), (9, 0))
_ERRORS = (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OSError)


def first_line(error: BaseException) -> str:
    """Returns what a log has of an error."""
    return str(error).partition("\n")[0]


def plug_in(engine: str, variable: str, change: Callable[[], None]) -> None:
    """Calls ``change``, which tells the engine of Octile's kernels, unless the environment has ``variable`` as "0". If
    this release of the engine lacks a part that ``change`` uses, one line in the log says which, and nothing else
    happens."""
    if os.environ.get(variable) == "0":
        return
    try:
        change()
    except _ERRORS as error:
        _logger.warning("octile: %s's FP8 layers stay with its own kernels: %s", engine, first_line(error))
