"""Order ops so that communication happens while something else is computed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op
from lynx.ir.errors import UsageError
from lynx.ir.ops.schedule import Start
from lynx.passes.base import PassContext, Remark, Requirement, register_pass
from lynx.passes.requirements import IS_GRAPH

from .cost import Costs
from .machine import MeshTarget, read_target
from .order import Needs, in_order, peak_bytes, scheduled, starts_first
from .timeline import Timeline, play

MEBIBYTE = 1 << 20
MODES = ("conservative", "free")


@register_pass
@dataclass(frozen=True)
class ScheduleOverlap:
    """Start communication as early, and wait for it as late, as that helps.

    Of several orders the fastest is taken by the costs of `target`, a machine's name or TOML file
    (that which the context's is like, if empty), among those whose peak of memory is at most
    `growth` percent above that of the graph, or `in_flight` MiB. The mode `conservative` keeps all
    starts in the order that they have, so that it is equal on all ranks whatever they compute;
    `free` keeps it on each lane only.
    """

    name: ClassVar[str] = "schedule-overlap"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    target: str = ""
    mode: str = "conservative"
    in_flight: int = 1024
    growth: int = 5

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph in another order; itself if none is better."""
        if not any(isinstance(op, Start) for op in module.ops):
            return module
        check_mode(self.mode)
        costs = Costs(target_of(self.target or context.machine, context.target.device), module.mesh)
        before = play(module.ops, costs)
        ops, after = best_order(module, costs, self)
        context.remarks.append(Remark("schedule", _describe(before, after)))
        if ops == module.ops:
            return module
        return dataclasses.replace(module, ops=ops)


def check_mode(mode: str) -> None:
    """Raise `UsageError` unless there is such a mode."""
    if mode not in MODES:
        message = f"'schedule-overlap' has no mode '{mode}', expected {' or '.join(MODES)}"
        raise UsageError("unknown-mode", message)


def target_of(name: str, device: str) -> MeshTarget:
    """Return a machine by name, or if that is empty a usual one with such devices."""
    usual = "cpu-gloo" if device == "cpu" else "h100"
    return read_target(name or usual)


def best_order(
    graph: Graph, costs: Costs, options: ScheduleOverlap
) -> tuple[tuple[Op, ...], Timeline]:
    """Return the best order that list scheduling finds, and how it plays."""
    needs = Needs.of(graph, free=options.mode == "free")
    peak = peak_bytes(graph.ops, graph)
    limit = options.in_flight * MEBIBYTE
    allowed = peak + max(limit, peak * options.growth // 100)
    best, line = graph.ops, play(graph.ops, costs)
    for priority in (in_order(needs), starts_first(needs)):
        ops = scheduled(needs, costs, priority, limit)
        played = play(ops, costs)
        if played.duration < line.duration and peak_bytes(ops, graph) <= allowed:
            best, line = ops, played
    return best, line


def _describe(before: Timeline, after: Timeline) -> str:
    return (
        f"communication that nothing hides: {after.exposed * 1e3:.3f} ms, "
        f"{before.exposed * 1e3:.3f} ms before; a step takes {after.duration * 1e3:.3f} ms"
    )
