"""Write kernels of attention: tiles of queries and keys, their products, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lynx.ir.dims import Dim
from lynx.ir.kernel import Apply, Buffer, Check, Constant, Instruction, Kernel, Load, Scalar
from lynx.ir.native import AttentionCall, Strided
from lynx.ir.types import DType

from .dtypes import triton_type
from .expressions import Tiling
from .parts import Stage
from .printer import Parameter
from .schedule import Schedule
from .sizes import next_power
from .writer import PrintOptions, StageWriter

LOG2E = 1.4426950408889634
LEAST_DOT = 16
"""Tiles that are multiplied have at least so many rows and columns."""

_LOCALS = (
    *("queries", "keys", "values", "output", "logarithms", "sinks", "keeps", "grad_output"),
    *("grad_logarithms", "shifts", "scales", "deltas", "of_sinks", "lows", "grad_queries"),
    *("grad_keys", "grad_values", "program", "pair", "shared", "nil", "most", "factor", "weight"),
    *("is_kept", "product", "gradient", "of_dot", "low", "high", "inside", "inside_end", "left"),
    *("count", "again", "before", "after", "step", "sink", "larger", "fixed", "fixed_end", "share"),
    *("row_across", "column_across", "row_across_mask", "column_across_mask"),
    *("lse", "empty", "extreme", "of_row", "member", "tail"),
    *(
        f"{name}_{n}"
        for name in ("query", "key", "value", "sums", "grad", "of_query", "of_key", "of_value")
        for n in (0, 1)
    ),
    *(f"{name}_{n}" for name in ("inner", "inner_mask", "depth", "depth_mask") for n in (0, 1)),
)
"""Names of kernels' own; those of scalars and sizes are others."""


@dataclass(frozen=True)
class Tiles:
    """How many queries and keys a program works on at a time, its warps, and stages of loads."""

    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Part:
    """A part of a depth that is a power of two wide; beyond `size` there is nothing.

    The width is a name where it is known only to the launch.
    """

    start: int
    width: int | str
    size: Dim

    @property
    def is_masked(self) -> bool:
        """Whether the part is wider than what is there."""
        if isinstance(self.width, str) or not isinstance(self.size, int):
            return True
        return self.start + self.width > self.size


