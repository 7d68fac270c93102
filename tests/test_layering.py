"""Imports go one way, at the top of files, without cycles."""

from __future__ import annotations

import networkx as nx

from tests.tools.imports import all_imports, imports_of, is_in
from tests.tools.tree import ROOT, modules

# What each layer may import of ours besides itself; `lynx` itself is the top and may import all.
BELOW = {
    "lynx.ir": [],
    "lynx.passes": ["lynx.ir"],
    "lynx.backends": ["lynx.ir", "lynx.passes"],
    "lynx.runtime": ["lynx.ir", "lynx.passes"],
}
WITHOUT_TORCH = ("lynx.ir", "lynx.passes")


def layer_of(module: str) -> str:
    return next((layer for layer in BELOW if is_in(module, layer)), "lynx")


def test_layers_import_only_what_lies_below() -> None:
    wrong = [
        f"{item.importer}:{item.line} imports {item.module}"
        for item in all_imports()
        if is_in(item.module, "lynx")
        and (layer := layer_of(item.importer)) in BELOW
        and layer_of(item.module) not in [layer, *BELOW[layer]]
    ]
    assert not wrong


def test_ir_and_passes_know_no_torch() -> None:
    wrong = [
        f"{item.importer}:{item.line}"
        for item in all_imports()
        if layer_of(item.importer) in WITHOUT_TORCH and is_in(item.module, "torch")
    ]
    assert not wrong


def test_no_import_inside_a_function() -> None:
    assert [i for i in all_imports() if i.inside_function] == []


def test_no_import_only_for_type_checkers() -> None:
    wrong = [
        str(path) for path in modules().values() if "TYPE_CHECKING" in (ROOT / path).read_text()
    ]
    assert not wrong


def test_relative_imports_are_of_siblings() -> None:
    assert [i for i in all_imports() if i.level > 1] == []


def test_no_cycle() -> None:
    known = modules()
    graph: nx.DiGraph[str] = nx.DiGraph()
    for item in all_imports():
        target = item.module if item.module in known else item.module.rpartition(".")[0]
        if target in known and target != item.importer:
            graph.add_edge(item.importer, target)
    assert [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1] == []


def test_the_reader_of_imports_sees_bad_ones() -> None:
    source = "from .core import Op\nfrom ..ir import dims\ndef f():\n    import torch.nn\n"
    seen = {(i.module, i.level, i.inside_function) for i in imports_of(source, "lynx.passes.cse")}
    assert seen == {
        ("lynx.passes.core.Op", 1, False),
        ("lynx.ir.dims", 2, False),
        ("torch.nn", 0, True),
    }
