"""Plan the arenas: offsets for everything that lives in them, and a report of what that takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Value
from lynx.ir.dims import Dim, evaluate, is_static
from lynx.ir.location import Location
from lynx.ir.program import (
    Arena,
    ArenaSize,
    Placement,
    Program,
    Saved,
    Step,
    aligned,
    buffers,
)

from .base import PassContext, Remark, Requirement, register_pass
from .offsets import DEFAULT_BUDGET, Lifetime, Packing, lower_bound, pack
from .requirements import IS_PROGRAM

RUNTIME_BUDGET = 200_000
"""How many pairs of buffers the search compares when it runs between two calls."""

_LARGEST = 5


@register_pass
@dataclass(frozen=True)
class PlanMemory:
    """Give every buffer its offset, such that no two overlap that are needed at the same time.

    An arena with sizes that depend on symbols is left to the runtime, which packs it for each class
    of sizes that it meets. `budget` bounds the search, in compared pairs of buffers.
    """

    name: ClassVar[str] = "plan-memory"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_PROGRAM,)

    budget: int = DEFAULT_BUDGET

    def run(self, module: Program, context: PassContext) -> Program:
        """Return the program with offsets."""
        places: dict[Value, Placement] = {}
        arenas: list[ArenaSize] = []
        for group in groups_of(module):
            if not group.is_static:
                continue
            packing = group.pack({}, self.budget)
            for buffer, offset in zip(group.buffers, packing.offsets, strict=True):
                places[buffer.value] = dataclasses.replace(buffer.placement, offset=offset)
            arenas.append(ArenaSize(group.device, group.saved, packing.peak))
            context.remarks.append(Remark("memory", _describe(group, packing)))
        if not places:
            return module
        steps = tuple(_placed(step, places) for step in module.steps)
        return dataclasses.replace(module, steps=steps, arenas=tuple(arenas))


def _placed(step: Step, places: Mapping[Value, Placement]) -> Step:
    placements = tuple(
        places.get(result, placement)
        for result, placement in zip(step.op.results, step.placements, strict=True)
    )
    return dataclasses.replace(step, placements=placements)


def _describe(group: BufferGroup, packing: Packing) -> str:
    count = len(group.buffers)
    held = format_count(count, "temporary buffer")
    if group.saved:
        held = f"{format_count(count, 'buffer')} kept for backward"
    return f"{held} on {group.device} in {packing.peak} bytes (at least {packing.lower_bound})"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value with memory in an arena, and the first and last step that need it."""

    value: Value
    placement: Arena | Saved
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BufferGroup:
    """The buffers of one arena in order of definition."""

    device: str
    saved: bool
    buffers: tuple[Buffer, ...]

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """The sizes of the buffers in bytes, not aligned."""
        return tuple(buffer.placement.size for buffer in self.buffers)

    @property
    def is_static(self) -> bool:
        """Whether no size depends on a symbol."""
        return is_static(self.sizes)

    def pack(self, symbols: Mapping[str, int], budget: int = RUNTIME_BUDGET) -> Packing:
        """Return offsets for given values of the symbols."""
        return self.pack_sizes([evaluate(size, symbols) for size in self.sizes], budget)

    def pack_sizes(self, sizes: Sequence[int], budget: int = RUNTIME_BUDGET) -> Packing:
        """Return offsets for given sizes in bytes."""
        lives = [
            Lifetime(aligned(size), buffer.start, buffer.end)
            for size, buffer in zip(sizes, self.buffers, strict=True)
        ]
        return pack(lives, budget)


def groups_of(program: Program) -> tuple[BufferGroup, ...]:
    """Return the arenas of a program in order of first use."""
    found: dict[tuple[str, bool], list[Buffer]] = {}
    for value, placement, start, end in buffers(program):
        key = (value.tensor_type.device, isinstance(placement, Saved))
        found.setdefault(key, []).append(Buffer(value, placement, start, end))
    return tuple(BufferGroup(*key, tuple(members)) for key, members in found.items())


@dataclass(frozen=True, slots=True)
class LargeBuffer:
    """A buffer that lives when an arena is fullest."""

    size: int
    type: str
    op: str
    loc: Location

    def __str__(self) -> str:
        place = f"  ({self.loc})" if self.loc.is_known else ""
        return f"{format_bytes(self.size)}  {self.op} : {self.type}{place}"


