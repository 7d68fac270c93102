"""Write elementwise results over operands that die, and mutations straight into their inputs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Mutation, Op, Value
from lynx.ir.ops.aten import Aten
from lynx.ir.program import (
    Arena,
    InPlace,
    Placement,
    Program,
    Step,
    Target,
    Write,
    equal_strides,
    same_strides,
)

from .base import PassContext, Remark, Requirement, register_pass
from .layouts import is_dense
from .lower import returns_of
from .requirements import IS_PROGRAM


@register_pass
@dataclass(frozen=True)
class Reinplace:
    """Reuse memory in place where nobody can tell.

    The result of an elementwise op is written over an operand in the arena of the same type and
    layout that nothing reads afterwards. The new value of a mutated input is written straight into
    it when the old value is not read afterwards.
    """

    name: ClassVar[str] = "reinplace"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_PROGRAM,)

    def run(self, module: Program, context: PassContext) -> Program:
        """Return the program with other placements."""
        places: dict[Value, Placement] = {}
        uses = Counter(mutation.value for mutation in module.graph.mutations)
        writes = tuple(
            _write_directly(module, write, uses[write.mutation.value], places, context)
            for write in module.writes
        )
        for index, step in enumerate(module.steps):
            operand = _dying_operand(module, index, step, places)
            if operand is not None:
                result = step.op.out
                places[result] = InPlace(module.strides(result), operand)
        if not places:
            return module
        steps = tuple(_placed(step, places) for step in module.steps)
        placed = dataclasses.replace(module, steps=steps, writes=writes, arenas=())
        # An output that may be a view is compared with the buffers it may lie in: now others.
        return dataclasses.replace(placed, returns=returns_of(placed))


def _placed(step: Step, places: dict[Value, Placement]) -> Step:
    if not any(result in places for result in step.op.results):
        return step
    placements = tuple(
        places.get(result, placement)
        for result, placement in zip(step.op.results, step.placements, strict=True)
    )
    return dataclasses.replace(step, placements=placements)


def _dying_operand(
    program: Program, index: int, step: Step, places: dict[Value, Placement]
) -> Value | None:
    """Return an operand over which the only result of a step can be written."""
    op = step.op
    if not op.is_elementwise or len(op.results) != 1 or op.out in places:
        return None
    if not isinstance(step.placements[0], Arena):
        return None
    for operand in dict.fromkeys(op.operands):
        base = program.bases[operand]
        if (
            base is not None
            and isinstance(places.get(base) or program.placements.get(base), Arena | InPlace)
            and program.ends[base] == index
            and _same_place(program, operand, op.out)
            and _is_only_reader(program, op, operand, base)
        ):
            return operand
    return None


def _same_place(program: Program, a: Value, b: Value) -> bool:
    """Whether two values have one type and one known layout without gaps."""
    strides = program.strides(a)
    return (
        a.type == b.type
        and strides is not None
        and is_dense(a.shape, strides)
        and same_strides(a.shape, strides, program.strides(b))
    )


def _is_only_reader(program: Program, op: Op, operand: Value, base: Value) -> bool:
    """Whether no other operand of an op may lie in the memory of this one."""
    return all(other is operand or not _may_share(program, other, base) for other in op.operands)


def _may_share(program: Program, value: Value, root: Value) -> bool:
    base = program.bases[value]
    return base is root if base is not None else root in program.roots_of(value)


def _write_directly(
    program: Program,
    write: Write,
    targets: int,
    places: dict[Value, Placement],
    context: PassContext,
) -> Write:
    """Decide how a mutation is done whose new value goes to this many inputs."""
    if write.kind != "copy":
        return write
    mutation = write.mutation
    refusal = _why_not_directly(program, mutation, targets)
    if refusal:
        loc = mutation.value.op.loc if mutation.value.op is not None else None
        message = f"input '{mutation.target.name}' is copied into at the end: {refusal}"
        context.remarks.append(Remark("mutation", message, *([loc] if loc else [])))
        return write
    places[mutation.value] = Target(program.strides(mutation.value), mutation.target)
    return Write(mutation, "in_place")


def _why_not_directly(program: Program, mutation: Mutation, targets: int) -> str:
    """Return why a mutation's value cannot be computed into the input, empty if it can."""
    value, target = mutation.value, mutation.target
    if value.type != target.type:
        return f"it holds {target.type}, its new value is {value.type}"
    if value.op is None or not isinstance(program.placements[value], Arena):
        return "its new value is an input, a view, an output, or allocated by torch"
    if targets > 1:
        return "its new value goes to several inputs"
    strides = program.strides(target)
    if strides is None or not is_dense(target.shape, strides):
        return "its elements do not lie densely in memory"
    if not equal_strides(strides, program.strides(value)):
        return "its new value has another layout"
    if _reads_after(program, target, program.positions[value.op], value.op):
        return "its old value is read later"
    return ""


def _reads_after(program: Program, target: Value, index: int, op: Op) -> bool:
    """Whether the old value of an input is needed once the op at `index` has begun to write."""
    if program.ends[target] < index:
        return False
    if program.ends[target] > index or not op.is_elementwise or isinstance(op, Aten):
        return True
    return any(
        operand is not target and _may_share(program, operand, target) for operand in op.operands
    )
