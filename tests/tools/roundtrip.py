"""An observer that reads back the text of every program that a pass leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import lynx.compiler
from lynx.ir import Graph, differences, parse_graph, print_graph
from lynx.ir.program_text import parse_program, print_program
from lynx.passes import Observer, Pass


class RoundTrip(Observer):
    """Asserts that printing, parsing and printing again changes nothing, and counts what it saw."""

    def __init__(self) -> None:
        self.count = 0
        self.seen: Any = None

    def before(self, step: Pass, module: Any) -> None:
        if module is not self.seen:
            self.check(module)

    def after(self, step: Pass, before: Any, after: Any, seconds: float) -> None:
        if after is not before:
            self.check(after)

    def check(self, module: Any) -> None:
        self.seen = module
        self.count += 1
        if isinstance(module, Graph):
            text = print_graph(module)
            again = parse_graph(text, resources=module.resources)
            assert print_graph(again) == text
            assert differences(again, module) == []
        else:
            text = print_program(module)
            assert print_program(parse_program(text)) == text


@contextmanager
def round_trips() -> Iterator[RoundTrip]:
    """Read back every text of everything that is compiled within."""
    observer = RoundTrip()
    original = lynx.compiler._observers

    def observers(*arguments: Any) -> list[Observer]:
        return [*original(*arguments), observer]

    with patch("lynx.compiler._observers", observers):
        yield observer
