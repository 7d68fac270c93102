"""Let small tensors travel together: fewer transfers, each of a size that the links carry well."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import UsageError
from lynx.ir.ops.schedule import (
    Start,
    StartAllGather,
    StartAllReduce,
    StartReduceScatter,
    Wait,
)
from lynx.passes.base import PassContext, Remark, Requirement, register_pass
from lynx.passes.requirements import IS_GRAPH

from .cost import Costs, members_of, payload_of
from .overlap import MEBIBYTE, ScheduleOverlap, best_order, target_of
from .split import start_of

Group = tuple[int, ...]
"""The starts of a bucket, by their numbers among all starts of the graph."""

_TRIALS = 32
_KINDS = (StartAllReduce, StartAllGather, StartReduceScatter)


@register_pass
@dataclass(frozen=True)
class BucketCollectives:
    """Merge starts of one kind, group, reduction and element type that follow each other.

    Buckets grow until transfers do not get more efficient, or to `limit` MiB. Those are kept with
    which the step, scheduled, takes no longer, so that no overlap is lost; starts that nothing
    hides are merged first. Costs are those of `target`, as in `schedule-overlap`.

    Ranks whose parts differ in size may differ in what is best: `plan` says it for all of them, as
    `bucket_plan` does for one device: `0 2 3, 5 6`, by numbers of starts.
    """

    name: ClassVar[str] = "bucket-collectives"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    target: str = ""
    limit: int = 512
    plan: str = ""

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with buckets."""
        if not any(isinstance(op, Start) for op in module.ops):
            return module
        costs = Costs(target_of(self.target or context.machine, context.target.device), module.mesh)
        groups = read_plan(self.plan) if self.plan else chosen(module, costs, self.limit * MEBIBYTE)
        if not groups:
            return module
        result = merged(module, groups)
        message = f"{sum(map(len, groups))} transfers travel in {len(groups)} buckets"
        context.remarks.append(Remark("schedule", message))
        return result


def bucket_plan(graph: Graph, costs: Costs, limit: int = 512) -> str:
    """Return the plan of buckets that is best for one device, for the pass on all of them."""
    groups = chosen(graph, costs, limit * MEBIBYTE)
    return ", ".join(" ".join(map(str, group)) for group in groups) or "none"


def read_plan(text: str) -> list[Group]:
    """Return the buckets of a plan; `UsageError` if it is none."""
    if text == "none":
        return []
    try:
        return [tuple(map(int, group.split())) for group in text.split(",")]
    except ValueError as error:
        message = f"'{text}' is no plan, expected numbers of starts as '0 2 3, 5 6'"
        raise UsageError("bad-buckets", message) from error


def chosen(graph: Graph, costs: Costs, limit: int) -> list[Group]:
    """Return the buckets with which the scheduled step takes least, as far as few trials show."""
    candidates = _acyclic(graph, list(_candidates(graph, costs, limit)))
    if not candidates:
        return []
    options = ScheduleOverlap()

    def seconds(groups: Sequence[Group]) -> float:
        return best_order(merged(graph, groups), costs, options)[1].duration

    ops, line = best_order(graph, costs, options)
    best = line.duration
    if seconds(candidates) <= best:
        return candidates
    exposed = {ops[event.position]: event.end - event.start for event in line.waits}
    starts = _starts(graph)
    waits = {op.start: op for op in graph.ops if isinstance(op, Wait)}

    def exposure(group: Group) -> float:
        return sum(exposed.get(waits[starts[number]], 0.0) for number in group)

    kept: list[Group] = []
    for group in sorted(candidates, key=exposure, reverse=True)[:_TRIALS]:
        took = seconds([*kept, group])
        if took <= best:
            kept.append(group)
            best = took
    return sorted(kept)


def _starts(graph: Graph) -> list[Start]:
    return [op for op in graph.ops if isinstance(op, Start)]


def _candidates(graph: Graph, costs: Costs, limit: int) -> Iterator[Group]:
    """Yield runs of starts that can travel together and are small enough for it."""
    depends = _dependencies(graph)
    open_groups: dict[Hashable, tuple[list[int], float]] = {}
    for number, start in enumerate(_starts(graph)):
        if not isinstance(start, _KINDS):
            continue
        key, size = _key(start), _payload(start, costs)
        cap = min(limit, costs.saturation(start.axes))
        group, total = open_groups.get(key, ([], 0.0))
        is_free = not any(depends[start] >> other & 1 for other in group)
        if group and (total + size > cap or not is_free):
            yield from _closed(group)
            group, total = [], 0.0
        open_groups[key] = ([*group, number], total + size)
    for group, _ in open_groups.values():
        yield from _closed(group)


def _closed(group: list[int]) -> Iterator[Group]:
    if len(group) > 1:
        yield tuple(group)


def _key(start: Start) -> Hashable:
    x = start.xs[0].tensor_type
    return (start.name, start.axes, start.attributes.get("reduction"), x.dtype, x.device)


def _payload(start: Start, costs: Costs) -> float:
    return sum(payload_of(part, members_of(part, costs.mesh)) for part in start.parts)


