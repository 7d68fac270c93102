"""Collect `.lynx` files as tests.

The first line is `// RUN: ` with a pipeline, or `parse` or `verify`. Each graph, program and kernel
of the file is parsed, verified and sent through the pipeline alone. A line that ends in
`// ERROR(code): text` is where that must fail, with this code and a message that contains the text;
an error that belongs to no op may be expected anywhere in the header or the `return`. What succeeds
is printed and compared with the CHECK lines. Whatever is parsed or comes out of the pipeline must
print to text that parses to the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lynx.ir import (
    Graph,
    LynxError,
    TextError,
    differences,
    parse_graph,
    parse_kernel,
    parse_module,
    print_graph,
    print_kernel,
    verify_kernel,
)
from lynx.ir.program import Program
from lynx.ir.program_text import parse_program, print_program
from lynx.pass_context import pass_context
from lynx.passes import parse_pipeline, verify_module
from tests.filecheck_runner import has_checks, mismatch

# Nothing that is tested may come from what an earlier run has left. Tests of caches ask for one.
os.environ["LYNX_CACHE"] = "0"

_RUN = re.compile(r"// RUN: (\S.*)")
_ERROR = re.compile(r"// ERROR\(([\w-]+)\): (\S.*)")
_START = re.compile(r"^(graph|program|kernel)\b", re.MULTILINE)


class Expected(NamedTuple):
    """The error that a line announces."""

    line: int
    code: str
    text: str


class LynxTestError(Exception):
    """What is wrong with the result of a `.lynx` file, as text for the reader of the report."""


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect `.lynx` files."""
    if file_path.suffix == ".lynx":
        return LynxFile.from_parent(parent, path=file_path)
    return None


class LynxFile(pytest.File):
    """One `.lynx` file."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the only test of the file, named after its pipeline."""
        text = self.path.read_text(encoding="utf-8")
        run = _RUN.fullmatch(text.partition("\n")[0])
        name = run[1] if run else "has no RUN line"
        yield LynxItem.from_parent(self, name=name)


class LynxItem(pytest.Item):
    """Run the file and compare."""

    def runtest(self) -> None:
        """Raise `LynxTestError` with everything that is wrong."""
        problems = run_file(self.path, self.path.read_text(encoding="utf-8"))
        if problems:
            raise LynxTestError("\n".join(problems))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show problems without a traceback."""
        if isinstance(excinfo.value, LynxTestError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the headline."""
        return self.path, 0, f"{self.path.name}: {self.name}"


def run_file(path: Path, text: str) -> list[str]:
    """Return what is wrong with a `.lynx` file; empty if it holds."""
    run = _RUN.fullmatch(text.partition("\n")[0])
    if run is None:
        return [f"{path}:1: expected '// RUN: pipeline', 'parse' or 'verify'"]
    problems: list[str] = []
    outputs: list[str] = []
    for chunk in chunks(text):
        error: LynxError | None = None
        try:
            outputs += run_chunk(path, chunk, run[1])
        except LynxError as raised:
            error = raised
        problems += compare_error(path, chunk, error)
    output = "\n".join(outputs)
    if not problems and has_checks(text):
        problems += filter(None, [mismatch(path, text, output)])
    return problems


def chunks(text: str) -> Iterator[str]:
    """Yield each graph with as many empty lines before it as keep its line numbers."""
    starts = [match.start() for match in _START.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield "\n" * text.count("\n", 0, start) + text[start:end]


def run_chunk(path: Path, text: str, pipeline: str) -> list[str]:
    """Return the texts that the graphs of a chunk become."""
    if text.lstrip().startswith("kernel"):
        return [run_kernel_text(path, text, pipeline)]
    modules: list[Graph] | list[Program]
    if text.lstrip().startswith("program"):
        modules = [parse_program(text, file=str(path), locate=True)]
    else:
        modules = parse_module(text, file=str(path), locate=True)
    texts = []
    for module in modules:
        check_round_trip(module)
        result: Any = module
        if pipeline != "parse":
            verify_module(module)
        if pipeline not in ("parse", "verify"):
            graph = module.graph if isinstance(module, Program) else module
            result = parse_pipeline(pipeline).run(module, pass_context(graph))
        check_round_trip(result)
        texts.append(show(result, locations="loc(" in text))
    return texts


def run_kernel_text(path: Path, text: str, pipeline: str) -> str:
    """Return the text of a kernel, verified if the pipeline is `verify`."""
    kernel = parse_kernel(text, file=str(path), locate=True)
    printed = print_kernel(kernel)
    if (again := print_kernel(parse_kernel(printed))) != printed:
        raise LynxTestError(f"the text is no fixed point:\n{printed}\n{again}")
    if pipeline == "verify":
        verify_kernel(kernel)
    return print_kernel(kernel, locations="loc(" in text)


def show(module: Graph | Program, *, locations: bool = True) -> str:
    """Return the text of a graph or a program."""
    if isinstance(module, Program):
        return print_program(module, locations=locations)
    return print_graph(module, locations=locations)


def check_round_trip(module: Graph | Program) -> None:
    """Raise `LynxTestError` if printing and parsing a graph or a program changes it."""
    printed = show(module)
    read: Any = parse_program if isinstance(module, Program) else parse_graph
    parsed = read(printed)
    graphs = [m.graph if isinstance(m, Program) else m for m in (module, parsed)]
    if found := differences(*graphs):
        raise LynxTestError(f"the text reads back differently: {found}\n{printed}")
    if (again := show(parsed)) != printed:
        raise LynxTestError(f"the text is no fixed point:\n{printed}\n{again}")


def compare_error(path: Path, text: str, error: LynxError | None) -> list[str]:
    """Return how an error, or none, differs from what the lines of a chunk announce."""
    expected = [
        Expected(number, match[1], match[2].strip())
        for number, line in enumerate(text.split("\n"), 1)
        if (match := _ERROR.search(line))
    ]
    if error is None:
        return [f"{path}:{e.line}: expected error[{e.code}], got none" for e in expected]
    if not expected:
        return [str(error)]
    if len(expected) > 1:
        return [f"{path}:{expected[1].line}: a graph can only have one ERROR line"]
    (wanted,) = expected
    line = line_of(error, path)
    is_op = text.split("\n")[wanted.line - 1].lstrip().startswith("%")
    is_there = wanted.line == line if line is not None else not is_op
    if wanted.code == error.code and wanted.text in error.message and is_there:
        return []
    return [f"{path}:{wanted.line}: expected error[{wanted.code}]: {wanted.text}, got", str(error)]


def line_of(error: LynxError, path: Path) -> int | None:
    """Return the line of the file that an error points at, None if at none."""
    if isinstance(error, TextError):
        return error.line
    return error.loc.line if error.loc.file == str(path) else None
