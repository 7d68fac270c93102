"""What a plan wants of inputs beyond how they lie: dimensions that are open, cuts without storage.

A tensor lies in one way in all programs, one for which optimizers and checkpoints have placements.
A plan may want more of it inside a program: that propagation may cut it further (`tp?`), or that it
is cut at other places than it is stored (`tp by 64`, `tp of 3`: checkpoints know no blocks). Then
the program starts with a constraint on it, as if the model had asked for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import CompileError
from lynx.ir.ops.constraint import Constrain
from lynx.ir.shard_rules import ShardingError, normal_sharding
from lynx.ir.sharding import Sharding
from lynx.passes.distribution.annotations import Annotation


def with_wishes(
    graph: Graph, wanted: Sequence[Annotation | None], given: Sequence[Sharding | None]
) -> tuple[Graph, tuple[Annotation | None, ...]]:
    """Return the graph with a constraint on each input of which more is wanted than it has.

    `wanted` are the annotations of inputs, `given` how they lie; what comes back are annotations
    for how they lie.
    """
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []
    annotations: list[Annotation | None] = []
    for value, wish, sharding in zip(graph.inputs, wanted, given, strict=True):
        if wish is None or sharding is None:
            annotations.append(wish)
            continue
        annotations.append(dataclasses.replace(wish, sharding=sharding, open=()))
        inside, outside = (_normal(one, value) for one in (wish.sharding, sharding))
        if wish.open or inside != outside:
            constraint = Constrain(value, inside.spec, wish.priority, wish.open)
            ops.append(constraint)
            mapping[value] = constraint.out
    if not ops:
        return graph, tuple(annotations)
    changed: dict[Value, Value] = {}
    for op in graph.ops:
        made = op.replace_operands(mapping)
        ops.append(made)
        if made is not op:
            renamed = dict(zip(op.results, made.results, strict=True))
            changed |= renamed
            mapping |= renamed
    return graph.with_ops(tuple(ops), changed), tuple(annotations)


def _normal(sharding: Sharding, value: Value) -> Sharding:
    try:
        return normal_sharding(sharding, value.shape, sharding.mesh)
    except ShardingError as error:
        raise CompileError(error.code, f"input '{value.name}': {error.reason}") from None
