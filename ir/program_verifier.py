"""Check the invariants of a program, by running it on an abstract memory.

1.  There is a step for each op of the graph in its order, with a placement for each result, and a
    rule for each output and mutation (`step-mismatch`).
2.  A placement fits the op (`bad-placement`): only tensors are written, never by an `aten` op, and
    by a view op only if it is a reshape that copies; a view lies in operands; what is written in
    place is elementwise, or fused and read in step, over an operand of the same type and layout,
    and in an input only if that is mutated; a target is a mutated input, and the result its new
    value.
3.  What is written has a known layout without overlap, of as many bytes as were set aside
    (`bad-layout`).
4.  Offsets are aligned (`misaligned`) and inside of the arena (`outside-arena`).
5.  Memory still holds a value whenever the value is read (`overwritten`): no two buffers overlap
    that are needed at the same time, nothing is written in place or to a target too early, and a
    view lives no longer than what it looks at.
6.  An op does not write over its own operands, except in place, nor two results to one place
    (`overlap`).
7.  No value is read after it was freed, or freed twice (`used-after-free`).
8.  An output that is not copied lies in no arena (`output-in-arena`) and, if it is to be fresh, in
    no input, constant or output of another group (`output-shared`), unless the runtime looks.
9.  An output has the strides that the caller wants, or the runtime looks (`output-strides`).
10. Each mutated input gets its value once: by the step that computes it or by a copy at the end,
    and from memory that no earlier copy has changed (`bad-mutation`).

Buffers of arenas that are planned at run time have no offsets yet; for them 4 and 5 hold by the
packing, which has tests of its own.
"""

from __future__ import annotations

import bisect

from .core import Graph, Op, OutputSpec, Value
from .dims import is_static
from .errors import CompileError
from .ops.aten import Aten, Resource
from .ops.layout import Reshape
from .ops.schedule import Wait
from .overwriting import can_overwrite
from .printer import format_op
from .program import (
    ALIGNMENT,
    Arena,
    InPlace,
    Placement,
    Program,
    Return,
    Saved,
    Step,
    Target,
    View,
    equal_strides,
    extent,
    same_strides,
    sources,
)
from .types import TensorType
from .verifier import verify


def verify_program(program: Program, *, known: Graph | None = None) -> None:
    """Raise `CompileError` at the first broken invariant, of the program or of its graph.

    What the graph shares with `known`, which was verified, is not checked again.
    """
    if program.graph is not known:
        verify(program.graph, known=known)
    _check_counts(program)
    _Memory(program).run()


def _error(code: str, message: str, op: Op | None = None) -> CompileError:
    if op is None:
        return CompileError(code, message)
    return CompileError(code, f"{message}, in '{format_op(op)}'", op.loc)


def _check_counts(program: Program) -> None:
    graph = program.graph
    if tuple(step.op for step in program.steps) != graph.ops:
        raise _error("step-mismatch", "the steps are not the ops of the graph in their order")
    for step in program.steps:
        if len(step.placements) != len(step.op.results):
            counts = f"{len(step.op.results)} results and {len(step.placements)} placements"
            raise _error("step-mismatch", counts, step.op)
    if len(program.returns) != len(graph.outputs):
        raise _error("step-mismatch", "expected one rule for each output")
    if tuple(write.mutation for write in program.writes) != graph.mutations:
        raise _error("step-mismatch", "expected one rule for each mutation")


