"""Collectives: ops that change how a tensor lies on the mesh, and nothing else.

Each is the identity on the tensor as a whole. What it does to the type is the proof that it is
there: a collective that is missing, doubled, or runs over another axis gives other types.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim
from lynx.ir.shard_rules import ShardingError, normal_split
from lynx.ir.sharding import Mesh, Partial, Sharding, Split, replicated, sharding_of
from lynx.ir.space import IterationSpace
from lynx.ir.types import TensorType

from .layout import parallel_space


class Collective(Op):
    """Base of collectives: `axes` are the mesh axes along which devices take part.

    The numbers of the result are those of `x`; each device holds another part of them. Those of one
    `bucket` travel together; -1 stands for none.
    """

    changes_sharding: ClassVar[bool] = True
    needs_communication: ClassVar[bool] = True

    x: Value
    axes: tuple[str, ...]
    bucket: int = field(default=-1, kw_only=True)

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x = self.x.tensor_type
        if not self.axes:
            raise self.error("no-axes", "names no axis of the mesh")
        return x

    def derive_shardings(self) -> tuple[Sharding, ...]:
        """Return the sharding that the collective gives; `CompileError` if `x` does not lie so."""
        x = self.x.tensor_type
        try:
            return (self.changed(self.given, x),)
        except ShardingError as error:
            raise self.error(error.code, f"of {x}: {error.reason}") from None

    def changed(self, given: Sharding, x: TensorType) -> Sharding:
        """Return the sharding of the result, or raise `ShardingError`."""
        raise NotImplementedError(type(self).__name__)

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension."""
        return parallel_space(self.x.shape)

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Op:
        """Refuse: on one device a collective is communication, or nothing."""
        raise self.error("no-local-form", "is an op of all devices")

    @property
    def given(self) -> Sharding:
        """How the operand lies."""
        return self.x.tensor_type.sharding or replicated(self.x.tensor_type.rank)

    def _reduced(self, given: Sharding, reduction: str) -> tuple[Partial, ...]:
        """Return the partial sums that are left when those over `axes` are combined."""
        left = list(given.partial)
        for axis in self.axes:
            pending = Partial(reduction, axis)
            if pending not in left:
                raise ShardingError("not-partial", f"there is no {pending} to reduce")
            left.remove(pending)
        return tuple(left)

    def _without(self, given: Sharding, dim: int, x: TensorType) -> Split:
        """Return what is left of a dimension's split when its innermost axes are gathered."""
        split = self._split(given, dim)
        if split.axes[-len(self.axes) :] != self.axes:
            reason = f"dimension {dim} is not cut by ({', '.join(self.axes)}) innermost"
            raise ShardingError("not-cut", reason)
        kept = split.first(len(split.axes) - len(self.axes))
        if len(set(split.groups[-len(self.axes) :])) > 1:
            raise ShardingError("not-cut", f"({', '.join(self.axes)}) cut different blocks")
        return normal_split(kept, x.shape[dim], given.mesh)

    def _with(self, given: Sharding, dim: int, unit: int, groups: int, x: TensorType) -> Split:
        """Return a dimension's split when `axes` cut it further, in each of `groups` blocks."""
        split, size = self._split(given, dim), x.shape[dim]
        if not (groups > 1 and (not split.groups or split.groups[-1] < groups)):
            # Units that are written differently may cut at the same places.
            same = normal_split(Split(split.axes, unit, split.groups), size, given.mesh)
            if split.axes and split.unit != unit and same != split:
                reason = f"dimension {dim} is cut into units of {split.unit}, not of {unit}"
                raise ShardingError("bad-unit", reason)
        return normal_split(split.then(self.axes, unit, groups), size, given.mesh)

    def _split(self, given: Sharding, dim: int) -> Split:
        if not 0 <= dim < len(given.dims):
            raise ShardingError("bad-dim", f"there is no dimension {dim}")
        return given.splits[dim]

    def _check_free(self, given: Sharding) -> None:
        for axis in self.axes:
            if axis in given.axes:
                raise ShardingError("axis-used-twice", f"it uses '{axis}' already")


