"""Random meshes of up to 8 devices, and random plans for what a model gets and holds."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lynx.ir.core import Graph
from lynx.ir.shard_rules import ShardingError, normal_split
from lynx.ir.sharding import Mesh, Sharding, Split, sharding_of
from lynx.ir.types import TensorType

MESHES = (
    (2,), (3,), (4,), (5,), (7,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (2, 2, 2), (1, 3),
)  # fmt: skip


def random_mesh(source: random.Random) -> Mesh:
    """Draw a mesh."""
    return Mesh("mesh", tuple(zip("abc", source.choice(MESHES), strict=False)))


def random_plan(
    source: random.Random, graph: Graph, names: Sequence[str], mesh: Mesh
) -> dict[str, str]:
    """Draw how each input of a graph lies; some plans cut nearly all, others little."""
    chance = source.choice((0.1, 0.3, 0.6, 1.0))
    return {
        name: random_spec(source, mesh, value.type, chance)
        for name, value in zip(names, graph.inputs, strict=True)
        if isinstance(value.type, TensorType)
    }


def random_spec(source: random.Random, mesh: Mesh, type_: TensorType, chance: float) -> str:
    """Draw how a tensor lies: each axis cuts it by a chance, in any order, along any dimension."""
    axes = list(mesh.names)
    source.shuffle(axes)
    dims: list[list[str]] = [[] for _ in range(type_.rank)]
    for axis in axes:
        if dims and source.random() < chance:
            source.choice(dims).append(axis)
    entries = []
    for cut, size in zip(dims, type_.shape, strict=True):
        text = "_" if not cut else cut[0] if len(cut) == 1 else f"({', '.join(cut)})"
        if cut and isinstance(size, int) and size % 4 == 0 and source.random() < 0.2:
            text += f" by {source.choice((2, 4))}"
        entries.append(text)
    return ", ".join(entries)


def random_sharding(source: random.Random, mesh: Mesh, type_: TensorType) -> Sharding:
    """Draw how a tensor of known sizes lies, cut in blocks and in units too."""
    axes = list(mesh.names)
    source.shuffle(axes)
    dims: list[list[str]] = [[] for _ in range(type_.rank)]
    chance = source.choice((0.3, 0.7, 1.0))
    for axis in axes:
        if dims and source.random() < chance:
            source.choice(dims).append(axis)
    splits = [
        _random_split(source, mesh, tuple(cut), int(size))
        for cut, size in zip(dims, type_.shape, strict=True)
    ]
    return sharding_of(tuple(splits), (), mesh)


def _random_split(source: random.Random, mesh: Mesh, axes: tuple[str, ...], size: int) -> Split:
    if not axes:
        return Split()
    divisors = [n for n in range(1, size + 1) if size % n == 0] or [1]
    for _ in range(6):
        groups = sorted(source.choice(divisors) if source.random() < 0.5 else 1 for _ in axes)
        unit = source.choice(divisors) if source.random() < 0.3 else 1
        try:
            return normal_split(Split(axes, unit, tuple(groups)), size, mesh)
        except ShardingError:
            continue
    return Split(axes)