def _dependencies(graph: Graph) -> dict[Op, int]:
    """Return for each op the starts without which it cannot run, as bits by their numbers."""
    found: dict[Op, int] = {}
    numbers: dict[Op, int] = {}
    for op in graph.ops:
        bits = 0
        for operand in op.operands:
            if operand.op is not None:
                bits |= found[operand.op]
        if isinstance(op, Wait):
            bits |= 1 << numbers[op.start]
        if isinstance(op, Start):
            numbers[op] = len(numbers)
        found[op] = bits
    return found


def _acyclic(graph: Graph, groups: Sequence[Group]) -> list[Group]:
    """Return the buckets without those that would wait for each other."""
    depends = _dependencies(graph)
    needs = [depends[start] for start in _starts(graph)]
    if _has_order(needs, groups):
        return list(groups)
    kept: list[Group] = []
    for group in groups:
        if _has_order(needs, [*kept, group]):
            kept.append(group)
    return kept


def _has_order(needs: Sequence[int], groups: Sequence[Group]) -> bool:
    """Whether starts can run in some order when each bucket needs what its members need."""
    alone = set(range(len(needs))).difference(*groups)
    left = [(sum(1 << n for n in group), _union(needs, group)) for group in groups]
    left += [(1 << number, needs[number]) for number in sorted(alone)]
    done = 0
    while left:
        ready = [node for node in left if not node[1] & ~done]
        if not ready:
            return False
        for mask, _ in ready:
            done |= mask
        left = [node for node in left if node[1] & ~done or not node[0] & done]
    return True


def _union(needs: Sequence[int], group: Group) -> int:
    return functools.reduce(lambda bits, number: bits | needs[number], group, 0)


def merged(graph: Graph, groups: Sequence[Group]) -> Graph:
    """Return the graph with these buckets, each where its last member stood, or its first reader.

    `UsageError` if the starts of a bucket do not exist, differ in kind, or wait for each other.
    """
    starts = _starts(graph)
    numbers = [number for group in groups for number in group]
    if len(set(numbers)) != len(numbers) or not all(0 <= n < len(starts) for n in numbers):
        raise UsageError("bad-buckets", f"{list(groups)} are no buckets of {len(starts)} starts")
    buckets = [[starts[number] for number in group] for group in groups]
    if any(len({_key(start) for start in bucket}) > 1 for bucket in buckets):
        raise UsageError("bad-buckets", "a bucket holds starts of several kinds")
    if _acyclic(graph, groups) != list(groups):
        raise UsageError("bad-buckets", "starts of a bucket wait for each other")
    return _Merging(graph, buckets).run()


class _Merging:
    """Emits ops in order, but starts with the bucket that they are in, and waits when needed."""

    def __init__(self, graph: Graph, buckets: Sequence[list[Start]]) -> None:
        self.graph = graph
        self.bucket: dict[Op, list[Start]] = {m: bucket for bucket in buckets for m in bucket}
        self.waits = {op.start: op for op in graph.ops if isinstance(op, Wait)}
        self.ops: list[Op] = []
        self.mapping: dict[Value, Value] = {}
        self.done: set[Op] = set()
        self.before: dict[Op, Op] = {}
        effects = [op for op in graph.ops if not op.is_removable and not _is_half(op)]
        self.before.update(zip(effects[1:], effects, strict=False))

    def run(self) -> Graph:
        for op in self.graph.ops:
            bucket = self.bucket.get(op)
            if not isinstance(op, Wait) and (bucket is None or op is bucket[-1]):
                self.emit(op)
        for op in self.graph.ops:
            self.emit(op)
        return self.graph.with_ops(tuple(self.ops), self.mapping)

    def emit(self, op: Op) -> None:
        """Add an op after all that it needs."""
        stack = [op]
        while stack:
            current = stack[-1]
            if current in self.done:
                stack.pop()
                continue
            missing = [other for other in self.needs(current) if other not in self.done]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            self.add(current)

    def needs(self, op: Op) -> list[Op]:
        if isinstance(op, Wait):
            return [op.start]
        found = [self.before[op]] if op in self.before else []
        for member in self.bucket.get(op, [op]):
            found += [value.op for value in member.operands if value.op is not None]
        return found

    def add(self, op: Op) -> None:
        if op in self.bucket:
            parts = [part for member in self.bucket[op] for part in member.parts]
            self.put(self.bucket[op], start_of([p.replace_operands(self.mapping) for p in parts]))
        elif isinstance(op, Wait) and op.start in self.bucket:
            members = self.bucket[op.start]
            start = self.mapping[members[0].results[0]].op
            assert isinstance(start, Start), start
            made = Wait(start.results, start.xs, loc=op.loc)
            self.put([self.waits[member] for member in members], made)
        else:
            self.put([op], op.replace_operands(self.mapping))

    def put(self, old: Sequence[Op], new: Op) -> None:
        """Let one op stand for several, whose results it has in their order."""
        self.done.update(old)
        self.ops.append(new)
        results = [value for op in old for value in op.results]
        if results != list(new.results):
            self.mapping.update(zip(results, new.results, strict=True))


def _is_half(op: Op) -> bool:
    return isinstance(op, Start | Wait)
