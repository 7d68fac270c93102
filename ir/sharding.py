"""Meshes, and the sharding part of a tensor's type with its partial sums."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

REDUCTIONS = ("sum", "product", "max", "min", "and", "or")

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


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

    def size(self, axis: str) -> int:
        """Return the size of an axis; `KeyError` if the mesh has none of that name."""
        return dict(self.axes)[axis]

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
class Sharding:
    """How a tensor lies on a mesh.

    `dims[i]` names the mesh axes that split dimension `i`, outermost first, into parts of
    ceil-division size; the last parts may be short or empty. An axis in neither `dims` nor
    `partial` replicates.
    """

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[Partial, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """Every mesh axis that the sharding uses, in order of mention, repeats included."""
        return tuple(a for dim in self.dims for a in dim) + tuple(p.axis for p in self.partial)
