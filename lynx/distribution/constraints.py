"""Constraints inside a model: check them against the mesh, and drop them where there is none."""

from __future__ import annotations

import torch
import torch.fx

from lynx.importer.locations import location_of
from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.constraint import Constrain
from lynx.ir.sharding import Mesh

from .plans import read_annotation


def check_constraints(module: torch.fx.GraphModule, mesh: Mesh) -> None:
    """Raise `UsageError`, with the user's line, for a constraint that the mesh does not allow."""
    target = torch.ops.lynx.constrain.default
    for node in module.graph.find_nodes(op="call_function", target=target):
        x, text, priority = node.args
        assert isinstance(x, torch.fx.Node)
        rank = x.meta["example_value"].dim()
        read_annotation(str(text), x.name, rank, mesh, location_of(node), priority)


def without_constraints(graph: Graph) -> Graph:
    """Return the graph with constraints left out; the graph itself if there are none."""
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        changed = op.replace_operands(mapping)
        if isinstance(changed, Constrain):
            mapping[op.results[0]] = changed.x
            continue
        ops.append(changed)
        if changed is not op:
            mapping.update(zip(op.results, changed.results, strict=True))
    return graph.with_ops(tuple(ops), mapping) if mapping else graph
