"""Lower a graph to a program: a placement for every result, and the contract at the border."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import sympy

from lynx.ir.core import Graph, InputSpec, Mutation, Op, OutputSpec, Value
from lynx.ir.dims import contiguous_strides, free_symbols
from lynx.ir.ops.aten import Aten, Resource
from lynx.ir.ops.fusion import Fused
from lynx.ir.ops.layout import Reshape
from lynx.ir.ops.schedule import Wait
from lynx.ir.program import (
    Arena,
    Dynamic,
    Fresh,
    InPlace,
    Placement,
    Program,
    Return,
    Saved,
    Step,
    View,
    Write,
    equal_strides,
    sources,
    storage_bytes,
)
from lynx.ir.types import ScalarType, TensorType, symbols_told
from lynx.ir.writing import storage_of

from .base import PassContext, Remark, Requirement, register_pass
from .layouts import (
    Strides,
    allocated_strides,
    chosen_strides,
    fused_strides,
    has_rule,
    view_strides,
)
from .output_groups import layouts_of_groups, separate_groups
from .product_layouts import product_strides
from .requirements import IS_GRAPH

ARENA_DEVICES = ("cpu", "cuda", "xpu")
"""Device types whose memory the runtime can carve tensors out of."""


@register_pass
@dataclass(frozen=True)
class Lower:
    """Decide for every result whether it is written into memory that Lynx plans, and where.

    Ops that the back end can compute into given memory write into the arena; results that leave the
    program get memory of their own, those kept for backward the saved arena. Views and what torch
    allocates stay as they are.
    """

    name: ClassVar[str] = "lower"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Program:
        """Return the program of a graph."""
        module = separate_groups(module)
        lowering = _Lowering(module, context)
        placements = lowering.placements()
        uses = _last_uses(module)
        steps = tuple(
            Step(op, placements[index], tuple(uses.get(index, ())))
            for index, op in enumerate(module.ops)
        )
        draft = Program(module, steps, (), ())
        return Program(module, steps, returns_of(draft), writes_of(draft))


def _last_uses(graph: Graph) -> dict[int, list[Value]]:
    """Return the values that are named for the last time in each step, in order of definition."""
    last: dict[Value, int] = dict.fromkeys(graph.inputs, 0)
    for index, op in enumerate(graph.ops):
        for value in (*op.results, *op.operands):
            last[value] = index
    for value in (*graph.uses, *(mutation.target for mutation in graph.mutations)):
        last[value] = len(graph.ops)
    ordered: dict[int, list[Value]] = {}
    for value in _definitions(graph):
        if value in last:
            ordered.setdefault(last[value], []).append(value)
    return ordered


def _definitions(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for op in graph.ops:
        yield from op.results


class _Lowering:
    """Placements of the results of one graph."""

    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.graph = graph
        self.context = context
        self.strides: dict[Value, Strides | None] = {
            value: spec.strides for value, spec in zip(graph.inputs, graph.input_specs, strict=True)
        }
        self.bound = frozenset(bound_symbols(graph.inputs, graph.input_specs))
        self.wanted = _wanted(graph)
        self.refused: dict[str, None] = {}
        self.products = product_strides(graph) if context.target.has_products else {}

    def placements(self) -> list[tuple[Placement, ...]]:
        """Return the placements of each op's results, in order."""
        views = [self._lay_out(op) for op in self.graph.ops]
        escapes = self._escapes(views)
        return [
            view if view is not None else self._place(op, escapes)
            for op, view in zip(self.graph.ops, views, strict=True)
        ]

    def _lay_out(self, op: Op) -> tuple[Placement, ...] | None:
        """Fix the strides of the results; return the placements unless the op is written."""
        if op.is_view:
            return self._view(op)
        if isinstance(op, Aten):
            return self._aten(op)
        if isinstance(op, Wait):
            return self._wait(op)
        if self._can_write(op):
            self._choose(op)
            return None
        allocated = allocated_strides(op, self.strides.get)
        self.strides.update(zip(op.results, allocated, strict=True))
        return tuple(map(Dynamic, allocated))

    def _view(self, op: Op) -> tuple[Placement, ...] | None:
        source, result = op.operands[0], op.out
        known = self.strides.get(source)
        if known is None or not has_rule(op):
            self.strides[result] = None
            return (View(None, (source,)),)
        strides = view_strides(op, known)
        if strides is None and isinstance(op, Reshape) and self._has_memory(result):
            self.strides[result] = contiguous_strides(result.shape)
            return None
        self.strides[result] = strides
        return (View(strides, (source,)),)

    def _aten(self, op: Aten) -> tuple[Placement, ...]:
        """Nothing is known of results of torch's operators but that some may be views."""
        shared: tuple[Value, ...] = ()
        if self.context.may_alias(op):
            shared = tuple(
                dict.fromkeys(v for v in op.operands if not isinstance(v.type, ScalarType))
            )
        for result in op.results:
            self.strides[result] = None
        return tuple(
            View(None, shared) if shared and not isinstance(result.type, ScalarType) else Dynamic()
            for result in op.results
        )

    def _wait(self, op: Wait) -> tuple[Placement, ...]:
        """Let what arrives lie where it was in flight."""
        placements: list[Placement] = []
        for pending, result in zip(op.pending, op.results, strict=True):
            strides = self.strides[result] = self.strides.get(pending)
            placements.append(
                View(None, (pending,)) if strides is None else InPlace(strides, pending)
            )
        return tuple(placements)

    def _can_write(self, op: Op) -> bool:
        """Whether the results can live in memory that is allocated before the op runs."""
        if isinstance(op, Resource) or not all(map(self._has_memory, op.results)):
            return False
        if not isinstance(op, Fused) and not self.context.can_write_into(op):
            if op.name not in self.refused:
                message = "allocates its results: it has no form that writes into given memory"
                self.context.remarks.append(Remark(op.name, message, op.loc))
            self.refused[op.name] = None
            return False
        return True

    def _has_memory(self, value: Value) -> bool:
        """Whether this is a tensor whose size is known when the program starts."""
        if not isinstance(value.type, TensorType) or value.type.sharding is not None:
            return False
        known = self.bound.issuperset(free_symbols(value.type.shape))
        return known and value.type.device.split(":")[0] in ARENA_DEVICES

    def _choose(self, op: Op) -> None:
        known = self.strides.get
        if isinstance(op, Fused):
            chosen = fused_strides(op, known, self.wanted.get)
        else:
            chosen = tuple(
                self.products.get(result)
                or chosen_strides(op, result.tensor_type, known, self.wanted.get(result))
                for result in op.results
            )
        for result, strides in zip(op.results, chosen, strict=True):
            is_bound = self.bound.issuperset(free_symbols(strides))
            self.strides[result] = strides if is_bound else contiguous_strides(result.shape)

    def _escapes(self, views: list[tuple[Placement, ...] | None]) -> dict[Value, type[Placement]]:
        """Return which results leave the program, themselves or through views of them, and how."""
        escapes: dict[Value, type[Placement]] = {}
        written = {mutation.value for mutation in self.graph.mutations}
        for value, spec in zip(self.graph.outputs, self.graph.output_specs, strict=True):
            if value is None:
                continue
            # What an input becomes lies there: an output looks at it, or is a copy of its part.
            is_alone = not spec.saved and (spec.group == -1 or not spec.fresh)
            if not (is_alone and storage_of(value) in written):
                _escape(escapes, value, Saved if spec.saved else Fresh)
        for op, placements in zip(reversed(self.graph.ops), reversed(views), strict=True):
            if isinstance(op, Aten) and op.effect:
                for operand in op.operands:  # may be kept by whatever it has an effect on
                    _escape(escapes, operand, Fresh)
            is_view = op.is_view and placements is not None
            below = op.pending if isinstance(op, Wait) else op.operands[: int(is_view)]
            for source, result in zip(below, op.results, strict=False):
                if result in escapes:
                    _escape(escapes, source, escapes[result])
        return escapes

    def _place(self, op: Op, escapes: dict[Value, type[Placement]]) -> tuple[Placement, ...]:
        placements: list[Placement] = []
        for result in op.results:
            strides = self.strides[result]
            assert strides is not None, op
            kind = escapes.get(result, Arena)
            if kind is Fresh:
                placements.append(Fresh(strides))
                continue
            size = storage_bytes(result.tensor_type, strides)
            placements.append(Saved(strides, size) if kind is Saved else Arena(strides, size))
        return tuple(placements)


