"""Compare an output with the CHECK lines of a file; all contact with the `filecheck` package."""

from __future__ import annotations

import io
import re
from pathlib import Path

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_CHECK = re.compile(r"//\s*CHECK(-[A-Z0-9-]+)?(\{LITERAL})?:")


def has_checks(text: str) -> bool:
    """Whether a file has CHECK lines."""
    return _CHECK.search(text) is not None


def mismatch(path: Path, text: str, output: str) -> str:
    """Return how the output fails the CHECK lines in the text of a file, empty if it does not."""
    options = Options(match_filename=str(path), input_file="output")
    parser = Parser(options, io.StringIO(text), *pattern_for_opts(options))
    matcher = Matcher(options, FInput("output", output), parser)
    matcher.stderr = io.StringIO()
    if matcher.run() == 0:
        return ""
    return f"{_COLOR.sub('', matcher.stderr.getvalue())}\nThe whole output is\n{output}"
