"""The cheapest way from one sharding of a tensor to another: a sequence of collectives.

A step moves some mesh axes at once (as in redistribution by single-axis moves in DTensor): what a
device can drop is dropped first, partial sums are combined while they are small, axes go from
one dimension to another by an all-to-all, and only what is left is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim
from lynx.ir.ops.collective import AllGather, AllReduce, AllToAll, ReduceScatter, Shard
from lynx.ir.shard_rules import normal_split
from lynx.ir.sharding import WHOLE, Mesh, Partial, Sharding, Split, sharding_of

SYMBOLIC_SIZE = 128
"""What a symbolic size counts for in estimates."""
LATENCY_BYTES = 64.0
"""What starting a collective costs, in bytes moved: fewer collectives win where bytes are equal."""


@dataclass(frozen=True, slots=True)
class Step:
    """One collective of a redistribution: its kind, mesh axes, and dimensions."""

    kind: type[Op]
    axes: tuple[str, ...]
    dim: int = 0
    target: int = 0
    reduction: str = "sum"
    unit: int = 1
    groups: int = 1

    def emit(self, x: Value) -> Op:
        """Return the collective of a value."""
        if self.kind is Shard:
            return Shard(x, self.axes, self.dim, self.unit, self.groups)
        if self.kind is AllReduce:
            return AllReduce(x, self.axes, self.reduction)
        if self.kind is ReduceScatter:
            return ReduceScatter(x, self.axes, self.dim, self.reduction, self.unit, self.groups)
        if self.kind is AllGather:
            return AllGather(x, self.axes, self.dim)
        return AllToAll(x, self.axes, self.dim, self.target, self.unit, self.groups)


def bytes_of(shape: Sequence[Dim], itemsize: int) -> float:
    """Return the size of a tensor, with a guess for symbolic sizes."""
    total = float(itemsize)
    for dim in shape:
        total *= dim if isinstance(dim, int) else SYMBOLIC_SIZE
    return total


class Redistribution:
    """Steps from one sharding to another, with the bytes that each device sends."""

    def __init__(
        self, given: Sharding, wanted: Sharding, shape: tuple[Dim, ...], itemsize: int, mesh: Mesh
    ) -> None:
        self.mesh, self.shape, self.itemsize = mesh, shape, itemsize
        self.splits = list(given.splits)
        self.partial = list(given.partial)
        self.wanted = list(wanted.splits)
        self.kept = set(wanted.partial)
        self.steps: list[Step] = []
        self.cost = 0.0
        self._run()

    def _run(self) -> None:
        self._shard()
        self._reduce()
        while self._exchange():
            pass
        self._gather()
        self._shard()

    # what a device has more than it needs

    def _shard(self) -> None:
        """Cut dimensions by axes that nothing uses yet."""
        for dim in range(len(self.wanted)):
            axes = self._missing(dim)
            if not axes or any(self._uses(axis) for axis in axes):
                continue
            while axes:
                count = self._alike(self.wanted[dim], len(self.splits[dim].axes), len(axes))
                unit, groups = self._append(dim, axes[:count])
                self.steps.append(Step(Shard, axes[:count], dim, unit=unit, groups=groups))
                axes = axes[count:]

    def _missing(self, dim: int) -> tuple[str, ...]:
        """Return the axes that still have to cut a dimension, if what is there may stay."""
        count = len(self.splits[dim].axes)
        return self.wanted[dim].axes[count:] if self._may_stay(dim, count) else ()

    def _may_stay(self, dim: int, count: int) -> bool:
        """Whether the outermost axes of a dimension cut where they are wanted to cut."""
        given, wanted = self.splits[dim], self.wanted[dim]
        if not count:
            return True
        if count > len(wanted.axes) or not wanted.begins_with(given.first(count)):
            return False
        return self._prefix(given, dim, count) == self._prefix(wanted, dim, count)

    def _prefix(self, split: Split, dim: int, count: int) -> Split:
        """Return the outermost axes of a split, with the unit in which they cut."""
        first = split.first(count)
        if count < len(split.axes) and first.levels[-1][1] != split.levels[-1][1]:
            first = Split(first.axes, 1, first.groups)  # outer blocks are cut evenly
        return normal_split(first, self.shape[dim], self.mesh)

    @staticmethod
    def _alike(split: Split, start: int, count: int) -> int:
        """Return how many of the axes from `start` on cut the same blocks as the first of them."""
        groups = split.groups or (1,) * len(split.axes)
        same = 1
        while same < count and groups[start + same] == groups[start]:
            same += 1
        return same

    def _uses(self, axis: str) -> bool:
        return any(axis in split.axes for split in self.splits) or any(
            axis == partial.axis for partial in self.partial
        )

    def _append(self, dim: int, axes: tuple[str, ...]) -> tuple[int, int]:
        """Let axes cut a dimension as they are wanted to; return their unit, and their groups."""
        wanted, count = self.wanted[dim], len(self.splits[dim].axes)
        groups = wanted.groups[count] if wanted.groups else 1
        unit = self._prefix(wanted, dim, count + len(axes)).unit
        split = self.splits[dim].then(axes, unit, groups)
        self.splits[dim] = normal_split(split, self.shape[dim], self.mesh)
        return unit, groups

    # partial sums

    def _reduce(self) -> None:
        """Combine partial values, into pieces where the axis is wanted to cut a dimension."""
        whole: dict[str, list[str]] = {}
        for partial in [one for one in self.partial if one not in self.kept]:
            dim = next((d for d in range(len(self.wanted)) if self._next(d, partial.axis)), None)
            if dim is None:
                whole.setdefault(partial.reduction, []).append(partial.axis)
                continue
            self._pay(partial.axis)
            self.partial.remove(partial)
            unit, groups = self._append(dim, (partial.axis,))
            step = Step(ReduceScatter, (partial.axis,), dim, 0, partial.reduction, unit, groups)
            self.steps.append(step)
        for reduction, axes in whole.items():
            self._pay(*axes, times=2.0)
            self.partial = [p for p in self.partial if Partial(reduction, p.axis) != p
                            or p.axis not in axes]  # fmt: skip
            self.steps.append(Step(AllReduce, tuple(axes), reduction=reduction))

    def _next(self, dim: int, axis: str) -> bool:
        missing = self._missing(dim)
        return bool(missing) and missing[0] == axis

    # axes that cut the wrong dimension

    def _exchange(self) -> bool:
        """Move axes from a dimension that they must leave to one that waits for them."""
        for source in range(len(self.splits)):
            leaving = self._leaving(source)
            for count in range(len(leaving), 0, -1):
                axes = leaving[-count:]
                for target in range(len(self.splits)):
                    if target != source and self._waits(target, axes):
                        self._move(source, target, axes)
                        return True
        return False

    def _waits(self, dim: int, axes: tuple[str, ...]) -> bool:
        """Whether a dimension is to be cut by these axes next, all in the same blocks."""
        start = len(self.splits[dim].axes)
        if self._missing(dim)[: len(axes)] != axes:
            return False
        return self._alike(self.wanted[dim], start, len(axes)) == len(axes)

    def _leaving(self, dim: int) -> tuple[str, ...]:
        """Return the innermost axes of a dimension that must not stay, of one level of blocks."""
        given = self.splits[dim]
        count = len(given.axes)
        while count and not self._may_stay(dim, count):
            count -= 1
        if count == len(given.axes):
            return ()
        last = given.levels[-1][0]
        return given.axes[max(count, len(given.axes) - len(last)) :]

    def _move(self, source: int, target: int, axes: tuple[str, ...]) -> None:
        self._pay(*axes)
        self._drop(source, len(axes))
        unit, groups = self._append(target, axes)
        self.steps.append(Step(AllToAll, axes, source, target, unit=unit, groups=groups))

    def _drop(self, dim: int, count: int) -> None:
        split = self.splits[dim]
        kept = split.first(len(split.axes) - count)
        self.splits[dim] = normal_split(kept, self.shape[dim], self.mesh) if kept.axes else WHOLE

    def _gather(self) -> None:
        for dim in range(len(self.splits)):
            while axes := self._leaving(dim):
                self._drop(dim, len(axes))
                self._pay(*axes)
                self.steps.append(Step(AllGather, axes, dim))

    def _pay(self, *axes: str, times: float = 1.0) -> None:
        """Count what a device sends: its part of the tensor, but for what stays with it."""
        count = self.mesh.size(*axes)
        cut = self.mesh.size(*(axis for split in self.splits for axis in split.axes))
        local = bytes_of(self.shape, self.itemsize) / cut
        self.cost += times * local * (count - 1) / count + LATENCY_BYTES

    @property
    def reached(self) -> Sharding:
        """The sharding after all steps."""
        return sharding_of(tuple(self.splits), tuple(self.partial), self.mesh)


class Costs:
    """Bytes that redistributions move, each found once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._known: dict[tuple[Sharding, Sharding, tuple[Dim, ...], int], float] = {}

    def __call__(
        self, given: Sharding, wanted: Sharding, shape: tuple[Dim, ...], itemsize: int
    ) -> float:
        """Return what it costs to bring a tensor from one sharding to another."""
        if given == wanted:
            return 0.0
        key = (given, wanted, shape, itemsize)
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = Redistribution(given, wanted, shape, itemsize, self.mesh).cost
        return cost
