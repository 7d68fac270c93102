"""Write a stage whose columns do not fit into one tile: loops over blocks of them.

What depends on the result of a reduction over the columns needs another sweep over them. A sweep
computes again what it needs of the columns, from memory that is then in a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.dims import ceil_div, contiguous_strides
from lynx.ir.kernel import Constant, Index, Instruction, Load, Reduce, Store, Term

from .combines import Collected, lanes_of, result, update
from .dtypes import triton_type
from .parts import Partial
from .schedule import WARP
from .writer import StageWriter

MOST_IN_FLIGHT = 128
"""A loop of a known number of rounds may be written out by the compiler, with all loads first.

Where these are more than that for each thread, the number of rounds is kept from it.
"""


def print_loops(writer: StageWriter) -> None:
    """Write all sweeps of a stage, with what lies between them."""
    _Loops(writer).run()


@dataclass(frozen=True)
class _Bounds:
    """Where the loop over columns starts and ends, as text."""

    begin: str
    end: str


class _Loops:
    def __init__(self, writer: StageWriter) -> None:
        self.writer = writer
        self.stage = writer.stage
        self.body = writer.stage.kernel.body
        self.columns = frozenset(self.stage.columns)
        self.levels: dict[Instruction, int] = {}
        self._find_levels()

    def run(self) -> None:
        bounds = self._bounds()
        inner = [one for one in self.body if self._is_inner_root(one)]
        last = max((self.levels[one] for one in inner), default=-1)
        for store in self.body:
            # Nothing may be written over that a later sweep reads.
            if isinstance(store, Store) and store.buffer in self.writer.loaded:
                self.levels[store] = last if self._is_inner_root(store) else last + 1
        for level in range(last + 2):
            for one in self.body:
                if self.levels[one] == level and not self._is_inner(one):
                    self.writer.instruction(one)
            roots = [one for one in inner if self.levels[one] == level]
            if roots:
                self._sweep(roots, bounds)

    def _is_inner(self, one: Instruction) -> bool:
        """Whether an instruction runs at each column, and not once a row."""
        if isinstance(one, Reduce | Partial):
            return True
        return any(axis in self.columns for axis in one.domain)

    def _is_inner_root(self, one: Instruction) -> bool:
        return self._is_inner(one) and (isinstance(one, Partial | Reduce) or not one.results)

    def _find_levels(self) -> None:
        """Give each instruction the number of sweeps that must be over before it runs."""
        for one in self.body:
            level = 0
            for scalar in one.operands:
                maker = scalar.instruction
                level = max(level, self.levels[maker] + isinstance(maker, Reduce))
            self.levels[one] = level

    def _bounds(self) -> _Bounds:
        writer = self.writer
        count = writer.size_of(self.stage.columns)
        if self.stage.splits is None:
            is_hidden = isinstance(count, int) and self._in_flight(count) > MOST_IN_FLIGHT
            hidden = writer.sizes.hidden(count, "columns") if is_hidden else ""
            return _Bounds("0", hidden or writer.sizes.text(count))
        chunk = writer.sizes.text(ceil_div(count, self.stage.splits))
        number = "tl.program_id(1)"
        if writer.options.index_type != "tl.int32":
            number = f"{number}.to({writer.options.index_type})"
        writer.emit(
            f"part = {number}",
            f"begin = part * {chunk}",
            f"end = tl.minimum(begin + {chunk}, {writer.sizes.text(count)})",
        )
        return _Bounds("begin", "end")

    def _in_flight(self, count: int) -> int:
        """Return how many numbers each thread loads if all rounds of the loop are written out."""
        schedule = self.writer.schedule
        rounds = -(-count // schedule.r_block)
        each = max(schedule.x_block * schedule.r_block // (schedule.warps * WARP), 1)
        loads = sum(isinstance(one, Load) and self._is_inner(one) for one in self.body)
        return rounds * each * loads

    def _sweep(self, roots: list[Instruction], bounds: _Bounds) -> None:
        writer = self.writer
        lanes = {
            root: self._lanes(root, bounds) for root in roots if isinstance(root, Reduce | Partial)
        }
        needed = self._needed(roots)
        outer = dict(writer.scalars)
        writer.emit(f"for start in range({bounds.begin}, {bounds.end}, RBLOCK):")
        writer.indent += 1
        self._positions(bounds)
        for one in self.body:
            if one not in needed:
                continue
            if one in lanes:
                self._collect(one, lanes[one], bounds)
            else:
                writer.instruction(one)
        writer.indent -= 1
        # What was computed in the loop is not known after it.
        writer.scalars.clear()
        writer.scalars.update(outer)
        for root, collected in lanes.items():
            self._results(root, collected, bounds)

    def _needed(self, roots: list[Instruction]) -> set[Instruction]:
        """Return what runs at each column for these roots."""
        needed = set(roots)
        for one in reversed(self.body):
            if one in needed:
                makers = [scalar.instruction for scalar in one.operands]
                needed.update(
                    m for m in makers if self._is_inner(m) and not isinstance(m, Reduce | Constant)
                )
        return needed

    def _positions(self, bounds: _Bounds) -> None:
        writer = self.writer
        lane = writer.lane("RBLOCK", 1)
        if writer.options.index_type != "tl.int32":
            lane = f"{lane}.to({writer.options.index_type})"
        writer.emit(f"column = start + {lane}")
        size = writer.size_of(self.stage.columns)
        is_split = self.stage.splits is not None
        writer.mask_of("column", size, writer.schedule.r_block, bounds.end, always=is_split)
        writer.take_apart("column", self.stage.columns)

    def _lanes(self, root: Reduce | Partial, bounds: _Bounds) -> Collected:
        writer, dtype = self.writer, root.x.dtype
        tile = (writer.tiling.of(root.x.axes)[0], True)
        lanes = lanes_of(root.combine, dtype)
        names = tuple(writer.names.fresh(f"{root.combine}{lane.suffix}_lanes") for lane in lanes)
        for name, lane in zip(names, lanes, strict=True):
            shape = writer.tiling.shape(tile)
            writer.emit(f"{name} = tl.full({shape}, {lane.neutral}, {triton_type(lane.dtype)})")
        length = (
            bounds.end if bounds.begin == "0" else f"tl.maximum({bounds.end} - {bounds.begin}, 0)"
        )
        seen = f"(({length} - {writer.lane('RBLOCK', 1)} + (RBLOCK - 1)) // RBLOCK)"
        return Collected(root.combine, dtype, names, 1, f"{seen}.to({triton_type(dtype)})")

    def _collect(self, root: Instruction, lanes: Collected, bounds: _Bounds) -> None:
        assert isinstance(root, Reduce | Partial)
        writer = self.writer
        writer.locate(root)
        x = writer.use(root.x)
        if not writer.tiling.of(root.x.axes)[1]:
            x, _ = writer.column_value(root.x)
        if root.combine == "welford":
            number = f"({_minus('start', bounds.begin)}) // RBLOCK + 1"
            writer.emit(f"rounds = tl.full([], {number}, {triton_type(root.x.dtype)})")
        position = writer.column_position(root.over) if "arg" in root.combine else ""
        writer.emit(*update(lanes, x, position, writer.mask((False, True))))

    def _results(self, root: Reduce | Partial, lanes: Collected, bounds: _Bounds) -> None:
        writer = self.writer
        if isinstance(root, Reduce):
            names = writer.result_names(root)
            writer.emit(*result(lanes, names))
            writer.finish(root.combine, names, writer.size_of(root.over))
            return
        names = tuple(
            writer.names.fresh(f"{root.combine}{lane.suffix}_part")
            for lane in lanes_of(root.combine, root.x.dtype)
        )
        writer.emit(*result(lanes, names))
        axes = self.stage.rows
        sizes = tuple(self.stage.kernel.sizes[axis] for axis in axes)
        strides = contiguous_strides(sizes)
        index = Index(tuple(map(Term, axes, strides)))
        tile = writer.tiling.of(axes)
        mask = writer.mask(tile)
        for buffer, name in zip(root.buffers, names, strict=True):
            place = writer.index.filled(index, tile)
            start = f"part * {writer.sizes.text(writer.size_of(axes))}"
            writer.emit(
                f"tl.store({writer.buffers[buffer]} + ({start} + {place}), {name}"
                f"{f', {mask}' if mask else ''})"
            )


def _minus(a: str, b: str) -> str:
    return a if b == "0" else f"{a} - {b}"
