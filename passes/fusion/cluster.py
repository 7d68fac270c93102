"""Cluster the ops of a graph into groups, greedily and in order, such that no cycle arises."""

from __future__ import annotations

import copy
from collections.abc import Callable

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import is_equal, product
from lynx.ir.ops.elementwise import Elementwise
from lynx.ir.ops.factory import Full, Iota
from lynx.ir.ops.layout import Broadcast, Permute, Reshape, Squeeze, Unsqueeze
from lynx.ir.ops.layout_slicing import LowerTriangle, UpperTriangle
from lynx.ir.types import TensorType

from .groups import ChainOf, Fit, Group, founded, iterated_shape
from .sizes import estimated_bytes

_STILL = (Reshape, Permute, Broadcast, Squeeze, Unsqueeze)
"""Views through which a group can go on: each element stays the same one."""

MAX_FREE = 8
"""So many ops may be computed again from nothing wherever their result is needed."""

RECENT = 4
"""So many of the last groups that read a value are offered another op that reads it."""

WINDOW = 400
"""So far apart may two ops of a group be: what lies between them must stay in memory."""

MAX_VISITS = 2000
"""After so many steps a search for a cycle gives up and takes it that there is one."""


class Clusters:
    """The groups of a graph.

    `fits` says of an op whether it can be part of a kernel, `copies` of a reshape whether no view
    can express it. `group_of` gives the group of an op, `free` holds the ops that are computed from
    nothing but numbers, `refusals` why ops did not join the group of an operand. `before` gives
    the op that has to run before another one though that does not use it: random numbers are drawn,
    and devices speak to each other, in the order of the program.
    """

    def __init__(
        self,
        graph: Graph,
        fits: Callable[[Op], bool],
        copies: Callable[[Op], bool],
        max_ops: int,
    ) -> None:
        self.max_ops = max_ops
        self.copies = {op for op in graph.ops if isinstance(op, Reshape) and copies(op)}
        self.positions = {op: index for index, op in enumerate(graph.ops)}
        self.before = _order(graph)
        self.free: dict[Op, int] = {}
        self.groups: list[Group] = []
        self.refusals: list[tuple[Op, str]] = []
        self._group_of: dict[Op, Group] = {}
        self._first: dict[Group, int] = {}
        self._last: dict[Group, int] = {}
        self._readers: dict[Value, list[Group]] = {}
        for op in graph.ops:
            if not fits(op) or self._is_free(op):
                continue
            if not op.is_view or op in self.copies:
                self._place(op)

    def group_of(self, op: Op | None) -> Group | None:
        """Return the group of an op, None if it has none."""
        group = self._group_of.get(op) if op is not None else None
        while group is not None and group.into is not None:
            group = group.into
        return group

    def is_still(self, op: Op) -> bool:
        """Whether this is a view through which a group can go on."""
        return isinstance(op, _STILL) and op not in self.copies

    def chain_of(self, group: Group, value: Value) -> list[Value] | None:
        """Return the views that lead from a result of the group to a value, both included."""
        return self._chain(value, lambda op: self.group_of(op) is group)

    def _chain(self, value: Value, is_member: Callable[[Op], bool]) -> list[Value] | None:
        chain = [value]
        while value.op is not None:
            if is_member(value.op):
                return chain[::-1]
            if not self.is_still(value.op):
                return None
            value = value.op.operands[0]
            chain.append(value)
        return None

    def _is_free(self, op: Op) -> bool:
        kinds = (Elementwise, Full, Iota, *_STILL, LowerTriangle, UpperTriangle)
        if not isinstance(op, kinds) or not isinstance(op.results[0].type, TensorType):
            return False
        count = 1
        for operand in op.operands:
            if not isinstance(operand.type, TensorType):
                continue
            if operand.op is None or operand.op not in self.free:
                return False
            count += self.free[operand.op]
        if count > MAX_FREE:
            return False
        self.free[op] = count
        return True

    def _place(self, op: Op) -> None:
        """Let an op join the group with which it shares most bytes, or found one."""
        producers, readers = self._candidates(op)
        home: Group | None = None
        for group in (*producers, *readers):
            group = _resolved(group)
            if home is None:
                if self._joins(op, group):
                    home = group
                    self._enter(op, home)
            elif group is not home and group in producers:
                self._absorb(home, group)
        if home is None:
            home = founded(len(self.groups), op)
            self.groups.append(home)
            self._enter(op, home)
        for operand in dict.fromkeys(op.operands):
            readers_of = self._readers.setdefault(operand, [])
            if home not in readers_of:
                readers_of.append(home)

    def _candidates(self, op: Op) -> tuple[list[Group], list[Group]]:
        """Return the groups of operands, and those that read the same, by shared bytes."""
        weights: dict[Group, int] = {}
        shared: dict[Group, int] = {}
        space = product(iterated_shape(op))
        for operand in dict.fromkeys(op.operands):
            if not isinstance(operand.type, TensorType):
                continue
            weight = estimated_bytes(operand.type)
            base: Value | None = operand
            while base is not None and base.op is not None and self.is_still(base.op):
                base = base.op.operands[0]
            group = self.group_of(base.op) if base is not None else None
            if group is not None:
                weights[group] = weights.get(group, 0) + weight
            if is_equal(operand.type.numel, space):
                for reader in map(_resolved, self._readers.get(operand, ())[-RECENT:]):
                    shared[reader] = shared.get(reader, 0) + weight
        producers = sorted(weights, key=lambda group: (-weights[group], -group.number))
        readers = [group for group in shared if group not in weights]
        readers.sort(key=lambda group: (-shared[group], -group.number))
        return producers, readers

    def _joins(self, op: Op, group: Group) -> bool:
        if len(group.ops) >= self.max_ops:
            self.refusals.append((op, f"the group has {len(group.ops)} ops already"))
            return False
        if self.positions[op] - self._first[group] > WINDOW:
            self.refusals.append((op, "the group lies too far back"))
            return False
        fit = Fit(group, op, self.chain_of)
        if fit.reason:
            self.refusals.append((op, fit.reason))
            return False
        if any(self._reaches(value, group) for value in fit.reads):
            self.refusals.append((op, "needs a result of the group through another op"))
            return False
        fit.join()
        return True

    def _absorb(self, home: Group, other: Group) -> None:
        """Merge another group into one that consumes it, if all its ops fit."""
        if len(home.ops) + len(other.ops) > self.max_ops:
            return
        if not self._are_independent(home, other):
            return
        trial = copy.copy(home)
        for name in ("ops", "dims", "reads", "reduced"):
            setattr(trial, name, copy.copy(getattr(home, name)))
        moved: set[Op] = set()
        chain_of = self._chains_through(home, moved)
        for op in other.ops:
            fit = Fit(trial, op, chain_of)
            if fit.reason:
                return
            fit.join()
            moved.add(op)
        for name in ("ops", "dims", "reads", "reduced", "sweep"):
            setattr(home, name, getattr(trial, name))
        home.ops.sort(key=self.positions.__getitem__)
        other.into = home
        self._first[home] = min(self._first[home], self._first.pop(other))
        del self._last[other]

    def _chains_through(self, home: Group, moved: set[Op]) -> ChainOf:
        """Return `chain_of` for a group to which some ops of another one belong already."""

        def is_member(op: Op) -> bool:
            return op in moved or self.group_of(op) is home

        return lambda _, value: self._chain(value, is_member)

    def _are_independent(self, a: Group, b: Group) -> bool:
        """Whether no other op lies on a path between the groups."""
        for group, other in ((a, b), (b, a)):
            for value in group.reads:
                if self.chain_of(other, value) is None and self._reaches(value, other):
                    return False
        return True

    def _reaches(self, value: Value, group: Group) -> bool:
        """Whether a value depends on a group."""
        floor = self._floor(group)
        seen: set[Op | Group] = set()
        stack = [value.op]
        while stack:
            op = stack.pop()
            if op is None:
                continue
            owner = self.group_of(op)
            if owner is group:
                return True
            node: Op | Group = owner if owner is not None else op
            last = self.positions[op] if owner is None else self._last[owner]
            if last < floor or node in seen:
                continue
            if len(seen) >= MAX_VISITS:
                return True
            seen.add(node)
            stack += [read.op for read in (op.operands if owner is None else owner.reads)]
            stack.append(self.before.get(op))
        return False

    def _floor(self, group: Group) -> int:
        """Return a position such that nothing before it can depend on the group.

        An op depends on earlier positions only, but a group on all that its last op depends on; so
        every group that reaches beyond the floor lowers it to its own first op.
        """
        floor = self._first[group]
        for other in reversed(self._last):
            if self._last[other] < floor:
                break
            floor = min(floor, self._first[other])
        return floor

    def _enter(self, op: Op, group: Group) -> None:
        """Note the group of an op; groups stay sorted by their last op."""
        position = self.positions[op]
        self._group_of[op] = group
        self._first.setdefault(group, position)
        self._last.pop(group, None)
        self._last[group] = position


def _order(graph: Graph) -> dict[Op, Op]:
    """Return, for each op whose order matters, the one before it."""
    found: dict[Op, Op] = {}
    last: Op | None = None
    for op in graph.ops:
        if op.is_removable:
            continue
        if last is not None:
            found[op] = last
        last = op
    return found


def _resolved(group: Group) -> Group:
    while group.into is not None:
        group = group.into
    return group
