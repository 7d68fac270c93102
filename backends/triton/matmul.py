"""Print a kernel that sums products over an axis as a tiled matrix product.

The kernel IR has no matrix product of its own: it is `reduce sum` over `mul` of two scalars of
which one does not depend on the rows, the other not on the columns. What makes these two scalars is
the prologue, what is made of the sum the epilogue; both are printed as in any other kernel. Tiles
go to `tl.dot`, which adds in `f32`. Low-precision numbers that the kernel converts to `f32` before
it multiplies stay as they are: their products are exact in `f32`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.dims import Dim, product
from lynx.ir.kernel import (
    Apply,
    Check,
    Constant,
    Convert,
    Instruction,
    Kernel,
    Load,
    Reduce,
    Scalar,
    Store,
)
from lynx.ir.types import DType

from .expressions import Tiling
from .parts import Stage
from .schedule import Schedule
from .sizes import estimate, next_power
from .writer import PrintOptions, StageWriter


@dataclass(frozen=True)
class Contraction:
    """A kernel seen as a matrix product: its axes by role, its factors, and the sum.

    `batch` axes are in both factors, `m` only in `a`, `n` only in `b`, and `k` is summed over.
    """

    kernel: Kernel
    a: Scalar
    b: Scalar
    total: Reduce
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]

    def size(self, axes: tuple[str, ...]) -> Dim:
        """Return the number of points along axes."""
        return product(self.kernel.sizes[axis] for axis in axes)


@dataclass(frozen=True)
class ProductSchedule:
    """Tile sizes of a product, warps, how far loads run ahead, and rows of tiles that go together.

    With `tf32`, products of `f32` are rounded to 10 bits; off unless torch allows it.
    """

    m_block: int
    n_block: int
    k_block: int
    warps: int = 4
    stages: int = 3
    group: int = 8
    tf32: bool = False

    @property
    def constants(self) -> dict[str, int | str]:
        """The constants of the kernel by name."""
        return {
            "XBLOCK": self.m_block,
            "RBLOCK": self.n_block,
            "KBLOCK": self.k_block,
            "GROUP": self.group,
        }


def contraction_of(kernel: Kernel) -> Contraction | str:
    """Return how a kernel is a matrix product, or why it is none."""
    reduces = [one for one in kernel.body if isinstance(one, Reduce)]
    if len(reduces) != 1 or reduces[0].combine != "sum":
        return "a product has one reduction, which is a sum"
    total = reduces[0]
    maker = total.x.instruction
    if not (isinstance(maker, Apply) and maker.function == "mul"):
        return "what is summed is no product"
    if total.x.dtype is not DType.F32:
        return f"the product is of {total.x.dtype}, not of f32"
    if any(isinstance(one, Check) for one in kernel.body):
        return "checks are made in kernels of their own"
    a, b = maker.arguments
    first, second, over = set(a.axes), set(b.axes), set(total.over)
    if not over <= first & second:
        return "a factor does not depend on what is summed over"
    sizes = kernel.sizes
    m = tuple(axis for axis in sizes if axis in first - second)
    n = tuple(axis for axis in sizes if axis in second - first)
    batch = tuple(axis for axis in sizes if axis in (first & second) - over)
    if not m or not n:
        return "one of the factors is a vector"
    known = {*batch, *m, *n}
    for store in kernel.body:
        if isinstance(store, Store) and set(store.domain) != known:
            return "a store runs over other axes than the product"
        if isinstance(store, Store) and store.combine != "set":
            return "a store adds to memory"
    return Contraction(kernel, a, b, total, batch, m, n, total.over)


def choose_product(contraction: Contraction) -> ProductSchedule:
    """Return the schedule that the sizes suggest."""
    rows = estimate(contraction.size(contraction.m))
    columns = estimate(contraction.size(contraction.n))
    depth = estimate(contraction.size(contraction.k))
    wide = any(_dot_dtype(x) is DType.F32 for x in (contraction.a, contraction.b))
    most = 64 if wide else 128
    m_block = min(most, max(16, next_power(rows)))
    n_block = min(most, max(16, next_power(columns)))
    k_block = min(32 if wide else 64, max(16, next_power(depth)))
    # Products of f32 are made of multiply-adds of each thread, which keep both factors too.
    warps = 8 if m_block * n_block >= (64 * 64 if wide else 128 * 128) else 4
    return ProductSchedule(m_block, n_block, k_block, warps)


def product_candidates(contraction: Contraction) -> tuple[ProductSchedule, ...]:
    """Return schedules worth a measurement, the chosen one first."""
    first = choose_product(contraction)
    rows = next_power(max(estimate(contraction.size(contraction.m)), 16))
    columns = next_power(max(estimate(contraction.size(contraction.n)), 16))
    shapes = [
        (128, 256, 64, 8, 3), (128, 128, 64, 4, 4), (128, 128, 32, 4, 4), (128, 64, 64, 4, 4),
        (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (64, 256, 32, 4, 4), (32, 128, 64, 4, 4),
        (16, 128, 64, 4, 4), (64, 32, 64, 4, 5),
    ]  # fmt: skip
    fitting = [
        ProductSchedule(m, n, k, warps, stages)
        for m, n, k, warps, stages in shapes
        if m <= rows and n <= columns
    ]
    return tuple(dict.fromkeys([first, *fitting]))


def write_product(
    contraction: Contraction, schedule: ProductSchedule, options: PrintOptions
) -> StageWriter:
    """Write the kernel of a product; the text has the constants' names as parameters."""
    return _ProductWriter(contraction, schedule, options).run()


