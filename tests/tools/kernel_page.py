"""Write the generated parts of `docs/kernels.md`: functions, reductions and the grammar.

`python -m tests.tools.kernel_page` brings the page up to date.
"""

from __future__ import annotations

import re

from lynx.ir import kernel, kernel_functions
from lynx.ir.kernel_functions import FUNCTIONS
from lynx.ir.kernel_parser import GRAMMAR
from tests.tools.tree import ROOT

PAGE = ROOT / "docs/kernels.md"
_WORDS = {"b": "truth values", "i": "integers", "f": "floating numbers"}


def grammar() -> str:
    """Return the grammar as a block of code."""
    return f"```\n{GRAMMAR.read_text(encoding='utf-8').strip()}\n```"


def functions() -> str:
    """Return the table of functions, one row for each kind, and what is said in the source."""
    rows: dict[tuple[int, str, bool], list[str]] = {}
    for name, function in FUNCTIONS.items():
        key = (function.arity, function.accepts, function.is_predicate)
        rows.setdefault(key, []).append(f"`{name}`")
    lines = ["| arguments | of | result | functions |", "| --- | --- | --- | --- |"]
    for (arity, accepts, is_predicate), names in rows.items():
        kinds = ", ".join(_WORDS[letter] for letter in accepts)
        result = "truth value" if is_predicate else "the same type"
        lines.append(f"| {arity} | {kinds} | {result} | {', '.join(names)} |")
    said = _said(kernel_functions.__file__, "FUNCTIONS")
    combined = _said(kernel.__file__, "COMBINES")
    return "\n".join(["## Functions", "", *lines, "", said, "", "## Reductions", "", combined])


def _said(file: str, name: str) -> str:
    """Return the docstring below a constant, without its first line."""
    with open(file, encoding="utf-8") as stream:
        match = re.search(rf'^{name}: .*?^"""(.*?)"""', stream.read(), re.DOTALL | re.MULTILINE)
    assert match is not None, name
    return match[1].partition("\n\n")[2].strip()


def updated(page: str) -> str:
    """Return the page with its generated parts as they are now."""
    for name, text in (("functions", functions()), ("grammar", grammar())):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page = pattern.sub(lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
