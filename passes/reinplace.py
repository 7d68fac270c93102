"""Write results over operands that die, and mutations straight into their inputs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Mutation, Op, Value
from lynx.ir.dims import Dim, contiguous_strides, is_equal
from lynx.ir.errors import CompileError
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
from lynx.ir.types import TensorType

from .base import PassContext, Remark, Requirement, register_pass
from .fusion import KernelFactory
from .kernel_reads import reads_in_step
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
        work = _Work(module)
        places = work.places
        uses = Counter(mutation.value for mutation in module.graph.mutations)
        writes = tuple(
            _write_directly(work, write, uses[write.mutation.value], context)
            for write in module.writes
        )
        for index, step in enumerate(module.steps):
            _overwrite(work, index, step)
        if not places:
            return module
        steps = tuple(_placed(step, places) for step in module.steps)
        placed = dataclasses.replace(module, steps=steps, writes=writes, arenas=())
        # An output that may be a view is compared with the buffers it may lie in: now others.
        return dataclasses.replace(placed, returns=returns_of(placed))


class _Work:
    """What was decided so far.

    `places` holds the new placements, `closed` the ops in which nothing else may be written over an
    operand.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.places: dict[Value, Placement] = {}
        self.closed: set[Op] = set()
        self.factory = KernelFactory()
        self.shown = _shown(program)

    def can_overwrite(self, op: Op, result: Value, operand: Value, *, alone: bool) -> bool:
        """Whether a result can be written over an operand, by the kernel of its op too."""
        if not can_overwrite(op, result, operand, alone=alone):
            return False
        return not isinstance(op, Fused) or self._reads_in_step(op, result, operand)

    def _reads_in_step(self, op: Fused, result: Value, operand: Value) -> bool:
        """Whether the kernel reads the operand at the places only that it writes next.

        Sizes that are equal, but not seen to be, make it run along other axes.
        """
        over = {
            value: place.of
            for value in op.results
            if isinstance(place := self.places.get(value), InPlace | Target)
        }
        over[result] = operand
        in_place = {
            op.results.index(value): op.inputs.index(of)
            for value, of in over.items()
            if of in op.inputs
        }
        try:
            kernel = self.factory.kernel_of(
                op,
                [self._strides(value) for value in op.inputs],
                [self._strides(value) or () for value in op.results],
                in_place,
            )
        except CompileError:
            return True  # it has no kernel, and torch reads everything before it writes
        return reads_in_step(kernel, [f"x{index}" for index in in_place.values()])

    def _strides(self, value: Value) -> tuple[Dim, ...] | None:
        if not isinstance(value.type, TensorType):
            return None
        known = self.program.strides(value)
        return contiguous_strides(value.type.shape) if known is None else known

    def root_of(self, value: Value) -> Value:
        """Return the value that has the memory in which this one is going to lie."""
        while True:
            base = self.program.bases[value]
            assert base is not None, value
            place = self.places.get(base)
            if not isinstance(place, InPlace) or place.of is None:
                return base
            value = place.of

    def dies(self, index: int, operand: Value) -> bool:
        """Whether an operand lies in the arena, and nothing but a read of it needs its memory."""
        base = self.program.bases[operand]
        if base is None or self.program.ends[base] != index:
            return False
        root = self.root_of(base)
        if root in self.places or not isinstance(self.program.placements.get(root), Arena):
            return False
        return _is_only_reader(self.program, self.program.steps[index].op, operand, base)

    def is_whole(self, operand: Value) -> bool:
        """Whether an operand is all that lies in its memory, so that nothing else moves along."""
        root = self.root_of(operand)
        return is_equal(root.tensor_type.nbytes, operand.tensor_type.nbytes)

    def move(self, operand: Value, wanted: Placement) -> None:
        """Let the memory of an operand be where the result that will take it has to be."""
        if isinstance(wanted, Arena):
            return
        root = self.root_of(operand)
        placement = self.program.placements[root]
        assert isinstance(placement, Arena), placement
        if isinstance(wanted, Saved):
            self.places[root] = Saved(placement.strides, placement.size)
        else:
            self.places[root] = Fresh(placement.strides)


def _placed(step: Step, places: dict[Value, Placement]) -> Step:
    if not any(result in places for result in step.op.results):
        return step
    placements = tuple(
        places.get(result, placement)
        for result, placement in zip(step.op.results, step.placements, strict=True)
    )
    return dataclasses.replace(step, placements=placements)


def _overwrite(work: _Work, index: int, step: Step) -> None:
    """Let results of a step be written over operands that die, each over one of its own."""
    op = step.op
    if not (op.is_elementwise or isinstance(op, Fused)) or op in work.closed:
        return
    dying = [operand for operand in dict.fromkeys(op.operands) if work.dies(index, operand)]
    if not _pair(work, step, dying) and not any(result in work.places for result in op.results):
        _pair(work, step, dying, alone=True)


