"""From groups to fusion ops: the region of each, what leaves it, and the order of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import Dim, product
from lynx.ir.ops.fusion import Fused, Region
from lynx.ir.ops.reduction import Reduction
from lynx.ir.writing import carried_by, is_write, reads_part_of, storage_of, written_into

from .cluster import Clusters
from .emit import why_not
from .groups import Group, iterated_shape, lies_elsewhere
from .relations import moves
from .sizes import estimated_bytes

Node: TypeAlias = "Group | Op"

MAX_CHEAP = 4
"""So many ops may be computed again in each consumer."""

SLACK = 1.1
"""Recomputing may read so many times the bytes of the result: a bias or a scale adds little."""

_SIMPLE = frozenset(
    {
        "add",
        "sub",
        "mul",
        "neg",
        "abs",
        "cast",
        "copy",
        "where",
        "not",
        "bitwise_not",
        "bitwise_and",
        "bitwise_or",
        "logical_not",
        "logical_and",
        "logical_or",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "maximum",
        "minimum",
        "clamp",
        "square",
    }
)

MAX_REPEAT = 1.25
"""A producer moves into its consumer if it is computed at most so many times there."""


class Rewriter:
    """Replaces the groups of a graph by fusion ops."""

    def __init__(self, graph: Graph, clusters: Clusters) -> None:
        self.graph = graph
        self.clusters = clusters
        self.members: dict[Group, list[Op]] = {}
        for group in clusters.groups:
            if group.into is None:
                self.members[group] = sorted(group.ops, key=clusters.positions.__getitem__)
        targets = (written_into(op) for op in graph.ops if is_write(op))
        self.written = {storage_of(value) for value in targets if value is not None}
        users = _users(graph)
        self._inline_producers(users)
        self.cheap = self._cheap_members(users)
        self.regions: dict[Node, _RegionBuilder] = {}
        for group, ops in self.members.items():
            self.regions[group] = _RegionBuilder(clusters, ops, self.cheap)
        self.needed = self._needed()
        self.mapping: dict[Value, Value] = {}
        self.emitted: list[Op] = []

    def ops(self) -> tuple[Op, ...]:
        """Return the ops of the new graph; `mapping` then leads from old values to new ones."""
        last = {group: ops[-1] for group, ops in self.members.items()}
        done: set[Node] = set()
        for op in self.graph.ops:
            node = self._node(op)
            if isinstance(node, Group) and last[node] is not op:
                continue
            self._emit(node, done)
        return tuple(self.emitted)

    def _node(self, op: Op) -> Node:
        group = self.clusters.group_of(op)
        return op if group is None else group

    def _inputs(self, node: Node) -> Iterator[Value]:
        region = self.regions.get(node)
        if region is not None:
            yield from region.parameters
        elif isinstance(node, Op):
            yield from node.operands

    def _emit(self, root: Node, done: set[Node]) -> None:
        """Emit what a node needs, then the node."""
        stack = [(root, False)]
        while stack:
            node, is_ready = stack.pop()
            if node in done or not self._is_needed(node):
                continue
            if is_ready:
                done.add(node)
                self._write(node)
                continue
            stack.append((node, True))
            producers = [value.op for value in self._inputs(node) if value.op is not None]
            if isinstance(node, Op) and node in self.clusters.before:
                producers.append(self.clusters.before[node])
            stack += [(self._node(op), False) for op in producers if self._node(op) not in done]

    def _is_needed(self, node: Node) -> bool:
        if isinstance(node, Group):
            return any(r in self.needed for op in self.members[node] for r in op.results)
        if node in self.clusters.free or self._is_loose_view(node):
            return any(result in self.needed for result in node.results)
        return True

    def _is_loose_view(self, op: Op) -> bool:
        return op.is_view and not op.is_random and self.clusters.group_of(op) is None

    def _write(self, node: Node) -> None:
        region = self.regions.get(node)
        if region is None:
            assert isinstance(node, Op), node
            made = node.replace_operands(self.mapping)
            self.mapping.update(zip(node.results, made.results, strict=True))
            self.emitted.append(made)
            return
        results = [r for op in region.members for r in op.results if r in self.needed]
        fused = region.fused(results, self.mapping)
        self.mapping.update(zip(results, fused.results, strict=True))
        self.emitted.append(fused)

    def _needed(self) -> set[Value]:
        """Return the values that must exist in memory."""
        needed = set(self.graph.uses)
        for region in self.regions.values():
            needed.update(region.parameters)
        for op in reversed(self.graph.ops):
            if self.clusters.group_of(op) is not None:
                continue
            is_loose = op in self.clusters.free or self._is_loose_view(op)
            if is_loose and not any(result in needed for result in op.results):
                continue
            if op in self.clusters.free:
                region = self.regions[op] = _RegionBuilder(self.clusters, [op], self.cheap)
                needed.update(region.parameters)
            else:
                needed.update(op.operands)
        return needed

    def _cheap_members(self, users: dict[Value, list[Op | None]]) -> frozenset[Op]:
        """Return the ops that each kernel computes for itself, since that moves fewer bytes.

        They are few and simple steps from values that no kernel of theirs computes, which take no
        more bytes than the result; and nothing but kernels needs them.
        """
        chains: dict[Op, tuple[int, dict[Value, None]]] = {}
        cheap: list[Op] = []
        for group, ops in self.members.items():
            for op in ops:
                chain = self._chain(op, group, chains)
                if chain is None:
                    continue
                chains[op] = chain
                uses = _uses_outside(op, users, self.clusters, group)
                if all(user is not None and self.clusters.group_of(user) for _, user in uses):
                    cheap.append(op)
        return frozenset(cheap)

    def _chain(
        self, op: Op, group: Group, chains: dict[Op, tuple[int, dict[Value, None]]]
    ) -> tuple[int, dict[Value, None]] | None:
        """Return how many simple ops lead to a result, and what they read; None if too much."""
        if op.name not in _SIMPLE:
            return None
        count = 1
        read: dict[Value, None] = {}
        for operand in op.operands:
            base = operand
            while base.op is not None and self.clusters.is_still(base.op):
                base = base.op.operands[0]
            if base.op is None or self.clusters.group_of(base.op) is not group:
                read[operand] = None
            elif base.op in chains:
                count += chains[base.op][0]
                read.update(chains[base.op][1])
            else:
                return None
        size = estimated_bytes(op.results[0].type)
        if any(storage_of(value) in self.written for value in read):
            return None  # it would be read once more after it may have been written
        if count > MAX_CHEAP or sum(estimated_bytes(value.type) for value in read) > SLACK * size:
            return None
        return count, read

    def _inline_producers(self, users: dict[Value, list[Op | None]]) -> None:
        """Move elementwise groups into the one group that reads them, at other places perhaps."""
        for group in reversed([*self.members]):
            target = self._only_consumer(group, users)
            if target is None:
                continue
            ops = self.members.pop(group)
            joined = (*ops, *self.members[target])
            self.members[target] = sorted(joined, key=self.clusters.positions.__getitem__)
            group.into = target

    def _only_consumer(self, group: Group, users: dict[Value, list[Op | None]]) -> Group | None:
        ops = self.members[group]
        if any(isinstance(op, Reduction) for op in ops):
            return None
        target: Group | None = None
        repeats: Dim = 0
        for op in ops:
            for value, user in _uses_outside(op, users, self.clusters, group):
                consumer = None if user is None else self.clusters.group_of(user)
                if consumer is None or (target is not None and consumer is not target):
                    return None
                assert user is not None
                if not _reads_once(user, value):
                    return None
                target = consumer
                repeats = repeats + value.tensor_type.numel
        if target is None or len(ops) + len(self.members[target]) > self.clusters.max_ops:
            return None
        if any(lies_elsewhere(op, value) for op in self.members[target] for value in group.reads):
            return None
        own, size = group.size, target.size
        if not (isinstance(repeats, int) and isinstance(own, int) and isinstance(size, int)):
            return None
        return target if repeats <= MAX_REPEAT * own and 4 * own >= size else None


def _reads_once(user: Op, value: Value) -> bool:
    """Whether the user reads each element about once: no broadcasting, no look-up of many."""
    if moves(user, value):
        return True
    space = product(iterated_shape(user))
    return bool(space == value.tensor_type.numel)


def _users(graph: Graph) -> dict[Value, list[Op | None]]:
    """Return the ops that use each value; None stands for the end of the graph."""
    users: dict[Value, list[Op | None]] = {}
    for op in graph.ops:
        for operand in dict.fromkeys(op.operands):
            users.setdefault(operand, []).append(op)
    for value in graph.uses:
        users.setdefault(value, []).append(None)
    return users


def _uses_outside(
    op: Op, users: dict[Value, list[Op | None]], clusters: Clusters, group: Group
) -> Iterator[tuple[Value, Op | None]]:
    """Yield the uses of an op's results beyond its group, those through views by the last view."""
    stack = list(op.results)
    while stack:
        value = stack.pop()
        for user in users.get(value, ()):
            if user is None or clusters.group_of(user) is not None:
                if user is None or clusters.group_of(user) is not group:
                    yield value, user
            elif user.is_view and not why_not(user):
                stack += user.results
            else:
                yield value, user


