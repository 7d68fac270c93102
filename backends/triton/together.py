"""Let independent pointwise stages share a launch, as the parts of an optimizer step are.

Each part is a function of its own; the kernel hands its programs out to them by their number. The
parts touch nothing that another part writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lynx.ir.dims import Dim
from lynx.ir.kernel import Buffer, Check, Store

from .expressions import Names, SizeArguments
from .parts import Stage
from .printer import Parameter, PrintedStage, decorator, print_part
from .schedule import Schedule
from .writer import PrintOptions

MOST_PARTS = 16


def groups_of(stages: Sequence[Stage], schedules: Sequence[Schedule]) -> list[list[int]]:
    """Return runs of stages that can share a launch, each at least one, in order."""
    groups: list[list[int]] = []
    touched: set[Buffer] = set()
    written: set[Buffer] = set()
    for number, (stage, schedule) in enumerate(zip(stages, schedules, strict=True)):
        buffers = set(stage.kernel.buffers)
        outputs = {one.buffer for one in stage.kernel.body if isinstance(one, Store)}
        joins = groups and _is_simple(stage, schedule) and len(groups[-1]) < MOST_PARTS
        previous = groups[-1][-1] if groups else 0
        joins = joins and _is_simple(stages[previous], schedules[previous])
        if joins and not (outputs & touched or buffers & written):
            groups[-1].append(number)
        else:
            groups.append([number])
            touched, written = set(), set()
        touched |= buffers
        written |= outputs
    return groups


def _is_simple(stage: Stage, schedule: Schedule) -> bool:
    checks = any(isinstance(one, Check) for one in stage.kernel.body)
    return not (stage.columns or schedule.y_axes or checks)


def print_together(
    stages: Sequence[Stage], schedules: Sequence[Schedule], options: PrintOptions, name: str
) -> PrintedStage:
    """Return the text of stages that share a launch."""
    warps = max(schedule.warps for schedule in schedules)
    parts = [
        print_part(stage, replace(schedule, warps=warps), options)
        for stage, schedule in zip(stages, schedules, strict=True)
    ]
    dispatch = _Dispatch(name, parts)
    constants: dict[str, int | str] = {}
    if options.index_type == "INDEX":
        constants["INDEX"] = "tl.int32"
    parameters = dispatch.parameters()
    signature = [p.name for p in parameters] + [f"{c}: tl.constexpr" for c in constants]
    head = [
        decorator(parameters),
        f"def {name}({', '.join(signature)}):",
        f'    """{len(parts)} independent parts."""',
    ]
    kernel = "\n".join([*head, *dispatch.lines()]) + "\n"
    text = "\n\n".join([*(part.text for part in parts), kernel])
    grid = tuple(part.grid[0][0] for part in parts)
    launch: dict[str, int | bool] = {"num_warps": warps, "enable_fp_fusion": False}
    return PrintedStage(name, text, parameters, constants, (grid,), launch, is_sum=True)


class _Dispatch:
    """Prints which program runs which part, and collects what the parts need."""

    def __init__(self, name: str, parts: Sequence[PrintedStage]) -> None:
        self.parts = parts
        self.names = Names()
        for taken in (name, *(part.name for part in parts)):
            self.names.fresh(taken)
        self.buffers: dict[Buffer, str] = {}
        self.sizes = SizeArguments(self.names)
        self.given = [[self._pass_on(p.stands_for) for p in part.parameters] for part in parts]

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters of the kernel: buffers and sizes of all parts, each once."""
        buffers = [Parameter(text, buffer) for buffer, text in self.buffers.items()]
        return (*buffers, *(Parameter(text, dim) for text, dim in self.sizes.known.values()))

    def lines(self) -> list[str]:
        """Return the body of the kernel."""
        ends: list[str] = []
        calls: list[str] = []
        begin = "0"
        for place, (part, given) in enumerate(zip(self.parts, self.given, strict=True)):
            ((rows, block),) = part.grid[0]
            if isinstance(rows, int) and begin.isdigit():
                end = str(int(begin) - (-rows // block))
            else:
                end = self.names.fresh(f"end_{place}")
                ends.append(f"    {end} = {begin} + tl.cdiv({self.sizes.text(rows)}, {block})")
            own = "program" if begin == "0" else f"program - {begin}"
            constants = ["INDEX"] if "INDEX" in part.constants else []
            arguments = ", ".join([*given, own, str(block), *constants])
            calls.append(f"    {'if' if place == 0 else 'elif'} program < {end}:")
            calls.append(f"        {part.name}({arguments})")
            begin = end
        return ["    program = tl.program_id(0)", *ends, *calls]

    def _pass_on(self, stands_for: Buffer | Dim | None) -> str:
        """Return what the kernel gives a part for a parameter."""
        assert stands_for is not None, "parts have no checks"
        if not isinstance(stands_for, Buffer):
            return self.sizes.text(stands_for)
        if stands_for not in self.buffers:
            self.buffers[stands_for] = self.names.fresh(stands_for.name)
        return self.buffers[stands_for]
