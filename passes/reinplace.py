"""Write results over operands that die, and mutations straight into their inputs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Mutation, Op, Value
from lynx.ir.dims import is_equal
from lynx.ir.ops.fusion import Fused
from lynx.ir.overwriting import can_overwrite
from lynx.ir.program import (
    Arena,
    Fresh,
    InPlace,
    Placement,
    Program,
    Saved,
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

_MOVABLE = (Arena, Saved, Fresh)

_READ_LATER = "its old value is read later"


@register_pass
@dataclass(frozen=True)
class Reinplace:
    """Reuse memory in place where nobody can tell.

    A result of an elementwise or fused op is written over an operand in the arena of the same type
    and layout that nothing reads afterwards; if it leaves the program or is kept for backward, the
    operand is computed where the result will be. The new value of a mutated input is written
    straight into it when the old value is not read afterwards.
    """

    name: ClassVar[str] = "reinplace"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_PROGRAM,)

    def run(self, module: Program, context: PassContext) -> Program:
        """Return the program with other placements."""
        places: dict[Value, Placement] = {}
        closed: set[Op] = set()
        uses = Counter(mutation.value for mutation in module.graph.mutations)
        writes = tuple(
            _write_directly(module, write, uses[write.mutation.value], places, closed, context)
            for write in module.writes
        )
        for index, step in enumerate(module.steps):
            _overwrite(module, index, step, places, closed)
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


def _overwrite(
    program: Program, index: int, step: Step, places: dict[Value, Placement], closed: set[Op]
) -> None:
    """Let results of a step be written over operands that die, each over one of its own."""
    op = step.op
    if not (op.is_elementwise or isinstance(op, Fused)) or op in closed:
        return
    operands = dict.fromkeys(op.operands)
    dying = [operand for operand in operands if _dies(program, index, operand, places)]
    if not _pair(program, step, dying, places) and not any(r in places for r in op.results):
        _pair(program, step, dying, places, alone=True)


def _pair(
    program: Program,
    step: Step,
    dying: list[Value],
    places: dict[Value, Placement],
    *,
    alone: bool = False,
) -> bool:
    """Place results over operands of a list, only one if it has to be `alone`."""
    found = False
    for result, placement in zip(step.op.results, step.placements, strict=True):
        if result in places or not isinstance(placement, _MOVABLE) or (alone and found):
            continue
        for operand in dying:
            is_whole = isinstance(placement, Arena) or _is_whole(program, operand, places)
            if (
                is_whole
                and _same_place(program, operand, result)
                and can_overwrite(step.op, result, operand, alone=alone)
            ):
                _move(program, operand, placement, places)
                places[result] = InPlace(program.strides(result), operand)
                dying.remove(operand)
                found = True
                break
    return found


def _is_whole(program: Program, operand: Value, places: dict[Value, Placement]) -> bool:
    """Whether an operand is all that lies in its memory, so that nothing else would move along."""
    root = _root_of(program, operand, places)
    return is_equal(root.tensor_type.nbytes, operand.tensor_type.nbytes)


def _move(
    program: Program, operand: Value, wanted: Placement, places: dict[Value, Placement]
) -> None:
    """Let the memory of an operand be where the result that will take it has to be."""
    if isinstance(wanted, Arena):
        return
    root = _root_of(program, operand, places)
    placement = program.placements[root]
    assert isinstance(placement, Arena), placement
    if isinstance(wanted, Saved):
        places[root] = Saved(placement.strides, placement.size)
    else:
        places[root] = Fresh(placement.strides)


def _root_of(program: Program, value: Value, places: dict[Value, Placement]) -> Value:
    """Return the value that has the memory in which this one is going to lie."""
    while True:
        base = program.bases[value]
        assert base is not None, value
        place = places.get(base)
        if not isinstance(place, InPlace) or place.of is None:
            return base
        value = place.of


def _dies(program: Program, index: int, operand: Value, places: dict[Value, Placement]) -> bool:
    """Whether an operand lies in the arena, and nothing but this read of it needs its memory."""
    base = program.bases[operand]
    if base is None or program.ends[base] != index:
        return False
    root = _root_of(program, base, places)
    if root in places or not isinstance(program.placements.get(root), Arena):
        return False
    return _is_only_reader(program, program.steps[index].op, operand, base)


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
    closed: set[Op],
    context: PassContext,
) -> Write:
    """Decide how a mutation is done whose new value goes to this many inputs.

    `closed` collects the ops in which nothing else may be written over an operand.
    """
    if write.kind != "copy":
        return write
    mutation = write.mutation
    refusal = _why_not_directly(program, mutation, targets)
    if refusal == _READ_LATER and _is_alone(program, mutation, places):
        refusal = _why_not_directly(program, mutation, targets, alone=True)
        if not refusal and mutation.value.op is not None:
            closed.add(mutation.value.op)
    if refusal:
        loc = mutation.value.op.loc if mutation.value.op is not None else None
        message = f"input '{mutation.target.name}' is copied into at the end: {refusal}"
        context.remarks.append(Remark("mutation", message, *([loc] if loc else [])))
        return write
    places[mutation.value] = Target(program.strides(mutation.value), mutation.target)
    return Write(mutation, "in_place")


def _is_alone(program: Program, mutation: Mutation, places: dict[Value, Placement]) -> bool:
    """Whether the op of a mutation's value computes the new value of no other input."""
    op = mutation.value.op
    if op is None or any(result in places for result in op.results):
        return False
    return sum(m.value.op is op for m in program.graph.mutations) == 1


def _why_not_directly(
    program: Program, mutation: Mutation, targets: int, *, alone: bool = False
) -> str:
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
    if _reads_after(program, target, value, value.op, alone=alone):
        return _READ_LATER
    return ""


def _reads_after(program: Program, target: Value, value: Value, op: Op, *, alone: bool) -> bool:
    """Whether the old value of an input is needed once `op` has begun to write the new one."""
    index = program.positions[op]
    if program.ends[target] < index:
        return False
    if program.ends[target] > index or target not in op.operands:
        return True
    if not can_overwrite(op, value, target, alone=alone):
        return True
    return not _is_only_reader(program, op, target, target)
