"""Print the loops of a nest: units, sweeps over reduced axes, and lanes of columns."""

from __future__ import annotations

from lynx.ir.dims import Dim, product
from lynx.ir.index_range import limit_of
from lynx.ir.kernel import Check, Constant, Instruction, Reduce, Scalar, Store

from .accumulate import Accumulator, fold, identity, is_float
from .outer import LANES
from .printer import (
    Expressions,
    Names,
    NestText,
    check_code,
    declared,
    places_of,
    pointer,
    words_of,
)
from .schedule import PART, PARTS, TRANSPOSED_BLOCK, Schedule, overwrites
from .split import Effect, Partial
from .sweeps import SweepPrinter, accumulated, accumulator_of, result_axes
from .text import memory_type, value_type

FOLD_UNITS = 64
"""The same for partial results: units that are summed by themselves first."""


class NestPrinter:
    """Prints one nest; lines are collected in order, scopes are tracked by indentation."""

    def __init__(self, plan: Schedule) -> None:
        self.plan = plan
        self.nest = plan.nest
        self.names = Names(plan)
        self.expressions = Expressions(self.names)
        self.lines: list[str] = []
        self.depth = 1
        self.partials: dict[Partial, str] = {}
        self.folded: dict[Partial, str] = {}
        self.kept = {scalar: f"k{position}" for position, scalar in enumerate(self.plan.kept)}

    def emit(self, *lines: str) -> None:
        """Add lines at the current depth."""
        self.lines.extend("  " * self.depth + line for line in lines)

    def open(self, line: str) -> None:
        """Open a block."""
        self.emit(f"{line} {{" if line else "{")
        self.depth += 1

    def close(self) -> None:
        """Close the innermost block."""
        self.depth -= 1
        self.emit("}")

    def name(self, scalar: Scalar) -> str:
        """Return the variable of a scalar."""
        return f"v{self.names.number(scalar)}"

    def array(self, scalar: Scalar) -> str:
        """Return the array over lanes of a scalar of a row."""
        return f"a{self.names.number(scalar)}"

    def of(self, scalar: Scalar) -> str:
        """Return how a scalar is called where the row, or the loop being printed, uses it."""
        if isinstance(scalar.instruction, Constant):
            return self.expressions.constant(scalar.instruction)
        if self.plan.is_in_lanes(scalar) and not self.plan.is_swept_value(scalar):
            return f"{self.array(scalar)}[l]"
        return self.name(scalar)

    def print(self) -> NestText:
        """Return the text of the function."""
        self._partial_pointers()
        self._units()
        inner, self.lines = self.lines, []
        written = {e.buffer for e in self.nest.effects if not isinstance(e, Check)}
        self.depth = 1
        for position, (buffer, name) in enumerate(self.names.buffers.items()):
            self.emit(pointer(buffer, name, position, buffer in written))
        for position, name in enumerate(self.names.parameters.values()):
            self.emit(f"const i64 {name} = step->z[{position}];")
        for dtype in ("f32", "f64"):
            if any(f"one_{dtype}" in line for line in inner):
                self.emit(f"const {dtype} one_{dtype} = lynx_one_{dtype}();")
        signature = "static void @NAME@(const struct step *step, i64 chunk, char *local) {"
        text = "\n".join([signature, *self.lines, *inner, "}"])
        return NestText(
            text,
            words_of(self.plan),
            list(self.names.buffers),
            list(self.names.parameters),
            self.names.memory,
            places_of(self.plan),
        )

    def _partial_pointers(self) -> None:
        for partial in self.nest.partials:
            dims: list[Dim] = [self.nest.axes[axis] for axis in result_axes(partial)]
            points = self.names.product(dims)
            name = f"q{len(self.partials)}"
            kind = memory_type(partial.x.dtype)
            base = self.names.buffer(partial.buffer)
            self.emit(f"{kind} *restrict {name} = {base} + chunk * ({points});")
            neutral = identity(partial.combine, partial.x.dtype)
            self.emit(f"for (i64 e = 0; e < {points}; ++e) {name}[e] = {neutral};")
            self.partials[partial] = name
            is_sum = partial.combine == "sum" and is_float(partial.x.dtype)
            local = set(self.plan.inner) | {self.plan.vector}
            turns = product(
                self.nest.axes[axis] for axis in result_axes(partial) if axis not in local
            )
            if is_sum and isinstance(turns, int) and turns <= FOLD_UNITS // 4:
                start = self.names.take_memory(dims, partial.x.dtype.itemsize)
                self.emit(f"{kind} *restrict g{name} = ({kind} *)({start});")
                self.folded[partial] = points
        for scalar, name in self.kept.items():
            dims = [self.nest.axes[axis] for axis in scalar.axes if axis in self.plan.inner]
            if self.plan.is_in_lanes(scalar):
                dims.append(LANES)
            kind = value_type(scalar.dtype)
            start = self.names.take_memory(dims, max(1, scalar.dtype.itemsize))
            self.emit(f"{kind} *restrict {name} = ({kind} *)({start});")

    def _units(self) -> None:
        self.emit("const i64 last = lynx_min(step->units, (chunk + 1) * step->grain);")
        if self.folded:
            start = "first"
            self.open(f"for (i64 first = chunk * step->grain; first < last; first += {FOLD_UNITS})")
            for partial, points in self.folded.items():
                name = f"g{self.partials[partial]}"
                self.emit(f"for (i64 e = 0; e < {points}; ++e) {name}[e] = 0;")
            self.emit(f"const i64 stop = lynx_min(last, first + {FOLD_UNITS});")
        else:
            start = "chunk * step->grain"
        end = "stop" if self.folded else "last"
        self.open(f"for (i64 unit = {start}; unit < {end}; ++unit)")
        self._coordinates()
        self._share()
        self._row_body()
        self.close()
        if self.folded:
            for partial, points in self.folded.items():
                name = self.partials[partial]
                self.emit(f"for (i64 e = 0; e < {points}; ++e) {name}[e] += g{name}[e];")
            self.close()

    def _coordinates(self) -> None:
        plan = self.plan
        factors: list[str | None] = list(plan.rows)
        if plan.block and plan.vector:
            at = len(factors)
            if plan.block == TRANSPOSED_BLOCK and factors:
                at -= 1
            factors.insert(at, None)
        rest = "unit"
        for position in range(len(factors) - 1, -1, -1):
            axis = factors[position]
            size = self._blocks() if axis is None else None
            if position > 0 and size is None:
                size = self.names.dim(self.nest.axes[axis])  # type: ignore[index]
            value = rest if position == 0 else f"{rest} % ({size})"
            if axis is None:
                self._bounds(value)
            else:
                self.emit(f"const i64 {self.names.axis(axis)} = {value};")
            if position > 0:
                self.emit(f"const i64 rest{position} = {rest} / ({size});")
                rest = f"rest{position}"

    def _share(self) -> None:
        """Find the range of places that are the unit's share."""
        if self.plan.share is None:
            return
        limit = limit_of(self.plan.share)
        assert limit is not None, self.plan.share
        part, parts = self.names.axis(PART), self.names.symbol(PARTS)
        count = self.names.dim(limit)
        self.emit(
            f"const i64 from = {part} * ({count}) / {parts};",
            f"const i64 to = ({part} + 1) * ({count}) / {parts};",
        )

    def _vector_size(self) -> str:
        assert self.plan.vector is not None
        size = self.nest.axes[self.plan.vector]
        return self.names.parameter(size) if isinstance(size, int) else self.names.dim(size)

    def _blocks(self) -> str:
        return f"({self._vector_size()} + {self.plan.block - 1}) / {self.plan.block}"

    def _bounds(self, block: str) -> None:
        size = self._vector_size()
        self.emit(f"const i64 low = ({block}) * {self.plan.block};")
        self.emit(f"const i64 high = lynx_min({size}, low + {self.plan.block});")

    def _row_body(self) -> None:
        plan = self.plan
        deepest = max(plan.depths.values(), default=0)
        values = [
            i for i in self.nest.body
            if not plan.is_swept(i) and not isinstance(i, Constant | Reduce)
        ]  # fmt: skip
        effects = [effect for effect in self.nest.effects if not plan.is_swept(effect)]
        for depth in range(deepest + 1):
            here = [i for i in values if plan.depths[i] == depth]
            for instruction in here:
                if not plan.is_in_lanes(instruction.out):
                    text = self.expressions.value(instruction, self.of)
                    self.emit(declared(instruction.out, self.name(instruction.out), text))
            self._lanes_of_row([i for i in here if plan.is_in_lanes(i.out)])
            self._row_effects(
                [e for e in effects if plan.depths[e] == depth and not self._is_late(e)]
            )
            for sweep in plan.sweeps:
                if sweep.depth == depth:
                    SweepPrinter(self, sweep).print()
        self._row_effects([effect for effect in effects if self._is_late(effect)])

    def _is_late(self, effect: Effect) -> bool:
        return isinstance(effect, Store) and overwrites(self.nest, effect)

    def _lanes_of_row(self, instructions: list[Instruction]) -> None:
        if not instructions:
            return
        for instruction in instructions:
            kind = value_type(instruction.out.dtype)
            self.emit(f"{kind} {self.array(instruction.out)}[{LANES}];")
        self.open_lanes([])
        for instruction in instructions:
            text = self.expressions.value(instruction, self.of)
            self.emit(f"{self.array(instruction.out)}[l] = {text};")
        self.close()

    def open_lanes(
        self, clauses: list[str], first: str | None = None, end: str | None = None
    ) -> None:
        """Open the loop over the columns of a block, or over some of them."""
        assert self.plan.vector is not None
        self.emit(" ".join(["#pragma omp simd", *clauses]))
        self.open(f"for (i64 l = {first or 0}; l < {end or 'high - low'}; ++l)")
        self.emit(f"const i64 {self.names.axis(self.plan.vector)} = low + l;")

    def _row_effects(self, effects: list[Effect]) -> None:
        if not effects:
            return
        if not self.plan.is_columns or self.plan.vector is None:
            for effect in effects:
                self.effect(effect)
            return
        accumulators = {e: self._lane_accumulator(e) for e in effects}
        found = [a for a in accumulators.values() if a is not None]
        for known in found:
            self.emit(*known.declaration())
        self.open_lanes([clause for a in found for clause in a.clauses()])
        for effect in effects:
            accumulator = accumulators[effect]
            if accumulator is None:
                self.effect(effect)
            else:
                self.emit(*accumulator.update(accumulated(effect, self.of)))
        self.close()
        for effect, accumulator in accumulators.items():
            if accumulator is not None:
                self.emit(*self.finish(effect, accumulator))

    def _lane_accumulator(self, effect: Effect) -> Accumulator | None:
        return accumulator_of(effect, self.plan.vector, self.nest.effects.index(effect))

    def effect(self, effect: Effect) -> None:
        """Print an effect of the row."""
        self.emit(*self.effect_lines(effect, None))

    def effect_lines(self, effect: Effect, index: str | None) -> list[str]:
        """Return the statements of an effect as it is done at one point."""
        match effect:
            case Store():
                at = index or self.expressions.index(effect.index, self.of)
                return [self.expressions.store(effect, self.of, at)]
            case Check():
                return [f"if (!{self.of(effect.condition)}) {check_code(self.names, effect)}"]
            case Partial():
                return [self.partial(effect, self.of(effect.x), index)]

    def partial(self, effect: Partial, value: str, index: str | None = None) -> str:
        """Return the statement that takes a value into a partial result."""
        at = index or self.expressions.index(effect.index, self.of)
        name = self.partials[effect]
        place = f"{'g' if effect in self.folded else ''}{name}[{at}]"
        return f"{place} = {fold(effect.combine, effect.x.dtype, place, value)};"

    def finish(self, effect: Effect, accumulator: Accumulator) -> list[str]:
        """Return what is done with the accumulated value after the loop."""
        if isinstance(effect, Check):
            return [f"if ({accumulator.name}) {check_code(self.names, effect)}"]
        assert isinstance(effect, Partial)
        return [self.partial(effect, accumulator.result())]
