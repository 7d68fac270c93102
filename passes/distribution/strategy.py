"""How an op runs on a mesh: which of its factors are cut, by which axes.

Tensors propose: an operand or a result that is cut along a dimension would have the factor of that
dimension cut so. Proposals that need one mesh axis twice contend; lower priorities win, and among
equals what moves the fewest bytes, with the work that a device would do in vain counted in.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim
from lynx.ir.shard_rules import ShardingError, axis_split, factor_splits, op_splits
from lynx.ir.sharding import REDUCTIONS, Mesh, Partial, Sharding, Split, replicated, sharding_of
from lynx.ir.space import Axis, FactorKind, IndexMap, IterationSpace, Window
from lynx.ir.structure import Structure, shared_space
from lynx.ir.tiles import split_of_positions
from lynx.ir.types import TensorType

from .redistribute import SYMBOLIC_SIZE, Costs

POINTS_PER_BYTE = 4000.0
"""How many points of an iteration space are worth a byte on the mesh."""
_MOST_CONTENDERS = 6


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of an op: its type, how it lies or should lie, and the priority of each axis."""

    type: TensorType
    sharding: Sharding
    priorities: Mapping[str, int]
    state: int | None = None
    """A number that tensors share which lie alike with the same priorities, if it is known."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One tensor's wish for a factor. Ordered by priority, then by size, the largest first."""

    factor: str
    split: Split
    priority: int
    weight: float
    tensor: int

    @property
    def order(self) -> tuple[int, float, int]:
        """The key by which proposals are considered."""
        return self.priority, -self.weight, self.tensor


def is_divisible(space: IterationSpace, name: str) -> bool:
    """Whether parts of a factor can run apart."""
    factor = space.factor(name)
    if factor.kind is FactorKind.REDUCTION:
        return factor.combine in REDUCTIONS
    return factor.kind is FactorKind.PARALLEL


def proposals(
    space: IterationSpace, placed: Sequence[Placed | None], maps: Sequence[IndexMap], mesh: Mesh
) -> list[Proposal]:
    """Return what the tensors of an op propose, in the order in which it is considered."""
    found: list[Proposal] = []
    for tensor, (one, index_map) in enumerate(zip(placed, maps, strict=True)):
        if one is None or not any(one.sharding.dims):
            continue
        weight = weight_of(one.type)
        for axis, split in zip(index_map, one.sharding.splits, strict=True):
            for name, part in splits_along(space, axis, split, mesh).items():
                if is_divisible(space, name):
                    found += _prefixes(name, part, one.priorities, weight, tensor)
    return sorted(found, key=lambda proposal: proposal.order)


def _prefixes(
    name: str, split: Split, priorities: Mapping[str, int], weight: float, tensor: int
) -> list[Proposal]:
    """Return what is proposed for a factor: all axes, or only the outer ones of them."""
    found: list[Proposal] = []
    for count in range(len(split.axes), 0, -1):
        part = split.first(count)
        priority = max(priorities.get(axis, 1) for axis in part.axes)
        found.append(Proposal(name, part, priority, weight, tensor))
    return found


def splits_along(space: IterationSpace, axis: Axis, split: Split, mesh: Mesh) -> dict[str, Split]:
    """Return how factors are cut where one dimension is; empty if they cannot be."""
    if not split.axes or not axis:
        return {}
    if isinstance(axis, Window):
        windows = split_of_positions(space, axis, split, mesh)
        return {} if windows is None else {axis.position: windows}
    sizes = [space.factor(name).size for name in axis]
    return factor_splits(axis, sizes, split, mesh) or {}


def weight_of(type_: TensorType) -> float:
    """Return the number of elements, with a guess for symbolic sizes."""
    total = 1.0
    for dim in type_.shape:
        total *= dim if isinstance(dim, int) else SYMBOLIC_SIZE
    return total


def accept(found: Sequence[Proposal]) -> dict[str, Split]:
    """Take proposals in order, as long as no axis is used twice; longer ones extend shorter."""
    taken: dict[str, Split] = {}
    for proposal in found:
        old = taken.get(proposal.factor)
        if old is not None and not _extends(proposal.split, old):
            continue
        others = {a for name, s in taken.items() if name != proposal.factor for a in s.axes}
        if not others.intersection(proposal.split.axes):
            taken[proposal.factor] = proposal.split
    return taken


