"""Give memory that is free again back to the system, where the C library would keep it."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """Return `malloc_trim` of the GNU C library; other libraries have none, or need none."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


def give_back() -> None:
    """Return free pages to the system, as after work that took much memory and is done."""
    trim = _trim()
    if trim is not None:
        trim(0)


__all__ = ["give_back"]
