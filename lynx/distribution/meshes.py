"""Between torch's device meshes with their placements, and meshes and shardings of the IR."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from lynx.ir.errors import CompileError, UsageError
from lynx.ir.shard_rules import ShardingError, normal_split
from lynx.ir.sharding import WHOLE, Mesh, Sharding, Split, sharding_of

from .torch_internals import block_shard, blocks_of


def mesh_of(device_mesh: DeviceMesh) -> Mesh:
    """Return the mesh of a `DeviceMesh`; dimensions without a name are called d0, d1 and so on."""
    sizes = tuple(map(int, device_mesh.shape))
    names = device_mesh.mesh_dim_names or tuple(f"d{index}" for index in range(len(sizes)))
    return Mesh("mesh", tuple(zip(names, sizes, strict=True)))


def coordinates_of(device_mesh: DeviceMesh) -> dict[str, int]:
    """Return where this process stands along each axis; `UsageError` if it is outside."""
    place = device_mesh.get_coordinate()
    mesh = mesh_of(device_mesh)
    if place is None:
        raise UsageError("outside-mesh", f"this process is no part of {mesh}")
    return dict(zip(mesh.names, map(int, place), strict=True))


def check_world(device_mesh: DeviceMesh, world_size: int) -> None:
    """Raise `UsageError` unless the mesh fits into the processes that there are."""
    mesh = mesh_of(device_mesh)
    ranks = [int(rank) for rank in device_mesh.mesh.flatten().tolist()]
    if mesh.device_count > world_size or max(ranks, default=0) >= world_size:
        raise UsageError(
            "mesh-size", f"{mesh} needs {mesh.device_count} processes, the world has {world_size}"
        )


def sharding_of_placements(
    placements: Sequence[Placement], rank: int, device_mesh: DeviceMesh
) -> Sharding:
    """Return how a tensor of a rank lies. Pending sums count as whole: they are to be reduced.

    Several mesh dimensions that cut one dimension do so in the order of the mesh, as DTensor does.
    `UsageError` for placements that cut in another order, or in a way of their own.
    """
    mesh = mesh_of(device_mesh)
    splits = [WHOLE] * rank
    # From the last mesh dimension to the first: one that cuts blocks cuts what later ones leave.
    for name, placement in reversed(list(zip(mesh.names, placements, strict=True))):
        if placement.is_partial() or placement.is_replicate():
            continue
        groups = blocks_of(placement)
        if groups is None:
            raise UsageError(
                "strange-placement",
                f"a tensor lies on '{name}' by {placement}, expected Shard, Replicate or Partial",
            )
        dim = placement.dim + rank if placement.dim < 0 else placement.dim  # type: ignore[attr-defined]  # both kinds have one
        splits[dim] = _cut_before(splits[dim], name, groups, mesh)
    return sharding_of(tuple(splits), (), mesh)


def _cut_before(later: Split, axis: str, groups: int, mesh: Mesh) -> Split:
    """Return the split where an axis cuts before those of later mesh dimensions do."""
    if groups == 1:
        return Split((axis, *later.axes), 1, (1, *later.groups) if later.groups else ())
    if not later.axes:
        return Split((axis,), 1, (groups,))
    if groups == mesh.size(*later.axes) and not later.groups:
        return Split((*later.axes, axis))  # each of the pieces that the later ones cut
    raise UsageError("strange-placement", f"'{axis}' cuts {groups} blocks before '{later}' does")


def whole_placements(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the placements with pending sums reduced."""
    return tuple(Replicate() if one.is_partial() else one for one in placements)


def placements_of(
    sharding: Sharding, shape: Sequence[int], device_mesh: DeviceMesh
) -> tuple[Placement, ...]:
    """Return the placements that say the same; `CompileError` if DTensor cannot say it."""
    mesh = mesh_of(device_mesh)
    found: dict[str, Placement] = {name: Replicate() for name in mesh.names}
    if sharding.partial:
        raise CompileError("no-placement", f"{sharding} is not reduced")
    for dim, split in enumerate(sharding.splits):
        try:
            plain = normal_split(split, int(shape[dim]), mesh)
        except ShardingError as error:
            raise CompileError("no-placement", f"{sharding}: {error.reason}") from None
        cuts = _placed(plain, dim, int(shape[dim]), mesh)
        if cuts is None:
            raise CompileError(
                "no-placement", f"DTensor has no placements for {sharding} of {list(shape)}"
            )
        found |= cuts
    return tuple(found.values())


def _placed(split: Split, dim: int, size: int, mesh: Mesh) -> dict[str, Placement] | None:
    """Return the placements for a dimension; None if there are none that cut so."""
    if split.unit != 1:
        return None
    places = [mesh.names.index(axis) for axis in split.axes]
    if split.groups:
        return {split.axes[0]: block_shard(dim, split.groups[0])} if len(places) == 1 else None
    if places == sorted(places):
        return {axis: Shard(dim) for axis in split.axes}
    # The last axis stands before the others in the mesh: it cuts each of their pieces, if even.
    *outer, last = split.axes
    if places[:-1] != sorted(places[:-1]) or places[-1] > min(places[:-1]):
        return None
    if size % mesh.size(*split.axes):
        return None
    return {last: block_shard(dim, mesh.size(*outer))} | {axis: Shard(dim) for axis in outer}


def is_placeable(sharding: Sharding, shape: Sequence[int], device_mesh: DeviceMesh) -> bool:
    """Whether DTensor has placements for a sharding."""
    try:
        placements_of(sharding, shape, device_mesh)
    except CompileError:
        return False
    return True


def placeable(sharding: Sharding, mesh: Mesh) -> Sharding:
    """Return the sharding that is closest to one for which DTensor has no placements."""
    splits = (
        Split(tuple(sorted(split.axes, key=mesh.names.index))) if split.axes else WHOLE
        for split in sharding.splits
    )
    return sharding_of(tuple(splits), (), mesh)


def piece_sizes(split: Split, size: int, mesh: Mesh) -> tuple[int, ...]:
    """Return the lengths of all pieces along a dimension, in row-major order of the axes."""
    if split == WHOLE:
        return (size,)
    return tuple(split.part(size, mesh, place)[1] for place in members(split.axes, mesh))


def members(axes: Sequence[str], mesh: Mesh) -> list[dict[str, int]]:
    """Return the places along axes of all members of a group, in row-major order."""
    ranges = (range(mesh.size(axis)) for axis in axes)
    return [dict(zip(axes, place, strict=True)) for place in itertools.product(*ranges)]