def _extends(longer: Split, shorter: Split) -> bool:
    return len(longer.axes) > len(shorter.axes) and longer.begins_with(shorter)


def result_sharding(
    space: IterationSpace, index_map: IndexMap, splits: Mapping[str, Split], mesh: Mesh
) -> Sharding | None:
    """Return how a result lies where factors are cut; None if its pieces do not lie together."""
    dims = [axis_split(space, axis, splits, mesh) for axis in index_map]
    if any(split is None for split in dims):
        return None
    partial: list[Partial] = []
    for name, split in splits.items():
        if not any(_mentions(axis, name) for axis in index_map):
            factor = space.factor(name)
            if factor.kind is not FactorKind.REDUCTION:
                return None
            partial += [Partial(factor.combine, axis) for axis in split.axes]
    return sharding_of(tuple(split for split in dims if split is not None), tuple(partial), mesh)


def operand_sharding(
    space: IterationSpace, index_map: IndexMap, splits: Mapping[str, Split], mesh: Mesh
) -> Sharding | None:
    """Return how an operand has to lie where factors are cut; None if it cannot."""
    dims = [axis_split(space, axis, splits, mesh) for axis in index_map]
    if any(split is None for split in dims):
        return None
    return sharding_of(tuple(split for split in dims if split is not None), (), mesh)


def _mentions(axis: Axis, name: str) -> bool:
    return name in ((axis.position, axis.offset) if isinstance(axis, Window) else axis)


