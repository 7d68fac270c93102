"""Play a sequence of ops: one lane that computes, and one for each group that communicates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lynx.ir.core import Op, Value
from lynx.ir.ops.communication import Communication
from lynx.ir.ops.schedule import Start, Wait, lane_of

from .cost import Costs

COMPUTE = "compute"


@dataclass(frozen=True, slots=True)
class Event:
    """What a lane does from `start` to `end`, in seconds. `position` is that of the op."""

    lane: str
    op: Op
    position: int
    start: float
    end: float


@dataclass
class Timeline:
    """When everything happens.

    `waits` holds for each wait, and each communication that is not split, how long nothing was
    computed for it; `exposed` is their sum. `times` has the moment at which each op begins.
    """

    events: list[Event] = field(default_factory=list)
    waits: list[Event] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    duration: float = 0.0

    @property
    def exposed(self) -> float:
        """Seconds in which nothing is computed since something has not arrived."""
        return sum(event.end - event.start for event in self.waits)

    @property
    def busy(self) -> dict[str, float]:
        """Seconds for which each lane is busy."""
        found: dict[str, float] = {}
        for event in self.events:
            found[event.lane] = found.get(event.lane, 0.0) + event.end - event.start
        return found


def play(ops: Iterable[Op], costs: Costs) -> Timeline:
    """Return when each op of a sequence runs, if each begins as soon as it can."""
    line = Timeline()
    now = 0.0
    free: dict[str, float] = {}
    landing: dict[Value, float] = {}
    for position, op in enumerate(ops):
        line.times.append(now)
        if isinstance(op, Start | Communication):
            lane = op.lane if isinstance(op, Start) else lane_of(op.axes)
            begin = max(now, free.get(lane, 0.0))
            free[lane] = end = begin + costs.transfer(op)
            line.events.append(Event(lane, op, position, begin, end))
            if isinstance(op, Start):
                landing.update(dict.fromkeys(op.results, end))
                continue
            line.waits.append(Event(COMPUTE, op, position, now, end))
            now = end
        elif isinstance(op, Wait):
            end = max(now, landing[op.pending[0]])
            if end > now:
                line.waits.append(Event(COMPUTE, op, position, now, end))
            now = end
        else:
            seconds = costs.compute(op)
            if seconds:
                line.events.append(Event(COMPUTE, op, position, now, now + seconds))
            now += seconds
    line.duration = max([now, *free.values()])
    return line