def _wanted(graph: Graph) -> dict[Value, Strides]:
    """Return the layouts that the caller wants of outputs, and torch of what it is called with."""
    wanted: dict[Value, Strides] = {}
    for value, spec in zip(graph.outputs, graph.output_specs, strict=True):
        if value is not None and spec.strides is not None:
            wanted.setdefault(value, spec.strides)
    for value, layout in layouts_of_groups(graph).items():
        wanted.setdefault(value, layout)
    for op in graph.ops:
        if isinstance(op, Aten):
            for value, strides in zip(op.operands, op.operand_strides, strict=False):
                if strides is not None:
                    wanted.setdefault(value, strides)
    return wanted


def _escape(escapes: dict[Value, type[Placement]], value: Value, kind: type[Placement]) -> None:
    """Note that a value leaves; what the user sees is never in the saved arena."""
    if escapes.get(value) is not Fresh:
        escapes[value] = kind


def bound_symbols(inputs: tuple[Value, ...], specs: tuple[InputSpec, ...]) -> Iterator[str]:
    """Yield the symbols whose values the inputs tell, by numbers, sizes or strides."""
    for value, spec in zip(inputs, specs, strict=True):
        yield from symbols_told(value.type)
        for stride in spec.strides or ():
            if isinstance(stride, sympy.Symbol):
                yield stride.name


