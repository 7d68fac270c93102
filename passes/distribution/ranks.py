"""Check the programs of all devices of a mesh together: nobody waits for what never comes.

1.  Members of a group make the same calls in the same order (`order-differs`): of one kind and
    reduction, over the same tensors cut alike, and each knows its own place.
2.  There is one order of all communication that every device keeps (`group-cycle`), so that groups
    do not wait for each other in a circle.

From this it follows that no step hangs. Take the first communication in the common order that does
not end. Each of its members has either started it, or waits for one before it, which ends. So all
of them start it, and it ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lynx.ir.core import Graph, Op
from lynx.ir.errors import CompileError
from lynx.ir.ops.communication import Communication
from lynx.ir.ops.schedule import Start, lane_of
from lynx.ir.printer import format_op
from lynx.ir.program import Program
from lynx.ir.program_verifier import verify_program
from lynx.ir.sharding import Mesh
from lynx.ir.verifier import verify

from .localize import localize

Module = Graph | Program


@dataclass(frozen=True, slots=True)
class Call:
    """One communication as all members of its group must see it, and the place of this one."""

    op: Start | Communication
    axes: tuple[str, ...]
    shared: tuple[object, ...]
    index: int | None


def order_text(module: Module) -> str:
    """Return the communication of a program, one line each, the same on all devices of a mesh.

    It leaves out sizes, which differ between groups: that of a digest to be compared at run time.
    """
    lines = []
    for call in calls_of(module):
        parts = call.op.parts if isinstance(call.op, Start) else (call.op,)
        reduction = call.op.attributes.get("reduction")
        kind = parts[0].name.removeprefix("local_")
        tensors = [
            f"{part.x.tensor_type.dtype.value} rank {part.x.tensor_type.rank}" for part in parts
        ]
        dims = [_dims(part) for part in parts]
        words = [f"lane {lane_of(call.axes)}: {kind}", *([str(reduction)] if reduction else [])]
        entries = (f"{tensor} {dim}".strip() for tensor, dim in zip(tensors, dims, strict=True))
        lines.append(f"{' '.join(words)} ({', '.join(call.axes)}): {'; '.join(entries)}")
    return "\n".join(lines)


def _dims(part: Communication) -> str:
    names = ("dim", "source", "target", "site")
    return " ".join(f"{n} {part.attributes[n]}" for n in names if n in part.attributes)


def calls_of(module: Module) -> list[Call]:
    """Return the communication of a program in the order in which it starts."""
    return [_call(op) for op in module.ops if isinstance(op, Start | Communication)]


def _call(op: Start | Communication) -> Call:
    parts = op.parts if isinstance(op, Start) else (op,)
    shared = tuple(item for part in parts for item in _shared(part))
    index = op.attributes.get("index")
    return Call(op, op.axes, shared, index)


def _shared(part: Communication) -> tuple[object, ...]:
    """Return what members of a group have in common: all but their places and own lengths."""
    own = {part.attributes.get(name) for name in ("dim", "source")}
    x = part.x.tensor_type
    shape = tuple(None if dim in own else size for dim, size in enumerate(x.shape))
    if part.name == "local_reduce_scatter":
        shape = x.shape
    attributes = tuple((k, v) for k, v in part.attributes.items() if k not in ("index", "axes"))
    return (part.name, x.dtype, shape, attributes)


def verify_schedules(typed: Graph, compile_local: Callable[[Graph], Module]) -> None:
    """Raise `CompileError` unless the programs that are made for all devices fit each other.

    `typed` is a graph over a mesh, `compile_local` makes the program of what one device has of it.
    """
    mesh = typed.mesh or Mesh("mesh", ())
    places = map(mesh.coordinates, range(mesh.device_count))
    verify_ranks([compile_local(localize(typed, place)) for place in places], mesh)


def verify_ranks(modules: Sequence[Module], mesh: Mesh) -> None:
    """Raise `CompileError` at the first way in which the programs of a mesh's devices do not fit.

    `modules` are in row-major order of the devices; each is verified alone as well.
    """
    for module in modules:
        if isinstance(module, Program):
            verify_program(module)
        else:
            verify(module)
    calls = [calls_of(module) for module in modules]
    _check_groups(calls, mesh)
    _check_cycles(calls, mesh)


def members(mesh: Mesh, axes: tuple[str, ...], device: int) -> tuple[int, ...]:
    """Return the devices of a group in row-major order of their coordinates along `axes`."""
    place = mesh.coordinates(device)
    inside = itertools.product(*(range(mesh.size(axis)) for axis in axes))
    return tuple(mesh.device(place | dict(zip(axes, one, strict=True))) for one in inside)


def _check_groups(calls: Sequence[Sequence[Call]], mesh: Mesh) -> None:
    """Compare the calls of each group: those of all members with those of its first."""
    lanes = [_by_lane(own) for own in calls]
    names = list(dict.fromkeys(lane for found in lanes for lane in found))
    for own in calls:
        _check_axes(own, mesh)
    for lane in names:
        for device, found in enumerate(lanes):
            sequence = found.get(lane, [])
            first = min(members(mesh, tuple(lane.split("+")), device))
            _compare(lanes[first].get(lane, []), sequence, (first, device))
            for call in sequence:
                place = members(mesh, call.axes, device).index(device)
                if call.index not in (None, place):
                    message = f"device {device} is number {place} of its group, not {call.index}"
                    raise _error("order-differs", message, call.op)


def _by_lane(calls: Sequence[Call]) -> Mapping[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for call in calls:
        found.setdefault(lane_of(call.axes), []).append(call)
    return found


def _check_axes(calls: Sequence[Call], mesh: Mesh) -> None:
    for call in calls:
        unknown = [axis for axis in call.axes if axis not in mesh.names]
        if unknown:
            known = ", ".join(mesh.names)
            raise _error("unknown-axis", f"the mesh has the axes ({known}), not {unknown}", call.op)


def _compare(ours: Sequence[Call], theirs: Sequence[Call], devices: tuple[int, int]) -> None:
    for number, (a, b) in enumerate(itertools.zip_longest(ours, theirs)):
        if a is None or b is None:
            lacking, found = (devices[0], b) if a is None else (devices[1], a)
            text = f"device {lacking} has no number {number} of a lane, the other one has it"
            raise _error("order-differs", text, found.op)
        if (a.axes, a.shared) != (b.axes, b.shared):
            text = f"device {devices[1]} has '{format_op(b.op)}' as number {number} of a lane"
            raise _error("order-differs", f"{text}, device {devices[0]} has another", a.op)


def _check_cycles(calls: Sequence[Sequence[Call]], mesh: Mesh) -> None:
    """Let all devices go through their calls; each call needs all members of its group."""
    at = [0] * len(calls)
    waiting: dict[tuple[int, ...], int] = {}
    ready = list(range(len(calls)))
    while ready:
        device = ready.pop()
        if at[device] == len(calls[device]):
            continue
        axes = calls[device][at[device]].axes
        group = tuple(sorted(members(mesh, axes, device)))
        waiting[group] = waiting.get(group, 0) + 1
        if waiting[group] == len(group):
            del waiting[group]
            for member in group:
                at[member] += 1
            ready += group
    if waiting:
        group = min(waiting)
        device = next(d for d in group if at[d] < len(calls[d]))
        call = calls[device][at[device]]
        listed = "; ".join(str(list(one)) for one in sorted(waiting))
        raise _error("group-cycle", f"groups of devices wait for each other: {listed}", call.op)


def _error(code: str, message: str, op: Op) -> CompileError:
    return CompileError(code, f"{message}, in '{format_op(op)}'", op.loc)