def parts_of(size: Dim, name: str = "") -> tuple[Part, ...]:
    """Return one or two parts that hold a depth and little more; `name` is that of its width."""
    if not isinstance(size, int):
        return (Part(0, name, size),)
    rounded = max(LEAST_DOT, -(-size // LEAST_DOT) * LEAST_DOT)
    whole = next_power(rounded)
    half = whole // 2
    rest = max(LEAST_DOT, next_power(rounded - half))
    if whole == rounded or rest >= half:
        return (Part(0, whole, size),)
    return (Part(0, half, size), Part(half, rest, size))


class AttentionWriter(StageWriter):
    """The lines of a kernel of an attention.

    Scores are tiles of queries and keys; with `is_turned` keys are the rows of tiles. `kernels` are
    the score kernel and, in the other direction, its derivative.
    """

    def __init__(
        self,
        call: AttentionCall,
        kernels: tuple[Kernel, ...],
        tiles: Tiles,
        options: PrintOptions,
        *,
        is_turned: bool = False,
    ) -> None:
        stage = Stage(kernels[-1], ("q",), ("k",))
        super().__init__(stage, Schedule(tiles.rows, tiles.columns, tiles.warps), options)
        for name in _LOCALS:
            self.names.fresh(name)
        self.call = call
        self.tiles = tiles
        self.body = [one for kernel in kernels for one in kernel.body]
        given = {buffer.name: name for buffer, name in self.buffers.items()}
        for kernel in kernels[:-1]:
            for buffer in kernel.buffers:
                self.buffers[buffer] = given.get(buffer.name) or self.names.fresh(buffer.name)
        if is_turned:
            self.tiling = Tiling((("k",), ("q",)), ("RBLOCK", "XBLOCK"))
            self.index.tiling = self.tiling
        self.parameters: dict[str, Buffer | None] = {}
        self.replaced: Callable[[Scalar], Scalar] = lambda scalar: scalar
        self.varying: set[Scalar] = set()
        self.has_checks = False
        self.inner = parts_of(call.sizes.depth, "DBLOCK")
        self.depths = parts_of(call.sizes.value_depth, "EBLOCK")
        self.element = call.q.dtype
        self.precision = ""

    # what kernels are given

    def tensor(self, name: str, buffer: Buffer) -> str:
        """Enter a tensor as a parameter; return its name."""
        self.parameters[name] = buffer
        return name

    def finished(self) -> tuple[Parameter, ...]:
        """Return the parameters: tensors, flags of checks, and sizes."""
        found = [Parameter(name, buffer) for name, buffer in self.parameters.items()]
        if self.has_checks:
            found.append(Parameter("failures", None))
        found.extend(Parameter(name, dim) for name, dim in self.sizes.known.values())
        return tuple(found)

    def dim(self, value: Dim) -> str:
        """Return the text of a size or stride; what is known to divide it is written out."""
        if isinstance(value, int):
            return str(value)
        factor, rest = value.as_coeff_Mul()
        if factor.is_Integer and factor > 1 and rest.free_symbols:
            return f"({self.sizes.text(rest)} * {int(factor)})"
        return self.sizes.text(value)

    def size(self, name: str) -> str:
        """Return the text of a size of the attention."""
        return self.dim(getattr(self.call.sizes, name))

    # positions

    def programs(self, blocks: str, heads: str, *, is_reversed: bool = False) -> None:
        """Print which block of which head a program works on, as `fixed` and `pair`."""
        at = f"program % {blocks}" if not is_reversed else f"({blocks} - 1 - program % {blocks})"
        self.emit(
            "program = tl.program_id(0)",
            f"pair = program // {blocks}",
            f"fixed = {self.typed_index(at)}",
            f"{self.axis_names['b']} = {self.typed_index(f'pair // {heads}')}",
        )

    def typed_index(self, text: str) -> str:
        """Return the text of a position in the type of positions."""
        kind = self.options.index_type
        return text if kind == "tl.int32" else f"({text}).to({kind})"

    def head(self, text: str) -> None:
        """Print the number of a head of queries, and of the head of keys that it reads."""
        self.emit(f"{self.axis_names['h']} = {self.typed_index(text)}")

    def shared_of_head(self) -> str:
        """Return the head of keys that a head of queries reads."""
        group, head = self.group(), self.axis_names["h"]
        return head if group == "1" else f"{head} // {group}"

    def group(self) -> str:
        """Return how many heads share one head of keys."""
        sizes = self.call.sizes
        if sizes.heads == sizes.kv_heads:
            return "1"
        if isinstance(sizes.heads, int) and isinstance(sizes.kv_heads, int):
            return str(sizes.heads // max(sizes.kv_heads, 1))
        return f"({self.size('heads')} // {self.size('kv_heads')})"

    def positions(self, name: str, start: str, *, masked: bool) -> None:
        """Print the positions of a tile along rows or columns."""
        axis, block = ("q", "XBLOCK") if name == "row" else ("k", "RBLOCK")
        place = self.tiling.blocks.index(block)
        self.emit(f"{name} = {self.typed_index(f'{start} + {self.lane(block, place)}')}")
        self.masked[name] = masked
        if masked:
            self.emit(f"{name}_mask = {name} < {self.end_of(name)}")
        self.emit(f"{self.axis_names[axis]} = {name}")

    def across(self, name: str, start: str) -> str:
        """Print the positions of a tile along the other dimension of tiles; return their name."""
        block = "XBLOCK" if name == "row" else "RBLOCK"
        place = 1 - self.tiling.blocks.index(block)
        own = f"{name}_across"
        self.emit(f"{own} = {self.typed_index(f'{start} + {self.lane(block, place)}')}")
        self.masked[own] = self.masked[name]
        if self.masked[own]:
            self.emit(f"{own}_mask = {own} < {self.end_of(name)}")
        return own

    def end_of(self, name: str) -> str:
        """Return how many rows or columns there are."""
        return self.size("queries" if name == "row" else "keys")

    def overhangs(self, name: str) -> bool:
        """Whether the last tile may reach beyond the end."""
        sizes, tiles = self.call.sizes, self.tiles
        size, block = (sizes.queries, tiles.rows) if name == "row" else (sizes.keys, tiles.columns)
        return not (isinstance(size, int) and size % block == 0)

    def depth_lanes(self, name: str, parts: tuple[Part, ...], place: int) -> None:
        """Print the positions in each part of a depth, along a dimension of a tile."""
        spread = "[:, None]" if place == 0 else "[None, :]"
        for n, part in enumerate(parts):
            start = f"{part.start} + " if part.start else ""
            self.emit(f"{name}_{n} = {start}tl.arange(0, {part.width}){spread}")
            if part.is_masked:
                self.emit(f"{name}_mask_{n} = {name}_{n} < {self.dim(part.size)}")

    # memory

    def place(self, name: str, tensor: Strided, head: str, row: str, depth: str = "") -> str:
        """Return the text of the addresses of elements of a tensor."""
        steps = zip((self.axis_names["b"], head, row, depth), tensor.strides, strict=False)
        terms = []
        for position, stride in steps:
            if stride == 0 or not position:
                continue
            spelled = f"({position})" if " " in position else position
            terms.append(spelled if stride == 1 else f"{spelled} * {self.dim(stride)}")
        return f"{name} + ({' + '.join(terms)})" if terms else name

    def read(self, place: str, *masks: str, other: str = "0.0") -> str:
        """Return the text of a load where all masks hold."""
        found = [mask for mask in masks if mask]
        return (
            f"tl.load({place}, {' & '.join(found)}, other={other})"
            if found
            else (f"tl.load({place})")
        )

    def write(self, place: str, value: str, *masks: str) -> None:
        """Print a store where all masks hold."""
        found = [mask for mask in masks if mask]
        more = f", {' & '.join(found)}" if found else ""
        self.emit(f"tl.store({place}, {value}{more})")

    def mask_name(self, name: str) -> str:
        """Return the mask of rows or columns, nothing if there is none."""
        return f"{name}_mask" if self.masked.get(name) else ""

    def load_parts(
        self, kind: str, name: str, tensor: Strided, head: str, row: str, *, depth: str
    ) -> None:
        """Print the loads of all parts of rows of a tensor: tiles `kind_0`, `kind_1`."""
        parts = self.inner if depth == "inner" else self.depths
        for n, part in enumerate(parts):
            place = self.place(name, tensor, head, row, f"{depth}_{n}")
            mask = f"{depth}_mask_{n}" if part.is_masked else ""
            self.emit(f"{kind}_{n} = {self.read(place, self.mask_name(row), mask)}")

    def store_parts(
        self, values: str, name: str, tensor: Strided, head: str, row: str, *, depth: str
    ) -> None:
        """Print the stores of all parts of rows; `values` is a text with `{n}` in it."""
        parts = self.inner if depth == "inner" else self.depths
        kind = triton_type(tensor.dtype)
        for n, part in enumerate(parts):
            place = self.place(name, tensor, head, row, f"{depth}_{n}")
            mask = f"{depth}_mask_{n}" if part.is_masked else ""
            value = f"({values.format(n=n)}).to({kind})"
            self.write(place, value, self.mask_name(row), mask)

    # products

    def dot(self, a: str, b: str, total: str = "") -> str:
        """Return the text of a product of tiles, added to a total."""
        more = f", {total}" if total else ""
        how = f', input_precision="{self.precision}"' if self.precision else ""
        return f"tl.dot({a}, {b}{more}{how})"

    def narrowed(self, text: str) -> str:
        """Return a tile in the type of queries, for a product."""
        return f"{text}.to({triton_type(self.element)})" if self.element is not DType.F32 else text

    # scores

    def needed(self, roots: Iterable[Scalar]) -> list[Instruction]:
        """Return what has to be printed for scalars, in order."""
        wanted: set[Instruction] = set()
        pending = [self.replaced(root) for root in roots]
        while pending:
            scalar = pending.pop()
            source = scalar.instruction
            if scalar in self.scalars or isinstance(source, Constant) or source in wanted:
                continue
            wanted.add(source)
            pending += [self.replaced(operand) for operand in source.operands]
        return [one for one in self.body if one in wanted]

    def compute(self, roots: Iterable[Scalar], *, without: str = "") -> None:
        """Print what scalars are made of; with `without` only what is the same along that axis."""
        for one in self.needed(roots):
            # The product varies along axes of size 1, too: it is a tile of a loop.
            if without and (without in one.results[0].axes or self._varies(one)):
                self.varying.update(one.results)
            else:
                self.instruction(one)

    def _varies(self, instruction: Instruction) -> bool:
        return any(self.replaced(operand) in self.varying for operand in instruction.operands)

    def given(self, name: str, text: str) -> None:
        """Let all loads of a buffer of this name be a tile that is there."""
        for one in self.body:
            if isinstance(one, Load) and one.buffer.name == name:
                self.scalars[one.out] = text
                self.varying.add(one.out)

    def tile_of(self, scalar: Scalar) -> str:
        """Return a scalar spread over all rows and columns."""
        text = self.use(scalar)
        if all(self.tiling.of(self.replaced(scalar).axes)):
            return text
        return f"tl.broadcast_to({text}, [{', '.join(self.tiling.blocks)}])"

    def restore(self, scalars: dict[Scalar, str]) -> None:
        """Forget the scalars that were printed since these were all."""
        self.scalars.clear()
        self.scalars.update(scalars)

    def use(self, scalar: Scalar, *, inline: bool = False) -> str:
        """Return the name of a scalar, or of the simpler one that it equals here."""
        return super().use(self.replaced(scalar), inline=inline)

    def apply(self, instruction: Apply) -> str:
        """Return the text of a function of the arguments that there are here."""
        arguments = tuple(map(self.replaced, instruction.arguments))
        own = Apply(instruction.domain, instruction.function, arguments, instruction.dtype)
        return super().apply(own)

    def numbered_check(self, check: Check, number: int) -> None:
        """Print a check; `number` is that of its message."""
        self.has_checks = True
        self.checks = number
        self.check(check)
