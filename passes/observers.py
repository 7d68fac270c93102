"""What watches a pipeline from outside: times, dumps, differences, reproducers of crashes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from lynx.ir.errors import InternalError

from .base import Pass
from .modules import count_ops, diff_modules, print_module


class Observer:
    """Base of all observers; does nothing. Observers never change what a pipeline computes."""

    def before(self, step: Pass, module: Any) -> None:
        """Note that a pass is about to run on a module."""

    def after(self, step: Pass, before: Any, after: Any, seconds: float) -> None:
        """Note that a pass made `after` from `before`; the same object if it changed nothing."""

    def failed(self, rest: str, module: Any, error: InternalError) -> None:
        """Note that the first pass of the pipeline text `rest` failed on a module."""


@dataclass(frozen=True)
class Timing:
    """One row of the table of passes; `seconds` without the time of the verifier."""

    name: str
    seconds: float
    ops_before: int
    ops_after: int
    changed: bool


class Timer(Observer):
    """Measures each pass."""

    def __init__(self) -> None:
        self.timings: list[Timing] = []

    def after(self, step: Pass, before: Any, after: Any, seconds: float) -> None:
        """Add a row."""
        row = Timing(step.name, seconds, count_ops(before), count_ops(after), after is not before)
        self.timings.append(row)

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Return the table of passes: milliseconds, ops before and after, and what changed."""
        width = max([len("total"), *(len(row.name) for row in self.timings)])
        lines = [f"{'pass':<{width}}  {'ms':>9}  {'ops':>15}  changed"]
        for row in self.timings:
            ops = f"{row.ops_before} -> {row.ops_after}"
            changed = "yes" if row.changed else "no"
            lines.append(f"{row.name:<{width}}  {row.seconds * 1e3:9.2f}  {ops:>15}  {changed}")
        total = sum(row.seconds for row in self.timings)
        lines.append(f"{'total':<{width}}  {total * 1e3:9.2f}")
        return "\n".join(lines)


class Dump(Observer):
    """Writes the input and the result of each pass that changed it to numbered files.

    `00-input.lynx`, `01-canonicalize.lynx`, ...; the numbers count all passes, so that a gap is a
    pass that had nothing to do. The first line, `// RUN: verify`, makes tests of the files.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.count = 0

    def before(self, step: Pass, module: Any) -> None:
        """Write the input, before the first pass."""
        if self.count == 0:
            self._write("input", module)

    def after(self, step: Pass, before: Any, after: Any, seconds: float) -> None:
        """Write the result, if it is another one."""
        self.count += 1
        if after is not before:
            self._write(step.name, after)

    def _write(self, label: str, module: Any) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self.count:02d}-{label}.lynx"
        path.write_text(f"// RUN: verify\n{print_module(module)}", encoding="utf-8")


class Diff(Observer):
    """Writes what each pass changed to a stream, as a unified diff of the texts."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def after(self, step: Pass, before: Any, after: Any, seconds: float) -> None:
        """Write the differences, if there are any."""
        if after is not before:
            self.stream.write(f"// {step.name}\n{diff_modules(before, after)}\n")


class Reproducer(Observer):
    """Writes the module before a failing pass to a file that is a test of the rest of the pipeline.

    The first line is `// RUN: ` with the failing pass and all that follow. The error names the file
    in `reproducer`.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def failed(self, rest: str, module: Any, error: InternalError) -> None:
        """Write the file under the first free number and note its path in the error."""
        text = f"// RUN: {rest}\n// {_one_line(str(error))}\n\n{print_module(module)}"
        self.directory.mkdir(parents=True, exist_ok=True)
        for number in range(10_000):
            path = self.directory / f"reproducer-{number:03d}.lynx"
            try:
                with path.open("x", encoding="utf-8") as stream:
                    stream.write(text)
            except FileExistsError:
                continue
            error.reproducer = str(path)
            return


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
