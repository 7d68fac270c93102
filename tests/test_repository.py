"""Rules of the house that no tool checks, and that the tools that do are switched on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.check_types import check_types
from tests.tools.tree import CODE, ROOT, install, modules, tracked_files

MAX_LINES = 500
# Character classes keep these patterns from matching themselves.
UNWANTED = {
    "a path of one machine": r"(?<![\w.])/(roo[t]|wor[k]|hom[e]/\w+|tm[p]/\w+)/",
    "the host of a registry": r"(pyp[i]|pythonhoste[d]|download\.pytorc[h])\.org",
    "work left undone": r"\b(TOD[O]|FIXM[E]|XX[X])\b",
    "a banner": r"^\s*(#|//) ?[-=#*]{8,}",
}
# `torch._dynamo` and its kin change between releases: only this module touches them. Operators are
# no such thing, whatever their names begin with.
PRIVATE_TORCH = r"\btorch(?!\.ops\b)(\.\w+)*\._(?!_version__)\w+"
# One module for each layer that holds torch: a lower one may not import `lynx.compat`.
MAY_USE_PRIVATE_TORCH = (
    "lynx/compat.py",
    "lynx/distribution/torch_internals.py",
    "backends/reference/torch_internals.py",
    "runtime/torch_internals.py",
)


def text_files() -> list[Path]:
    suffixes = {".py", ".md", ".toml", ".lark", ".lynx", ".txt", ".yml", ".cfg", ""}
    return [path for path in tracked_files() if path.suffix in suffixes]


def code_without_prose(path: Path) -> str:
    """Return the source without comments and docstrings, names only in code."""
    return ast.unparse(_WithoutDocstrings().visit(ast.parse((ROOT / path).read_text())))


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if is_text else self.generic_visit(node)


def test_files_are_short() -> None:
    # The face of a package is a list of names, one a line, and not to be cut.
    files = [path for path in tracked_files(".py") if path.name != "__init__.py"]
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in files}
    assert {path: count for path, count in lengths.items() if count > MAX_LINES} == {}


def test_modules_say_what_they_are_for() -> None:
    trees = {str(path): ast.parse((ROOT / path).read_text()) for path in tracked_files(".py")}
    assert [path for path, tree in trees.items() if not ast.get_docstring(tree)] == []


@pytest.mark.parametrize("what", UNWANTED)
def test_nothing_unwanted_in_tracked_files(what: str) -> None:
    pattern = re.compile(UNWANTED[what], re.MULTILINE)
    found = []
    for path in text_files():
        for match in pattern.finditer(text := (ROOT / path).read_text()):
            found.append(f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}")
    assert not found


def test_only_the_settings_read_the_environment() -> None:
    readers = [
        str(path)
        for path in modules().values()
        if re.search(r"\bos\.(environ|getenv)\b|\bgetenv\(", code_without_prose(path))
    ]
    assert [path for path in readers if path != "lynx/settings.py"] == []


def test_private_torch_only_in_one_module() -> None:
    found = [
        f"{path}: {match.group()}"
        for path in modules().values()
        if str(path) not in MAY_USE_PRIVATE_TORCH
        for match in re.finditer(PRIVATE_TORCH, code_without_prose(path))
    ]
    assert not found


def test_every_package_is_installed() -> None:
    folders = {path.parent for path in tracked_files(".py") if path.parts[0] in CODE}
    assert folders == {path.parent for path in modules().values()}


def run_ruff(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ruff", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_ruff_finds_nothing() -> None:
    result = run_ruff("check", ".")
    assert result.returncode == 0, result.stdout


def test_code_is_formatted() -> None:
    result = run_ruff("format", "--check", ".")
    assert result.returncode == 0, result.stdout


BAD_SAMPLE = '''
"""A module with one of each mistake that the linter is there to find."""

import sys
import abc

def long_and_winding(x):
    """Branch a lot."""
    import os
''' + "".join(f"    if x == {n} and x != {n + 1}:\n        x += {n}\n" for n in range(24))


@pytest.mark.parametrize("rule", ["C901", "PLC0415", "PLR0912", "PLR0915", "F401", "I001"])
def test_ruff_is_switched_on(rule: str, tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(BAD_SAMPLE)
    result = run_ruff("check", "--config", "pyproject.toml", "--no-cache", str(sample))
    assert f"{rule} " in result.stdout


def test_types_check(tmp_path: Path) -> None:
    installed = install(tmp_path)
    result = check_types(installed)
    assert result.returncode == 0, result.stdout
    # The same tool, told nothing else, must refuse an untyped function and a wrong one.
    bad = installed / "lynx" / "bad_sample.py"
    bad.write_text('"""Wrong."""\n\ndef f(x): return x\n\ny: int = "text"\n')
    refused = check_types(installed).stdout
    assert "[no-untyped-def]" in refused
    assert "[assignment]" in refused


def test_results_name_no_folders_of_a_machine() -> None:
    found = [
        path.name
        for path in (ROOT / "benchmarks/results").rglob("*.json")
        if re.search(r'"/[^"/]+/[^"]*\.py', path.read_text(encoding="utf-8"))
    ]
    assert not found
