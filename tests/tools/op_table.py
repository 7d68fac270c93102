"""Write the generated parts of `docs/ir.md`: the grammar and the table of ops.

`python -m tests.tools.op_table` brings the page up to date.
"""

from __future__ import annotations

import inspect
import re
import sys

import lynx.ir.ops as families
from lynx.ir import Op
from lynx.ir.fields import fields_of
from lynx.ir.parser import GRAMMAR
from lynx.ir.printer import default_texts
from tests.tools.tree import ROOT

PAGE = ROOT / "docs/ir.md"
PACKAGE = families.__name__


def grammar() -> str:
    """Return the grammar as a block of code."""
    return f"```\n{GRAMMAR.read_text(encoding='utf-8').strip()}\n```"


def table() -> str:
    """Return a table for each module of ops, in alphabetical order."""
    modules: dict[str, list[type[Op]]] = {}
    for _, kind in sorted(Op.registry.items()):
        if kind.__module__.startswith(PACKAGE):
            modules.setdefault(kind.__module__, []).append(kind)
    parts = []
    for name, kinds in sorted(modules.items()):
        title = (sys.modules[name].__doc__ or "").partition("\n")[0].rstrip(".")
        rows = "\n".join(map(row, kinds))
        parts.append(
            f"### `{name.rpartition('.')[2]}`: {title}\n\n"
            f"| op | attributes | meaning |\n| --- | --- | --- |\n{rows}"
        )
    return "\n\n".join(parts)


_FORMS = {
    "aten": "aten @target(arguments)",
    "fused": "fused(parameters = inputs) { ops yield results }",
}


def row(kind: type[Op]) -> str:
    """Return the row of one op: its form, its attributes with defaults, its summary."""
    operands = ", ".join(kind.operand_fields)
    form = _FORMS.get(kind.name, f"{kind.name} {operands}".rstrip())
    fields = fields_of(kind)
    attributes = []
    for name, default in default_texts(kind):
        end = "" if default is None else f" = {default}"
        attributes.append(f"`{name}{end}`: {fields[name].words}")
    # A bar would end the cell, even one in code.
    summary = re.sub(r"\s+", " ", (inspect.getdoc(kind) or "").partition("\n\n")[0])
    return f"| `{form}` | {', '.join(attributes)} | {summary.replace('|', '&#124;')} |"


def updated(page: str) -> str:
    """Return the page with its generated parts as they are now."""
    for name, text in (("grammar", grammar()), ("ops", table())):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page = pattern.sub(lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
