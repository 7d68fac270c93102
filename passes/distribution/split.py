"""Split communication into a start and a wait, so that other ops can run in between."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import InternalError
from lynx.ir.ops.communication import (
    Communication,
    LocalAllGather,
    LocalAllReduce,
    LocalAllToAll,
    LocalReduceScatter,
)
from lynx.ir.ops.schedule import (
    Start,
    StartAllGather,
    StartAllReduce,
    StartAllToAll,
    StartReduceScatter,
    Wait,
    lane_of,
)
from lynx.passes.base import PassContext, Requirement, register_pass
from lynx.passes.requirements import IS_GRAPH


@register_pass
@dataclass(frozen=True)
class SplitCollectives:
    """Replace each communication by a start on the lane of its group, and a wait right after it."""

    name: ClassVar[str] = "split-collectives"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with starts and waits."""
        if not any(isinstance(op, Communication) for op in module.ops):
            return module
        mapping: dict[Value, Value] = {}
        ops: list[Op] = []
        site = 0
        for op in module.ops:
            current = op.replace_operands(mapping)
            if not isinstance(current, Communication):
                ops.append(current)
                if current is not op:
                    mapping.update(zip(op.results, current.results, strict=True))
                continue
            # Communication is never removed, doubled or reordered: all devices count alike.
            if current.site < 0:
                current = dataclasses.replace(current, site=site)
                site += 1
            start = start_of([current])
            wait = Wait(start.results, start.xs, loc=op.loc)
            ops += [start, wait]
            mapping.update(zip(op.results, wait.results, strict=True))
        return module.with_ops(tuple(ops), mapping)


def start_of(parts: list[Communication]) -> Start:
    """Return the start of communications that are alike but for tensors, dimensions and sizes."""
    start = _start(parts)
    if any(part.site < 0 for part in parts):
        return start
    return dataclasses.replace(start, sites=tuple(part.site for part in parts))


def _start(parts: list[Communication]) -> Start:
    first = parts[0]
    xs, axes, lane = tuple(part.x for part in parts), first.axes, lane_of(first.axes)
    match first:
        case LocalAllReduce():
            return StartAllReduce(xs, axes, lane, first.reduction, loc=first.loc)
        case LocalAllGather():
            dims, sizes = _lists(parts, "dim", "sizes")
            return StartAllGather(xs, axes, lane, dims, sizes, first.index, loc=first.loc)
        case LocalReduceScatter():
            dims, sizes = _lists(parts, "dim", "sizes")
            index, reduction = first.index, first.reduction
            return StartReduceScatter(xs, axes, lane, dims, sizes, index, reduction, loc=first.loc)
        case LocalAllToAll():
            sources, targets = _lists(parts, "source", "target")
            before, after = _lists(parts, "source_sizes", "target_sizes")
            return StartAllToAll(
                xs, axes, lane, sources, targets, before, after, first.index, loc=first.loc
            )
    message = f"'{first.name}' cannot be split into a start and a wait"
    raise InternalError("no-start", message, first.loc)


def _lists(parts: list[Communication], *names: str) -> list[tuple]:  # type: ignore[type-arg]  # entries differ in kind
    return [tuple(part.attributes[name] for part in parts) for name in names]