class Strategist:
    """Chooses which factors of ops are cut; equal questions are answered once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.costs = Costs(mesh)
        self._known: dict[object, dict[str, Split]] = {}

    def choose(
        self, space: IterationSpace | None, operands: Sequence[Placed | None],
        results: Sequence[Placed | None], structure: Structure | None,
    ) -> dict[str, Split]:  # fmt: skip
        """Return how each factor is cut; those that are whole are left out."""
        if space is None:
            return {}
        placed = (*operands, *results)
        maps = (*space.operands, *space.results)
        if not any(one is not None and any(one.sharding.dims) for one in placed):
            return {}
        key = (structure, tuple([state_of(one) for one in placed]))
        known = self._known.get(key) if structure is not None else None
        if known is None:
            chosen = self._choose(space, placed, maps, len(operands))
            known = self._known[key] = self._derivable(space, chosen)
        return known

    def _derivable(self, space: IterationSpace, chosen: dict[str, Split]) -> dict[str, Split]:
        """Return the splits without those that operands which lie so would not be read as.

        Where one device has all of a factor, its dimension looks as if another factor were cut.
        """
        while chosen:
            shardings = [operand_sharding(space, m, chosen, self.mesh) for m in space.operands]
            with contextlib.suppress(ShardingError):
                if op_splits(space, shardings, self.mesh).keys() <= chosen.keys():
                    break
            worst = max(chosen, key=lambda name: (chosen[name].unit, chosen[name].groups))
            chosen = {name: split for name, split in chosen.items() if name != worst}
        return chosen

    def _choose(
        self, space: IterationSpace, placed: Sequence[Placed | None], maps: Sequence[IndexMap],
        count: int,
    ) -> dict[str, Split]:  # fmt: skip
        found = proposals(space, placed, maps, self.mesh)
        chosen: dict[str, Split] = {}
        for _, level in itertools.groupby(found, key=lambda proposal: proposal.priority):
            free = {(p.factor, p.split): p for p in level if _merged(chosen, (p,)) is not None}
            distinct = list(free.values())[:_MOST_CONTENDERS]
            agreed = _agreed(space, chosen, distinct, placed, maps[:count], self.mesh)
            if agreed is not None:
                chosen = agreed
                continue
            best: tuple[float, int] | None = None
            best_splits = chosen
            for subset in _subsets(distinct):
                splits = _merged(chosen, subset)
                if splits is None:
                    continue
                cost = self.cost(space, splits, placed, maps, count)
                if cost is not None and (best is None or (cost, -len(subset)) < best):
                    best, best_splits = (cost, -len(subset)), splits
            chosen = best_splits
        return chosen

    def cost(
        self, space: IterationSpace, splits: Mapping[str, Split], placed: Sequence[Placed | None],
        maps: Sequence[IndexMap], count: int,
    ) -> float | None:  # fmt: skip
        """Return the bytes moved, with work that could be shared counted; None if impossible."""
        total = _points(space, splits, self.mesh) / POINTS_PER_BYTE
        for index, (one, index_map) in enumerate(zip(placed, maps, strict=True)):
            if index < count:
                wanted = operand_sharding(space, index_map, splits, self.mesh)
                if wanted is None:
                    return None
                given = one.sharding if one is not None else None
            else:
                given = result_sharding(space, index_map, splits, self.mesh)
                if given is None:
                    return None
                wanted = one.sharding if one is not None else None
            if one is not None and given is not None and wanted is not None:
                total += self.costs(given, wanted, one.type.shape, one.type.dtype.itemsize)
        return total


def state_of(one: Placed | None) -> Hashable:
    """Return a key for how a tensor lies, with the priorities of its axes."""
    if one is None:
        return None
    if one.state is not None:
        return one.state
    return one.sharding, tuple(one.priorities.items())


def _subsets(found: Sequence[Proposal]) -> list[tuple[Proposal, ...]]:
    return [
        subset
        for count in range(len(found), -1, -1)
        for subset in itertools.combinations(found, count)
    ]


def _agreed(
    space: IterationSpace, chosen: Mapping[str, Split], found: Sequence[Proposal],
    placed: Sequence[Placed | None], maps: Sequence[IndexMap], mesh: Mesh,
) -> dict[str, Split] | None:  # fmt: skip
    """Return the splits with all proposals taken, if none contends and none is of one side alone.

    A sum that all operands cut alike is left in parts: that is what they were cut for, and each
    device keeps its share of the work.
    """
    splits = _merged(chosen, found)
    if splits is None:
        return None
    for proposal in found:
        if space.factor(proposal.factor).kind is not FactorKind.REDUCTION:
            continue
        for one, index_map in zip(placed, maps, strict=False):
            if one is not None and not _lies_so(
                space, one, index_map, proposal.factor, splits, mesh
            ):
                return None
    return splits if _is_possible(space, splits, maps, mesh) else None


def _lies_so(
    space: IterationSpace, one: Placed, index_map: IndexMap, name: str,
    splits: Mapping[str, Split], mesh: Mesh,
) -> bool:  # fmt: skip
    """Whether a tensor is cut along a factor as the factor is, if it has it at all."""
    for axis, split in zip(index_map, one.sharding.splits, strict=True):
        if _mentions(axis, name):
            wanted = axis_split(space, axis, splits, mesh)
            # What cuts it further is needed for something else, and is gathered in any case.
            if wanted is None or not (wanted == split or _extends(split, wanted)):
                return False
    return True


def _is_possible(
    space: IterationSpace, splits: Mapping[str, Split], maps: Sequence[IndexMap], mesh: Mesh
) -> bool:
    """Whether pieces of all operands and results lie together where factors are cut so."""
    return all(operand_sharding(space, m, splits, mesh) is not None for m in maps) and all(
        result_sharding(space, m, splits, mesh) is not None for m in space.results
    )


def _merged(chosen: Mapping[str, Split], subset: Sequence[Proposal]) -> dict[str, Split] | None:
    """Return the splits with more proposals taken; None where they contend."""
    splits = dict(chosen)
    for proposal in subset:
        old = splits.get(proposal.factor)
        if old is not None and old != proposal.split and not _extends(proposal.split, old):
            return None
        splits[proposal.factor] = proposal.split
    used = [axis for split in splits.values() for axis in split.axes]
    return splits if len(used) == len(set(used)) else None


def _points(space: IterationSpace, splits: Mapping[str, Split], mesh: Mesh) -> float:
    total = 1.0
    for factor in space.factors:
        size: Dim = factor.size
        total *= size if isinstance(size, int) else SYMBOLIC_SIZE
        if factor.name in splits:
            total /= mesh.size(*splits[factor.name].axes)
    return total


def placed(value: Value, sharding: Sharding | None, priorities: Mapping[str, int]) -> Placed | None:
    """Return a value as a tensor of an op; None if it is no tensor."""
    if not isinstance(value.type, TensorType):
        return None
    return Placed(value.type, sharding or replicated(value.type.rank), priorities)


def space_of(op: Op) -> IterationSpace | None:
    """Return the space along which an op may be cut; none for ops that draw random numbers."""
    return None if op.is_random or op.changes_sharding else shared_space(op)