def _pair(work: _Work, step: Step, dying: list[Value], *, alone: bool = False) -> bool:
    """Place results over operands of a list, only one if it has to be `alone`."""
    found = False
    for result, placement in zip(step.op.results, step.placements, strict=True):
        if result in work.places or not isinstance(placement, _MOVABLE) or (alone and found):
            continue
        for operand in dying:
            if (
                (isinstance(placement, Arena) or work.is_whole(operand))
                and _same_place(work.program, operand, result, exactly=result in work.shown)
                and work.can_overwrite(step.op, result, operand, alone=alone)
            ):
                work.move(operand, placement)
                work.places[result] = InPlace(work.program.strides(result), operand)
                dying.remove(operand)
                found = True
                break
    return found


def _same_place(program: Program, a: Value, b: Value, *, exactly: bool) -> bool:
    """Whether two values have one type and one known layout without gaps.

    If it has to be so `exactly`, strides of dimensions of size 1 are compared too.
    """
    strides, wanted = program.strides(a), program.strides(b)
    if a.type != b.type or strides is None or not is_dense(a.shape, strides):
        return False
    if exactly:
        return equal_strides(strides, wanted)
    return same_strides(a.shape, strides, wanted)


def _shown(program: Program) -> set[Value]:
    """Return the values that outputs are or look at: their strides are promised, to the last one.

    What writes over a tensor returns the very tensor, with the strides that it had.
    """
    shown: set[Value] = set()
    pending = [output for output in program.graph.outputs if output is not None]
    while pending:
        value = pending.pop()
        if value in shown:
            continue
        shown.add(value)
        if value.op is not None and value.op.is_view:
            pending.append(value.op.operands[0])
    return shown


def _is_only_reader(program: Program, op: Op, operand: Value, base: Value) -> bool:
    """Whether no other operand of an op may lie in the memory of this one."""
    return all(other is operand or not _may_share(program, other, base) for other in op.operands)


def _may_share(program: Program, value: Value, root: Value) -> bool:
    base = program.bases[value]
    return base is root if base is not None else root in program.roots_of(value)


def _write_directly(work: _Work, write: Write, targets: int, context: PassContext) -> Write:
    """Decide how a mutation is done whose new value goes to this many inputs."""
    if write.kind != "copy":
        return write
    mutation = write.mutation
    refusal = _why_not_directly(work, mutation, targets)
    if refusal == _READ_LATER and _is_alone(work, mutation):
        refusal = _why_not_directly(work, mutation, targets, alone=True)
        if not refusal and mutation.value.op is not None:
            work.closed.add(mutation.value.op)
    if refusal:
        loc = mutation.value.op.loc if mutation.value.op is not None else None
        message = f"input '{mutation.target.name}' is copied into at the end: {refusal}"
        context.remarks.append(Remark("mutation", message, *([loc] if loc else [])))
        return write
    work.places.update(_rewrites_of(work, mutation))
    if mutation.value not in work.places:
        strides = work.program.strides(mutation.value)
        work.places[mutation.value] = Target(strides, mutation.target)
    return Write(mutation, "in_place")


def _rewrites_of(work: _Work, mutation: Mutation) -> dict[Value, Placement]:
    """Return the placements of values that an input takes on one after the other.

    Nothing if there is only the last, or if one of them cannot be written over the one before.
    """
    program, target = work.program, mutation.target
    places: dict[Value, Placement] = {}
    value = mutation.value
    while value is not target:
        over = None if value.op is None else _rewritten(work, value, target)
        if over is None:
            return {}
        places[value] = InPlace(program.strides(value), over)
        value = over
    return places if len(places) > 1 else {}


def _rewritten(work: _Work, value: Value, target: Value) -> Value | None:
    """Return the operand that a value of an input's chain of values can be written over."""
    op = value.op
    assert op is not None, value
    index = work.program.positions[op]
    is_placed = any(result in work.places for result in op.results)
    if is_placed or not isinstance(work.program.placements[value], Arena):
        return None
    for operand in dict.fromkeys(op.operands):
        if operand is target:
            is_last = work.program.ends[target] == index
        else:
            is_last = operand.op is not None and work.dies(index, operand)
        if (
            is_last
            and _same_place(work.program, operand, value, exactly=False)
            and work.program.bases[operand] is operand
            and _is_only_reader(work.program, op, operand, operand)
            and work.can_overwrite(op, value, operand, alone=False)
        ):
            return operand
    return None


def _is_alone(work: _Work, mutation: Mutation) -> bool:
    """Whether the op of a mutation's value computes the new value of no other input."""
    op = mutation.value.op
    if op is None or any(result in work.places for result in op.results):
        return False
    return sum(m.value.op is op for m in work.program.graph.mutations) == 1


def _why_not_directly(work: _Work, mutation: Mutation, targets: int, *, alone: bool = False) -> str:
    """Return why a mutation's value cannot be computed into the input, empty if it can."""
    program, value, target = work.program, mutation.value, mutation.target
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
    if _reads_after(work, target, value, value.op, alone=alone):
        return _READ_LATER
    return ""


def _reads_after(work: _Work, target: Value, value: Value, op: Op, *, alone: bool) -> bool:
    """Whether the old value of an input is needed once `op` has begun to write the new one."""
    program = work.program
    index = program.positions[op]
    if program.ends[target] < index:
        return False
    if program.ends[target] > index or target not in op.operands:
        return True
    if not work.can_overwrite(op, value, target, alone=alone):
        return True
    return not _is_only_reader(program, op, target, target)
