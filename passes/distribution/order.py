"""The orders in which the ops of a graph with starts and waits may run, and how good they are.

List scheduling: one lane computes, and each group communicates on its own. A start goes as soon as
its operands are there and there is memory for what arrives; a wait goes right before the first op
that reads what arrives, and while that has not come, others run that are ready.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.aten import Resource
from lynx.ir.ops.schedule import Start, Wait

from .cost import Costs
from .operations import bytes_of

Priority = Callable[[Op], tuple[int, ...]]
"""Smaller ones run first, among the ops that are ready."""


@dataclass(frozen=True)
class Needs:
    """What must have run before an op: those that compute its operands, and `after` in order.

    Random ops and effects stay in order, and so do starts: on all lanes, unless `free`, which
    keeps the order on each lane only. `due` is the position of an op; views, which cost nothing,
    are due when something reads them, or at the end.
    """

    graph: Graph
    before: dict[Op, list[Op]]
    readers: dict[Op, list[Op]]
    positions: dict[Op, int]
    due: dict[Op, int]

    @staticmethod
    def of(graph: Graph, *, free: bool = False) -> Needs:
        """Return the needs of a graph."""
        before: dict[Op, list[Op]] = {}
        last: dict[str, Op] = {}
        for op in graph.ops:
            needed = dict.fromkeys(v.op for v in op.operands if v.op is not None)
            key = _chain(op, free)
            if key and key in last:
                needed[last[key]] = None
            if key:
                last[key] = op
            before[op] = list(needed)
        readers: dict[Op, list[Op]] = {op: [] for op in graph.ops}
        for op, needed_ops in before.items():
            for other in needed_ops:
                readers[other].append(op)
        positions = {op: number for number, op in enumerate(graph.ops)}
        due = dict(positions)
        for op in reversed(graph.ops):
            if op.is_view:
                due[op] = min((due[reader] for reader in readers[op]), default=len(positions))
        return Needs(graph, before, readers, positions, due)


def _chain(op: Op, free: bool) -> str:
    if isinstance(op, Start):
        return f"lane {op.lane}" if free else "starts"
    return "" if op.is_removable or isinstance(op, Wait) else "effects"


def in_order(needs: Needs) -> Priority:
    """Run ops as the graph has them."""
    return lambda op: (needs.due[op], needs.positions[op])


def starts_first(needs: Needs) -> Priority:
    """Run first what the next starts depend on."""
    numbers: dict[Op, int] = {}
    starts = [op for op in needs.graph.ops if isinstance(op, Start)]
    for number, start in enumerate(starts):
        stack: list[Op] = [start]
        while stack:
            op = stack.pop()
            if op not in numbers:
                numbers[op] = number
                stack += needs.before[op]
    count = len(starts)
    return lambda op: (numbers.get(op, count), needs.due[op], needs.positions[op])


def scheduled(needs: Needs, costs: Costs, priority: Priority, limit: int) -> tuple[Op, ...]:
    """Return the ops in a good order; `limit` bounds the bytes that are in flight at once.

    Where nothing else can run, a start goes above the limit.
    """
    return _Lists(needs, costs, priority, limit).run()


class _Lists:
    def __init__(self, needs: Needs, costs: Costs, priority: Priority, limit: int) -> None:
        self.needs, self.costs, self.priority, self.limit = needs, costs, priority, limit
        self.missing = {op: len(before) for op, before in needs.before.items()}
        self.order: list[Op] = []
        self.now = 0.0
        self.free: dict[str, float] = {}
        self.landing: dict[Op, float] = {}
        self.pending: dict[Op, None] = {}  # waits that are to go before their first reader
        self.starts: list[tuple[int, Start]] = []
        self.ready: list[tuple[tuple[int, ...], Op]] = []
        self.late: list[tuple[float, tuple[int, ...], Op]] = []
        self.flying = 0

    def run(self) -> tuple[Op, ...]:
        for op in self.needs.graph.ops:
            if not self.missing[op]:
                self.offer(op)
        while True:
            self.begin_starts()
            while self.late and self.late[0][0] <= self.now:
                _, priority, op = heapq.heappop(self.late)
                heapq.heappush(self.ready, (priority, op))
            if self.ready:
                self.compute(heapq.heappop(self.ready)[1])
            elif self.late:
                self.now = self.late[0][0]
            elif self.starts:
                self.begin(heapq.heappop(self.starts)[1])
            else:
                break
        for op in self.needs.graph.ops:
            if op in self.pending:
                self.order.append(op)
        return tuple(self.order)

    def offer(self, op: Op) -> None:
        """Note that all that an op needs has run."""
        if isinstance(op, Start):
            heapq.heappush(self.starts, (self.needs.positions[op], op))
        elif isinstance(op, Wait):
            self.pending[op] = None
            self.done(op)
        else:
            waits = (before for before in self.needs.before[op] if before in self.pending)
            moment = max((self.landing[w.start] for w in waits if isinstance(w, Wait)), default=0.0)
            heapq.heappush(self.late, (moment, self.priority(op), op))

    def done(self, op: Op) -> None:
        for reader in self.needs.readers[op]:
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self.offer(reader)

    def begin_starts(self) -> None:
        while self.starts:
            start = self.starts[0][1]
            size = sum(map(bytes_of, start.results))
            if self.flying + size > self.limit:
                self.retire()
            if self.flying and self.flying + size > self.limit:
                return
            heapq.heappop(self.starts)
            self.begin(start)

    def retire(self) -> None:
        """Wait for what has arrived and nobody is going to read."""
        landed = [
            op
            for op in self.pending
            if isinstance(op, Wait)
            and not self.needs.readers[op]
            and self.landing[op.start] <= self.now
        ]
        self.arrive(landed)

    def begin(self, start: Start) -> None:
        self.arrive([operand.op for operand in start.xs])
        self.flying += sum(map(bytes_of, start.results))
        begin = max(self.now, self.free.get(start.lane, 0.0))
        self.free[start.lane] = self.landing[start] = begin + self.costs.transfer(start)
        self.order.append(start)
        self.done(start)

    def compute(self, op: Op) -> None:
        self.arrive(self.needs.before[op])
        self.order.append(op)
        self.now += self.costs.compute(op)
        self.done(op)

    def arrive(self, ops: Sequence[Op | None]) -> None:
        """Place the waits among ops here."""
        for op in ops:
            if isinstance(op, Wait) and op in self.pending:
                del self.pending[op]
                self.order.append(op)
                self.flying -= sum(map(bytes_of, op.results))
                self.now = max(self.now, self.landing[op.start])


def peak_bytes(ops: Sequence[Op], graph: Graph) -> int:
    """Return the most bytes that results take at once, when the ops of a graph run in an order."""
    return max(live_bytes(ops, graph), default=0)


def live_bytes(ops: Sequence[Op], graph: Graph) -> list[int]:
    """Return the bytes of results that are needed while each op runs, but for constants."""
    roots: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    for position, op in enumerate(ops):
        for index, value in enumerate(op.results):
            shared = op.pending[index] if isinstance(op, Wait) else None
            shared = op.operands[0] if op.is_view else shared
            roots[value] = value if shared is None else roots.get(shared, shared)
        for value in (*op.results, *op.operands):
            last[roots.get(value, value)] = position
    for value in graph.uses:
        last[roots.get(value, value)] = len(ops)
    ends: dict[int, int] = {}
    living, found = 0, []
    for position, op in enumerate(ops):
        for value in op.results:
            if roots[value] is value and not isinstance(op, Resource):
                living += bytes_of(value)
                ends[last[value]] = ends.get(last[value], 0) + bytes_of(value)
        found.append(living)
        living -= ends.get(position, 0)
    return found
