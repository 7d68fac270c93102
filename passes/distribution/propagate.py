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
from lynx.ir.dims import Dim
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
from lynx.ir.space import FactorKind, IterationSpace
from lynx.ir.types import TensorType

from .annotations import PARAMETER_PRIORITY, Annotations
from .strategy import Placed, Proposal, accept, proposals, space_of


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
    priorities: dict[Value, Mapping[str, int]] = field(default_factory=dict)
    reasons: dict[Value, dict[str, Reason]] = field(default_factory=dict)
    _placed: dict[Value, Placed | None] = field(default_factory=dict)
    _states: dict[Hashable, int] = field(default_factory=dict)

    def of(self, value: Value) -> Sharding | None:
        """Return the sharding of a tensor, whole if nothing was found; None for other values."""
        placed = self.placed(value)
        return None if placed is None else placed.sharding

    def priorities_of(self, value: Value) -> Mapping[str, int]:
        """Return the priority of each axis that splits a value."""
        return self.priorities.get(value, {})

    def placed(self, value: Value) -> Placed | None:
        """Return a value as a tensor of an op; None if it is none."""
        if value in self._placed:
            return self._placed[value]
        type_, found = value.type, None
        if isinstance(type_, TensorType):
            found = self.describe(type_, replicated(type_.rank, self.mesh), {})
        self._placed[value] = found
        return found

    def describe(self, type_: TensorType, sharding: Sharding, levels: Mapping[str, int]) -> Placed:
        """Return a tensor that lies so, with the number of all tensors that do."""
        key = (sharding, tuple(levels.items()))
        return Placed(type_, sharding, levels, self._states.setdefault(key, len(self._states)))

    def place(self, value: Value, placed: Placed) -> None:
        """Note how a value is to lie."""
        self.shardings[value] = placed.sharding
        self.priorities[value] = placed.priorities
        self._placed[value] = placed


def propagate(graph: Graph, annotations: Annotations) -> Layouts:
    """Return how every value of a graph is to lie on the mesh."""
    return _Propagation(graph, annotations).run()


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """That a tensor of an op, by its number, is split further because another one is."""

    tensor: int
    splits: tuple[Split, ...]
    priority: int
    source: int


@dataclass(slots=True, eq=False)
class _Site:
    """An op that may be cut, and what its steps need.

    `order` is when it is looked at: by its tier, and then by its place in the graph. Ops of one
    structure whose tensors are open alike are of one `kind`; None is no kind.
    """

    op: Op
    space: IterationSpace
    values: tuple[Value, ...]
    order: tuple[int, int]
    kind: int | None = None
    is_open: tuple[bool, ...] = ()
    is_queued: bool = False