def returns_of(program: Program) -> tuple[Return, ...]:
    """Decide how each output leaves a program whose placements are known."""
    mutated = {mutation.target for mutation in program.graph.mutations}
    owners: dict[Value, OutputSpec] = {}
    returns = []
    graph = program.graph
    for value, spec in zip(graph.outputs, graph.output_specs, strict=True):
        if value is None or not isinstance(value.type, TensorType):
            returns.append(Return())
            continue
        place = _return_of(program, value, spec, mutated, owners)
        if not place.copy and not spec.saved:
            for root in program.roots_of(value):
                owners.setdefault(root, spec)
        returns.append(place)
    return tuple(returns)


def _return_of(
    program: Program,
    value: Value,
    spec: OutputSpec,
    mutated: set[Value],
    owners: dict[Value, OutputSpec],
) -> Return:
    roots = program.roots_of(value)
    foreign = [
        root for root in roots if _belongs_elsewhere(program, value, root, spec, mutated, owners)
    ]
    is_sure = program.bases[value] is not None
    known = program.strides(value)
    restride = spec.strides is not None and not equal_strides(known, spec.strides)
    if not foreign:
        return Return(restride=restride)
    if is_sure or value in foreign or any(root in mutated for root in foreign):
        return Return(copy=True)
    return Return(restride=restride, unshare=tuple(foreign))


def _belongs_elsewhere(
    program: Program,
    value: Value,
    root: Value,
    spec: OutputSpec,
    mutated: set[Value],
    owners: dict[Value, OutputSpec],
) -> bool:
    """Whether an output `value` may not lie in the memory of this root."""
    if root.op is None:
        is_own = spec.saved or not spec.fresh
        return not is_own or (root in mutated and (spec.saved or not _is_current(program, value)))
    if isinstance(program.placements[root], Arena):
        return True
    if spec.saved:
        return False
    if isinstance(root.op, Resource):
        return True
    owner = owners.get(root)
    if owner is None or not (spec.fresh or owner.fresh):
        return False
    return spec.group == -1 or owner.group != spec.group


def _is_current(program: Program, value: Value) -> bool:
    """Whether a value lies in what an input holds when the program has run."""
    written = {mutation.value for mutation in program.graph.mutations}
    while value not in written and value.op is not None:
        shared = sources(program.placements[value])
        if len(shared) != 1:
            return False
        value = shared[0]
    return value in written


def writes_of(program: Program) -> tuple[Write, ...]:
    """Decide how each mutation is done at the end."""
    targets = {mutation.target for mutation in program.graph.mutations}
    return tuple(_write_of(program, mutation, targets) for mutation in program.graph.mutations)


def _write_of(program: Program, mutation: Mutation, targets: set[Value]) -> Write:
    if mutation.value is mutation.target:
        return Write(mutation, "none")
    reads_target = any(root in targets for root in program.roots_of(mutation.value))
    return Write(mutation, "snapshot" if reads_target else "copy")
