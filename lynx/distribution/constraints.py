"""Constraints inside a model: check them against the mesh, and drop them where there is none.

Dynamo runs DTensor's own propagation while it traces, so DTensor is told that a constraint moves
nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from lynx.importer.locations import location_of
from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.constraint import Constrain
from lynx.ir.sharding import Mesh
from lynx.operators.constrain import OPERATOR

from .plans import read_annotation


@register_sharding(OPERATOR)  # type: ignore[untyped-decorator]
def _stays(x: Any, sharding: str, priority: int) -> list[tuple[list[Any], list[Any]]]:
    """Return the placements that a constraint keeps, as DTensor asks for them."""
    del sharding, priority
    kept = [Replicate(), *map(Shard, range(x.ndim))]
    return [([one], [one, None, None]) for one in kept]


def check_constraints(module: torch.fx.GraphModule, mesh: Mesh) -> None:
    """Raise `UsageError`, with the user's line, for a constraint that the mesh does not allow."""
    for node in module.graph.find_nodes(op="call_function", target=OPERATOR):
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