class _Ranges:
    """The values that an arena holds, as disjoint ranges of bytes."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._held: list[tuple[int, Value]] = []

    def write(self, start: int, end: int, value: Value) -> list[Value]:
        """Put a value into a range; return those whose bytes it takes."""
        first = bisect.bisect_right(self._starts, start)
        if first and self._held[first - 1][0] > start:
            first -= 1
        last = bisect.bisect_left(self._starts, end)
        lost = [held for _, held in self._held[first:last]]
        self._starts[first:last] = [start]
        self._held[first:last] = [(end, value)]
        return lost


class _Memory:
    """What lies where, and which values are lost."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sizes = {(arena.device, arena.saved): arena.size for arena in program.arenas}
        self.ranges: dict[tuple[str, bool], _Ranges] = {}
        self.members: dict[Value, list[Value]] = {v: [v] for v in program.graph.inputs}
        self.derived: dict[Value, list[Value]] = {}
        self.lost: set[Value] = set()
        self.freed: set[Value] = set()
        self.new_values = {m.target: m.value for m in program.graph.mutations}

    def run(self) -> None:
        for step in self.program.steps:
            for operand in step.op.operands:
                self.read(operand, step.op)
            for value, placement in zip(step.op.results, step.placements, strict=True):
                self.check_placement(step.op, value, placement)
                self.put(step.op, value, placement)
            self.check_operands(step)
            for value in step.frees:
                if value in self.freed:
                    raise _error("used-after-free", f"{value} is freed twice", step.op)
                self.freed.add(value)
        self.finish()

    def read(self, value: Value, op: Op | None = None) -> None:
        """Note that a value is needed now."""
        if value in self.freed:
            raise _error("used-after-free", f"{value} is read after it was freed", op)
        if value in self.lost:
            raise _error("overwritten", f"{value} is read after its memory was reused", op)

    def lose(self, value: Value) -> None:
        """Note that the memory of a value holds something else, and so for all derived from it."""
        stack = [value]
        while stack:
            current = stack.pop()
            if current in self.lost:
                continue
            self.lost.add(current)
            stack += self.derived.get(current, ())
            stack += self.members.get(current, ())

    def put(self, op: Op, value: Value, placement: Placement) -> None:
        """Write or derive a result."""
        shared = sources(placement)
        if isinstance(placement, Arena | Saved):
            self.put_in_arena(op, value, placement)
        elif isinstance(placement, InPlace | Target):
            base = self.program.bases[value]
            if base is None:
                raise _error("bad-placement", f"nobody knows in whose memory {value} lies", op)
            if base.op is None and base not in self.new_values:
                raise _error(
                    "bad-placement", f"writes over input '{base.name}', which is to stay", op
                )
            members = self.members.get(base, [])
            self.members[base] = []
            for member in members:
                self.lose(member)
            self.members[base] = [value]
            return
        base = self.program.bases[value]
        if base is not None:
            self.members.setdefault(base, []).append(value)
        for source in shared:
            self.derived.setdefault(source, []).append(value)

    def put_in_arena(self, op: Op, value: Value, placement: Arena | Saved) -> None:
        if placement.offset is None or not isinstance(placement.size, int):
            return
        key = (value.tensor_type.device, isinstance(placement, Saved))
        if placement.offset % ALIGNMENT:
            raise _error("misaligned", f"offset {placement.offset} is no multiple of 64", op)
        end = placement.offset + placement.size
        if placement.offset < 0 or end > self.sizes.get(key, 0):
            size = f"{self.sizes.get(key, 0)} bytes of the arena"
            raise _error("outside-arena", f"{value} ends at byte {end} of {size}", op)
        if placement.size:
            ranges = self.ranges.setdefault(key, _Ranges())
            for lost in ranges.write(placement.offset, end, value):
                self.lose(lost)
                # What was written in place there is not lost with the value that it replaced.
                for member in self.members.pop(lost, ()):
                    self.lose(member)

    def check_operands(self, step: Step) -> None:
        """Check that a step has written neither over its operands nor over its own results."""
        over = {p.of for p in step.placements if isinstance(p, InPlace | Target)}
        for operand in step.op.operands:
            if operand in self.lost and operand not in over:
                raise _error("overlap", f"writes over its operand {operand}", step.op)
        for value in step.op.results:
            if value in self.lost:
                raise _error("overlap", f"writes two results over {value}", step.op)

    def check_placement(self, op: Op, value: Value, placement: Placement) -> None:
        if isinstance(placement, View):
            is_view = op.is_view or isinstance(op, Aten | Wait)
            if not is_view or not set(placement.of) <= set(op.operands):
                raise _error("bad-placement", "a view lies in operands of a view op", op)
        elif placement.is_written:
            if isinstance(op, Aten | Resource) or (op.is_view and not isinstance(op, Reshape)):
                raise _error("bad-placement", f"'{op.name}' cannot write its result", op)
            if not isinstance(value.type, TensorType):
                raise _error("bad-placement", f"{value} is no tensor and has no memory", op)
            self.check_layout(op, value.type, placement)
        if isinstance(placement, InPlace):
            self.check_over(op, value, placement.of, placement)
        elif isinstance(placement, Target):
            self.check_target(op, value, placement)

    def check_target(self, op: Op, value: Value, placement: Target) -> None:
        target = placement.of
        if target is None or self.new_values.get(target) is not value:
            raise _error("bad-placement", "the result is not the new value of the target", op)
        if target in op.operands:
            self.check_over(op, value, target, placement)
        elif not same_strides(value.shape, placement.strides, self.program.strides(target)):
            raise _error("bad-placement", "the target has another layout", op)

    def check_layout(self, op: Op, type_: TensorType, placement: Placement) -> None:
        strides = placement.strides
        if strides is None or len(strides) != type_.rank:
            raise _error("bad-layout", f"expected {type_.rank} strides, got {strides}", op)
        if isinstance(placement, Arena | Saved) and is_static((*type_.shape, *strides)):
            needed = extent(type_.shape, strides) * type_.dtype.itemsize
            if not isinstance(placement.size, int) or placement.size < needed:
                message = f"needs {needed} bytes, {placement.size} are set aside"
                raise _error("bad-layout", message, op)

    def check_over(self, op: Op, value: Value, of: Value | None, placement: Placement) -> None:
        step = self.program.steps[self.program.positions[op]]
        alone = sum(isinstance(p, InPlace | Target) for p in step.placements) == 1
        if of is None or of not in op.operands or not can_overwrite(op, value, of, alone=alone):
            raise _error("bad-placement", f"'{op.name}' cannot write {value} over {of}", op)
        strides = self.program.strides(of)
        if of.type != value.type or not same_strides(value.shape, strides, placement.strides):
            raise _error("bad-placement", f"{value} has another type or layout than {of}", op)

    def finish(self) -> None:
        """Hand out the outputs and write the mutated inputs, in the order of the runtime."""
        graph = self.program.graph
        owners: dict[Value, OutputSpec] = {}
        entries = list(zip(graph.outputs, graph.output_specs, self.program.returns, strict=True))
        for index, (value, spec, place) in enumerate(entries):
            if value is None:
                continue
            self.read(value)
            if isinstance(value.type, TensorType):
                self.check_output(f"output {index}", value, spec, place, owners)
        self.write_inputs()
        for value, _, place in entries:
            if value is not None and not place.copy:
                self.read(value)

    def check_output(
        self,
        what: str,
        value: Value,
        spec: OutputSpec,
        place: Return,
        owners: dict[Value, OutputSpec],
    ) -> None:
        looks = place.copy or place.restride or place.unshare
        known = self.program.strides(value)
        if spec.strides is not None and not looks and not equal_strides(known, spec.strides):
            raise _error("output-strides", f"{what} has strides {known}, not {spec.strides}")
        if place.copy:
            return
        for root in self.program.roots_of(value):
            if root in place.unshare:
                continue
            if root.op is not None and isinstance(self.program.placements[root], Arena):
                raise _error("output-in-arena", f"{what} lies in the arena")
            if not spec.saved:
                self.check_root(what, root, spec, owners)

    def check_root(
        self, what: str, root: Value, spec: OutputSpec, owners: dict[Value, OutputSpec]
    ) -> None:
        if spec.fresh and root.op is None:
            raise _error("output-shared", f"{what} lies in input '{root.name}'")
        if root.op is not None and isinstance(root.op, Resource):
            raise _error("output-shared", f"{what} lies in the constant '{root.op.key}'")
        other = owners.setdefault(root, spec)
        is_apart = spec.group == -1 or other.group != spec.group
        if other is not spec and (spec.fresh or other.fresh) and is_apart:
            raise _error("output-shared", f"{what} lies in the memory of an earlier output")

    def write_inputs(self) -> None:
        for write in self.program.writes:
            if write.kind == "snapshot":
                self.read(write.mutation.value)
        for write in self.program.writes:
            target, value = write.mutation.target, write.mutation.value
            place = None if value.op is None else self.program.placements[value]
            in_place = isinstance(place, InPlace | Target) and self.program.bases[value] is target
            if in_place != (write.kind == "in_place") or (write.kind == "none") != (
                value is target
            ):
                message = f"input '{target.name}' cannot get its value by '{write.kind}'"
                raise _error("bad-mutation", message)
            if write.kind == "in_place" and value in self.lost:
                raise _error("bad-mutation", f"the new value of '{target.name}' was written over")
            if write.kind in ("none", "in_place"):
                continue
            if write.kind == "copy" and value in self.lost:
                message = f"the new value of '{target.name}' lies in an input written before"
                raise _error("bad-mutation", message)
            for member in self.members.get(target, ()):
                self.lose(member)
