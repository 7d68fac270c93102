"""Compiling goes on where Python's parser lost count, and nowhere else."""

from __future__ import annotations

import pytest

from lynx.backends.triton.threads import parsed_again


def failing(times: int, message: str) -> list[str]:
    calls: list[str] = []

    def compile_once() -> str:
        calls.append("called")
        if len(calls) <= times:
            raise SystemError(message)
        return "compiled"

    calls.append(parsed_again(compile_once))
    return calls


def test_a_lost_count_is_tried_again() -> None:
    message = "AST constructor recursion depth mismatch (before=48, after=42)"
    assert failing(3, message) == ["called"] * 4 + ["compiled"]
    with pytest.raises(SystemError):
        failing(100, message)


def test_other_errors_are_not() -> None:
    with pytest.raises(SystemError, match="something else"):
        failing(1, "something else")
