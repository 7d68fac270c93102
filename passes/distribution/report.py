"""What a program over a mesh communicates, and why values lie as they do: text for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import Dim
from lynx.ir.location import Location
from lynx.ir.ops.collective import AllGather, AllReduce, Collective
from lynx.ir.sharding import Mesh, Sharding
from lynx.ir.types import TensorType

from .propagate import Layouts
from .redistribute import bytes_of

_MOST_STEPS = 100


@dataclass(frozen=True, slots=True)
class Traffic:
    """All collectives of one kind over the same mesh axes.

    `sent` is what each device sends in one run, in bytes: a ring algorithm's share of each tensor.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    sent: float


def sent_by(op: Collective, mesh: Mesh) -> float:
    """Return the bytes that each device sends for a collective, as a ring algorithm does.

    A ring over p devices sends (p - 1) / p of the tensor that is gathered or scattered, an
    all-reduce twice that (Patarasuk and Yuan 2009).
    """
    if not op.needs_communication:
        return 0.0
    type_ = op.x.tensor_type
    lies = op.out.tensor_type.sharding if isinstance(op, AllGather) else op.given
    local = bytes_of(local_shape(type_, lies, mesh), type_.dtype.itemsize)
    count = mesh.size(*op.axes)
    return local * (count - 1) / count * (2 if isinstance(op, AllReduce) else 1)


def local_shape(type_: TensorType, sharding: Sharding | None, mesh: Mesh) -> tuple[Dim, ...]:
    """Return the shape of the largest part that a device holds."""
    if sharding is None:
        return type_.shape
    first = dict.fromkeys(mesh.names, 0)
    return tuple(
        split.part(size, mesh, first)[1] if isinstance(size, int) else size
        for size, split in zip(type_.shape, sharding.splits, strict=True)
    )


def traffic_of(graph: Graph) -> tuple[Traffic, ...]:
    """Return what a program over a mesh communicates, in order of first use."""
    mesh = graph.mesh
    assert mesh is not None
    found: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for op in graph.ops:
        if isinstance(op, Collective) and op.needs_communication:
            found.setdefault((op.name, op.axes), []).append(sent_by(op, mesh))
    return tuple(Traffic(kind, axes, len(sent), sum(sent)) for (kind, axes), sent in found.items())


def traffic_table(graph: Graph) -> str:
    """Return a table of what a program communicates."""
    rows = [("collective", "over", "count", "sent by each device")]
    for one in traffic_of(graph):
        rows.append((one.kind, ", ".join(one.axes), str(one.count), _bytes(one.sent)))
    if len(rows) == 1:
        return "no communication"
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def summary(graph: Graph) -> str:
    """Return in a line what each device sends when a program runs once."""
    texts = [
        f"{one.count} {one.kind} over {', '.join(one.axes)} send {_bytes(one.sent)}"
        for one in traffic_of(graph)
    ]
    return "; ".join(texts) if texts else "no communication"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class Because:
    """One step of an explanation: a tensor is cut by an axis, because of an op, at a place."""

    value: Value
    axis: str
    through: str
    loc: Location
    op: Op | None = None

    @property
    def is_annotated(self) -> bool:
        """Whether an annotation says so, and no neighbour."""
        return self.op is None

    def __str__(self) -> str:
        name = f"%{self.value.name}" if self.value.op is None else self.value.op.name
        place = f" at {self.loc}" if self.loc.is_known else ""
        return f"{name} {self.value.type} by '{self.axis}': {self.through}{place}"


def why(layouts: Layouts, value: Value, axis: str) -> Iterator[Because]:
    """Yield why an axis cuts a value: from neighbour to neighbour back to an annotation."""
    seen: set[Value] = set()
    current: Value | None = value
    while current is not None and current not in seen and len(seen) < _MOST_STEPS:
        seen.add(current)
        reason = layouts.reasons.get(current, {}).get(axis)
        if reason is None:
            return
        if reason.op is None:
            yield Because(current, axis, "annotated", Location())
            return
        text = f"as its neighbour in '{reason.op.name}'"
        yield Because(current, axis, text, reason.op.loc, reason.op)
        current = reason.source