class _Propagation:
    """What repeated layers do alike is found out once, with numbers for how tensors lie.

    `known` has the changes that an op of a kind asks for, `outcomes` what becomes of a tensor by a
    change; the worklist over all ops then only looks these up.
    """

    def __init__(self, graph: Graph, annotations: Annotations) -> None:
        self.graph, self.annotations = graph, annotations
        self.mesh = annotations.mesh
        self.layouts = Layouts(self.mesh)
        self.sites: list[_Site] = []
        self.around: dict[Value, list[_Site]] = {}
        for op in graph.ops:
            space = space_of(op)
            if space is not None:
                order = (_tier(space), len(self.sites))
                site = _Site(op, space, (*op.operands, *op.results), order)
                self.sites.append(site)
                for value in dict.fromkeys(site.values):
                    self.around.setdefault(value, []).append(site)
        self.known: dict[Hashable, tuple[_Change, ...]] = {}
        self.outcomes: dict[tuple[_Change, int | None], Placed | None] = {}
        # What depends on no input each device has whole: two uses of one count, along a batch and
        # along a sequence of the same length, have nothing to do with each other.
        self.fixed: set[Value] = {*graph.inputs, *constants(graph)}
        self.queue: list[tuple[int, int]] = []

    def run(self) -> Layouts:
        seeds = self._seeds()
        self._sort()
        for priority in sorted({priority for _, _, priority in seeds}):
            for value, sharding, level in seeds:
                if level == priority:
                    self._seed(value, sharding, priority)
            self._spread(priority)
        return self.layouts

    def _sort(self) -> None:
        """Find the kind of each op, once it is known which values are open."""
        kinds: dict[Hashable, int] = {}
        for site in self.sites:
            site.is_open = tuple([value not in self.fixed for value in site.values])
            structure = site.op.structure
            if structure is not None:
                site.kind = kinds.setdefault((structure, site.is_open), len(kinds))

    def _seeds(self) -> list[tuple[Value, Sharding, int]]:
        """Return annotated values with the axes of each priority."""
        seeds: list[tuple[Value, Sharding, int]] = []
        for value, annotation in zip(self.graph.inputs, self.annotations.inputs, strict=True):
            if annotation is None:
                continue
            if annotation.open:
                self.fixed.discard(value)
            axes = annotation.sharding.axes
            levels = {axis: annotation.priority_of(axis) for axis in axes}
            seeds += [(value, annotation.sharding, p) for p in sorted(set(levels.values()))]
            self._annotate(value, annotation.sharding, levels)
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
            self._annotate(op.out, sharding, levels)
            if not op.open:
                self.fixed.add(op.out)
            for level in sorted(set(levels.values())):
                yield op.out, sharding, level

    def _annotate(self, value: Value, sharding: Sharding, levels: Mapping[str, int]) -> None:
        self.layouts.place(value, self.layouts.describe(value.tensor_type, sharding, levels))
        self.layouts.reasons[value] = dict.fromkeys(sharding.axes, Reason(None))

    def _seed(self, value: Value, sharding: Sharding, priority: int) -> None:
        if value.op is not None:
            self._assign(value, _Change(0, sharding.splits, priority, 0), Reason(None))
        self._touch(value)

    def _touch(self, value: Value) -> None:
        """Look again at the ops around a value."""
        for site in self.around.get(value, ()):
            if not site.is_queued:
                site.is_queued = True
                heapq.heappush(self.queue, site.order)

    def _spread(self, priority: int) -> None:
        while self.queue:
            _, place = heapq.heappop(self.queue)
            site = self.sites[place]
            site.is_queued = False
            self._step(site, priority)

    def _step(self, site: _Site, priority: int) -> None:
        """Split what is around an op as its factors are; equal steps are thought through once."""
        placed = [self.layouts.placed(value) for value in site.values]
        key = (site.kind, priority, *[None if one is None else one.state for one in placed])
        changes = self.known.get(key) if site.kind is not None else None
        if changes is None:
            changes = self.known[key] = tuple(self._changes(site, placed, priority))
        for change in changes:
            reason = Reason(site.op, site.values[change.source])
            self._assign(site.values[change.tensor], change, reason)

    def _changes(
        self, site: _Site, placed: Sequence[Placed | None], priority: int
    ) -> Iterator[_Change]:
        """Yield how dimensions of tensors would be split as the factors of an op are."""
        space, maps = site.space, (*site.space.operands, *site.space.results)
        found = [p for p in proposals(space, placed, maps, self.mesh) if p.priority <= priority]
        taken = accept(found)
        if not taken:
            return
        by_axis: dict[str, Proposal] = {}
        for proposal in found:
            for axis in proposal.split.axes:
                by_axis.setdefault(axis, proposal)
        for tensor, (one, index_map) in enumerate(zip(placed, maps, strict=True)):
            if one is None or not site.is_open[tensor]:
                continue
            splits = [axis_split(space, axis, taken, self.mesh) or WHOLE for axis in index_map]
            for dim, split in enumerate(splits):
                if split.axes and split != one.sharding.splits[dim]:
                    proposal = by_axis[split.axes[-1]]
                    alone = tuple(split if n == dim else WHOLE for n in range(len(splits)))
                    yield _Change(tensor, alone, proposal.priority, proposal.tensor)

    def _assign(self, value: Value, change: _Change, reason: Reason) -> None:
        """Split open dimensions of a value; what it is split by already stays."""
        before = self.layouts.placed(value)
        assert before is not None
        key = (change, before.state)
        if key not in self.outcomes:
            self.outcomes[key] = self._outcome(before, change)
        after = self.outcomes[key]
        if after is None:
            return
        self.layouts.place(value, after)
        reasons = self.layouts.reasons.setdefault(value, {})
        for axis in after.priorities:
            if axis not in before.priorities:
                reasons[axis] = reason
        self._touch(value)

    def _outcome(self, before: Placed, change: _Change) -> Placed | None:
        """Return a tensor that is split further; None if it stays as it is."""
        dims = list(before.sharding.splits)
        used = set(before.sharding.axes)
        levels = dict(before.priorities)
        for dim, wanted in enumerate(change.splits):
            have = dims[dim]
            if not wanted.begins_with(have) or wanted == have:
                continue
            added = wanted.axes[len(have.axes) :]
            size = before.type.shape[dim]
            if not added or used.intersection(added) or not self._agree(size, have, wanted):
                continue
            dims[dim] = wanted
            used.update(added)
            levels |= dict.fromkeys(added, change.priority)
        if len(levels) == len(before.priorities):
            return None
        sharding = sharding_of(tuple(dims), (), self.mesh)
        return self.layouts.describe(before.type, sharding, levels)

    def _agree(self, size: Dim, have: Split, wanted: Split) -> bool:
        """Whether a longer split cuts where the shorter one does already."""
        if not have.axes or have.unit == wanted.unit == 1:
            return True
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


def _tier(space: IterationSpace) -> int:
    """Return when an op is looked at: those that only pass dimensions on come first."""
    return 0 if all(factor.kind is FactorKind.PARALLEL for factor in space.factors) else 1
