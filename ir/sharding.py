"""Meshes, and the sharding part of a tensor's type with its partial sums."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field

from .errors import UsageError

REDUCTIONS = ("sum", "product", "max", "min", "and", "or")

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPEC = re.compile(
    r"\s*(?:(?P<none>_)|(?P<one>[A-Za-z]\w*(?:\s+of\s+\d+)?)|\((?P<many>[^()]*)\))"
    r"(?:\s+by\s+(?P<unit>\d+))?\s*",
    re.ASCII,
)


def quote_name(name: str, plain: re.Pattern[str] = _NAME) -> str:
    """Return the name, in quotes if it does not have the plain form."""
    return name if plain.fullmatch(name) else json.dumps(name)


@dataclass(frozen=True, slots=True)
class Mesh:
    """A named grid of devices: axis names with their sizes, outermost first."""

    name: str
    axes: tuple[tuple[str, int], ...]

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(name for name, _ in self.axes)

    def size(self, *axes: str) -> int:
        """Return the size of an axis, of several their product; `KeyError` if there is none."""
        sizes = dict(self.axes)
        return math.prod(sizes[axis] for axis in axes)

    def coordinates(self, device: int) -> dict[str, int]:
        """Return where a device, counted in row-major order, stands along each axis."""
        found: dict[str, int] = {}
        for name, size in reversed(self.axes):
            device, found[name] = divmod(device, size)
        return {name: found[name] for name in self.names}

    def device(self, coordinates: dict[str, int]) -> int:
        """Return the number of the device that stands at a place; the inverse of `coordinates`."""
        place = 0
        for name, size in self.axes:
            place = place * size + coordinates[name]
        return place

    def __str__(self) -> str:
        axes = ", ".join(f"{quote_name(axis)} = {size}" for axis, size in self.axes)
        return f"mesh @{quote_name(self.name)}({axes})"


@dataclass(frozen=True, slots=True)
class Partial:
    """A pending reduction over a mesh axis: the true value combines the parts of all devices."""

    reduction: str
    axis: str

    def __str__(self) -> str:
        return f"partial({self.reduction}: {quote_name(self.axis)})"


@dataclass(frozen=True, slots=True)
class Split:
    """How a dimension, or a factor, is cut: by which mesh axes, into pieces of what unit.

    The axes cut one after the other, the outermost first, each into parts of ceil-division size;
    the last parts may be short or empty. Cuts lie at multiples of `unit` elements (heads of 64
    elements: `unit` 64), and the size is a multiple of it. An axis of `groups` n cuts each of n
    equal blocks, so that a device has a piece of each block (rows of 8 sequences after one another,
    each cut by `tp`: `tp of 8`); none stands for ones. Groups do not fall from axis to axis, and
    axes of fewer groups than the last cut evenly between blocks.
    """

    axes: tuple[str, ...] = ()
    unit: int = 1
    groups: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.groups and self.groups[-1] == 1:
            object.__setattr__(self, "groups", ())

    @property
    def levels(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """The axes that cut the same blocks, with the number of blocks, in order."""
        if not self.groups:
            return ((self.axes, 1),) if self.axes else ()
        found: list[tuple[tuple[str, ...], int]] = []
        for axis, count in zip(self.axes, self.groups, strict=True):
            if found and found[-1][1] == count:
                found[-1] = ((*found[-1][0], axis), count)
            else:
                found.append(((axis,), count))
        return tuple(found)

    def first(self, count: int) -> Split:
        """Return the split by the outermost axes alone."""
        return Split(self.axes[:count], self.unit if count else 1, self.groups[:count])

    def then(self, axes: tuple[str, ...], unit: int, groups: int = 1) -> Split:
        """Return the split that is cut further by more axes."""
        if groups == 1 and not self.groups:
            return Split(self.axes + axes, unit)
        before = self.groups or (1,) * len(self.axes)
        return Split(self.axes + axes, unit, before + (groups,) * len(axes))

    def begins_with(self, other: Split) -> bool:
        """Whether the axes of the other one cut first here, and cut the same blocks."""
        count = len(other.axes)
        mine, others = self.groups or (1,) * len(self.axes), other.groups or (1,) * count
        return self.axes[:count] == other.axes and mine[:count] == others

    def blocks(self, size: int, mesh: Mesh, coordinates: dict[str, int]) -> list[tuple[int, int]]:
        """Return the start and the length of each piece that a device holds, in order."""
        pieces = [(0, size)]
        for axes, groups in self.levels:
            block = size // groups
            finer: list[tuple[int, int]] = []
            for start, length in pieces:
                count = max(length // block, 1) if block else 1
                for number in range(count):
                    piece = self._cut(min(length, block), axes, mesh, coordinates)
                    finer.append((start + number * block + piece[0], piece[1]))
            pieces = finer
        return pieces

    def _cut(
        self, size: int, axes: tuple[str, ...], mesh: Mesh, coordinates: dict[str, int]
    ) -> tuple[int, int]:
        start, count = 0, size // self.unit
        for axis in axes:
            length = -(-count // mesh.size(axis))
            before = min(coordinates[axis] * length, count)
            start, count = start + before, min(length, count - before)
        return start * self.unit, count * self.unit

    def part(self, size: int, mesh: Mesh, coordinates: dict[str, int]) -> tuple[int, int]:
        """Return the start and the length of the part that a device holds.

        Of several pieces, their common length, and the start of the first one.
        """
        if not self.groups:
            return self._cut(size, self.axes, mesh, coordinates)
        pieces = self.blocks(size, mesh, coordinates)
        return pieces[0][0], sum(length for _, length in pieces)

    def __str__(self) -> str:
        groups = self.groups or (1,) * len(self.axes)
        names = [
            quote_name(axis) if count == 1 else f"{quote_name(axis)} of {count}"
            for axis, count in zip(self.axes, groups, strict=True)
        ]
        text = names[0] if len(names) == 1 else f"({', '.join(names)})"
        return text if self.unit == 1 else f"{text} by {self.unit}"


WHOLE = Split()
"""Not cut."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor lies on a mesh.

    `dims[i]` names the mesh axes that split dimension `i`, outermost first, into parts of
    ceil-division size; the last parts may be short or empty. An axis in neither `dims` nor
    `partial` replicates. `units[i]` is what the pieces of a dimension are multiples of, `groups[i]`
    the blocks that each of its axes cuts (see `Split`); none stands for ones. The mesh is known
    where sizes of axes matter; it is no part of what is compared.
    """

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[Partial, ...] = ()
    units: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    mesh: Mesh | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if all(unit == 1 for unit in self.units):
            object.__setattr__(self, "units", ())
        if not any(self.groups):
            object.__setattr__(self, "groups", ())

    @property
    def axes(self) -> tuple[str, ...]:
        """Every mesh axis that the sharding uses, in order of mention, repeats included."""
        return tuple(a for dim in self.dims for a in dim) + tuple(p.axis for p in self.partial)

    @property
    def splits(self) -> tuple[Split, ...]:
        """How each dimension is cut."""
        units = self.units or (1,) * len(self.dims)
        if not self.groups:
            return tuple(map(Split, self.dims, units))
        return tuple(map(Split, self.dims, units, self.groups))

    @property
    def is_replicated(self) -> bool:
        """Whether each device holds the whole."""
        return not self.partial and not any(self.dims)

    def local_shape(
        self, shape: tuple[int, ...], coordinates: dict[str, int]
    ) -> tuple[tuple[int, int], ...]:
        """Return the start and the length of a device's part along each dimension."""
        mesh = self.mesh
        assert mesh is not None
        return tuple(
            split.part(size, mesh, coordinates)
            for split, size in zip(self.splits, shape, strict=True)
        )

    @property
    def spec(self) -> str:
        """The sharding in the language of plans, without partial sums: `dp, _, (dp, tp) by 64`."""
        return ", ".join(str(split) if split.axes else "_" for split in self.splits)

    def __str__(self) -> str:
        return "".join([f"({self.spec})", *(f" + {partial}" for partial in self.partial)])


