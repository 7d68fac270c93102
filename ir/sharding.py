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
    r"\s*(?:(?P<none>_)|(?P<one>[A-Za-z]\w*)|\((?P<many>[^()]*)\))(?:\s+by\s+(?P<unit>\d+))?\s*",
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
    elements: `unit` 64), and the size is a multiple of it.
    """

    axes: tuple[str, ...] = ()
    unit: int = 1

    def part(self, size: int, mesh: Mesh, coordinates: dict[str, int]) -> tuple[int, int]:
        """Return the start and the length of the part that a device holds."""
        start, count = 0, size // self.unit
        for axis in self.axes:
            length = -(-count // mesh.size(axis))
            before = min(coordinates[axis] * length, count)
            start, count = start + before, min(length, count - before)
        return start * self.unit, count * self.unit

    def __str__(self) -> str:
        names = [quote_name(axis) for axis in self.axes]
        text = names[0] if len(names) == 1 else f"({', '.join(names)})"
        return text if self.unit == 1 else f"{text} by {self.unit}"


WHOLE = Split()
"""Not cut."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor lies on a mesh.

    `dims[i]` names the mesh axes that split dimension `i`, outermost first, into parts of
    ceil-division size; the last parts may be short or empty. An axis in neither `dims` nor
    `partial` replicates. `units[i]` is what the pieces of a dimension are multiples of (see
    `Split`); none stands for ones. The mesh is known where sizes of axes matter; it is no part of
    what is compared.
    """

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[Partial, ...] = ()
    units: tuple[int, ...] = ()
    mesh: Mesh | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if all(unit == 1 for unit in self.units):
            object.__setattr__(self, "units", ())

    @property
    def axes(self) -> tuple[str, ...]:
        """Every mesh axis that the sharding uses, in order of mention, repeats included."""
        return tuple(a for dim in self.dims for a in dim) + tuple(p.axis for p in self.partial)

    @property
    def splits(self) -> tuple[Split, ...]:
        """How each dimension is cut."""
        units = self.units or (1,) * len(self.dims)
        return tuple(map(Split, self.dims, units))

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
    return Sharding(tuple(split.axes for split in splits), ordered, units, mesh)


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
        axes = tuple(name.strip() for name in names.split(",") if name.strip())
        splits.append(Split(axes, int(found["unit"] or 1)))
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