def _replaced(splits: tuple[Split, ...], changed: dict[int, Split]) -> tuple[Split, ...]:
    return tuple(changed.get(index, split) for index, split in enumerate(splits))


class AllReduce(Collective, name="all_reduce"):
    """Combine partial values over mesh axes; each device gets the whole result.

    %y = all_reduce %x {axes = ["tp"], reduction = "sum"} : f32[4, 8] replicated
    """

    reduction: str = "sum"

    def changed(self, given: Sharding, x: TensorType) -> Sharding:
        """Drop the partial values."""
        return sharding_of(given.splits, self._reduced(given, self.reduction), given.mesh)


class ReduceScatter(Collective, name="reduce_scatter"):
    """Combine partial values over mesh axes; each device gets its piece along a dimension.

    %y = reduce_scatter %x {axes = ["tp"], dim = 0, reduction = "sum"} : f32[4 @ tp, 8]
    """

    dim: int
    reduction: str = "sum"
    unit: int = 1
    groups: int = 1

    def changed(self, given: Sharding, x: TensorType) -> Sharding:
        """Cut a dimension instead of partial values."""
        partial = self._reduced(given, self.reduction)
        split = self._with(given, self.dim, self.unit, self.groups, x)
        return sharding_of(_replaced(given.splits, {self.dim: split}), partial, given.mesh)


class AllGather(Collective, name="all_gather"):
    """Put the pieces along a dimension together; `axes` are the innermost that cut it.

    %y = all_gather %x {axes = ["tp"], dim = 0} : f32[4, 8] replicated
    """

    dim: int

    def changed(self, given: Sharding, x: TensorType) -> Sharding:
        """Leave the dimension whole along the axes."""
        split = self._without(given, self.dim, x)
        return sharding_of(_replaced(given.splits, {self.dim: split}), given.partial, given.mesh)


class AllToAll(Collective, name="all_to_all"):
    """Cut `target` where `source` was cut: each device sends a piece to each other one.

    %y = all_to_all %x {axes = ["tp"], source = 0, target = 1} : f32[4, 8 @ tp]
    """

    source: int
    target: int
    unit: int = 1
    groups: int = 1

    def changed(self, given: Sharding, x: TensorType) -> Sharding:
        """Move the axes from one dimension to the other."""
        if self.source == self.target:
            raise ShardingError("bad-dim", "source and target are one dimension")
        changed = {
            self.source: self._without(given, self.source, x),
            self.target: self._with(given, self.target, self.unit, self.groups, x),
        }
        return sharding_of(_replaced(given.splits, changed), given.partial, given.mesh)


class Shard(Collective, name="shard"):
    """Keep, of a tensor that each device holds whole, the device's own piece along a dimension.

    %y = shard %x {axes = ["tp"], dim = 0} : f32[4 @ tp, 8]
    """

    needs_communication: ClassVar[bool] = False

    dim: int
    unit: int = 1
    groups: int = 1

    def changed(self, given: Sharding, x: TensorType) -> Sharding:
        """Cut the dimension."""
        self._check_free(given)
        split = self._with(given, self.dim, self.unit, self.groups, x)
        return sharding_of(_replaced(given.splits, {self.dim: split}), given.partial, given.mesh)


class Replicate(Collective, name="replicate"):
    """State that each device of a mesh holds the whole of what it computed by itself.

        %y = replicate %x {axes = ["dp", "tp"], sizes = [2, 4]} : f32[4, 8] replicated

    `axes` are all axes of the mesh, `sizes` how many devices stand along each.
    """

    needs_communication: ClassVar[bool] = False

    sizes: tuple[int, ...]

    def changed(self, given: Sharding, x: TensorType) -> Sharding:
        """Note the mesh."""
        if not given.is_replicated or len(self.sizes) != len(self.axes):
            raise ShardingError("axis-used-twice", "it is not whole on each device")
        mesh = Mesh("mesh", tuple(zip(self.axes, self.sizes, strict=True)))
        return replicated(x.rank, mesh)
