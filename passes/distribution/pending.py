"""Which partial sums wait: those that all their users can take as they are, to be combined later.

Three products whose sum is wanted need one reduction and not three, and what is reshaped before it
is cut along a new dimension is reduced into pieces of that dimension. A partial sum waits where the
one op that uses it is linear in it and makes it no larger.
"""

from __future__ import annotations

from collections.abc import Mapping

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.constraint import Constrain
from lynx.ir.sharding import Mesh, Partial, Split
from lynx.ir.space import IterationSpace
from lynx.ir.traversal import use_counts, users
from lynx.ir.types import TensorType

from .redistribute import bytes_of
from .strategy import result_sharding


class Pending:
    """Finds the partial sums that wait, as the greatest set in which each has a user that waits."""

    def __init__(
        self,
        graph: Graph,
        spaces: Mapping[Op, IterationSpace | None],
        splits: Mapping[Op, Mapping[str, Split]],
        mesh: Mesh,
    ) -> None:
        self.graph, self.spaces, self.splits, self.mesh = graph, spaces, splits, mesh
        self.users = users(graph)
        self.counts = use_counts(graph)
        self.waiting: dict[Value, dict[Partial, None]] = {}
        # Ops of one structure share their space and, from the strategist, their splits.
        self.own: dict[tuple[int, int, int], tuple[Partial, ...]] = {}

    def run(self) -> dict[Value, tuple[Partial, ...]]:
        """Return the partial sums in which each value is left; values without any are left out."""
        for op in self.graph.ops:
            self._offer(op)
        todo = list(self.waiting)
        while todo:
            value = todo.pop()
            for partial in list(self.waiting.get(value, ())):
                if not (self._is_made(value, partial) and self._is_taken(value, partial)):
                    del self.waiting[value][partial]
                    todo += self._around(value)
        return {value: tuple(found) for value, found in self.waiting.items() if found}

    def _around(self, value: Value) -> list[Value]:
        near = list(value.op.operands) if value.op is not None else []
        for user in self.users.get(value, ()):
            near += [*user.operands, *user.results]
        return [one for one in near if one in self.waiting]

    def _own(self, op: Op, index: int) -> tuple[Partial, ...]:
        """Return the partial sums that the reduction in an op leaves."""
        space, splits = self.spaces[op], self.splits[op]
        if space is None or not splits:
            return ()
        key = (id(space), id(splits), index)
        if key not in self.own:
            sharding = result_sharding(space, space.results[index], splits, self.mesh)
            self.own[key] = sharding.partial if sharding is not None else ()
        return self.own[key]

    def _flowing(self, op: Op) -> dict[Partial, tuple[int, ...]]:
        """Return the partial sums that operands bring and that flow through the op."""
        space = self.spaces[op]
        found: dict[Partial, tuple[int, ...]] = {}
        if space is None or len(op.results) != 1:
            return found
        holders: dict[Partial, list[int]] = {}
        for position, operand in enumerate(op.operands):
            for partial in self.waiting.get(operand, ()):
                holders.setdefault(partial, []).append(position)
        used = {axis for split in self.splits[op].values() for axis in split.axes}
        for partial, positions in holders.items():
            flows = tuple(positions) in [tuple(sorted(one)) for one in space.linear]
            allowed = partial.reduction == "sum" or op.is_view
            if flows and allowed and partial.axis not in used:
                found[partial] = tuple(positions)
        return found

    def _offer(self, op: Op) -> None:
        if isinstance(op, Constrain):
            return  # it lies as the model says, and not in parts
        for index, result in enumerate(op.results):
            if isinstance(result.type, TensorType):
                partial = dict.fromkeys((*self._own(op, index), *self._flowing(op)))
                if partial:
                    self.waiting[result] = partial

    def _is_made(self, value: Value, partial: Partial) -> bool:
        op = value.op
        assert op is not None
        return partial in self._own(op, value.index) or partial in self._flowing(op)

    def _is_taken(self, value: Value, partial: Partial) -> bool:
        """Whether the value's one user lets the partial sum flow, at no higher cost."""
        found = self.users.get(value, ())
        if len(found) != 1 or self.counts[value] != found[0].operands.count(value):
            return False
        (user,) = found
        positions = self._flowing(user).get(partial)
        if positions is None or len(user.results) != 1:
            return False
        result = user.results[0].type
        if not isinstance(result, TensorType):
            return False
        before = sum(_bytes(user.operands[position]) for position in positions)
        return bytes_of(result.shape, result.dtype.itemsize) <= before


def _bytes(value: Value) -> float:
    type_ = value.tensor_type
    return bytes_of(type_.shape, type_.dtype.itemsize)
