"""Write the instructions of a stage as lines of Triton that name the lines of the user's model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from lynx.ir.dims import Dim, maximum, product
from lynx.ir.errors import InternalError
from lynx.ir.kernel import (
    Apply,
    Check,
    Constant,
    Convert,
    Instruction,
    Load,
    Position,
    Reduce,
    Scalar,
    Store,
)
from lynx.ir.location import UNKNOWN
from lynx.ir.types import DType

from .combines import Collected, direct, finish, lanes_of, result
from .dtypes import triton_type
from .expressions import IndexText, Names, SizeArguments, Tile, Tiling, joined
from .functions import accepts_literals, convert_text, function_text, literal
from .hazards import accumulates_in_order
from .parts import Merge, Stage
from .schedule import Schedule


@dataclass(frozen=True)
class PrintOptions:
    """What printing depends on besides the stage.

    `index_type` is `tl.int32`, `tl.int64`, or `INDEX` where the launch decides. `first_check` is
    the place of the stage's first check in the array of failures.
    """

    index_type: str
    is_deterministic: bool = False
    first_check: int = 0


class StageWriter:
    """The lines of a kernel so far, and what is known of names, masks and places."""

    def __init__(self, stage: Stage, schedule: Schedule, options: PrintOptions) -> None:
        self.stage = stage
        self.schedule = schedule
        self.options = options
        self.names = Names()
        self.sizes = SizeArguments(self.names)
        self.buffers = {b: self.names.fresh(b.name) for b in stage.kernel.buffers}
        self.axis_names = {axis: self.names.fresh(axis) for axis in stage.kernel.sizes}
        self.scalars: dict[Scalar, str] = {}
        self.constants: dict[Scalar, str] = {}
        self.lines: list[str] = []
        self.hoisted: list[str] = []
        self.indent = 1
        self.loc = UNKNOWN
        self.checks = 0
        self.tiling = self._tiling()
        self.index = IndexText(
            self.tiling, self.sizes, self.axis_names, self.scalars, options.index_type
        )
        self.loaded = {i.buffer for i in stage.kernel.body if isinstance(i, Load)}
        self.masked: dict[str, bool] = {}

    def _tiling(self) -> Tiling:
        stage, schedule = self.stage, self.schedule
        if schedule.y_axes:
            rest = tuple(axis for axis in stage.rows if axis not in schedule.y_axes)
            return Tiling((schedule.y_axes, rest), ("YBLOCK", "XBLOCK"))
        if stage.columns:
            return Tiling((stage.rows, stage.columns), ("XBLOCK", "RBLOCK"))
        return Tiling((stage.rows,), ("XBLOCK",))

    def size_of(self, axes: tuple[str, ...]) -> Dim:
        """Return the number of points along axes together."""
        return product(self.stage.kernel.sizes[axis] for axis in axes)

    def emit(self, *lines: str) -> None:
        """Add lines, indented as the loops around them ask for."""
        self.lines.extend("    " * self.indent + line for line in lines)

    def rows(self, block: str = "tl.program_id(0)") -> None:
        """Print the rows of a block of them, and take their positions apart."""
        if self.schedule.y_axes:
            y_axes, x_axes = self.tiling.groups
            blocks = f"tl.cdiv({self.sizes.text(self.size_of(x_axes))}, XBLOCK)"
            self.emit("tile = tl.program_id(0)")
            self._group("outer", y_axes, f"tile // {blocks}", "YBLOCK", 0)
            self._group("row", x_axes, f"tile % {blocks}", "XBLOCK", 1)
        elif self.stage.rows:
            self._group("row", self.stage.rows, block, "XBLOCK", 0)

    def _group(
        self, name: str, axes: tuple[str, ...], program: str, block: str, place: int
    ) -> None:
        lane = self.lane(block, place)
        if program == "block":
            # The counter of a loop is of the type that it needs.
            lane = f"{lane}.to({self.options.index_type})"
        elif self.options.index_type != "tl.int32":
            program = f"({program}).to({self.options.index_type})"
        elif " " in program:
            program = f"({program})"
        self.emit(f"{name} = {program} * {block} + {lane}")
        size = self.size_of(axes)
        value = self.schedule.y_block if name == "outer" else self.schedule.x_block
        self.mask_of(name, size, value, self.sizes.text(size))
        self.take_apart(name, axes)

    def lane(self, block: str, place: int) -> str:
        """Return the positions in a block, along a dimension of the tile."""
        spread = "[:, None]" if place == 0 else "[None, :]"
        return f"tl.arange(0, {block}){spread if len(self.tiling.groups) == 2 else ''}"

    def mask_of(self, name: str, size: Dim, block: int, end: str, *, always: bool = False) -> None:
        """Print the mask of a dimension, unless blocks fill it."""
        is_full = isinstance(size, int) and size > 0 and size % block == 0
        self.masked[name] = always or not is_full
        if self.masked[name]:
            self.emit(f"{name}_mask = {name} < {end}")

    def take_apart(self, name: str, axes: tuple[str, ...]) -> None:
        """Print the position along each axis, given that along all of them."""
        used = self._used_axes()
        inner: Dim = 1
        for place, axis in reversed(list(enumerate(axes))):
            size = self.stage.kernel.sizes[axis]
            text = name if inner == 1 else f"{name} // {self.sizes.text(inner)}"
            if place > 0:
                text = f"{f'({text})' if ' ' in text else text} % {self.sizes.text(size)}"
            if axis in used:
                self.emit(f"{self.axis_names[axis]} = {text}")
            inner = product((inner, size))

    def _used_axes(self) -> frozenset[str]:
        return frozenset(axis for one in self.stage.kernel.body for axis in one.domain)

    def whole_columns(self) -> None:
        """Print the positions of all columns at once."""
        self.emit(f"column = {self.lane('RBLOCK', 1)}")
        if self.options.index_type != "tl.int32":
            self.emit(f"column = column.to({self.options.index_type})")
        size = self.size_of(self.stage.columns)
        self.mask_of("column", size, self.schedule.r_block, self.sizes.text(size))
        self.take_apart("column", self.stage.columns)

    def straight(self, body: tuple[Instruction, ...]) -> None:
        """Print instructions one after the other."""
        for instruction in body:
            self.instruction(instruction)

    def mask(self, tile: Tile, *more: str) -> str:
        """Return the condition under which the points of a tile exist."""
        names = {"YBLOCK": "outer", "XBLOCK": "row", "RBLOCK": "column", "KBLOCK": "depth"}
        found = [
            f"{names[block]}_mask"
            for block, used in zip(self.tiling.blocks, tile, strict=True)
            if used and self.masked.get(names[block])
        ]
        return " & ".join([*found, *more])

    def locate(self, instruction: Instruction) -> None:
        """Print where the user wrote what follows, if that is another place than before."""
        loc = instruction.loc
        if loc.is_known and loc != self.loc:
            place = f"{PurePath(loc.file).name}:{loc.line}" if loc.file else ""
            module = f"in {loc.module}" if loc.module else ""
            self.emit(f"# {' '.join(filter(None, (place, module)))}")
            self.loc = loc

    def instruction(self, instruction: Instruction) -> None:
        """Print an instruction, a reduction as one of a whole tile."""
        if isinstance(instruction, Constant):
            return
        self.locate(instruction)
        match instruction:
            case Store():
                self.store(instruction)
            case Check():
                self.check(instruction)
            case Reduce():
                self.reduce(instruction)
            case Merge():
                self.merge(instruction)
            case _:
                text = self.expression(instruction)
                name = self.names.fresh(_wanted(instruction))
                self.scalars[instruction.out] = name
                self.emit(f"{name} = {text}")

    def expression(self, instruction: Instruction) -> str:
        """Return the text of an instruction with one result."""
        match instruction:
            case Load():
                return self.load(instruction)
            case Position():
                return self.position(instruction)
            case Convert():
                return convert_text(self.use(instruction.x), instruction.x.dtype, instruction.dtype)
            case Apply():
                return self.apply(instruction)
        raise InternalError("unknown-instruction", f"cannot print {type(instruction).__name__}")

    def apply(self, instruction: Apply) -> str:
        """Return the text of a function, with numbers in place where Triton types them right."""
        arguments = instruction.arguments
        constants = [isinstance(one.instruction, Constant) for one in arguments]
        inline = accepts_literals(instruction.function) and not all(constants)
        texts = tuple(self.use(one, inline=inline) for one in arguments)
        return function_text(instruction.function, texts, arguments[-1].dtype)

    def use(self, scalar: Scalar, *, inline: bool = False) -> str:
        """Return the name of a scalar, or a number in its place."""
        if scalar in self.scalars:
            return self.scalars[scalar]
        maker = scalar.instruction
        assert isinstance(maker, Constant), "used before it is computed"
        value, dtype = maker.value, maker.dtype
        if not isinstance(value, bool | int | float):
            if isinstance(value, complex):
                raise InternalError("complex-constant", "a kernel has a complex number", maker.loc)
            return self._hoist(
                scalar, f"tl.full([], {self.sizes.text(value)}, {triton_type(dtype)})"
            )
        text = literal(value, dtype)
        if inline and dtype is not DType.BOOL and not dtype.is_low_precision and text != "-0.0":
            return text
        # Triton drops the sign of a zero that it fills with.
        sign, text = ("-", "0.0") if text == "-0.0" else ("", text)
        if dtype.is_low_precision:
            full = f"({sign}tl.full([], {text}, tl.float32)).to({triton_type(dtype)})"
            return self._hoist(scalar, full)
        return self._hoist(scalar, f"{sign}tl.full([], {text}, {triton_type(dtype)})")

    def _hoist(self, scalar: Scalar, text: str) -> str:
        if scalar not in self.constants:
            self.constants[scalar] = self.names.fresh("constant")
            self.hoisted.append(f"    {self.constants[scalar]} = {text}")
        return self.constants[scalar]

    def prepare(self, instruction: Load | Store | Position) -> None:
        """Name the constants that an index uses as scalars."""
        for scalar in instruction.index.scalars:
            if scalar not in self.scalars:
                self.scalars[scalar] = self.use(scalar)

    def load(self, load: Load) -> str:
        """Return the text of a load, masked to the points that exist."""
        self.prepare(load)
        tile = self.index.tile(load.index)
        masks = []
        if load.mask is not None:
            tile = joined(tile, self.tiling.of(load.mask.axes))
            masks.append(self.use(load.mask))
        offset = self.index.text(load.index)
        if self.index.tile(load.index) != tile:
            offset = self.index.filled(load.index, tile)
        mask = self.mask(tile, *masks)
        place = f"{self.buffers[load.buffer]} + {f'({offset})' if ' ' in offset else offset}"
        if not mask:
            return f"tl.load({place})"
        other = literal(load.other, load.buffer.dtype)  # type: ignore[arg-type]  # never symbolic
        return f"tl.load({place}, {mask}, other={other})"

    def position(self, position: Position) -> str:
        """Return the text of an index as a number."""
        self.prepare(position)
        text = self.index.text(position.index)
        if not position.index.terms:
            return f"tl.full([], {text}, tl.int64)"
        return f"({text}).to(tl.int64)"

    def access(self, root: Store | Check) -> tuple[Tile, str]:
        """Return the tile on which a root runs, and the condition that runs each point once."""
        tile = self.tiling.of(root.domain)
        guards = []
        for group, varies in zip(self.tiling.groups, tile, strict=True):
            # Columns that a root does not depend on are over when it runs.
            is_rows = group != self.stage.columns
            for axis in group:
                if axis not in root.domain and (is_rows or varies):
                    guards.append(f"({self.axis_names[axis]} == 0)")
                    tile = joined(tile, self.tiling.of((axis,)))
        if self.stage.splits is not None and not self.tiling.of(root.domain)[1]:
            guards.append("(part == 0)")
        return tile, self.mask(tile, *guards)

    def store(self, store: Store) -> None:
        """Print a store, or an addition to memory, that each point does once."""
        self.prepare(store)
        tile, mask = self.access(store)
        tile = joined(tile, self.index.tile(store.index))
        if store.mask is not None:
            mask = " & ".join(filter(None, (mask, self.use(store.mask))))
        offset = self.index.filled(store.index, tile)
        place = f"{self.buffers[store.buffer]} + {f'({offset})' if ' ' in offset else offset}"
        value = self.use(store.value)
        mask = f", {mask}" if mask else ""
        if store.combine == "add":
            self._add(store, place, value, mask)
            return
        if store.buffer in self.loaded and self.stage.columns:
            # All threads must have read what is written over.
            self.emit("tl.debug_barrier()")
        self.emit(f"tl.store({place}, {value}{mask})")
        if self.stage.is_serial:
            self.emit("tl.debug_barrier()")

    def _add(self, store: Store, place: str, value: str, mask: str) -> None:
        if not accumulates_in_order(store, self.options.is_deterministic):
            self.emit(f'tl.atomic_add({place}, {value}{mask}, sem="relaxed")')
            return
        dtype = triton_type(store.buffer.dtype)
        if store.buffer.dtype.is_low_precision:
            total = f"(tl.load({place}{mask}).to(tl.float32) + {value}.to(tl.float32)).to({dtype})"
        elif store.buffer.dtype is DType.BOOL:
            total = f"tl.load({place}{mask}) | {value}"
        else:
            total = f"tl.load({place}{mask}) + {value}"
        self.emit(f"tl.store({place}, {total}{mask})")
        if self.stage.is_serial:
            self.emit("tl.debug_barrier()")

    def check(self, check: Check) -> None:
        """Print that a flag is set where a condition fails."""
        tile, mask = self.access(check)
        place = self.options.first_check + self.checks
        self.checks += 1
        wrong = " & ".join(filter(None, (mask, f"({self.use(check.condition)} == 0)")))
        shape = self.tiling.shape(tile)
        self.emit(
            f"# {check.message}",
            f"tl.store(failures + tl.full({shape}, {place}, tl.int32), 1, {wrong})",
        )

    def reduce(self, reduce: Reduce) -> None:
        """Print a reduction over columns that are all there."""
        names = self.result_names(reduce)
        x, _ = self.column_value(reduce.x)
        count = maximum(self.size_of(reduce.over), 1)
        lanes = Collected(reduce.combine, reduce.x.dtype, (), 1, self.typed(count, reduce.x.dtype))
        position = self.column_position(reduce.over) if "arg" in reduce.combine else ""
        mask = self.mask((False, True))
        self.emit(*direct(lanes, x, position, mask, names))
        if "arg" in reduce.combine:
            self.finish(reduce.combine, names, self.size_of(reduce.over))

    def finish(self, combine: str, names: tuple[str, ...], size: Dim) -> None:
        """Print what makes results of numbers combined from all programs.

        The position over no point is 0, which only matters where the size may be 0.
        """
        known = isinstance(size, int) and size > 0
        nonempty = "" if known else f"{self.sizes.text(size)} > 0"
        self.emit(*finish(combine, names, nonempty))
        if "arg" in combine and nonempty:
            self.emit(f"{names[1]} = tl.where({nonempty}, {names[1]}, 0)")

    def typed(self, dim: Dim, dtype: DType) -> str:
        """Return a dimension as a scalar of a type."""
        return f"tl.full([], {self.sizes.text(dim)}, {triton_type(dtype)})"

    def column_value(self, scalar: Scalar) -> tuple[str, Tile]:
        """Return a scalar spread over the columns."""
        text, tile = self.use(scalar), self.tiling.of(scalar.axes)
        if not tile[1]:
            tile = (tile[0], True)
            text = f"tl.broadcast_to({text}, {self.tiling.shape(tile)})"
        return text, tile

    def column_position(self, over: tuple[str, ...]) -> str:
        """Return the row-major position over axes, as `i64`."""
        if over == self.stage.columns:
            return "column.to(tl.int64)"
        inner: Dim = 1
        parts = []
        for axis in reversed(over):
            name = self.axis_names[axis]
            parts.append(name if inner == 1 else f"{name} * {self.sizes.text(inner)}")
            inner = product((inner, self.stage.kernel.sizes[axis]))
        return f"({' + '.join(parts)}).to(tl.int64)"

    def result_names(self, reduce: Reduce | Merge) -> tuple[str, ...]:
        """Name the results of a reduction."""
        suffixes = [lane.suffix for lane in lanes_of(reduce.combine, reduce.results[0].dtype)]
        names = tuple(self.names.fresh(f"{reduce.combine}{suffix}_0") for suffix in suffixes)
        self.scalars.update(zip(reduce.results, names, strict=True))
        return names

    def merge(self, merge: Merge) -> None:
        """Print how parts of a reduction are merged."""
        names = self.result_names(merge)
        mask = self.mask((False, True))
        lanes = lanes_of(merge.combine, merge.dtype)
        loaded = [self.use(lane) for lane in merge.lanes]
        kept = [f"{name}_parts" for name in names]
        for name, x, lane in zip(kept, loaded, lanes, strict=True):
            self.emit(f"{name} = {f'tl.where({mask}, {x}, {lane.neutral})' if mask else x}")
        seen = ""
        if merge.combine == "welford":
            split = self.axis_names[merge.over[0]]
            count, chunk = self.sizes.text(merge.count), self.sizes.text(merge.chunk)
            seen = f"tl.minimum(tl.maximum({count} - {split} * {chunk}, 0), {chunk})"
            seen = f"{seen}.to({triton_type(merge.dtype)})"
        collected = Collected(merge.combine, merge.dtype, tuple(kept), 1, seen)
        self.emit(*result(collected, names))
        self.finish(merge.combine, names, merge.count)


def _wanted(instruction: Instruction) -> str:
    """Return a name that says what a scalar is."""
    match instruction:
        case Load():
            return f"{instruction.buffer.name}_0"
        case Apply():
            return f"{instruction.function}_0"
        case Convert():
            return f"{instruction.dtype.value}_0"
    return "position_0"
