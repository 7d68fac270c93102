"""Sums of partial sums: added up first, and reduced once.

Gradients of a tensor with several users are added in the order in which autograd comes upon them,
whatever is partial among them. Terms that are partial over the same mesh axes are brought together,
and their sum stays in parts although its terms were to be cut.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.elementwise_arithmetic import Add
from lynx.ir.sharding import Mesh, Partial, Split
from lynx.ir.space import IterationSpace
from lynx.ir.traversal import use_counts
from lynx.ir.types import is_same_type

from .alternatives import alternative
from .propagate import Layouts
from .strategy import Strategist, result_sharding, space_of

Terms = dict[tuple[Partial, ...], list[Value]]


def group_sums(graph: Graph, layouts: Layouts) -> Graph:
    """Return the graph in which terms of one sum that are partial alike are added to each other."""
    return _Grouping(graph, layouts).run()


class _Grouping:
    def __init__(self, graph: Graph, layouts: Layouts) -> None:
        self.graph, self.layouts = graph, layouts
        self.strategist = Strategist(layouts.mesh)
        self.counts = use_counts(graph)
        self.inner = {
            operand
            for op in graph.ops
            if _is_sum(op)
            for operand in op.operands
            if self.counts[operand] == 1 and operand.op is not None and _is_sum(operand.op)
        }

    def run(self) -> Graph:
        mapping: dict[Value, Value] = {}
        ops: list[Op] = []
        for op in self.graph.ops:
            terms = self._scattered(op) if _is_sum(op) and op.results[0] not in self.inner else None
            if terms is None:
                made = op.replace_operands(mapping)
                if made is not op:
                    mapping.update(zip(op.results, made.results, strict=True))
                ops.append(made)
                continue
            added = _Sums(op, mapping)
            mapping[op.results[0]] = added.total([added.total(group) for group in terms.values()])
            ops += added.ops
        if not mapping:
            return self.graph
        return self.graph.with_ops(tuple(ops), mapping)

    def _scattered(self, root: Op) -> Terms | None:
        """Return the terms of a sum by what they are partial over; None if all are well placed."""
        terms: Terms = {}
        runs: dict[tuple[Partial, ...], int] = {}
        # Whether all terms below are partial alike is known when both operands are done.
        kinds: dict[Value, tuple[Partial, ...] | None] = {}
        todo = [(root.results[0], False)]
        while todo:
            value, is_done = todo.pop()
            if value is not root.results[0] and value not in self.inner:
                kinds[value] = partial = self._partial(value)
                terms.setdefault(partial, []).append(value)
                continue
            assert value.op is not None
            left, right = value.op.operands
            if not is_done:
                todo += [(value, True), (right, False), (left, False)]
                continue
            kinds[value] = kinds[left] if kinds[left] == kinds[right] else None
            if kinds[value] is None:
                for kind in (kinds[left], kinds[right]):
                    if kind is not None:
                        runs[kind] = runs.get(kind, 0) + 1
        is_scattered = any(count > 1 for kind, count in runs.items() if kind)
        return terms if is_scattered else None

    def _partial(self, value: Value) -> tuple[Partial, ...]:
        """Return what a term is partial over, views aside."""
        while value.op is not None and value.op.is_view and self.counts[value] == 1:
            value = value.op.operands[0]
        op = value.op
        if op is None or self.counts[value] != 1:
            return ()
        wider = alternative(op) or op
        space = space_of(wider)
        if space is None:
            return ()
        operands = [self.layouts.placed(one) for one in op.operands]
        results = [self.layouts.placed(one) for one in op.results]
        splits = self.strategist.choose(space, operands, results, wider.structure)
        if not splits:
            return ()
        sharding = result_sharding(space, space.results[value.index], splits, self.layouts.mesh)
        return sharding.partial if sharding is not None else ()


class _Sums:
    """Adds up terms in order."""

    def __init__(self, like: Op, mapping: Mapping[Value, Value]) -> None:
        self.like, self.mapping = like, mapping
        self.ops: list[Op] = []

    def total(self, terms: Sequence[Value]) -> Value:
        return functools.reduce(self._add, (self.mapping.get(term, term) for term in terms))

    def _add(self, x: Value, y: Value) -> Value:
        self.ops.append(Add(x, y, loc=self.like.loc))
        return self.ops[-1].results[0]


def _is_sum(op: Op) -> bool:
    """Whether an op adds two tensors as they are, so that order does not matter."""
    if not isinstance(op, Add) or op.alpha != 1 or len(op.operands) != 2:
        return False
    type_ = op.results[0].tensor_type
    return type_.dtype.is_floating and all(is_same_type(x.type, type_) for x in op.operands)


def leave_in_parts(
    graph: Graph,
    spaces: Mapping[Op, IterationSpace | None],
    splits: dict[Op, Mapping[str, Split]],
    mesh: Mesh,
) -> None:
    """Let an axis that cuts a sum cut it no more where all its terms are partial over that axis.

    The sum is then reduced into its pieces, instead of each of its terms.
    """
    counts = use_counts(graph)
    joined: set[tuple[Op, str]] = set()
    for op in graph.ops:
        space = spaces[op]
        if space is None or not splits[op] or len(op.operands) < 2 or len(op.results) != 1:
            continue
        if tuple(range(len(op.operands))) not in [tuple(sorted(one)) for one in space.linear]:
            continue
        for axis in [axis for split in splits[op].values() for axis in split.axes]:
            chains = [
                _chain(one, axis, spaces, splits, counts, joined, mesh) for one in op.operands
            ]
            ops = [op, *(one for chain in chains if chain is not None for one in chain)]
            freed = [_without(splits[one], axis) for one in ops]
            if None in chains or None in freed:
                continue
            joined.add((op, axis))
            splits.update(
                (one, new) for one, new in zip(ops, freed, strict=True) if new is not None
            )


def _chain(
    value: Value, axis: str, spaces: Mapping[Op, IterationSpace | None],
    splits: Mapping[Op, Mapping[str, Split]], counts: Mapping[Value, int],
    joined: set[tuple[Op, str]], mesh: Mesh,
) -> list[Op] | None:  # fmt: skip
    """Return the views between a value and the op that leaves it partial over an axis."""
    chain: list[Op] = []
    while value.op is not None and counts[value] == 1:
        op = value.op
        if (op, axis) in joined:
            return chain
        space = spaces[op]
        if space is None:
            return None
        sharding = result_sharding(space, space.results[value.index], splits[op], mesh)
        if sharding is not None and Partial("sum", axis) in sharding.partial:
            return chain
        if not op.is_view or len(op.operands) != 1:
            return None
        chain.append(op)
        value = op.operands[0]
    return None


def _without(splits: Mapping[str, Split], axis: str) -> dict[str, Split] | None:
    """Return the splits without an axis; None where another one cuts inside of it."""
    found: dict[str, Split] = {}
    for name, split in splits.items():
        if axis not in split.axes:
            found[name] = split
        elif split.axes[-1] != axis:
            return None
        elif len(split.axes) > 1:
            found[name] = split.first(len(split.axes) - 1)
    return found
