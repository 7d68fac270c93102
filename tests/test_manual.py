"""The pages about the IR and about errors say what is so."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path

import pytest

from lynx.ir import (
    LynxError,
    parse_graph,
    parse_kernel,
    print_graph,
    verify,
    verify_kernel,
)
from lynx.ir.program_text import parse_program
from lynx.ir.program_verifier import verify_program
from tests.conftest import chunks
from tests.tools.op_table import PAGE, updated
from tests.tools.tree import ROOT, modules

ERRORS = ROOT / "docs/errors.md"
RAISERS = ("__init__", "CommunicationError", "CompileError", "InternalError", "Mistake",
           "ShardingError", "TextError", "UsageError", "_error", "error", "fail",
           "unknown")  # fmt: skip
CODE = r"[a-z0-9]+(?:-[a-z0-9]+)*"
# Examples could only show how to break Lynx, or need a model and torch to trace it.
WITHOUT_EXAMPLES = ("Bugs in Lynx", "Capture", "Processes")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_ir_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == updated(page), "run python -m tests.tools.op_table"


def test_ir_page_has_valid_examples() -> None:
    examples = blocks(PAGE.read_text(encoding="utf-8"), "lynx")
    (code,) = blocks(PAGE.read_text(encoding="utf-8"), "python")
    exec(code, {})
    assert len(examples) == 3
    for example in examples:
        graph = parse_graph(example)
        verify(graph)
        lines = [line for line in example.splitlines() if not line.startswith("//")]
        assert print_graph(graph, locations=True).splitlines() == lines


def codes_in(path: Path) -> set[str]:
    """Return the error codes that a module raises."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        first = node.args[0]
        if name in RAISERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
            found.update(re.findall(rf"\A{CODE}\Z", first.value))
    return found


def sections() -> dict[str, tuple[str, str]]:
    """Return the chapter and the text of each code in the error manual."""
    found: dict[str, tuple[str, str]] = {}
    chapter = ""
    for part in re.split(r"^(?=##+ )", ERRORS.read_text(encoding="utf-8"), flags=re.MULTILINE):
        title, _, body = part.partition("\n")
        if title.startswith("## "):
            chapter = title.removeprefix("## ")
        elif title.startswith("### "):
            code = title.removeprefix("### ").strip("`")
            assert code not in found, f"{code} is explained twice"
            found[code] = (chapter, body)
    return found


SECTIONS = sections()


def test_every_code_is_explained() -> None:
    raised = {code: str(path) for path in modules().values() for code in codes_in(ROOT / path)}
    missing = {code: path for code, path in raised.items() if code not in SECTIONS}
    assert missing == {}, "explain these in docs/errors.md"
    assert sorted(set(SECTIONS) - set(raised)) == [], "nothing raises these"


def test_codes_are_in_order() -> None:
    chapters: dict[str, list[str]] = {}
    for code, (chapter, _) in SECTIONS.items():
        chapters.setdefault(chapter, []).append(code)
    for codes in chapters.values():
        assert codes == sorted(codes)


def check(text: str) -> None:
    """Read and verify a graph, a program or a kernel."""
    if text.lstrip().startswith("kernel"):
        verify_kernel(parse_kernel(text))
    elif text.lstrip().startswith("program"):
        verify_program(parse_program(text))
    else:
        verify(parse_graph(text))


@pytest.mark.parametrize("code", SECTIONS)
def test_examples_fail_and_work(code: str) -> None:
    chapter, body = SECTIONS[code]
    texts = blocks(body, "lynx")
    for text in texts:
        failing, working = chunks(text)
        with pytest.raises(LynxError) as caught:
            check(failing)
        assert caught.value.code == code
        check(working)
    parser = doctest.DocTestParser()
    test = parser.get_doctest("\n".join(blocks(body, "pycon")), {}, code, str(ERRORS), 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append)
    assert not report, "".join(report)
    if test.examples:
        assert f"error[{code}]" in body
    assert texts or test.examples or chapter in WITHOUT_EXAMPLES
