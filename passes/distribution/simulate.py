"""Simulate a scheduled program on a machine: when each lane is busy, and how much memory lives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.aten import Resource
from lynx.ir.program import Arena, Dynamic, Fresh, Program, Saved, aligned
from lynx.ir.types import TensorType
from lynx.passes.plan_memory import format_bytes

from .cost import Costs
from .machine import MeshTarget
from .operations import bytes_of
from .order import live_bytes
from .timeline import COMPUTE, Timeline, play


@dataclass(frozen=True)
class Simulation:
    """What a step takes: `step_time` and `exposed` communication in seconds, `peak` in bytes.

    `memory` has the bytes of living results at the moment when each op begins. `reserved` are the
    bytes of planned arenas. `timeline` says what each lane does.
    """

    name: str
    target: str
    timeline: Timeline
    memory: tuple[tuple[float, int], ...]
    reserved: int

    @property
    def step_time(self) -> float:
        """Seconds from the first op to the last arrival."""
        return self.timeline.duration

    @property
    def exposed(self) -> float:
        """Seconds in which nothing is computed since something has not arrived."""
        return self.timeline.exposed

    @property
    def peak(self) -> int:
        """The most bytes of results that live at once."""
        return max((size for _, size in self.memory), default=0)

    def __str__(self) -> str:
        busy = self.timeline.busy
        sent = sum(seconds for lane, seconds in busy.items() if lane != COMPUTE)
        hidden = 1 - self.exposed / sent if sent else 1.0
        lines = [
            f"{self.name} on {self.target}: {_milliseconds(self.step_time)} a step",
            f"compute: {_milliseconds(busy.get(COMPUTE, 0.0))} busy",
        ]
        for lane in sorted(busy):
            if lane != COMPUTE:
                lines.append(f"lane {lane}: {_milliseconds(busy[lane])} busy")
        lines.append(f"exposed communication: {_milliseconds(self.exposed)} ({hidden:.0%} hidden)")
        reserved = f", {format_bytes(self.reserved)} in arenas" if self.reserved else ""
        lines.append(f"peak of results: {format_bytes(self.peak)}{reserved}")
        return "\n".join(lines)

    def trace(self) -> dict[str, Any]:
        """Return the trace that Chrome and Perfetto show, to be written as JSON."""
        lanes = dict.fromkeys([COMPUTE, *(event.lane for event in self.timeline.events)])
        threads = {lane: number for number, lane in enumerate(lanes)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": lane}}
            for lane, number in threads.items()
        ]
        for event in self.timeline.events:
            arguments = {"step": event.position, "type": _types(event.op)}
            if event.op.loc.is_known:
                arguments["place"] = str(event.op.loc)
            events.append(
                _span(event.op.name, threads[event.lane], event.start, event.end, arguments)
            )
        for event in self.timeline.waits:
            events.append(
                _span("exposed", threads[COMPUTE], event.start, event.end, {"step": event.position})
            )
        for moment, size in self.memory:
            events.append(
                {"ph": "C", "pid": 0, "name": "memory", "ts": moment * 1e6, "args": {"bytes": size}}
            )
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def simulate(module: Program | Graph, target: MeshTarget) -> Simulation:
    """Return how a program, or a graph of one device, runs on a machine."""
    graph = module.graph if isinstance(module, Program) else module
    timeline = play(module.ops, Costs(target, graph.mesh))
    living = _placed_bytes(module) if isinstance(module, Program) else live_bytes(graph.ops, graph)
    reserved = sum(arena.size for arena in module.arenas) if isinstance(module, Program) else 0
    memory = tuple(zip(timeline.times, living, strict=True))
    return Simulation(graph.name, target.name, timeline, memory, reserved)


def _placed_bytes(program: Program) -> list[int]:
    """Return the bytes of results with memory of their own that are needed in each step."""
    changes = [0] * (len(program.steps) + 2)
    for value, start, end, size in _owned(program):
        del value
        changes[start] += size
        changes[min(end, len(program.steps)) + 1] -= size
    living, found = 0, []
    for change in changes[: len(program.steps)]:
        living += change
        found.append(living)
    return found


def _owned(program: Program) -> Iterator[tuple[Value, int, int, int]]:
    """Yield what has memory of its own, the first and the last step that need it, and its bytes."""
    for index, step in enumerate(program.steps):
        if isinstance(step.op, Resource):
            continue
        for value, placement in zip(step.op.results, step.placements, strict=True):
            if isinstance(placement, Arena | Saved):
                size = placement.size
                known = aligned(size) if isinstance(size, int) else bytes_of(value)
                end = len(program.steps) if isinstance(placement, Saved) else program.ends[value]
                yield value, index, end, known
            elif isinstance(placement, Fresh | Dynamic) and isinstance(value.type, TensorType):
                yield value, index, program.ends[value], bytes_of(value)


def _types(op: Op) -> str:
    return ", ".join(str(result.type) for result in op.results)


def _span(
    name: str, thread: int, start: float, end: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    duration = (end - start) * 1e6
    return {
        "ph": "X",
        "pid": 0,
        "tid": thread,
        "name": name,
        "ts": start * 1e6,
        "dur": duration,
        "args": arguments,
    }


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
