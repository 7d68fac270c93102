"""Where in the user's code something was asked for."""

from __future__ import annotations

import sys
from pathlib import Path

from lynx.ir.location import UNKNOWN, Location

_PACKAGE = str(Path(__file__).resolve().parent)


def user_location() -> Location:
    """Return the innermost place on the stack that lies outside of this package."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    return UNKNOWN if frame is None else Location(frame.f_code.co_filename, frame.f_lineno)
