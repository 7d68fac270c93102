"""How windows that lie side by side are cut: between windows, as the dimension that they tile is.

Pieces of attention's keys, of a row that is sorted, and of a running sum are such windows. Where a
mesh cuts the dimension elsewhere than between windows, an op cannot run on the parts.
"""

from __future__ import annotations

import functools
import itertools

from .dims import Dim
from .sharding import Mesh, Split
from .space import IterationSpace, Window

_MOST_PIECES = 1 << 12


def is_tiled(space: IterationSpace, window: Window) -> bool:
    """Whether windows lie side by side, on a dimension of known size."""
    known = isinstance(window.stride, int) and isinstance(window.size, int) and window.size > 0
    extent = space.factor(window.offset).size
    return known and window.stride == extent and window.dilation == 1 and window.padding == 0


def are_pieces(size: int, length: int, split: Split, mesh: Mesh) -> bool:
    """Whether each device's part of a dimension is one of the pieces of a length, in order."""
    window = Window("piece", "place", length, size=size)
    return not split.groups and _agrees(
        window, mesh.size(*split.axes), split, Split(split.axes), mesh
    )


def split_of_positions(
    space: IterationSpace, window: Window, split: Split, mesh: Mesh | None
) -> Split | None:
    """Return how the windows are cut where their dimension is; None if through windows."""
    count = space.factor(window.position).size
    if mesh is None or split.groups or not is_tiled(space, window):
        return None
    found = Split(split.axes)
    return found if _agrees(window, count, split, found, mesh) else None


def split_of_dimension(
    space: IterationSpace, window: Window, split: Split, mesh: Mesh | None
) -> Split | None:
    """Return how a dimension is cut where the windows that tile it are: the inverse."""
    count = space.factor(window.position).size
    if mesh is None or split.groups or split.unit != 1 or not is_tiled(space, window):
        return None
    assert isinstance(window.stride, int)
    assert isinstance(window.size, int)
    found = [Split(split.axes)]
    if window.size % window.stride == 0:
        found.append(Split(split.axes, window.stride))
    return next((one for one in found if _agrees(window, count, one, split, mesh)), None)


@functools.lru_cache(maxsize=1024)
def _agrees(window: Window, count: Dim, rows: Split, positions: Split, mesh: Mesh) -> bool:
    """Whether each device's rows are those that its windows cover."""
    if not isinstance(count, int) or not isinstance(window.size, int):
        return False
    if mesh.size(*rows.axes) > _MOST_PIECES:
        return False
    places = itertools.product(*(range(mesh.size(axis)) for axis in rows.axes))
    for place in places:
        coordinates = dict(zip(rows.axes, place, strict=True))
        given = rows.part(window.size, mesh, coordinates)
        covered = window.rows(*positions.part(count, mesh, coordinates))
        if given[1] != covered[1] or (given[1] and given != covered):
            return False
    return True
