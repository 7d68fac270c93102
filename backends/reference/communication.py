"""What collectives and communication mean in torch: nothing on whole tensors, an exchange on parts.

A communication op runs through the communicator that is registered for its mesh axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from lynx.ir.call import Call
from lynx.ir.errors import UsageError
from lynx.ir.ops import collective, communication

from .registry import aten, means


class Communicator(Protocol):
    """Exchanges tensors among the devices of a group; every member makes the same calls.

    Members are counted in row-major order of their coordinates along the group's axes. Pieces may
    differ in length, and be empty; `index` is the caller's own number. Results are fresh tensors.
    """

    def all_reduce(self, x: torch.Tensor, reduction: str) -> torch.Tensor:
        """Return all members' tensors, of one shape, combined by a reduction of `REDUCTIONS`."""

    def all_gather(
        self, x: torch.Tensor, dim: int, sizes: Sequence[int], index: int
    ) -> torch.Tensor:
        """Return all members' pieces, of `sizes` along `dim`, one after the other."""

    def reduce_scatter(
        self, x: torch.Tensor, dim: int, sizes: Sequence[int], index: int, reduction: str
    ) -> torch.Tensor:
        """Return the caller's piece along `dim` of all members' tensors combined."""

    def all_to_all(
        self,
        x: torch.Tensor,
        source: int,
        target: int,
        source_sizes: Sequence[int],
        target_sizes: Sequence[int],
        index: int,
    ) -> torch.Tensor:
        """Return the caller's piece along `target` of the whole that is cut along `source`."""


communicators: dict[tuple[str, ...], Communicator] = {}
"""The communicator of each group of mesh axes, while a mesh is in use."""


def communicator(axes: Sequence[str]) -> Communicator:
    """Return the communicator for mesh axes; `UsageError` if no mesh with them is in use."""
    found = communicators.get(tuple(axes))
    if found is None:
        names = ", ".join(axes)
        raise UsageError("no-communicator", f"no mesh with the axes ({names}) is in use")
    return found


@means(
    collective.AllReduce,
    collective.ReduceScatter,
    collective.AllGather,
    collective.AllToAll,
    collective.Shard,
    collective.Replicate,
)
def identity(op: collective.Collective) -> Call:
    """Copy: a collective changes nothing in the tensor as a whole."""
    return aten("clone", op.x)


def _all_reduce(x: torch.Tensor, axes: Sequence[str], reduction: str) -> torch.Tensor:
    return communicator(axes).all_reduce(x, reduction)


@means(communication.LocalAllReduce)
def all_reduce(op: communication.LocalAllReduce) -> Call:
    """Reduce in the group."""
    return Call(_all_reduce, (op.x, op.axes, op.reduction))


def _all_gather(
    x: torch.Tensor, axes: Sequence[str], dim: int, sizes: Sequence[int], index: int
) -> torch.Tensor:
    return communicator(axes).all_gather(x, dim, sizes, index)


@means(communication.LocalAllGather)
def all_gather(op: communication.LocalAllGather) -> Call:
    """Gather in the group."""
    return Call(_all_gather, (op.x, op.axes, op.dim, op.sizes, op.index))


def _reduce_scatter(
    x: torch.Tensor,
    axes: Sequence[str],
    dim: int,
    sizes: Sequence[int],
    index: int,
    reduction: str,
) -> torch.Tensor:
    return communicator(axes).reduce_scatter(x, dim, sizes, index, reduction)


@means(communication.LocalReduceScatter)
def reduce_scatter(op: communication.LocalReduceScatter) -> Call:
    """Reduce in the group and keep a piece."""
    arguments = (op.x, op.axes, op.dim, op.sizes, op.index, op.reduction)
    return Call(_reduce_scatter, arguments)


def _all_to_all(
    x: torch.Tensor,
    axes: Sequence[str],
    source: int,
    target: int,
    source_sizes: Sequence[int],
    target_sizes: Sequence[int],
    index: int,
) -> torch.Tensor:
    group = communicator(axes)
    return group.all_to_all(x, source, target, source_sizes, target_sizes, index)


@means(communication.LocalAllToAll)
def all_to_all(op: communication.LocalAllToAll) -> Call:
    """Exchange pieces in the group."""
    sizes = (op.source_sizes, op.target_sizes)
    return Call(_all_to_all, (op.x, op.axes, op.source, op.target, *sizes, op.index))
