"""The forms that passes may require of a program, each with a name that errors show."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Graph

from .base import Requirement, Violation


def _find_not_a_graph(module: Any) -> Violation | None:
    if isinstance(module, Graph):
        return None
    return Violation(f"expected a graph, got a {type(module).__name__.lower()}")


def _find_not_a_program(module: Any) -> Violation | None:
    if not isinstance(module, Graph):
        return None
    return Violation("expected a lowered program, got a graph")


IS_GRAPH = Requirement("a graph", _find_not_a_graph)
IS_PROGRAM = Requirement("a program", _find_not_a_program)
