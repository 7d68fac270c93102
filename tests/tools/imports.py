"""The imports of every module, read from source: who imports whom, and from where in the file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.tools.tree import ROOT, modules


@dataclass(frozen=True)
class Import:
    """One imported name: `module` as written (made absolute), at a line of the importing module."""

    importer: str
    module: str
    line: int
    level: int
    inside_function: bool


def imports_of(source: str, importer: str, is_package: bool = False) -> list[Import]:
    """Return the imports of a module given its source, in order."""
    found = []
    for node, inside in _nodes(ast.parse(source)):
        for module, level in _targets(node, importer, is_package):
            found.append(Import(importer, module, getattr(node, "lineno", 0), level, inside))
    return sorted(found, key=lambda item: (item.line, item.module))


def all_imports() -> list[Import]:
    """Return the imports of all modules of the packages."""
    found = []
    for name, path in modules().items():
        source = (ROOT / path).read_text()
        found.extend(imports_of(source, name, path.name == "__init__.py"))
    return found


def is_in(module: str, package: str) -> bool:
    """Tell whether a module is the package or lies in it."""
    return module == package or module.startswith(package + ".")


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, inside = pending.pop()
        yield node, inside
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        pending.extend((child, inside) for child in ast.iter_child_nodes(node))


def _targets(node: ast.AST, importer: str, is_package: bool) -> list[tuple[str, int]]:
    if isinstance(node, ast.Import):
        return [(alias.name, 0) for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parents = importer.split(".")
        keep = len(parents) - node.level + is_package
        base = ".".join([*parents[:keep], *([node.module] if node.module else [])])
    return [(f"{base}.{alias.name}", node.level) for alias in node.names]
