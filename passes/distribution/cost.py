"""How long ops take: a roofline for what computes, latency and bandwidth for what communicates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lynx.ir.core import Op
from lynx.ir.ops.aten import Resource, Symbolic
from lynx.ir.ops.communication import (
    Communication,
    LocalAllReduce,
    LocalAllToAll,
    LocalReduceScatter,
)
from lynx.ir.ops.schedule import Start, Wait
from lynx.ir.sharding import Mesh
from lynx.ir.types import TensorType

from .machine import Link, MeshTarget
from .operations import bytes_of, elements, moved_bytes, operations

_SATURATION = 9
"""A transfer of this many times latency times bandwidth reaches 90 % of the bandwidth."""


@dataclass(frozen=True)
class Costs:
    """The costs of ops in seconds, on a machine whose devices form a mesh."""

    target: MeshTarget
    mesh: Mesh | None
    _computing: dict[Op, float] = field(default_factory=dict)

    def compute(self, op: Op) -> float:
        """Return how long an op keeps the device busy; 0 for views and for what waits."""
        found = self._computing.get(op)
        if found is None:
            found = self._computing[op] = self._compute(op)
        return found

    def _compute(self, op: Op) -> float:
        if isinstance(op, Start | Wait | Communication | Resource | Symbolic) or op.is_view:
            return 0.0
        dtype = next(
            (v.type.dtype.value for v in op.results if isinstance(v.type, TensorType)), "f32"
        )
        busy = operations(op) / self.target.operations(str(dtype))
        return self.target.launch + max(busy, moved_bytes(op) / self.target.memory_bandwidth)

    def transfer(self, op: Start | Communication) -> float:
        """Return how long the link of a communication is busy with it, all tensors together."""
        parts = op.parts if isinstance(op, Start) else (op,)
        link, members = self.target.link(self.mesh, op.axes), members_of(parts[0], self.mesh)
        payload = sum(payload_of(part, members) for part in parts)
        return transfer_time(parts[0], payload, members, link)

    def saturation(self, axes: tuple[str, ...]) -> float:
        """Return the bytes from which on a transfer along mesh axes does not get more efficient."""
        link = self.target.link(self.mesh, axes)
        members = 2 if self.mesh is None else max(self.mesh.size(*axes), 2)
        return _SATURATION * link.latency * (members - 1) * link.bandwidth


def members_of(op: Communication, mesh: Mesh | None) -> int:
    """Return how many devices take part."""
    if mesh is not None:
        return mesh.size(*op.axes)
    sizes = op.attributes.get("sizes") or op.attributes.get("source_sizes")
    return len(sizes) if sizes else 2


def payload_of(op: Communication, members: int) -> int:
    """Return the bytes of the whole tensor that a communication is about, as if cut evenly.

    Every member gets the same answer, however long its own piece is.
    """
    x = op.x.tensor_type
    match op:
        case LocalAllReduce():
            return bytes_of(op.x)
        case LocalReduceScatter():
            rest = elements((*x.shape[: op.dim], *x.shape[op.dim + 1 :]))
            return rest * members * max(op.sizes) * x.dtype.itemsize
        case LocalAllToAll():
            taken = (op.source, op.target)
            rest = elements(d for index, d in enumerate(x.shape) if index not in taken)
            longest = max(op.source_sizes) * sum(op.target_sizes)
            return rest * longest * x.dtype.itemsize
    dim, sizes = op.attributes["dim"], op.attributes["sizes"]
    rest = elements((*x.shape[:dim], *x.shape[dim + 1 :]))
    return int(rest * members * max(sizes) * x.dtype.itemsize)


def transfer_time(op: Communication, payload: float, members: int, link: Link) -> float:
    """Return the time of the fastest algorithm, in seconds; 0 for a group of one."""
    if members < 2:
        return 0.0
    steps = members - 1
    ring = steps * link.latency + payload * steps / members / link.bandwidth
    if not isinstance(op, LocalAllReduce):
        return ring
    levels = math.ceil(math.log2(members))
    tree = 2 * (levels * link.latency + payload / link.bandwidth)
    return min(2 * ring, tree)
