"""Print a stage as a Triton kernel."""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.dims import Dim
from lynx.ir.kernel import Buffer

from .dtypes import pointer_type
from .loops import print_loops
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

    `grid` has the dims that blocks of rows (`x_block`, `y_block`) divide. `checks` are the messages
    of its checks, in the order of their places in the array of failures.
    """

    name: str
    text: str
    parameters: tuple[Parameter, ...]
    constants: dict[str, int | str]
    schedule: Schedule
    rows: Dim
    y_rows: Dim
    splits: Dim


def print_stage(stage: Stage, schedule: Schedule, options: PrintOptions) -> PrintedStage:
    """Return the text of a stage under a schedule."""
    writer = StageWriter(stage, schedule, options)
    writer.rows()
    if not stage.columns:
        writer.straight(stage.kernel.body)
    elif schedule.is_looped:
        print_loops(writer)
    else:
        writer.whole_columns()
        writer.straight(stage.kernel.body)
    return _finished(writer)


def _finished(writer: StageWriter) -> PrintedStage:
    stage, schedule = writer.stage, writer.schedule
    parameters = [Parameter(name, buffer) for buffer, name in writer.buffers.items()]
    if writer.checks:
        parameters.append(Parameter("failures", None))
    parameters.extend(Parameter(name, dim) for name, dim in writer.sizes.known.values())
    constants: dict[str, int | str] = {"XBLOCK": schedule.x_block}
    if schedule.y_axes:
        constants["YBLOCK"] = schedule.y_block
    if stage.columns:
        constants["RBLOCK"] = schedule.r_block
    if writer.options.index_type == "INDEX":
        constants["INDEX"] = "tl.int32"
    name = writer.names.fresh(stage.kernel.name)
    y_axes = schedule.y_axes
    x_axes = tuple(axis for axis in stage.rows if axis not in y_axes)
    arguments = [p.name for p in parameters] + [f"{c}: tl.constexpr" for c in constants]
    head = [
        _decorator(parameters),
        f"def {name}({', '.join(arguments)}):",
        f'    """{_summary(stage, schedule)}"""',
    ]
    return PrintedStage(
        name,
        "\n".join([*head, *writer.hoisted, *writer.lines]) + "\n",
        tuple(parameters),
        constants,
        schedule,
        writer.size_of(x_axes),
        writer.size_of(y_axes),
        stage.splits if stage.splits is not None else 1,
    )


def _decorator(parameters: list[Parameter]) -> str:
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
    return f"{text}: along {', '.join(stage.columns)}, {way}."
