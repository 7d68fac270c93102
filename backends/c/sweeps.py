"""Print one sweep of a nest: loops over reduced axes, with the lanes of columns innermost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from lynx.ir.dims import Dim, product
from lynx.ir.kernel import Apply, Check, Instruction, Load, Position, Reduce, Scalar, Store
from lynx.ir.types import DType

from .accumulate import Accumulator, fold, identity, is_float
from .functions import is_called
from .outer import LANES
from .pieces import Loop, PiecePrinter, pieces_of
from .printer import Expressions, Names, declared
from .schedule import Schedule, Sweep, operations
from .split import Effect, Partial
from .text import value_type

SUM_BLOCK = 4096
"""Elements that one set of vector accumulators takes in before it is added to the total."""

CALL_BLOCK = 32
"""The same where each element takes a call of the library, so that the loop has no vectors."""

BLOCKS = (1024, 32)
"""Turns of an outer loop that are summed by themselves: blocks, and blocks of these.

A sum that takes in one element after the other errs by the root of their number at least; eager
has sums of sums (`aten/src/ATen/native/cpu/SumKernel.cpp`) and so do we.
"""

FEW = 16
"""Elements that may just as well be added to what the elements before them have come to."""

SUM_LANES = 32
"""Sums that run side by side, so that additions need not wait for each other."""

SIMPLE_SWEEP = 14
"""Operations up to which a sweep is so short that it would wait for its additions."""


_FRESH = ("", 0)
"""Stands among loops for the start of new sums."""


class Row(Protocol):
    """What a sweep needs from the printer of its nest."""

    plan: Schedule
    names: Names
    expressions: Expressions
    kept: dict[Scalar, str]

    def emit(self, *lines: str) -> None:
        """Add lines."""
        ...

    def open(self, line: str) -> None:
        """Open a block."""
        ...

    def close(self) -> None:
        """Close a block."""
        ...

    def name(self, scalar: Scalar) -> str:
        """Return the variable of a scalar."""
        ...

    def array(self, scalar: Scalar) -> str:
        """Return the array over lanes of a scalar."""
        ...

    def of(self, scalar: Scalar) -> str:
        """Return how a scalar is called."""
        ...

    def open_lanes(
        self, clauses: list[str], first: str | None = None, end: str | None = None
    ) -> None:
        """Open the loop over columns, or over some of them."""
        ...

    def effect_lines(self, effect: Effect, index: str | None) -> list[str]:
        """Return the statements of an effect."""
        ...

    def finish(self, effect: Effect, accumulator: Accumulator) -> list[str]:
        """Return what comes after an accumulating loop."""
        ...


class SweepPrinter:
    """Sorts what a sweep computes by the loop that it belongs into, then prints the loops."""

    def __init__(self, row: Row, sweep: Sweep) -> None:
        self.row = row
        self.sweep = sweep
        self.plan = row.plan
        self.has_lanes = self.plan.is_columns and self.plan.vector is not None
        self.deepest = len(sweep.axes) + self.has_lanes
        self.levels: list[list[str]] = [[] for _ in range(self.deepest + 1)]
        self.updates: list[tuple[Accumulator, str]] = []
        self.finishes: list[tuple[Effect | Reduce, Accumulator]] = []
        self.effects: list[str] = []
        self.offsets = 0
        self.ordinary = sweep.axes if self.plan.is_columns else sweep.axes[:-1]
        self.cascaded = [t for t in sweep.targets if isinstance(t, Reduce) and _sums_floats(t)]
        self.block = 0 if self.plan.is_columns else self._block_of(sweep.axes[-1])
        self.cuts = self._cuts()
        innermost = self.plan.vector if self.plan.is_columns else sweep.axes[-1]
        self.pieces = pieces_of(sweep, self.plan.nest.axes, self.level, innermost)
        self.chosen: dict[str, Scalar] = {}
        self.skipped: list[Scalar] = []

    def level(self, source: str | Scalar) -> int:
        """Return how many loops are around what depends on an axis or a scalar."""
        if isinstance(source, Scalar):
            return max((self.level(axis) for axis in source.axes), default=0)
        if self.has_lanes and source == self.plan.vector:
            return self.deepest
        return self.sweep.axes.index(source) + 1 if source in self.sweep.axes else 0

    def print(self) -> None:
        """Print the sweep."""
        for scalar in self.sweep.loaded:
            place = f"{self.row.kept[scalar]}[{self._kept_place(scalar)}]"
            self.levels[self.level(scalar)].append(declared(scalar, self.row.name(scalar), place))
        for instruction in self.sweep.needed:
            self._compute(instruction)
        for target in self.sweep.targets:
            if isinstance(target, Reduce):
                self._reduction(target)
            else:
                self._effect(target)
        self._skip_points()
        self.row.open("")
        self._loops()
        self.row.close()

    def _skip_points(self) -> None:
        """Go on to the next point where the unit has no share, or nothing is to be written."""
        share = self.plan.share
        if share is not None:
            name = self.row.of(share)
            line = f"if ({name} < from || {name} >= to) continue;"
            self.levels[self.level(share)].append(line)
        for mask in self.skipped:
            self.levels[self.level(mask)].append(f"if (!{self.row.of(mask)}) continue;")

    def _is_outside(self, scalar: Scalar) -> bool:
        """Whether loops lie around a value of what runs in order, and the innermost one within."""
        is_nested = self.plan.nest.is_sequential and not self.plan.is_columns
        return is_nested and 0 < self.level(scalar) < self.deepest

    def _compute(self, instruction: Instruction) -> None:
        level = max((self.level(axis) for axis in instruction.domain), default=0)
        index = None
        if isinstance(instruction, Load | Position):
            index = self._index(instruction, level)
        text = self.row.expressions.value(instruction, self.row.of, index)
        name = self.row.name(instruction.out)
        line = declared(instruction.out, name, text)
        self.levels[level].append(line)
        if instruction.out in self.pieces.known:
            self.chosen[line] = instruction.out
        if instruction.out in self.row.kept:
            place = self._kept_place(instruction.out)
            self.levels[level].append(f"{self.row.kept[instruction.out]}[{place}] = {name};")

    def _index(self, instruction: Load | Position | Store | Partial, level: int) -> str:
        """Return an index whose parts that change in outer loops are computed there."""
        expressions = self.row.expressions
        parts = expressions.split_index(instruction.index, self.row.of, self.level)
        outer = {key: text for key, text in parts.items() if key < level and not text.isdigit()}
        if not outer:
            return " + ".join(parts.values())
        name = f"o{self.offsets}_{self.sweep.depth}"
        self.offsets += 1
        self.levels[max(outer)].append(f"const i64 {name} = {' + '.join(outer.values())};")
        rest = [text for key, text in parts.items() if key not in outer and text != "0"]
        return " + ".join([name, *rest])

    def _kept_place(self, scalar: Scalar) -> str:
        axes = [axis for axis in scalar.axes if axis in self.plan.inner]
        lanes = LANES if self.plan.is_in_lanes(scalar) else 1
        sizes = self.plan.nest.axes
        names = self.row.names
        parts = []
        for position, axis in enumerate(axes):
            stride = product((*(sizes[inner] for inner in axes[position + 1 :]), lanes))
            text = names.axis(axis)
            parts.append(text if stride == 1 else f"{text} * {names.dim(stride)}")
        return " + ".join([*parts, *(["l"] if lanes > 1 else [])]) or "0"

    def _reduction(self, target: Reduce) -> None:
        row, dtype = self.row, target.x.dtype
        number = row.names.number(target.out)
        neutral = identity(target.combine, dtype)
        value = row.of(target.x)
        if self.plan.is_in_lanes(target.out):
            array = row.array(target.out)
            row.emit(f"{value_type(dtype)} {array}[{LANES}];")
            row.emit(f"for (i64 l = 0; l < {LANES}; ++l) {array}[l] = {neutral};")
            place = f"{self._sum(target, self.cuts.count(_FRESH))}[l]"
            folded = fold(target.combine, dtype, place, value)
            self.effects.append(f"{place} = {folded};")
            return
        name = row.name(target.out)
        row.emit(f"{value_type(dtype)} {name} = {neutral};")
        if self.plan.is_columns:
            name = self._sum(target, self.cuts.count(_FRESH))
            folded = fold(target.combine, dtype, name, value)
            self.levels[len(self.sweep.axes)].append(f"{name} = {folded};")
            return
        accumulator = Accumulator(f"s{number}", target.combine, dtype)
        self.updates.append((accumulator, value))
        self.finishes.append((target, accumulator))

    def _cuts(self) -> list[tuple[str, int]]:
        """Return the loops around the innermost one: over an axis, in blocks of so many or of one.

        Between them it says where new sums begin.
        """
        sizes = self.plan.nest.axes
        cuts: list[tuple[str, int]] = []
        for position, axis in enumerate(self.ordinary):
            inner = product(sizes[other] for other in self.ordinary[position + 1 :])
            for block in BLOCKS if self.cascaded else ():
                if _is_beyond(sizes[axis], 2 * block):
                    cuts += [(axis, block), _FRESH]
            cuts.append((axis, 1))
            if self.cascaded and position + 1 < len(self.ordinary) and _is_beyond(inner, FEW):
                cuts.append(_FRESH)
        if cuts and self.cascaded and not self.plan.is_columns and self.block:
            cuts.append(_FRESH)
        return cuts

    def _sum(self, target: Reduce, depth: int) -> str:
        """Return the variable or the array of a sum of blocks within blocks."""
        has_lanes = self.plan.is_in_lanes(target.out)
        name = self.row.array(target.out) if has_lanes else self.row.name(target.out)
        return f"{name}_{depth}" if depth and target in self.cascaded else name

    def _effect(self, target: Instruction) -> None:
        assert isinstance(target, Store | Check | Partial)
        number = self.plan.nest.effects.index(target)
        if isinstance(target, Check) and self._is_outside(target.condition):
            lines = self.row.effect_lines(target, None)
            self.levels[self.level(target.condition)].extend(lines)
            return
        if isinstance(target, Store) and target.mask is not None and self._is_outside(target.mask):
            self.skipped.append(target.mask)
            target = dataclasses.replace(target, mask=None)
        innermost = self.plan.vector if self.plan.is_columns else self.sweep.axes[-1]
        accumulator = accumulator_of(target, innermost, number) if innermost else None
        if accumulator is not None:
            self.updates.append((accumulator, accumulated(target, self.row.of)))
            self.finishes.append((target, accumulator))
            return
        index = None if isinstance(target, Check) else self._index(target, self.deepest)
        self.effects.extend(self.row.effect_lines(target, index))

    def _loops(self) -> None:
        """Print the loops around the innermost one, then that one."""
        row = self.row
        row.emit(*self.levels[0])
        depth, level = 0, 0
        ends: dict[str, tuple[str, str]] = {}
        for axis, block in self.cuts:
            if (axis, block) == _FRESH:
                depth += 1
                self._open_sums(depth)
                continue
            name, size = row.names.axis(axis), row.names.dim(self.plan.nest.axes[axis])
            low, high = ends.get(axis, ("0", size))
            if block == 1:
                row.open(f"for (i64 {name} = {low}; {name} < {high}; ++{name})")
                level += 1
                row.emit(*self.levels[level])
                continue
            start, end = f"block{depth}", f"end{depth}"
            row.open(f"for (i64 {start} = {low}; {start} < {high}; {start} += {block})")
            row.emit(f"const i64 {end} = lynx_min({high}, {start} + {block});")
            ends[axis] = (start, end)
        self._innermost()
        for cut in reversed(self.cuts):
            if cut == _FRESH:
                self._close_sums(depth)
                depth -= 1
            else:
                row.close()

    def _open_sums(self, depth: int) -> None:
        for target in self.cascaded:
            start = f"[{LANES}] = {{0}}" if self.plan.is_in_lanes(target.out) else " = 0"
            self.row.emit(f"{value_type(target.x.dtype)} {self._sum(target, depth)}{start};")

    def _close_sums(self, depth: int) -> None:
        for target in self.cascaded:
            total, part = self._sum(target, depth - 1), self._sum(target, depth)
            if self.plan.is_in_lanes(target.out):
                self.row.emit(f"for (i64 l = 0; l < {LANES}; ++l) {total}[l] += {part}[l];")
            else:
                self.row.emit(f"{total} += {part};")

    def _innermost(self) -> None:
        row = self.row
        if self.plan.is_columns and not self.has_lanes:
            row.emit(*self.effects)
            return
        if self.has_lanes:
            self._in_pieces("low", "high", self._lanes_loop)
            return
        axis = self.sweep.axes[-1]
        name, low, high = row.names.axis(axis), "0", row.names.dim(self.plan.nest.axes[axis])
        if self.plan.block and axis == self.plan.vector:
            low, high = "low", "high"
        if self.block:
            row.open(f"for (i64 begin = {low}; begin < {high}; begin += {self.block})")
            row.emit(f"const i64 end = lynx_min({high}, begin + {self.block});")
            self._vector_loop(axis, name, "begin", "end")
            row.close()
        else:
            self._vector_loop(axis, name, low, high)

    def _block_of(self, axis: str) -> int:
        """Return into how long blocks the innermost loop is cut, 0 if it is not."""
        is_outer = bool(self.plan.block) and axis == self.plan.vector
        if is_outer or not any(map(_sums_floats, self.sweep.targets)):
            return 0
        has_calls = any(
            isinstance(i, Apply) and is_called(i.function, i.arguments[0].dtype)
            for i in self.sweep.needed
        )
        block = CALL_BLOCK if has_calls else SUM_BLOCK
        return block if _is_beyond(self.plan.nest.axes[axis], 2 * block) else 0

    def _vector_loop(self, axis: str, name: str, low: str, high: str) -> None:
        def loop(low: str, high: str, body: list[str]) -> None:
            start = low
            if self._sums_side_by_side(axis):
                start = self._side_by_side(name, low, high, body)
            if start == low or not self._divides(axis):
                self.row.emit(" ".join(["#pragma omp simd", *self._clauses()]))
                self.row.open(f"for (i64 {name} = {start}; {name} < {high}; ++{name})")
                self.row.emit(*body, *self._updates(), *self.effects)
                self.row.close()

        self._in_pieces(low, high, loop)

    def _lanes_loop(self, low: str, high: str, body: list[str]) -> None:
        first, end = (None if text in ("low", "high") else f"{text} - low" for text in (low, high))
        self.row.open_lanes(self._clauses(), first, end)
        self.row.emit(*body, *self._updates(), *self.effects)
        self.row.close()

    def _in_pieces(self, low: str, high: str, loop: Loop) -> None:
        """Print the innermost loop, or one for each piece in which masks are known."""
        self._declare()
        PiecePrinter(self.row, self.pieces, self.chosen).print(low, high, self.levels[-1], loop)
        self._finish()

    def _divides(self, axis: str) -> bool:
        """Whether sums side by side leave nothing over."""
        size = self.plan.nest.axes[axis]
        return len(self.pieces.inner) == 1 and isinstance(size, int) and size % SUM_LANES == 0

    def _sums_side_by_side(self, axis: str) -> bool:
        size = self.plan.nest.axes[axis]
        work = sum(operations(instruction) for instruction in self.sweep.needed)
        return (
            bool(self.updates)
            and all(a.kind == "sum" and is_float(a.dtype) for a, _ in self.updates)
            and work <= SIMPLE_SWEEP
            and not (isinstance(size, int) and size < 4 * SUM_LANES)
        )

    def _side_by_side(self, name: str, low: str, high: str, body: list[str]) -> str:
        """Print the part of the loop that has several sums, and return where the rest starts."""
        row = self.row
        row.emit(f"i64 side = {low};")
        row.open("")
        for accumulator, _ in self.updates:
            row.emit(f"{accumulator.type} {accumulator.name}_side[{SUM_LANES}] = {{0}};")
        row.open(f"for (; side + {SUM_LANES} <= {high}; side += {SUM_LANES})")
        row.emit("#pragma omp simd")
        row.open(f"for (i64 l = 0; l < {SUM_LANES}; ++l)")
        row.emit(f"const i64 {name} = side + l;")
        row.emit(*body)
        for accumulator, value in self.updates:
            row.emit(f"{accumulator.name}_side[l] += {value};")
        row.emit(*self.effects)
        row.close()
        row.close()
        for accumulator, _ in self.updates:
            name = accumulator.name
            row.emit(" ".join(["#pragma omp simd", *accumulator.clauses()]))
            row.emit(f"for (i64 l = 0; l < {SUM_LANES}; ++l) {name} += {name}_side[l];")
        row.close()
        return "side"

    def _declare(self) -> None:
        for accumulator, _ in self.updates:
            self.row.emit(*accumulator.declaration())

    def _clauses(self) -> list[str]:
        return [clause for accumulator, _ in self.updates for clause in accumulator.clauses()]

    def _updates(self) -> list[str]:
        return [line for accumulator, value in self.updates for line in accumulator.update(value)]

    def _finish(self) -> None:
        for target, accumulator in self.finishes:
            if isinstance(target, Reduce):
                name = self._sum(target, self.cuts.count(_FRESH))
                folded = fold(target.combine, target.x.dtype, name, accumulator.result())
                self.row.emit(f"{name} = {folded};")
            else:
                self.row.emit(*self.row.finish(target, accumulator))


def _sums_floats(target: Instruction) -> bool:
    if not isinstance(target, Reduce | Partial):
        return False
    return target.combine == "sum" and is_float(target.x.dtype)


def _is_beyond(size: Dim, limit: int) -> bool:
    return not isinstance(size, int) or size > limit


def result_axes(partial: Partial) -> list[str]:
    """Return the axes of a partial result."""
    return [term.of for term in partial.index.terms if isinstance(term.of, str)]


def accumulator_of(effect: Instruction, innermost: str | None, number: int) -> Accumulator | None:
    """Return what an effect is accumulated in by a loop over `innermost`; None if it is not."""
    if isinstance(effect, Check):
        return Accumulator(f"bad{number}", "any", DType.BOOL)
    if isinstance(effect, Partial) and innermost not in result_axes(effect):
        return Accumulator(f"r{number}", effect.combine, effect.x.dtype)
    return None


def accumulated(effect: Instruction, of: Callable[[Scalar], str]) -> str:
    """Return the value that is accumulated for an effect."""
    if isinstance(effect, Check):
        return f"!{of(effect.condition)}"
    assert isinstance(effect, Partial)
    return of(effect.x)
