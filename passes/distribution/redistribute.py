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

    def emit(self, x: Value) -> Op:
        """Return the collective of a value."""
        if self.kind is Shard:
            return Shard(x, self.axes, self.dim, self.unit)
        if self.kind is AllReduce:
            return AllReduce(x, self.axes, self.reduction)
        if self.kind is ReduceScatter:
            return ReduceScatter(x, self.axes, self.dim, self.reduction, self.unit)
        if self.kind is AllGather:
            return AllGather(x, self.axes, self.dim)
        return AllToAll(x, self.axes, self.dim, self.target, self.unit)


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
        for dim, wanted in enumerate(self.wanted):
            axes = self._missing(dim)
            free = [axis for axis in axes if not self._uses(axis)]
            if axes and free == list(axes):
                self._append(dim, tuple(free))
                self.steps.append(Step(Shard, tuple(free), dim, unit=wanted.unit))

    def _missing(self, dim: int) -> tuple[str, ...]:
        """Return the axes that still have to cut a dimension, if what is there may stay."""
        given, wanted = self.splits[dim], self.wanted[dim]
        count = len(given.axes)
        if wanted.axes[:count] != given.axes or not self._same_unit(dim):
            return ()
        return wanted.axes[count:]

    def _same_unit(self, dim: int) -> bool:
        """Whether cuts of the axes that are there lie where they are wanted."""
        given, wanted = self.splits[dim], self.wanted[dim]
        if not given.axes or given.unit == wanted.unit:
            return True
        # Units that are written differently may cut at the same places.
        kept = Split(wanted.axes[: len(given.axes)], wanted.unit)
        return normal_split(kept, self.shape[dim], self.mesh) == given

    def _uses(self, axis: str) -> bool:
        return any(axis in split.axes for split in self.splits) or any(
            axis == partial.axis for partial in self.partial
        )

    def _append(self, dim: int, axes: tuple[str, ...]) -> None:
        split = Split(self.splits[dim].axes + axes, self.wanted[dim].unit)
        self.splits[dim] = normal_split(split, self.shape[dim], self.mesh)

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
            unit = self.wanted[dim].unit
            self._append(dim, (partial.axis,))
            step = Step(ReduceScatter, (partial.axis,), dim, reduction=partial.reduction, unit=unit)
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
                    if target != source and self._missing(target)[:count] == axes:
                        self._move(source, target, axes)
                        return True
        return False

    def _leaving(self, dim: int) -> tuple[str, ...]:
        """Return the innermost axes of a dimension that must not stay there."""
        given, wanted = self.splits[dim], self.wanted[dim]
        count = 0
        while (
            count < min(len(given.axes), len(wanted.axes))
            and given.axes[count] == wanted.axes[count]
        ):
            count += 1
        if count and not self._same_unit(dim):
            count = 0
        if count == len(given.axes) and given.axes and not self._same_unit(dim):
            count = 0
        return given.axes[count:]

    def _move(self, source: int, target: int, axes: tuple[str, ...]) -> None:
        self._pay(*axes)
        unit = self.wanted[target].unit
        self._drop(source, len(axes))
        self._append(target, axes)
        self.steps.append(Step(AllToAll, axes, source, target, unit=unit))

    def _drop(self, dim: int, count: int) -> None:
        split = self.splits[dim]
        kept = split.axes[: len(split.axes) - count]
        self.splits[dim] = Split(kept, split.unit) if kept else WHOLE

    def _gather(self) -> None:
        for dim in range(len(self.splits)):
            axes = self._leaving(dim)
            if axes:
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
