"""A line on the terminal that says how far a long compilation is."""

from __future__ import annotations

import sys
import time
from typing import Any

from lynx.ir.errors import InternalError
from lynx.passes import Observer, Pass

_QUIET_SECONDS = 1.0


class Progress(Observer):
    """Show the running pass of a compilation that takes longer than a second."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.start = time.perf_counter()
        self.shown = False

    def before(self, step: Pass, module: Any) -> None:
        """Show the pass that starts."""
        seconds = time.perf_counter() - self.start
        if seconds >= _QUIET_SECONDS:
            self.shown = True
            line = (
                f"\rlynx: {self.kind} graph, {len(module.ops)} ops, {step.name} ({seconds:.0f} s)"
            )
            print(f"{line}\033[K", end="", file=sys.stderr, flush=True)

    def failed(self, rest: str, module: Any, error: InternalError) -> None:
        """Clear the line."""
        self.finish()

    def finish(self) -> None:
        """Clear the line."""
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
