"""The simplest distributed program: gather all inputs, compute the whole, keep the own pieces.

It is what other programs are compared with, and what runs where propagation gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lynx.ir.sharding import Mesh, Sharding, Split

from .groups import Groups
from .meshes import members, piece_sizes


def whole(
    part: torch.Tensor, sharding: Sharding | None, shape: Sequence[int], groups: Groups, where: str
) -> torch.Tensor:
    """Return the whole tensor of a shape, of which each process has the part of its place."""
    if sharding is None or sharding.is_replicated:
        return part
    for partial in sharding.partial:
        part = groups.group((partial.axis,)).all_reduce(part, partial.reduction, where)
    for dim, split in enumerate(sharding.splits):
        if split.axes:
            sizes = piece_sizes(split, int(shape[dim]), groups.mesh)
            part = groups.group(split.axes).all_gather(part, dim, sizes, where=where)
            if split.groups:
                places = [
                    place
                    for member in members(split.axes, groups.mesh)
                    for place in _places(split, int(shape[dim]), groups.mesh, member)
                ]
                order = sorted(range(len(places)), key=places.__getitem__)
                part = part.index_select(dim, torch.tensor(order, device=part.device))
    return part


def _places(split: Split, size: int, mesh: Mesh, coordinates: dict[str, int]) -> list[int]:
    """Return the indices along a dimension that a device holds, in order."""
    blocks = split.blocks(size, mesh, coordinates)
    return [place for start, length in blocks for place in range(start, start + length)]


def piece(
    tensor: torch.Tensor, sharding: Sharding | None, mesh: Mesh, coordinates: dict[str, int]
) -> torch.Tensor:
    """Return the part of a whole tensor that belongs to a place, in memory of its own."""
    if sharding is None or not any(sharding.dims):
        return tensor
    for dim, split in enumerate(sharding.splits):
        if split.groups:
            places = _places(split, int(tensor.shape[dim]), mesh, coordinates)
            tensor = tensor.index_select(dim, torch.tensor(places, device=tensor.device).long())
        elif split.axes:
            start, length = split.part(int(tensor.shape[dim]), mesh, coordinates)
            tensor = tensor.narrow(dim, start, length)
    return tensor.clone(memory_format=torch.contiguous_format)


def gathered(
    function: Callable[[list[Any]], Sequence[Any]],
    inputs: Sequence[tuple[Sharding, tuple[int, ...]] | None],
    outputs: Sequence[Sharding | None],
    changed: Sequence[int],
    groups: Groups,
    name: str,
) -> Callable[[list[Any]], Any]:
    """Return a function over parts, which calls one over whole tensors.

    `inputs` says how each input lies and its whole shape, None for what is no tensor or whole;
    `changed` are the positions of the inputs that the function writes to.
    """

    def run(arguments: list[Any]) -> Any:
        values = list(arguments)
        arguments.clear()
        written: dict[int, torch.Tensor] = {}
        for position, known in enumerate(inputs):
            part = values[position]
            if known is not None and isinstance(part, torch.Tensor):
                sharding, shape = known
                where = f"input {position} of {name}"
                values[position] = whole(part, sharding, shape, groups, where)
                if position in changed and values[position] is not part:
                    written[position] = part
        kept = {position: values[position] for position in written}
        results = function(values)
        for position, part in written.items():
            known = inputs[position]
            assert known is not None
            part.copy_(piece(kept[position], known[0], groups.mesh, groups.coordinates))
        return tuple(
            piece(result, sharding, groups.mesh, groups.coordinates)
            if isinstance(result, torch.Tensor)
            else result
            for result, sharding in zip(results, outputs, strict=True)
        )

    return run
