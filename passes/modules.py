"""What the pass manager asks of a program in any stage: its text, its validity, its size."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from lynx.ir.core import Graph
from lynx.ir.diff import unified
from lynx.ir.errors import LynxError
from lynx.ir.location import UNKNOWN, Location
from lynx.ir.parser import parse_graph
from lynx.ir.printer import print_graph
from lynx.ir.program import Program
from lynx.ir.program_text import parse_program, print_program
from lynx.ir.program_verifier import verify_program
from lynx.ir.verifier import verify

_IS_PROGRAM = re.compile(r"(\s|//[^\n]*\n)*program\b")


def read_module(
    text: str, *, file: str = "<text>", resources: Mapping[str, Any] | None = None
) -> Graph | Program:
    """Read the one graph or program of a text; the arguments are those of `parse_module`."""
    read = parse_program if _IS_PROGRAM.match(text) else parse_graph
    return read(text, file=file, resources=resources)


def print_module(module: Any, *, locations: bool = True) -> str:
    """Return the text of a graph or program."""
    if isinstance(module, Program):
        return print_program(module, locations=locations)
    return print_graph(module, locations=locations) if isinstance(module, Graph) else str(module)


def verify_module(module: Any, before: Any = None) -> None:
    """Check every invariant of a graph or program; raise `CompileError` at the first broken one.

    `before` is a module that has been verified; what both share is not checked again.
    """
    known = before.graph if isinstance(before, Program) else before
    known = known if isinstance(known, Graph) else None
    if isinstance(module, Program):
        verify_program(module, known=known)
    elif isinstance(module, Graph) and module is not known:
        verify(module, known=known)


def diff_modules(before: Any, after: Any) -> str:
    """Return a unified diff of the texts of two modules."""
    if isinstance(before, Graph) and isinstance(after, Graph):
        return unified(before, after)
    texts = (print_module(before).splitlines(), print_module(after).splitlines())
    return "\n".join(difflib.unified_diff(*texts, "before", "after", lineterm=""))


def count_ops(module: Any) -> int:
    """Return the number of ops of a graph or program."""
    return len(module.ops)


def location_of(error: BaseException) -> Location:
    """Return the place in the user's model that an error knows of."""
    return error.loc if isinstance(error, LynxError) else UNKNOWN
