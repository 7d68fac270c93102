"""How the results of an op lie on a mesh, derived from its operands and its iteration space.

An op runs on each device over the device's part of the operands. A factor that an operand's
sharding cuts is cut in the whole op: parallel factors cut the results, a reduction leaves partial
sums, and what needs a factor as a whole cannot be cut. Partial sums flow through the operands in
which an op is linear. What cannot be derived is an error that says what must be gathered first.

The notion of factors is that of GSPMD (Xu et al. 2021) and of Shardy's sharding rules; partial
sums as a part of the type are those of DTensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from .dims import Dim, is_equal, product
from .sharding import REDUCTIONS, WHOLE, Mesh, Partial, Sharding, Split, sharding_of
from .space import Axis, FactorKind, IterationSpace, Window
from .tiles import split_of_dimension, split_of_positions

COMBINES = {
    "sum": "sum",
    "product": "product",
    "max": "max",
    "min": "min",
    "and": "and",
    "or": "or",
}
"""Operations of reduction factors that leave partial values, and the reductions of those."""


class ShardingError(Exception):
    """Why an op cannot run on parts of its operands: `operand` must be brought to another form."""

    def __init__(self, code: str, reason: str, operand: int | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.operand = operand


def normal_split(split: Split, size: Dim, mesh: Mesh | None) -> Split:
    """Return the split with unit 1 where that cuts at the same places; `ShardingError` if none."""
    if not split.axes:
        return WHOLE
    if isinstance(size, int) and split.groups:
        _check_groups(split, size, mesh)
    if split.unit == 1:
        return split
    if isinstance(size, int):
        if size % split.unit:
            raise ShardingError("bad-unit", f"{size} is no multiple of the unit of '{split}'")
        axes, groups = split.levels[-1]
        if mesh is not None and (size // groups // split.unit) % mesh.size(*axes) == 0:
            return Split(split.axes, 1, split.groups)
    return split


def _check_groups(split: Split, size: int, mesh: Mesh | None) -> None:
    """Raise `ShardingError` unless blocks are equal, and outer axes cut between blocks."""
    levels = split.levels
    for (axes, groups), (_, finer) in itertools.pairwise(levels):
        if finer % groups or (mesh is not None and (finer // groups) % mesh.size(*axes)):
            raise ShardingError("bad-unit", f"'{split}' cuts through blocks of {size}")
    if size % levels[-1][1] or (size // levels[-1][1]) % split.unit:
        raise ShardingError("bad-unit", f"{size} does not fall into the blocks of '{split}'")


def normal_sharding(sharding: Sharding, shape: Sequence[Dim], mesh: Mesh | None) -> Sharding:
    """Return the sharding with unit 1 wherever that cuts at the same places; see `normal_split`."""
    splits = zip(sharding.splits, shape, strict=True)
    normal = tuple(normal_split(split, size, mesh) for split, size in splits)
    return sharding_of(normal, sharding.partial, mesh)


def factor_splits(
    names: Sequence[str], sizes: Sequence[Dim], split: Split, mesh: Mesh | None
) -> dict[str, Split] | None:
    """Return how the factors of a compound dimension are cut where the dimension is cut.

    None where pieces of the dimension are no pieces of the factors.
    """
    if not split.groups:
        return _contiguous(names, sizes, split, mesh)
    found: dict[str, Split] = {}
    levels = split.levels
    for number, (axes, groups) in enumerate(levels):
        unit = split.unit if number == len(levels) - 1 else 1
        parts = _level(names, sizes, Split(axes, unit), groups, mesh)
        if parts is None:
            return None
        for name, part in parts.items():
            old = found.get(name, WHOLE)
            found[name] = old.then(part.axes, part.unit, part.groups[-1] if part.groups else 1)
    return found


def _level(
    names: Sequence[str], sizes: Sequence[Dim], split: Split, groups: int, mesh: Mesh | None
) -> dict[str, Split] | None:
    """Return how factors are cut where each of `groups` blocks of their dimension is."""
    index, outer = 0, 1
    while index < len(names) - 1:
        size = sizes[index]
        if not isinstance(size, int):
            return None
        if groups % (outer * size):
            break
        index, outer = index + 1, outer * size
    own, size = groups // outer, sizes[index]
    if groups % outer or not isinstance(size, int) or size % own:
        return None
    if own == 1:
        return _contiguous(names[index:], sizes[index:], split, mesh)
    inside = _contiguous(names[index:], (size // own, *sizes[index + 1 :]), split, mesh)
    if inside is None or any(name != names[index] for name in inside):
        return None
    return {name: Split((), 1).then(part.axes, part.unit, own) for name, part in inside.items()}


def _contiguous(
    names: Sequence[str], sizes: Sequence[Dim], split: Split, mesh: Mesh | None
) -> dict[str, Split] | None:
    """Return how factors are cut where a device's part of their dimension is one piece."""
    found: dict[str, Split] = {}
    left = split
    for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
        inner = product(sizes[index + 1 :])
        if not left.axes:
            break
        if len(names) == index + 1:
            found[name] = left
            return found
        if isinstance(inner, int) and left.unit % inner == 0:
            found[name] = normal_split(Split(left.axes, left.unit // inner), size, mesh)
            return found
        count = _evenly(left, size, inner, mesh)
        if count is None:
            return None
        if count:
            found[name] = Split(left.axes[:count])
        left = Split(left.axes[count:], left.unit)
    return found


def _evenly(split: Split, size: Dim, inner: Dim, mesh: Mesh | None) -> int | None:
    """Return how many of the axes cut an outer factor: all evenly, or some into single pieces."""
    if is_equal(size, 1):
        return 0
    if mesh is None or not isinstance(size, int):
        return None
    cut = 1
    for count, axis in enumerate(split.axes, 1):
        cut *= mesh.size(axis)
        if cut == size and count < len(split.axes):
            return count if split.unit == 1 or _is_multiple(inner, split.unit) else None
    even = size % cut == 0 and (split.unit == 1 or _is_multiple(inner, split.unit))
    return len(split.axes) if even else None


def _is_multiple(size: Dim, unit: int) -> bool:
    return isinstance(size, int) and size % unit == 0


def dim_split(
    names: Sequence[str],
    sizes: Sequence[Dim],
    splits: Mapping[str, Split],
    mesh: Mesh | None,
) -> Split | None:
    """Return how a compound dimension is cut where its factors are; the inverse of the above."""
    found, before = WHOLE, 1
    # Whether an outer factor is left with several elements, so that pieces lie in several places.
    is_apart = False
    for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
        split = splits.get(name, WHOLE)
        if split.axes:
            inner = product(sizes[index + 1 :])
            extended = _further(found, split, size, inner, before, is_apart, mesh)
            if extended is None:
                return None
            found = extended
        is_apart = is_apart or not _in_single_pieces(split, size, mesh)
        if not isinstance(size, int):
            if is_apart and any(other in splits for other in names[index + 1 :]):
                return None
            continue
        before *= size
    try:
        return normal_split(found, product(sizes), mesh)
    except ShardingError:
        return None


def _in_single_pieces(split: Split, size: Dim, mesh: Mesh | None) -> bool:
    """Whether each device has one element of a factor: then what is inside lies in one piece."""
    if not split.axes:
        return is_equal(size, 1)
    return mesh is not None and size == mesh.size(*split.axes) and _is_even(split, size, mesh)


def _further(
    found: Split, split: Split, size: Dim, inner: Dim, before: int, is_apart: bool,
    mesh: Mesh | None,
) -> Split | None:  # fmt: skip
    """Return a dimension's split with that of one more factor, of which there are `before`.

    Unless those are `is_apart` a device has one of them, and cuts it as the piece that it has.
    """
    if found.unit != 1:
        return None  # an outer factor is cut unevenly: blocks would have several sizes
    unit = 1
    if not _is_even(split, size, mesh):
        if not isinstance(inner, int):
            return None
        unit = split.unit * inner
    for axes, groups in split.levels:
        found = found.then(axes, unit, groups * before if is_apart or groups > 1 else 1)
    return found


def _is_even(split: Split, size: Dim, mesh: Mesh | None) -> bool:
    if mesh is None or not isinstance(size, int) or split.unit != 1:
        return False
    axes, groups = split.levels[-1]
    return (size // groups) % mesh.size(*axes) == 0


def op_splits(
    space: IterationSpace, operands: Sequence[Sharding | None], mesh: Mesh | None
) -> dict[str, Split]:
    """Return how each factor is cut by the shardings of the operands, or raise `ShardingError`."""
    found: dict[str, Split] = {}
    for position, sharding in enumerate(operands):
        if sharding is None or not any(sharding.dims):
            continue
        for axis, split in zip(space.operands[position], sharding.splits, strict=True):
            if split.axes:
                for name, part in _axis_splits(space, axis, split, mesh, position).items():
                    if found.setdefault(name, part) != part:
                        raise ShardingError(
                            "operands-disagree",
                            f"operand {position} cuts '{name}' by '{part}', "
                            f"another operand by '{found[name]}'",
                            position,
                        )
    for position, sharding in enumerate(operands):
        _check_operand(space, position, sharding, found, mesh)
    return found


def _check_operand(
    space: IterationSpace,
    position: int,
    sharding: Sharding | None,
    splits: Mapping[str, Split],
    mesh: Mesh | None,
) -> None:
    """Raise `ShardingError` unless an operand is cut as the factors are."""
    index_map = space.operands[position]
    given = (WHOLE,) * len(index_map) if sharding is None else sharding.splits
    for axis, split in zip(index_map, given, strict=True):
        wanted = axis_split(space, axis, splits, mesh)
        if wanted != split and wanted != normal_split(split, _size(space, axis), mesh):
            kept = "in pieces that do not lie together" if wanted is None else _how(wanted)
            reason = f"operand {position} is {_how(split)} along '{_name(axis)}', needed {kept}"
            raise ShardingError("operands-disagree", reason, position)


def _how(split: Split) -> str:
    return f"cut by '{split}'" if split.axes else "whole"


def axis_split(
    space: IterationSpace, axis: Axis, splits: Mapping[str, Split], mesh: Mesh | None
) -> Split | None:
    """Return how a dimension that is indexed so is cut; None if its pieces do not lie together."""
    if isinstance(axis, Window):
        if axis.offset in splits:
            return None
        position = splits.get(axis.position)
        return WHOLE if position is None else split_of_dimension(space, axis, position, mesh)
    if not any(name in splits for name in axis):
        return WHOLE
    return dim_split(axis, [space.factor(name).size for name in axis], splits, mesh)


def _axis_splits(
    space: IterationSpace, axis: Axis, split: Split, mesh: Mesh | None, position: int
) -> dict[str, Split]:
    if isinstance(axis, Window):
        windows = split_of_positions(space, axis, split, mesh)
        if windows is None:
            raise ShardingError("needs-neighbours", f"windows slide along '{axis}'", position)
        return {axis.position: windows}
    if not axis:
        raise ShardingError("needs-whole", f"operand {position} has no factor to cut", position)
    found = factor_splits(axis, [space.factor(name).size for name in axis], split, mesh)
    if found is None:
        reason = f"'{split}' does not cut '{_name(axis)}' between pieces of its factors"
        raise ShardingError("pieces-apart", reason, position)
    return found


def _size(space: IterationSpace, axis: Axis) -> Dim:
    if isinstance(axis, Window):
        return axis.size
    return product([space.factor(name).size for name in axis])


def _name(axis: Axis) -> str:
    return str(axis) if isinstance(axis, Window) else " ".join(axis) or "1"


def _mentions(axis: Axis, splits: Mapping[str, Split]) -> bool:
    names = (axis.position, axis.offset) if isinstance(axis, Window) else axis
    return any(name in splits for name in names)


def result_shardings(
    space: IterationSpace | None,
    operands: Sequence[Sharding | None],
    mesh: Mesh | None,
    *,
    moves: bool = False,
    random: bool = False,
    uniform: bool = True,
    empty: frozenset[int] = frozenset(),
) -> tuple[Sharding, ...] | None:
    """Return how the results lie where the operands lie so, or raise `ShardingError`.

    None stands for no results to speak of: an op without a space whose operands are all whole.
    `moves` says that the op only moves elements, so that partial values of any reduction pass;
    `uniform` that it does the same wherever along a factor it is, so that pieces may be apart;
    `empty` gives the results without elements, to which no factor matters that they lack.
    """
    if space is None or random:
        for position, sharding in enumerate(operands):
            if sharding is not None and not sharding.is_replicated:
                what = "draws random numbers in order" if random else "has no iteration space"
                raise ShardingError("needs-whole", f"it {what}", position)
        return None
    splits = op_splits(space, operands, mesh)
    pending = _pending(space, operands, splits, moves)
    for name, split in splits.items():
        kind = space.factor(name).kind
        if kind in (FactorKind.OPAQUE, FactorKind.SCAN):
            reason = f"it needs all of '{name}', which is cut by '{split}'"
            raise ShardingError("needs-whole", reason)
        if split.groups and not uniform:
            reason = f"it depends on the place along '{name}', which is cut by '{split}'"
            raise ShardingError("pieces-apart", reason)
    used = [axis for split in splits.values() for axis in split.axes]
    twice = {axis for axis in used if used.count(axis) > 1 or axis in {p.axis for p in pending}}
    if twice:
        reason = f"the mesh axis '{min(twice)}' would cut it in two ways"
        raise ShardingError("axis-used-twice", reason)
    return tuple(
        _result(space, index_map, splits, pending, mesh, is_empty=index in empty)
        for index, index_map in enumerate(space.results)
    )


def _pending(
    space: IterationSpace,
    operands: Sequence[Sharding | None],
    splits: Mapping[str, Split],
    moves: bool,
) -> tuple[Partial, ...]:
    """Return the partial sums that flow through the op."""
    holders: dict[Partial, list[int]] = {}
    for position, sharding in enumerate(operands):
        for partial in sharding.partial if sharding is not None else ():
            holders.setdefault(partial, []).append(position)
    for partial, positions in holders.items():
        flows = tuple(positions) in [tuple(sorted(one)) for one in space.linear]
        if not flows or (partial.reduction != "sum" and not moves):
            reason = f"it is not linear in operand {positions[0]}, which is {partial}"
            raise ShardingError("needs-reduction", reason, positions[0])
    axes = [partial.axis for partial in holders]
    if len(set(axes)) != len(axes):
        raise ShardingError("needs-reduction", "its operands are partial in two ways")
    return tuple(holders)


def _result(
    space: IterationSpace,
    index_map: tuple[Axis, ...],
    splits: Mapping[str, Split],
    pending: tuple[Partial, ...],
    mesh: Mesh | None,
    *,
    is_empty: bool,
) -> Sharding:
    dims: list[Split] = []
    for axis in index_map:
        split = axis_split(space, axis, splits, mesh)
        if split is None:
            reason = f"pieces of the result along '{_name(axis)}' would not lie together"
            raise ShardingError("pieces-apart", reason)
        dims.append(split)
    partial = list(pending)
    for name, split in splits.items():
        if is_empty or any(_mentions(axis, {name: split}) for axis in index_map):
            continue
        factor = space.factor(name)
        if factor.kind is not FactorKind.REDUCTION:
            raise ShardingError("needs-whole", f"the result has no part of '{name}'")
        if factor.combine not in REDUCTIONS:
            reason = f"parts along '{name}' cannot be combined by '{factor.combine}'"
            raise ShardingError("needs-whole", reason)
        partial += [Partial(factor.combine, axis) for axis in split.axes]
    return sharding_of(tuple(dims), tuple(partial), mesh)
