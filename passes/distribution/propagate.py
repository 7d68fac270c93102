"""Propagate shardings from a few annotated tensors to all values of a graph.

As in GSPMD and Shardy, annotations flow through the factors of ops, forward and backward, until
nothing changes: first those of the highest priority, through elementwise ops and views before
contractions. What lies somewhere already is never changed, so the result depends on the
annotations and the order of the graph alone. Each split keeps its reason.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.constraint import Constrain
from lynx.ir.shard_rules import axis_split, normal_split
from lynx.ir.sharding import (
    WHOLE,
    Mesh,
    Sharding,
    Split,
    parse_sharding,
    replicated,
    sharding_of,
)
from lynx.ir.space import FactorKind, IndexMap, IterationSpace
from lynx.ir.structure import structure_of
from lynx.ir.traversal import users
from lynx.ir.types import TensorType

from .annotations import PARAMETER_PRIORITY, Annotations
from .strategy import Placed, Proposal, accept, proposals, space_of, state_of


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a mesh axis splits a dimension: an annotation, or an op with the tensor it came from."""

    op: Op | None
    source: Value | None = None

    def __str__(self) -> str:
        if self.op is None:
            return "annotated"
        return f"through {self.op.name} at {self.op.loc}"


@dataclass
class Layouts:
    """How each value is to lie, the priority of each of its axes, and the reasons."""

    mesh: Mesh
    shardings: dict[Value, Sharding] = field(default_factory=dict)
    priorities: dict[Value, dict[str, int]] = field(default_factory=dict)
    reasons: dict[Value, dict[str, Reason]] = field(default_factory=dict)
    _placed: dict[Value, Placed | None] = field(default_factory=dict)
    _states: dict[Hashable, int] = field(default_factory=dict)

    def of(self, value: Value) -> Sharding | None:
        """Return the sharding of a tensor, whole if nothing was found; None for other values."""
        found = self.shardings.get(value)
        if found is None and isinstance(value.type, TensorType):
            return replicated(value.type.rank, self.mesh)
        return found

    def priorities_of(self, value: Value) -> Mapping[str, int]:
        """Return the priority of each axis that splits a value."""
        return self.priorities.get(value, {})

    def placed(self, value: Value) -> Placed | None:
        """Return a value as a tensor of an op; None if it is none."""
        if value not in self._placed:
            sharding = self.of(value)
            self._placed[value] = (
                Placed(
                    value.type,
                    sharding,
                    levels := dict(self.priorities_of(value)),
                    self._state(sharding, levels),
                )
                if sharding is not None and isinstance(value.type, TensorType)
                else None
            )
        return self._placed[value]

    def _state(self, sharding: Sharding, levels: Mapping[str, int]) -> int:
        return self._states.setdefault((sharding, tuple(levels.items())), len(self._states))

    def place(self, value: Value, sharding: Sharding) -> None:
        """Note how a value is to lie; what was said of its axes is said before."""
        self.shardings[value] = sharding
        self._placed.pop(value, None)


def propagate(graph: Graph, annotations: Annotations) -> Layouts:
    """Return how every value of a graph is to lie on the mesh."""
    return _Propagation(graph, annotations).run()


@dataclass(frozen=True, slots=True)
class _Change:
    """That a tensor of an op, by its number, is split further because another one is."""

    tensor: int
    splits: tuple[Split, ...]
    priority: int
    source: int


