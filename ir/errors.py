"""The three families of errors, with a code, a place, and how a mistake in a text is shown."""

from __future__ import annotations

from .location import UNKNOWN, Location


class LynxError(Exception):
    """Base of all errors that Lynx raises.

    `code` is a stable kebab-case word that the error manual (`docs/errors.md`) explains, `loc` the
    place in the user's model or text. Messages are lower case, have no full stop, and name what was
    found and what was expected.
    """

    def __init__(self, code: str, message: str, loc: Location = UNKNOWN) -> None:
        self.code = code
        self.message = message
        self.loc = loc
        place = f"{loc}: " if loc.is_known else ""
        super().__init__(f"{place}error[{code}]: {message}")


class UsageError(LynxError):
    """Lynx was used in a wrong way: an unknown option, a malformed pipeline or text."""


class CompileError(LynxError):
    """A program that Lynx cannot compile: an ill-typed op, a graph that breaks an invariant."""


class InternalError(LynxError):
    """A bug in Lynx. The pipeline writes a reproducer and names it in `reproducer`."""

    reproducer: str | None = None


class TextError(UsageError):
    """A mistake in a text (IR, pipeline, dimension) with its line and column, shown by a caret."""

    def __init__(
        self, code: str, message: str, text: str, line: int, column: int, *, file: str = "<text>"
    ) -> None:
        self.line = line
        self.column = column
        super().__init__(code, message, Location(file, line))
        lines = text.splitlines() or [""]
        source = lines[min(max(line, 1), len(lines)) - 1]
        self.args = (f"{self.args[0]}\n  {source}\n  {' ' * (max(column, 1) - 1)}^",)
