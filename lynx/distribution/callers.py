"""Where in the user's code something was asked for."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType

from lynx.ir.location import UNKNOWN, Location

_PACKAGE = str(Path(__file__).resolve().parent)


def user_location() -> Location:
    """Return the innermost place on the stack that lies outside of this package."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    return UNKNOWN if frame is None else Location(frame.f_code.co_filename, frame.f_lineno)


def place_in_model() -> str:
    """Return the comment above the line of the generated program that is running.

    It names the line of the user's model; empty if no generated program is.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<lynx "):
            for number in range(frame.f_lineno, 0, -1):
                text = linecache.getline(code.co_filename, number).strip()
                if text.startswith("#"):
                    return text.lstrip("# ")
            return ""
        frame = frame.f_back
    return ""
