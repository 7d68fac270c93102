"""Say which collectives of a program over a mesh travel together, the same on all its devices.

A collective joins the open bucket of its kind, in the order of the program, as long as

1.  all of them together are small enough: transfers that are larger would not be more efficient, or
    leave nothing to compute at the same time, and
2.  nobody waits longer for it: its operand is there before anything but views reads what a member
    gives, or is made of inputs by views and casts alone, which can be done ahead.

A bucket starts where its last member stood, or where the first member is read if that is earlier.
By the second rule whatever its members need has arrived by then, so that buckets never wait for
each other in a circle. Sizes are those of the mesh, and the order is that of its program: no device
decides anything by itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import is_static
from lynx.ir.ops.collective import AllGather, AllReduce, Collective, ReduceScatter, Shard
from lynx.ir.sharding import Mesh
from lynx.passes.plan_memory import format_bytes, format_count

from .cost import Costs
from .operations import bytes_of

LIMIT = 25 << 20
"""The most bytes in a bucket, as in DDP of PyTorch (Li et al. 2020, section 3.2.3)."""


@dataclass
class Bucket:
    """Collectives that travel together.

    `size` is what they send at most, in bytes, `deadline` the position of the first op that reads
    what one of them gives.
    """

    members: list[Collective] = field(default_factory=list)
    size: int = 0
    deadline: float = math.inf


def assign_buckets(graph: Graph, costs: Costs, limit: int = LIMIT) -> Graph:
    """Return the graph with the members of each bucket side by side, and its number on them.

    A bucket is as large as transfers get more efficient by the costs, at most `limit` bytes.
    """
    found = [one for one in _buckets(graph, costs, limit) if len(one.members) > 1]
    return _Arranging(graph, found).run() if found else graph


def summary(graph: Graph) -> str:
    """Return in a line what travels in buckets; empty if nothing does."""
    found: dict[tuple[str, tuple[str, ...]], dict[int, int]] = {}
    counts: dict[tuple[str, tuple[str, ...]], int] = {}
    for op in graph.ops:
        if isinstance(op, Collective) and op.bucket >= 0:
            sizes = found.setdefault((op.name, op.axes), {})
            sizes[op.bucket] = sizes.get(op.bucket, 0) + payload(op, graph.mesh)
            counts[op.name, op.axes] = counts.get((op.name, op.axes), 0) + 1
    return "; ".join(
        f"{counts[kind, axes]} {kind} over {', '.join(axes)} travel in "
        f"{format_count(len(sizes), 'bucket')} of up to {format_bytes(max(sizes.values()))}"
        for (kind, axes), sizes in found.items()
    )


def _buckets(graph: Graph, costs: Costs, limit: int) -> list[Bucket]:
    """Return the buckets in the order in which they were opened."""
    reads = first_reads(graph)
    inputs = made_of_inputs(graph)
    opened: dict[Hashable, Bucket] = {}
    found: list[Bucket] = []
    for position, op in enumerate(graph.ops):
        if not isinstance(op, AllReduce | AllGather | ReduceScatter) or not _is_known(op):
            continue
        type_ = op.x.tensor_type
        key = (op.name, op.axes, op.attributes.get("reduction"), type_.dtype, type_.device)
        size = payload(op, graph.mesh)
        bucket = opened.get(key)
        cap = min(limit, costs.saturation(op.axes))
        in_time = bucket is not None and (op.x in inputs or position < bucket.deadline)
        if bucket is None or not in_time or bucket.size + size > cap:
            bucket = opened[key] = Bucket()
            found.append(bucket)
        bucket.members.append(op)
        bucket.size += size
        bucket.deadline = min(bucket.deadline, reads.get(op.out, bucket.deadline))
    return found


def _is_known(op: Collective) -> bool:
    return is_static(op.x.shape) and is_static(op.out.shape)


def payload(op: Collective, mesh: Mesh | None) -> int:
    """Return the bytes of the tensor of a group that is combined, gathered or scattered."""
    whole = op.out if isinstance(op, AllGather) else op.x
    type_ = whole.tensor_type
    cut = [] if type_.sharding is None else [axis for dim in type_.sharding.dims for axis in dim]
    return -(-bytes_of(whole) // (mesh.size(*cut) if mesh is not None and cut else 1))


def first_reads(graph: Graph) -> dict[Value, int]:
    """Return the position of the first op that reads a value or a view of it, and is no view."""
    found: dict[Value, int] = {}
    for position in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[position]
        if _is_view(op):
            read = min((found[result] for result in op.results if result in found), default=None)
        else:
            read = position
        for operand in op.operands:
            if read is not None:
                found[operand] = min(read, found.get(operand, read))
    return found


def made_of_inputs(graph: Graph) -> set[Value]:
    """Return the values that take views and casts of inputs alone."""
    found: set[Value] = set(graph.inputs)
    for op in graph.ops:
        is_cheap = _is_view(op) or (len(op.operands) == 1 and op.is_elementwise)
        if is_cheap and op.is_removable and op.operands and found.issuperset(op.operands):
            found.update(op.results)
    return found


def _is_view(op: Op) -> bool:
    return isinstance(op, Shard) or op.is_view


class _Arranging:
    """Emits ops in order, but the members of a bucket together, and views of them when needed."""

    def __init__(self, graph: Graph, buckets: list[Bucket]) -> None:
        self.graph = graph
        self.bucket: dict[Op, tuple[int, list[Collective]]] = {
            member: (number, bucket.members)
            for number, bucket in enumerate(buckets)
            for member in bucket.members
        }
        self.ops: list[Op] = []
        self.mapping: dict[Value, Value] = {}
        self.done: set[Op] = set()

    def run(self) -> Graph:
        late: set[Value] = set()
        for op in self.graph.ops:
            _, members = self.bucket.get(op, (-1, []))
            is_late = bool(members) and op is not members[-1]
            if is_late or (_is_view(op) and not late.isdisjoint(op.operands)):
                late.update(op.results)
            else:
                self.emit(op)
        for op in self.graph.ops:
            self.emit(op)
        return self.graph.with_ops(tuple(self.ops), self.mapping)

    def emit(self, op: Op) -> None:
        """Add an op after all that it needs, and with a member of a bucket all others."""
        stack = [op]
        while stack:
            current = stack[-1]
            number, members = self.bucket.get(current, (-1, [current]))
            needed = (value.op for member in members for value in member.operands)
            missing = [other for other in needed if other is not None and other not in self.done]
            if current in self.done or not missing:
                stack.pop()
            if current not in self.done and not missing:
                for member in members:
                    self.add(member, number)
            elif current not in self.done:
                stack += reversed(missing)

    def add(self, op: Op, number: int) -> None:
        made = op.replace_operands(self.mapping)
        if isinstance(made, Collective) and number >= 0:
            made = dataclasses.replace(made, bucket=number)
            made.out.type = op.results[0].type  # the same object, so that readers need no new ones
        self.done.add(op)
        self.ops.append(made)
        if made is not op:
            self.mapping.update(zip(op.results, made.results, strict=True))
