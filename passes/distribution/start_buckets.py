"""Start what travels in one bucket together, before anything else is done to a program."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.communication import Communication
from lynx.ir.ops.schedule import Start, Wait
from lynx.ir.verifier import verify
from lynx.passes.base import PassContext, Remark, Requirement, register_pass
from lynx.passes.requirements import IS_GRAPH

from .buckets import merged
from .split import start_of


@register_pass
@dataclass(frozen=True)
class StartBuckets:
    """Replace the communication of each bucket by one start and one wait.

    Which bucket it is in stands on each: see `lynx.passes.distribution.assign_buckets`. It runs
    first, while the members of a bucket follow each other: what depends on what differs among
    devices, since a piece may be empty, and must not decide when a bucket starts. What is in no
    bucket is left as it is, and so is everything if something goes wrong.
    """

    name: ClassVar[str] = "start-buckets"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with starts of buckets, and sites on all communication."""
        if not any(isinstance(op, Communication) and op.bucket >= 0 for op in module.ops):
            return module
        try:
            result = _with_buckets(module)
            verify(result)
        except Exception as error:  # a program without buckets is as right, and only slower
            context.remarks.append(Remark("schedule", f"each tensor travels alone: {error}"))
            return module
        return result


def _with_buckets(graph: Graph) -> Graph:
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []
    groups: dict[int, list[int]] = {}
    site = starts = 0
    for op in graph.ops:
        current = op.replace_operands(mapping)
        made = [current]
        if isinstance(current, Communication):
            placed = dataclasses.replace(current, site=site, bucket=-1)
            made, site = [placed], site + 1
            if current.bucket >= 0:
                start = start_of([placed])
                made = [start, Wait(start.results, start.xs, loc=op.loc)]
                groups.setdefault(current.bucket, []).append(starts)
        starts += isinstance(made[0], Start)
        ops += made
        if made[-1] is not op:
            mapping.update(zip(op.results, made[-1].results, strict=True))
    split = graph.with_ops(tuple(ops), mapping)
    return merged(split, [tuple(group) for group in groups.values() if len(group) > 1])