class _RegionBuilder:
    """Builds the region of a group: its ops, and copies of the views and masks that they need."""

    def __init__(self, clusters: Clusters, members: list[Op], cheap: frozenset[Op]) -> None:
        self.clusters = clusters
        self.cheap = cheap
        self.members = members
        self.parameters: dict[Value, Value] = {}
        self.ops: list[Op] = []
        self._own = set(members)
        self._mapping: dict[Value, Value] = {}
        parts: set[Op] = set()
        for found in (carried_by(op) for op in members if is_write(op)):
            if found is not None and found.inner in self._own:
                parts.add(found.inner)
                self._own.update(found.above)
        # What is read of the part that is written must be seen to be just that.
        for write in (op for op in members if is_write(op)):
            operands = (value for op in members for value in op.operands)
            self._own.update(v.op for v in operands if v.op and reads_part_of(write, v.op))
        for op in members:
            into = written_into(op) if is_write(op) and op not in parts else None
            for operand in op.operands:
                if operand is into and not self._is_computed(operand):
                    self._parameter(operand)
                self._resolve(operand)
            self._append(op)

    def fused(self, results: list[Value], mapping: dict[Value, Value]) -> Fused:
        """Return the fusion op that yields these of the values of its members."""
        region = Region(
            tuple(self.parameters.values()),
            tuple(self.ops),
            tuple(self._mapping[result] for result in results),
        )
        inputs = tuple(mapping.get(value, value) for value in self.parameters)
        loc = next((op.loc for op in self.members if op.loc.is_known), self.members[0].loc)
        return Fused(inputs, region, loc=loc)

    def _append(self, op: Op) -> None:
        made = op.replace_operands(self._mapping)
        self.ops.append(made)
        self._mapping.update(zip(op.results, made.results, strict=True))

    def _resolve(self, value: Value) -> None:
        stack = [(value, False)]
        while stack:
            current, is_ready = stack.pop()
            if current in self._mapping:
                continue
            op = current.op
            if op is None or not self._is_copied(current):
                self._parameter(current)
            elif is_ready:
                self._append(op)
            else:
                stack.append((current, True))
                stack += [(operand, False) for operand in reversed(op.operands)]

    def _parameter(self, value: Value) -> None:
        if value not in self._mapping:
            made = Value(value.type, name=f"x{len(self.parameters)}")
            self.parameters[value] = self._mapping[value] = made

    def _is_computed(self, value: Value) -> bool:
        """Whether what is written into is computed in the region, and not a view of an input."""
        while value.op is not None and value.op.is_view and value.op not in self.clusters.copies:
            value = value.op.operands[0]
        return value.op is not None and self._is_copied(value)

    def _is_copied(self, value: Value) -> bool:
        """Whether a value that no member computes is computed in the region all the same."""
        op = value.op
        while op is not None:
            if op in self.clusters.free or op in self.cheap or op in self._own:
                return True
            if not op.is_view or op in self.clusters.copies or why_not(op):
                return False
            op = op.operands[0].op
        return False
