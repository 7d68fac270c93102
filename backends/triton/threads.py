"""Compile in threads side by side, on a Python whose parser does not bear that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_MOST_ATTEMPTS = 8
_MESSAGE = "recursion depth mismatch"


def parsed_again(compile_once: Callable[[], _T]) -> _T:
    """Return what a function returns that compiles; once more where Python's parser lost count.

    Up to Python 3.11 all threads share the counter by which `ast.parse` checks its own depth, and
    where one of them gives way in between it raises `SystemError` (python/cpython#106905).
    """
    for _ in range(_MOST_ATTEMPTS):
        try:
            return compile_once()
        except SystemError as error:
            if _MESSAGE not in str(error):
                raise
    return compile_once()