@dataclass(frozen=True, slots=True)
class ArenaReport:
    """What one arena takes: `peak` bytes are reserved, at least `lower_bound` must be.

    `naive` is the sum of all buffers without any reuse, `largest` are the largest buffers among
    those that live when most bytes do.
    """

    device: str
    saved: bool
    buffers: int
    peak: int
    lower_bound: int
    naive: int
    largest: tuple[LargeBuffer, ...]

    @property
    def fragmentation(self) -> float:
        """The part of the peak that no set of living buffers needs."""
        return 1 - self.lower_bound / self.peak if self.peak else 0.0

    def __str__(self) -> str:
        kind = "saved for backward" if self.saved else "arena"
        head = (
            f"{kind} on {self.device}: {format_bytes(self.peak)} for "
            f"{format_count(self.buffers, 'buffer')}, lower bound {format_bytes(self.lower_bound)} "
            f"({self.fragmentation:.1%} lost), without reuse {format_bytes(self.naive)}"
        )
        return "\n".join([head, *(f"  {buffer}" for buffer in self.largest)])


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory plan of a program; `str` gives the table. `symbolic` arenas are planned later.

    `placements` counts results by kind of placement.
    """

    arenas: tuple[ArenaReport, ...]
    symbolic: int
    placements: Mapping[str, int]

    @property
    def peak(self) -> int:
        """Bytes of all arenas together."""
        return sum(arena.peak for arena in self.arenas)

    def __str__(self) -> str:
        lines = [str(arena) for arena in self.arenas]
        if self.symbolic:
            count = format_count(self.symbolic, "arena")
            lines.append(f"{count} to be planned when sizes are known")
        counts = ", ".join(f"{word} {count}" for word, count in self.placements.items())
        return "\n".join([*lines, f"results: {counts}"])


def memory_report(program: Program, symbols: Mapping[str, int] | None = None) -> MemoryReport:
    """Return what the memory plan takes, of symbolic arenas too if `symbols` are given."""
    arenas = []
    symbolic = 0
    planned = {(arena.device, arena.saved): arena.size for arena in program.arenas}
    for group in groups_of(program):
        if not group.is_static and symbols is None:
            symbolic += 1
            continue
        sizes = [evaluate(size, symbols or {}) for size in group.sizes]
        peak = planned.get((group.device, group.saved))
        arenas.append(_arena_report(group, sizes, peak))
    counts: dict[str, int] = {}
    for step in program.steps:
        for placement in step.placements:
            counts[placement.word] = counts.get(placement.word, 0) + 1
    return MemoryReport(tuple(arenas), symbolic, counts)


def _arena_report(group: BufferGroup, sizes: Sequence[int], peak: int | None) -> ArenaReport:
    lives = [
        Lifetime(aligned(size), buffer.start, buffer.end)
        for size, buffer in zip(sizes, group.buffers, strict=True)
    ]
    fullest = _fullest_step(lives)
    living = [
        (life.size, buffer)
        for life, buffer in zip(lives, group.buffers, strict=True)
        if life.start <= fullest <= life.end
    ]
    living.sort(key=lambda pair: -pair[0])
    return ArenaReport(
        group.device,
        group.saved,
        len(lives),
        pack(lives, RUNTIME_BUDGET).peak if peak is None else peak,
        lower_bound(lives),
        sum(life.size for life in lives),
        tuple(_large(size, buffer.value) for size, buffer in living[:_LARGEST]),
    )


def _fullest_step(lives: Sequence[Lifetime]) -> int:
    """Return the first step in which most bytes live."""
    changes: dict[int, int] = {}
    for size, start, end in lives:
        changes[start] = changes.get(start, 0) + size
        changes[end + 1] = changes.get(end + 1, 0) - size
    living = most = fullest = 0
    for step in sorted(changes):
        living += changes[step]
        if living > most:
            most, fullest = living, step
    return fullest


def _large(size: int, value: Value) -> LargeBuffer:
    assert value.op is not None, value
    return LargeBuffer(size, str(value.type), value.op.name, value.op.loc)


def format_count(count: int, noun: str) -> str:
    """Return a number of things: `1 buffer`, `2 buffers`, `0 launches`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"


def format_bytes(size: int) -> str:
    """Return a size with a unit: `1.5 MiB`."""
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{int(amount)} B" if unit == "B" else f"{amount:.1f} {unit}"
