"""Print one sweep of a nest: loops over reduced axes, with the lanes of columns innermost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lynx.ir.dims import product
from lynx.ir.kernel import Check, Instruction, Load, Position, Reduce, Scalar, Store
from lynx.ir.types import DType

from .accumulate import Accumulator, fold, identity, is_float
from .printer import Expressions, Names, declared
from .schedule import Schedule, Sweep, operations
from .split import LANES, Effect, Partial
from .text import value_type

SUM_BLOCK = 4096
"""Elements that one set of vector accumulators takes in before it is added to the total."""

COLUMN_BLOCK = 128
"""The same for sums of columns."""

SUM_LANES = 32
"""Sums that run side by side, so that additions need not wait for each other."""

SIMPLE_SWEEP = 14
"""Operations up to which a sweep is so short that it would wait for its additions."""


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

    def open_lanes(self, clauses: list[str], *, is_simd: bool = True) -> None:
        """Open the loop over columns."""
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
        self.columns: list[Reduce] = []
        self.offsets = 0

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
        self.row.open("")
        self._loops()
        self.row.close()

    def _compute(self, instruction: Instruction) -> None:
        level = max((self.level(axis) for axis in instruction.domain), default=0)
        index = None
        if isinstance(instruction, Load | Position):
            index = self._index(instruction, level)
        text = self.row.expressions.value(instruction, self.row.of, index)
        name = self.row.name(instruction.out)
        self.levels[level].append(declared(instruction.out, name, text))
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
            self.columns.append(target)
            place = f"{self._column_array(target)}[l]"
            folded = fold(target.combine, dtype, place, value)
            self.effects.append(f"{place} = {folded};")
            return
        name = row.name(target.out)
        row.emit(f"{value_type(dtype)} {name} = {neutral};")
        if self.plan.is_columns:
            folded = fold(target.combine, dtype, name, value)
            self.levels[len(self.sweep.axes)].append(f"{name} = {folded};")
            return
        accumulator = Accumulator(f"s{number}", target.combine, dtype)
        self.updates.append((accumulator, value))
        self.finishes.append((target, accumulator))

    def _is_blocked(self, target: Reduce) -> bool:
        if target.combine != "sum" or not is_float(target.x.dtype):
            return False
        count = product(self.plan.nest.axes[axis] for axis in self.sweep.axes)
        return not isinstance(count, int) or count > 4 * COLUMN_BLOCK

    def _column_array(self, target: Reduce) -> str:
        array = self.row.array(target.out)
        return f"{array}_block" if self._is_blocked(target) else array

    def _effect(self, target: Instruction) -> None:
        assert isinstance(target, Store | Check | Partial)
        number = self.plan.nest.effects.index(target)
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
        row, axes = self.row, self.sweep.axes
        row.emit(*self.levels[0])
        ordinary = axes if self.plan.is_columns else axes[:-1]
        opened = 0
        blocked = [target for target in self.columns if self._is_blocked(target)]
        for position, axis in enumerate(ordinary):
            name, size = row.names.axis(axis), row.names.dim(self.plan.nest.axes[axis])
            if blocked and position == len(ordinary) - 1:
                opened += 1
                self._open_column_block(blocked, name, size)
            else:
                row.open(f"for (i64 {name} = 0; {name} < {size}; ++{name})")
            opened += 1
            row.emit(*self.levels[position + 1])
        self._innermost()
        for count in range(opened):
            row.close()
            if blocked and count == 0:
                self._close_column_block(blocked)

    def _open_column_block(self, blocked: list[Reduce], name: str, size: str) -> None:
        row = self.row
        row.open(f"for (i64 block = 0; block < {size}; block += {COLUMN_BLOCK})")
        for target in blocked:
            array = self._column_array(target)
            row.emit(f"{value_type(target.x.dtype)} {array}[{LANES}] = {{0}};")
        row.emit(f"const i64 end = lynx_min({size}, block + {COLUMN_BLOCK});")
        row.open(f"for (i64 {name} = block; {name} < end; ++{name})")

    def _close_column_block(self, blocked: list[Reduce]) -> None:
        for target in blocked:
            block, array = self._column_array(target), self.row.array(target.out)
            self.row.emit(f"for (i64 l = 0; l < {LANES}; ++l) {array}[l] += {block}[l];")

    def _innermost(self) -> None:
        row = self.row
        if self.plan.is_columns and not self.has_lanes:
            row.emit(*self.effects)
            return
        if self.has_lanes:
            self._declare()
            clauses = self._clauses()
            row.open_lanes(clauses)
            row.emit(*self.levels[-1], *self._updates(), *self.effects)
            row.close()
            self._finish()
            return
        axis = self.sweep.axes[-1]
        name, low, high = row.names.axis(axis), "0", row.names.dim(self.plan.nest.axes[axis])
        if self.plan.block and axis == self.plan.vector:
            low, high = "low", "high"
        if self._sums_long(axis):
            row.open(f"for (i64 begin = {low}; begin < {high}; begin += {SUM_BLOCK})")
            row.emit(f"const i64 end = lynx_min({high}, begin + {SUM_BLOCK});")
            self._vector_loop(axis, name, "begin", "end")
            row.close()
        else:
            self._vector_loop(axis, name, low, high)

    def _sums_long(self, axis: str) -> bool:
        if not any(a.kind == "sum" and is_float(a.dtype) for a, _ in self.updates):
            return False
        if self.plan.block and axis == self.plan.vector:
            return False
        size = self.plan.nest.axes[axis]
        return not isinstance(size, int) or size > 2 * SUM_BLOCK

    def _vector_loop(self, axis: str, name: str, low: str, high: str) -> None:
        row = self.row
        self._declare()
        start = low
        if self._sums_side_by_side(axis):
            start = self._side_by_side(name, low, high)
        if start == low or not self._divides(axis):
            row.emit(" ".join(["#pragma omp simd", *self._clauses()]))
            row.open(f"for (i64 {name} = {start}; {name} < {high}; ++{name})")
            row.emit(*self.levels[-1], *self._updates(), *self.effects)
            row.close()
        self._finish()

    def _divides(self, axis: str) -> bool:
        size = self.plan.nest.axes[axis]
        return isinstance(size, int) and size % SUM_LANES == 0

    def _sums_side_by_side(self, axis: str) -> bool:
        size = self.plan.nest.axes[axis]
        work = sum(operations(instruction) for instruction in self.sweep.needed)
        return (
            bool(self.updates)
            and all(a.kind == "sum" and is_float(a.dtype) for a, _ in self.updates)
            and work <= SIMPLE_SWEEP
            and not (isinstance(size, int) and size < 4 * SUM_LANES)
        )

    def _side_by_side(self, name: str, low: str, high: str) -> str:
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
        row.emit(*self.levels[-1])
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
                name = self.row.name(target.out)
                folded = fold(target.combine, target.x.dtype, name, accumulator.result())
                self.row.emit(f"{name} = {folded};")
            else:
                self.row.emit(*self.row.finish(target, accumulator))


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
