"""Check what is in flight: each start has one wait, and until then nobody touches what it fills.

1.  Each start is waited for, by exactly one wait (`not-waited`, `waited-twice`), which names all
    that it fills and all that it reads, so that this memory is kept until then.
2.  What is in flight is read by the wait only, and does not leave the graph (`in-flight`).
3.  A lane belongs to the groups along some mesh axes, and those to one lane (`bad-lane`).
4.  What travels in one bucket comes one after the other, with no other communication in between
    (`split-bucket`), so that there is no question when the bucket starts.

That nothing else is written there in the meantime follows, since the wait reads the memory.
"""

from __future__ import annotations

from .core import Graph, Op
from .errors import CompileError
from .ops.collective import Collective
from .ops.communication import Communication
from .ops.schedule import Start, Wait
from .printer import format_op
from .program import Program


def verify_schedule(graph: Graph) -> None:
    """Raise `CompileError` at the first broken invariant of starts and waits."""
    starts = [op for op in graph.ops if isinstance(op, Start)]
    flying = {value for start in starts for value in start.results}
    waits: dict[Op, Wait] = {}
    lanes: dict[str, tuple[str, ...]] = {}
    for start in starts:
        _check_lane(start, lanes)
    for op in graph.ops:
        if isinstance(op, Wait):
            if op.start in waits:
                raise _error("waited-twice", "somebody has waited for this before", op)
            waits[op.start] = op
        elif flying and not flying.isdisjoint(op.operands):
            raise _error("in-flight", "reads what may not have arrived", op)
    for start in starts:
        if start not in waits:
            raise _error("not-waited", "nobody waits for what this starts", start)
        if not set(start.results).isdisjoint(graph.uses):
            raise _error("in-flight", "what may not have arrived leaves the graph", start)
    _check_buckets(graph)


def _check_buckets(graph: Graph) -> None:
    closed: set[int] = set()
    current = -1
    for op in graph.ops:
        if isinstance(op, Communication) or (isinstance(op, Collective) and op.needs_communication):
            if op.bucket != current:
                closed.add(current)
                current = op.bucket
            if current >= 0 and current in closed:
                message = f"other communication comes before this in bucket {current}"
                raise _error("split-bucket", message, op)


def _check_lane(op: Start, lanes: dict[str, tuple[str, ...]]) -> None:
    axes = tuple(sorted(op.axes))
    if lanes.setdefault(op.lane, axes) != axes or list(lanes.values()).count(axes) != 1:
        listed = ", ".join(f"'{lane}' of ({', '.join(known)})" for lane, known in lanes.items())
        raise _error("bad-lane", f"expected one lane for each group, got {listed}", op)


def _error(code: str, message: str, op: Op) -> CompileError:
    return CompileError(code, f"{message}, in '{format_op(op)}'", op.loc)


def verify_peak(program: Program, limit: int) -> None:
    """Raise `CompileError` if the planned arenas of a program take more than `limit` bytes."""
    peak = sum(arena.size for arena in program.arenas)
    if peak > limit:
        raise CompileError(
            "over-limit", f"'{program.name}' takes {peak} bytes, at most {limit} are allowed"
        )
