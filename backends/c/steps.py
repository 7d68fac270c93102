"""From kernels to steps: loop nests as text, shared where they are equal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from lynx.ir.dims import Dim
from lynx.ir.kernel import Buffer, Check, Kernel, Load, Store
from lynx.ir.native import KernelCall, Pointer, Tenancy

from .loops import NestPrinter
from .printer import NestText
from .schedule import Schedule, picoseconds, points_per_unit, schedule, unit_dims
from .split import Nest, Plan, split


@dataclass(eq=False)
class Step:
    """One nest of a kernel."""

    nest: Nest
    plan: Schedule
    text: NestText
    units: list[Dim]
    blocked: tuple[Dim, int] | None
    points: list[Dim]
    cost: int
    reads: list[Buffer]
    writes: list[Buffer]


@dataclass(eq=False)
class KernelSteps:
    """The steps of a kernel in order, with the scratch memory between them."""

    steps: list[Step]
    plan: Plan
    producers: dict[int, int]

    @property
    def scratch(self) -> dict[Buffer, list[Dim]]:
        """The points of each scratch buffer, for each chunk where it is partial."""
        return {entry.buffer: list(entry.points) for entry in self.plan.scratch}


def steps_of(kernel: Kernel) -> KernelSteps:
    """Split, schedule and print a kernel."""
    plan = split(kernel)
    steps = [_step(nest) for nest in plan.nests]
    producers: dict[int, int] = {}
    numbers = {entry.buffer: entry.number for entry in plan.scratch}
    for position, step in enumerate(steps):
        for partial in step.nest.partials:
            number = numbers[partial.buffer]
            assert number is not None
            producers[number] = position
    return KernelSteps(steps, plan, producers)


def _step(nest: Nest) -> Step:
    plan = schedule(nest)
    text = NestPrinter(plan).print()
    units, size = unit_dims(plan)
    reads = [i.buffer for i in nest.body if isinstance(i, Load)]
    writes = [e.buffer for e in nest.effects if not isinstance(e, Check)]
    reads += [e.buffer for e in nest.effects if isinstance(e, Store) and e.combine == "add"]
    return Step(
        nest,
        plan,
        text,
        units,
        (size, plan.block) if size is not None else None,
        points_per_unit(plan),
        picoseconds(plan),
        list(dict.fromkeys(reads)),
        list(dict.fromkeys(writes)),
    )


@dataclass(eq=False)
class Functions:
    """The distinct functions of a program. Equal texts are one function, whatever it is for."""

    names: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[str, None]] = field(default_factory=dict)
    kernels: dict[str, dict[Kernel, None]] = field(default_factory=dict)

    def enter(self, text: NestText, kernel: Kernel) -> str:
        """Return the name of the function with this text."""
        name = self.names.get(text.text)
        if name is None:
            name = f"kernel{len(self.names)}_{'_'.join(text.words)}"
            self.names[text.text] = name
        self.places.setdefault(name, {}).update(dict.fromkeys(text.places))
        self.kernels.setdefault(name, {})[kernel] = None
        return name

    def definitions(self) -> list[tuple[str, str]]:
        """Return names and definitions, with comments that say where they come from."""
        result = []
        for text, name in self.names.items():
            places = list(self.places[name])
            more = f" and {len(places) - 3} more" if len(places) > 3 else ""
            comment = f"/* {', '.join(places[:3])}{more} */\n" if places else ""
            result.append((name, comment + text.replace("@NAME@", name)))
        return result


@dataclass(eq=False)
class _Access:
    first: Dim
    size: int | None
    is_written: bool


@dataclass
class _Span:
    """When the first of an arena's tenants leaves and when the last one comes, as steps."""

    first_end: float = math.inf
    last_start: float = -math.inf


class Barriers:
    """Decides before which steps all threads must wait: those that touch what others still do."""

    def __init__(self, tenancies: Mapping[int, Tenancy]) -> None:
        self.tenancies = tenancies
        self.open: dict[object, list[_Access]] = {}
        self.arenas: dict[tuple[int, bool], _Span] = {}

    def is_needed(self, step: Step, call: KernelCall, scratch: dict[Buffer, object]) -> bool:
        """Whether a barrier comes before the step; remembers what it touches."""
        pointers = dict(zip(call.kernel.buffers, call.buffers, strict=True))
        found: list[tuple[object, _Access]] = []
        for buffers, is_written in ((step.reads, False), (step.writes, True)):
            for buffer in buffers:
                if buffer in scratch:
                    found.append((scratch[buffer], _Access(0, None, is_written)))
                else:
                    found.append(_access(pointers[buffer], buffer, is_written))
        tenants = [
            (self.tenancies[key], access.is_written)
            for key, access in found
            if isinstance(key, int) and key in self.tenancies
        ]
        conflict = any(
            _conflicts(access, other) for key, access in found for other in self.open.get(key, ())
        ) or any(self._may_meet(*tenant) for tenant in tenants)
        if conflict:
            self.open, self.arenas = {}, {}
        for key, access in found:
            self.open.setdefault(key, []).append(access)
        for tenancy, is_written in tenants:
            span = self.arenas.setdefault((tenancy.arena, is_written), _Span())
            span.first_end = min(span.first_end, tenancy.end)
            span.last_start = max(span.last_start, tenancy.start)
        return conflict

    def _may_meet(self, tenancy: Tenancy, is_written: bool) -> bool:
        """Whether another tenant may have had the same memory, or will; one of them writes."""
        kinds = (True, False) if is_written else (True,)
        spans = [self.arenas.get((tenancy.arena, kind)) for kind in kinds]
        return any(
            span is not None and (span.first_end < tenancy.start or span.last_start > tenancy.end)
            for span in spans
        )


def _access(pointer: Pointer, buffer: Buffer, is_written: bool) -> tuple[object, _Access]:
    extent = buffer.extent
    size = extent * buffer.dtype.itemsize if isinstance(extent, int) else None
    return pointer.slot, _Access(pointer.offset, size, is_written)


def _conflicts(a: _Access, b: _Access) -> bool:
    if not (a.is_written or b.is_written):
        return False
    if isinstance(a.first, int) and isinstance(b.first, int):
        ends_before = a.size is not None and a.first + a.size <= b.first
        starts_after = b.size is not None and b.first + b.size <= a.first
        return not (ends_before or starts_after)
    return True