def sharding_of(
    splits: tuple[Split, ...], partial: tuple[Partial, ...], mesh: Mesh | None
) -> Sharding:
    """Return the sharding that cuts dimensions so, with partial sums in one order."""
    ordered = partial
    if mesh is not None and len(partial) > 1:
        place = {name: index for index, name in enumerate(mesh.names)}
        ordered = tuple(sorted(partial, key=lambda one: place.get(one.axis, 0)))
    units = tuple(split.unit if split.axes else 1 for split in splits)
    groups = tuple(split.groups for split in splits)
    return Sharding(tuple(split.axes for split in splits), ordered, units, groups, mesh)


def replicated(rank: int, mesh: Mesh | None = None) -> Sharding:
    """Return the sharding of a tensor of which each device holds the whole."""
    return Sharding(((),) * rank, mesh=mesh)


def parse_sharding(text: str, mesh: Mesh | None = None) -> Sharding:
    """Read the language of plans: an entry for each dimension, `_` for one that is not cut.

        dp, _, (dp, tp) by 64

    `UsageError` where the text is malformed, or names an axis twice or one that the mesh lacks.
    """
    splits: list[Split] = []
    place, stripped = 0, text.strip()
    while place < len(stripped):
        found = _SPEC.match(stripped, place)
        if found is None or (found.end() < len(stripped) and stripped[found.end()] != ","):
            raise UsageError(
                "bad-sharding",
                f"'{text}' is no sharding: expected '_', an axis or '(axis, axis)' for each "
                f"dimension, separated by commas, at '{stripped[place:]}'",
            )
        names = found["one"] or found["many"] or ""
        words = [name.split() for name in names.split(",") if name.strip()]
        axes = tuple(word[0] for word in words)
        groups = tuple(int(word[2]) if len(word) == 3 else 1 for word in words)
        splits.append(Split(axes, int(found["unit"] or 1), groups))
        place = found.end() + 1
    sharding = sharding_of(tuple(splits), (), mesh)
    check_axes(text, sharding.axes, mesh)
    return sharding


def check_axes(text: str, axes: tuple[str, ...], mesh: Mesh | None) -> None:
    """Raise `UsageError` for an axis that is named twice, or that the mesh does not have."""
    for index, axis in enumerate(axes):
        if axis in axes[:index]:
            raise UsageError("axis-used-twice", f"'{text}' names the mesh axis '{axis}' twice")
        if mesh is not None and axis not in mesh.names:
            known = ", ".join(mesh.names)
            raise UsageError("unknown-axis", f"'{text}' names '{axis}'; the mesh has {known}")
