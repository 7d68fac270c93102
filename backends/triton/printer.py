"""Print a stage, or a matrix product, as a Triton kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx.ir.dims import Dim
from lynx.ir.kernel import Buffer

from .across import print_across
from .dtypes import pointer_type
from .loops import print_loops
from .matmul import Contraction, ProductSchedule, write_product
from .parts import Stage
from .schedule import Schedule
from .writer import PrintOptions, StageWriter


@dataclass(frozen=True)
class Parameter:
    """A parameter of a printed kernel: a buffer, a size, or the array of failed checks (None)."""

    name: str
    stands_for: Buffer | Dim | None

    @property
    def type_text(self) -> str:
        """The type in a signature."""
        if isinstance(self.stands_for, Buffer):
            return pointer_type(self.stands_for.dtype)
        return "*i32" if self.stands_for is None else "i32"


@dataclass(frozen=True)
class PrintedStage:
    """The text of one kernel, and how it is launched.

    Along each dimension of the grid there are as many programs as the product of the numbers of
    blocks of these sizes that cover these dims, or with `is_sum` as their sum. `options` go to
    Triton.
    """

    name: str
    text: str
    parameters: tuple[Parameter, ...]
    constants: dict[str, int | str]
    grid: tuple[tuple[tuple[Dim, int], ...], ...]
    options: dict[str, int | bool]
    is_sum: bool = False


def print_part(stage: Stage, schedule: Schedule, options: PrintOptions) -> PrintedStage:
    """Return the text of a pointwise stage as a function that is told its program."""
    writer = StageWriter(stage, schedule, options)
    writer.rows("program")
    writer.straight(stage.kernel.body)
    grid = (((writer.size_of(stage.rows), schedule.x_block),),)
    constants: dict[str, int | str] = {"XBLOCK": schedule.x_block}
    return _finished(writer, _summary(stage, schedule), constants, grid, {}, is_part=True)


def print_stage(stage: Stage, schedule: Schedule, options: PrintOptions) -> PrintedStage:
    """Return the text of a stage under a schedule."""
    writer = StageWriter(stage, schedule, options)
    if stage.across is not None:
        print_across(writer)
    else:
        writer.rows()
        if stage.columns and schedule.is_looped:
            print_loops(writer)
        else:
            if stage.columns:
                writer.whole_columns()
            writer.straight(stage.kernel.body)
    constants: dict[str, int | str] = {"XBLOCK": schedule.x_block}
    if schedule.y_axes:
        constants["YBLOCK"] = schedule.y_block
    if stage.columns:
        constants["RBLOCK"] = schedule.r_block
    x_axes = tuple(axis for axis in stage.rows if axis not in schedule.y_axes)
    blocks = [(writer.size_of(x_axes), schedule.x_block)]
    if schedule.y_axes:
        blocks.append((writer.size_of(schedule.y_axes), schedule.y_block))
    grid = [tuple(blocks) if stage.across is None else ((stage.across, 1),)]
    if stage.splits is not None:
        grid.append(((stage.splits, 1),))
    # Fused multiply-adds would round differently from eager, which runs them apart.
    launch: dict[str, int | bool] = {"num_warps": schedule.warps, "enable_fp_fusion": False}
    return _finished(writer, _summary(stage, schedule), constants, tuple(grid), launch)


def print_product(
    contraction: Contraction, schedule: ProductSchedule, options: PrintOptions
) -> PrintedStage:
    """Return the text of a matrix product under a schedule."""
    writer = write_product(contraction, schedule, options)
    blocks = (
        (contraction.size(contraction.m), schedule.m_block),
        (contraction.size(contraction.n), schedule.n_block),
    )
    batch = contraction.size(contraction.batch)
    grid = (blocks if batch == 1 else (*blocks, (batch, 1)),)
    launch: dict[str, int | bool] = {
        "num_warps": schedule.warps,
        "num_stages": schedule.stages,
        "enable_fp_fusion": True,
    }
    rows, columns, depth = (
        ", ".join(axes) for axes in (contraction.m, contraction.n, contraction.k)
    )
    summary = f"A matrix product: rows {rows}, columns {columns}, summed over {depth}."
    return _finished(writer, summary, dict(schedule.constants), grid, launch)


def _finished(
    writer: StageWriter,
    summary: str,
    constants: dict[str, int | str],
    grid: tuple[tuple[tuple[Dim, int], ...], ...],
    launch: dict[str, int | bool],
    *,
    is_part: bool = False,
) -> PrintedStage:
    parameters = [Parameter(name, buffer) for buffer, name in writer.buffers.items()]
    if writer.checks:
        parameters.append(Parameter("failures", None))
    parameters.extend(Parameter(name, dim) for name, dim in writer.sizes.known.values())
    if writer.options.index_type == "INDEX":
        constants["INDEX"] = "tl.int32"
    name = writer.names.fresh(writer.stage.kernel.name)
    arguments = [p.name for p in parameters]
    arguments += ["program"] if is_part else []
    arguments += [f"{c}: tl.constexpr" for c in constants]
    head = [
        "@triton.jit" if is_part else decorator(parameters),
        f"def {name}({', '.join(arguments)}):",
        f'    """{summary}"""',
    ]
    text = "\n".join([*head, *writer.hoisted, *writer.lines]) + "\n"
    return PrintedStage(name, text, tuple(parameters), constants, grid, launch)


def decorator(parameters: Sequence[Parameter]) -> str:
    """Return the decorator of a kernel with these parameters."""
    # A size that is a multiple of 16, or 1, must not make Triton compile anew.
    sizes = [p.name for p in parameters if not isinstance(p.stands_for, Buffer | None)]
    return f"@triton.jit(do_not_specialize={sizes})" if sizes else "@triton.jit"


def _summary(stage: Stage, schedule: Schedule) -> str:
    text = f"For each of {', '.join(stage.rows)}" if stage.rows else "Once"
    if not stage.columns:
        return f"{text}."
    if stage.is_serial:
        way = "one after the other"
    elif stage.splits is not None:
        way = "a part of them in each program"
    else:
        way = "block by block" if schedule.is_looped else "all at once"
        way = way if stage.across is None else f"{way}, and across all rows"
    return f"{text}: along {', '.join(stage.columns)}, {way}."
