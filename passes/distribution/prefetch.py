"""Gather weights ahead of time: before communication that is started earlier and needed later."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op
from lynx.ir.ops.schedule import Start, StartAllGather
from lynx.passes.base import PassContext, Remark, Requirement, register_pass
from lynx.passes.requirements import IS_GRAPH

from .cost import members_of, payload_of

MEBIBYTE = 1 << 20


@register_pass
@dataclass(frozen=True)
class PrefetchGathers:
    """Let gathers of what no other communication gives start before others that come earlier.

    A gather goes ahead as far as the tensors that are gathered but not yet due there take at most
    `limit` MiB. The order depends on whole sizes alone, and so is the same on all ranks.
    """

    name: ClassVar[str] = "prefetch-gathers"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    limit: int = 256

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with starts in another order."""
        starts = [op for op in module.ops if isinstance(op, Start)]
        early = _independent(module)
        order = _order(module, starts, early, self.limit * MEBIBYTE)
        if order == starts:
            return module
        ops = _arranged(module, order)
        moved = sum(a is not b for a, b in zip(order, starts, strict=True))
        message = f"gathers go ahead: {moved} of {len(starts)} starts have another place"
        context.remarks.append(Remark("schedule", message))
        return dataclasses.replace(module, ops=ops)


def _independent(graph: Graph) -> set[Op]:
    """Return the gathers whose operands take views and casts of inputs, and nothing else."""
    near: set[Op] = set()
    found: set[Op] = set()
    for op in graph.ops:
        if not all(value.op is None or value.op in near for value in op.operands):
            continue
        if isinstance(op, StartAllGather):
            found.add(op)
        elif op.is_removable and (op.is_view or len(op.operands) == 1):
            near.add(op)
    return found


def _order(graph: Graph, starts: list[Start], early: set[Op], limit: int) -> list[Start]:
    """Return the starts with gathers ahead: of each, before which it is started."""
    sizes = {
        start: sum(payload_of(part, members_of(part, graph.mesh)) for part in start.parts)
        for start in early
        if isinstance(start, Start)
    }
    coming = iter([start for start in starts if start in early])
    following = next(coming, None)
    ahead: set[Op] = set()
    order: list[Start] = []
    held = 0
    for start in starts:
        if start in ahead:
            held -= sizes[start]
        elif start in early:
            order.append(start)
            following = next(coming, None)
        while following is not None and start not in early and held + sizes[following] <= limit:
            ahead.add(following)
            order.append(following)
            held += sizes[following]
            following = next(coming, None)
        if start not in early:
            order.append(start)
    return order


def _arranged(graph: Graph, order: list[Start]) -> tuple[Op, ...]:
    """Return the ops with the starts in an order that moves some ahead of others."""
    places = {start: number for number, start in enumerate(order)}
    ops: list[Op] = []
    done: set[Op] = set()

    def emit(op: Op) -> None:
        stack = [op]
        while stack:
            current = stack[-1]
            missing = [v.op for v in current.operands if v.op is not None and v.op not in done]
            if current not in done and missing:
                stack += missing
                continue
            stack.pop()
            if current not in done:
                done.add(current)
                ops.append(current)

    following = 0
    for op in graph.ops:
        if isinstance(op, Start):
            while following <= places[op]:
                emit(order[following])
                following += 1
        emit(op)
    return tuple(ops)