class _ProductWriter:
    def __init__(
        self, contraction: Contraction, schedule: ProductSchedule, options: PrintOptions
    ) -> None:
        self.contraction = contraction
        self.schedule = schedule
        stage = Stage(contraction.kernel, contraction.m, contraction.n)
        tile = Schedule(schedule.m_block, schedule.n_block, schedule.warps)
        self.writer = StageWriter(stage, tile, options)
        self.index_type = options.index_type

    def run(self) -> StageWriter:
        writer, roles = self.writer, self.contraction
        self._programs()
        epilogue = self._tiling(roles.m, roles.n, "XBLOCK", "RBLOCK")
        self._use(epilogue)
        self._axis("row", roles.m, "row_block", "XBLOCK", 0, self.schedule.m_block)
        self._axis("column", roles.n, "column_block", "RBLOCK", 1, self.schedule.n_block)
        writer.emit("total = tl.zeros([XBLOCK, RBLOCK], tl.float32)")
        depth = writer.sizes.text(roles.size(roles.k))
        writer.emit(f"for start in range(0, {depth}, KBLOCK):")
        writer.indent += 1
        outer = dict(writer.scalars)
        a = self._factor(roles.a, self._tiling(roles.m, roles.k, "XBLOCK", "KBLOCK"), 1)
        b = self._factor(roles.b, self._tiling(roles.k, roles.n, "KBLOCK", "RBLOCK"), 0)
        a, b = self._same_type(a, b)
        precision = "tf32" if self.schedule.tf32 else "ieee"
        writer.emit(f'total = tl.dot({a}, {b}, total, input_precision="{precision}")')
        writer.indent -= 1
        writer.scalars.clear()
        writer.scalars.update(outer)
        self._use(epilogue)
        writer.scalars[roles.total.out] = "total"
        for one in self._epilogue():
            writer.instruction(one)
        return writer

    def _programs(self) -> None:
        """Order programs so that a few rows of tiles share the columns that they read."""
        writer, roles = self.writer, self.contraction
        rows = writer.sizes.text(roles.size(roles.m))
        columns = writer.sizes.text(roles.size(roles.n))
        writer.emit(
            f"row_blocks = tl.cdiv({rows}, XBLOCK)",
            f"column_blocks = tl.cdiv({columns}, RBLOCK)",
            "program = tl.program_id(0)",
        )
        if roles.batch:
            batch = "program // (row_blocks * column_blocks)"
            wide = self.index_type != "tl.int32"
            writer.emit(
                f"batch = {f'({batch}).to({self.index_type})' if wide else batch}",
                "program = program % (row_blocks * column_blocks)",
            )
            writer.take_apart("batch", roles.batch)
        writer.emit(
            "first = program // (GROUP * column_blocks) * GROUP",
            "together = tl.minimum(row_blocks - first, GROUP)",
            "row_block = first + program % (GROUP * column_blocks) % together",
            "column_block = program % (GROUP * column_blocks) // together",
        )

    def _tiling(self, one: tuple[str, ...], two: tuple[str, ...], *blocks: str) -> Tiling:
        return Tiling((one, two), blocks)

    def _use(self, tiling: Tiling) -> None:
        self.writer.tiling = tiling
        self.writer.index.tiling = tiling

    def _axis(
        self, name: str, axes: tuple[str, ...], start: str, block: str, place: int, size: int
    ) -> None:
        writer = self.writer
        lane = writer.lane(block, place)
        if self.index_type != "tl.int32":
            start = f"{start}.to({self.index_type})"
        writer.emit(f"{name} = {start} * {block} + {lane}")
        count = self.contraction.size(axes)
        writer.mask_of(name, count, size, writer.sizes.text(count))
        writer.take_apart(name, axes)

    def _factor(self, factor: Scalar, tiling: Tiling, place: int) -> str:
        """Print what makes a factor's tile; return its name."""
        writer = self.writer
        self._use(tiling)
        lane = writer.lane("KBLOCK", place)
        if self.index_type != "tl.int32":
            lane = f"{lane}.to({self.index_type})"
        writer.emit(f"depth = start + {lane}")
        count = self.contraction.size(self.contraction.k)
        writer.mask_of("depth", count, self.schedule.k_block, writer.sizes.text(count))
        writer.take_apart("depth", self.contraction.k)
        operand = _undone(factor)
        for one in _slice(self.contraction.kernel, operand):
            if one.out not in writer.scalars:
                writer.instruction(one)
        name = writer.use(operand)
        if writer.masked["depth"] and not isinstance(operand.instruction, Load):
            # What a prologue makes of nothing need not be zero.
            writer.emit(f"{name} = tl.where(depth_mask, {name}, 0.0)")
        # A name of the other factor's tile must not be taken for one of this.
        for one in _slice(self.contraction.kernel, operand):
            writer.scalars.pop(one.out, None)
        return name

    def _same_type(self, a: str, b: str) -> tuple[str, str]:
        first, second = _dot_dtype(self.contraction.a), _dot_dtype(self.contraction.b)
        if first is second:
            return a, b
        return f"{a}.to(tl.float32)", f"{b}.to(tl.float32)"

    def _epilogue(self) -> list[Instruction]:
        """Return what has to run after the sum, without it, in order."""
        body = self.contraction.kernel.body
        needed: set[Instruction] = {one for one in body if not one.results}
        for one in reversed(body):
            if one in needed and one is not self.contraction.total:
                needed.update(scalar.instruction for scalar in one.operands)
        return [one for one in body if one in needed and one is not self.contraction.total]


def _undone(factor: Scalar) -> Scalar:
    """Return the scalar before its conversion from low precision, which `tl.dot` takes as it is."""
    maker = factor.instruction
    if isinstance(maker, Convert) and maker.x.dtype.is_low_precision:
        return maker.x
    return factor


def _dot_dtype(factor: Scalar) -> DType:
    return _undone(factor).dtype


def _slice(kernel: Kernel, scalar: Scalar) -> list[Instruction]:
    """Return what a scalar is made by, in order."""
    needed: set[Instruction] = {scalar.instruction}
    for one in reversed(kernel.body):
        if one in needed:
            needed.update(operand.instruction for operand in one.operands)
    return [one for one in kernel.body if one in needed and not isinstance(one, Constant)]