class _Propagation:
    def __init__(self, graph: Graph, annotations: Annotations) -> None:
        self.graph, self.annotations = graph, annotations
        self.mesh = annotations.mesh
        self.layouts = Layouts(self.mesh)
        self.users = users(graph)
        self.place = {op: index for index, op in enumerate(graph.ops)}
        self.structures = {op: structure_of(op) for op in graph.ops}
        self.spaces: dict[Op, IterationSpace | None] = {
            op: space_of(op, self.structures[op]) for op in graph.ops
        }
        self.known: dict[Hashable, tuple[_Change, ...]] = {}
        self.tiers = {op: _tier(op, self.spaces[op]) for op in graph.ops}
        # What depends on no input each device has whole: two uses of one count, along a batch and
        # along a sequence of the same length, have nothing to do with each other.
        self.fixed: set[Value] = {*graph.inputs, *constants(graph)}
        self.queue: list[tuple[int, int]] = []
        self.queued: set[Op] = set()

    def run(self) -> Layouts:
        seeds = self._seeds()
        for priority in sorted({priority for _, _, priority in seeds}):
            for value, sharding, level in seeds:
                if level == priority:
                    self._seed(value, sharding, priority)
            self._spread(priority)
        return self.layouts

    def _seeds(self) -> list[tuple[Value, Sharding, int]]:
        """Return annotated values with the axes of each priority."""
        seeds: list[tuple[Value, Sharding, int]] = []
        for value, annotation in zip(self.graph.inputs, self.annotations.inputs, strict=True):
            if annotation is None:
                continue
            if annotation.open:
                self.fixed.discard(value)
            priorities = [annotation.priority_of(axis) for axis in annotation.sharding.axes]
            seeds += [(value, annotation.sharding, p) for p in sorted(set(priorities))]
            levels = dict(zip(annotation.sharding.axes, priorities, strict=True))
            self.layouts.priorities[value] = levels
            self.layouts.place(value, annotation.sharding)
            reasons = dict.fromkeys(levels, Reason(None))
            self.layouts.reasons[value] = reasons
        seeds += self._constraints()
        for output, sharding in zip(self.graph.outputs, self.annotations.outputs, strict=False):
            if output is not None and sharding is not None and output not in self.fixed:
                seeds.append((output, sharding, PARAMETER_PRIORITY))
        return seeds

    def _constraints(self) -> Iterator[tuple[Value, Sharding, int]]:
        """Yield what the model says of values inside: they lie so from the start."""
        for op in self.graph.ops:
            if not isinstance(op, Constrain):
                continue
            sharding = parse_sharding(op.sharding, self.mesh)
            levels = {axis: op.priority_of(axis) for axis in sharding.axes}
            self.layouts.priorities[op.out] = levels
            self.layouts.reasons[op.out] = dict.fromkeys(sharding.axes, Reason(None))
            self.layouts.place(op.out, sharding)
            if not op.open:
                self.fixed.add(op.out)
            for level in sorted(set(levels.values())):
                yield op.out, sharding, level

    def _seed(self, value: Value, sharding: Sharding, priority: int) -> None:
        if value.op is not None:
            self._assign(value, sharding.splits, priority, Reason(None))
        self._touch(value)

    def _touch(self, value: Value) -> None:
        """Look again at the ops around a value."""
        ops = [*self.users.get(value, ())]
        if value.op is not None:
            ops.append(value.op)
        for op in ops:
            if op not in self.queued and self.spaces.get(op) is not None:
                self.queued.add(op)
                heapq.heappush(self.queue, (self.tiers[op], self.place[op]))

    def _spread(self, priority: int) -> None:
        while self.queue:
            _, index = heapq.heappop(self.queue)
            op = self.graph.ops[index]
            self.queued.discard(op)
            self._step(op, priority)

    def _step(self, op: Op, priority: int) -> None:
        """Split what is around an op as its factors are; equal steps are thought through once."""
        space = self.spaces[op]
        if space is None:
            return
        values = (*op.operands, *op.results)
        placed = [self.layouts.placed(value) for value in values]
        if not any(one is not None and any(one.sharding.dims) for one in placed):
            return
        structure = self.structures[op]
        is_open = tuple([value not in self.fixed for value in values])
        key = (structure, priority, is_open, tuple([state_of(one) for one in placed]))
        changes = self.known.get(key) if structure is not None else None
        if changes is None:
            maps = (*space.operands, *space.results)
            changes = self.known[key] = tuple(self._changes(space, placed, maps, is_open, priority))
        for change in changes:
            reason = Reason(op, values[change.source])
            self._assign(values[change.tensor], change.splits, change.priority, reason)

    def _changes(
        self, space: IterationSpace, placed: Sequence[Placed | None], maps: Sequence[IndexMap],
        is_open: Sequence[bool], priority: int,
    ) -> Iterator[_Change]:  # fmt: skip
        """Yield how dimensions of tensors would be split as the factors of an op are."""
        found = [p for p in proposals(space, placed, maps, self.mesh) if p.priority <= priority]
        taken = accept(found)
        if not taken:
            return
        by_axis: dict[str, Proposal] = {}
        for proposal in found:
            for axis in proposal.split.axes:
                by_axis.setdefault(axis, proposal)
        for tensor, (one, index_map) in enumerate(zip(placed, maps, strict=True)):
            if one is None or not is_open[tensor]:
                continue
            splits = [axis_split(space, axis, taken, self.mesh) or WHOLE for axis in index_map]
            for dim, split in enumerate(splits):
                if split.axes and split != one.sharding.splits[dim]:
                    proposal = by_axis[split.axes[-1]]
                    alone = tuple(split if n == dim else WHOLE for n in range(len(splits)))
                    yield _Change(tensor, alone, proposal.priority, proposal.tensor)

    def _assign(self, value: Value, splits: Sequence[Split], priority: int, reason: Reason) -> None:
        """Split open dimensions of a value; what it is split by already stays."""
        current = self.layouts.of(value)
        assert current is not None
        dims = list(current.splits)
        used = set(current.axes)
        changed = False
        for dim, wanted in enumerate(splits):
            have = dims[dim]
            if not wanted.begins_with(have) or wanted == have:
                continue
            added = wanted.axes[len(have.axes) :]
            if not added or used.intersection(added) or not self._agree(value, dim, have, wanted):
                continue
            dims[dim] = wanted
            used.update(added)
            changed = True
            for axis in added:
                self.layouts.priorities.setdefault(value, {})[axis] = priority
                self.layouts.reasons.setdefault(value, {})[axis] = reason
        if changed:
            self.layouts.place(value, sharding_of(tuple(dims), (), self.mesh))
            self._touch(value)

    def _agree(self, value: Value, dim: int, have: Split, wanted: Split) -> bool:
        """Whether a longer split cuts where the shorter one does already."""
        if not have.axes or have.unit == wanted.unit == 1:
            return True
        size = value.shape[dim]
        first = wanted.first(len(have.axes))
        if first.levels[-1][1] != wanted.levels[-1][1]:
            first = Split(first.axes, 1, first.groups)
        return normal_split(first, size, self.mesh) == have


def constants(graph: Graph) -> Iterator[Value]:
    """Yield the values that depend on no input and are not drawn at random."""
    varying: set[Value] = set(graph.inputs)
    for op in graph.ops:
        if op.is_random or not varying.isdisjoint(op.operands):
            varying.update(op.results)
        else:
            yield from op.results


def _tier(op: Op, space: IterationSpace | None) -> int:
    """Return when an op is looked at: those that only pass dimensions on come first."""
    if space is None:
        return 2
    return 0 if all(factor.kind is FactorKind.PARALLEL for factor in space.factors) else 1
