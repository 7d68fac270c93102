"""Samples of communication, in groups of one device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lynx.backends.reference import communicators
from lynx.ir.core import Value
from lynx.ir.ops.communication import (
    LocalAllGather,
    LocalAllReduce,
    LocalAllToAll,
    LocalReduceScatter,
)
from lynx.ir.ops.schedule import (
    StartAllGather,
    StartAllReduce,
    StartAllToAll,
    StartReduceScatter,
)
from lynx.ir.types import DType, TensorType
from tests.samples import Sample


class Alone:
    """A communicator of one device, which keeps what it has."""

    def all_reduce(self, x: torch.Tensor, reduction: str) -> torch.Tensor:
        return x.clone()

    def all_gather(
        self, x: torch.Tensor, dim: int, sizes: Sequence[int], index: int
    ) -> torch.Tensor:
        return x.clone()

    def reduce_scatter(
        self, x: torch.Tensor, dim: int, sizes: Sequence[int], index: int, reduction: str
    ) -> torch.Tensor:
        return x.clone()

    def all_to_all(
        self,
        x: torch.Tensor,
        source: int,
        target: int,
        source_sizes: Sequence[int],
        target_sizes: Sequence[int],
        index: int,
    ) -> torch.Tensor:
        return x.clone()


AXES = ("alone",)
communicators[AXES] = Alone()


def tensor(*shape: int, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


SAMPLES = [
    Sample(LocalAllReduce(tensor(3, 4), AXES)),
    Sample(LocalAllReduce(tensor(3, dtype=DType.BOOL), AXES, "and")),
    Sample(LocalAllGather(tensor(3, 4), AXES, 0, (3,), 0)),
    Sample(LocalReduceScatter(tensor(3, 4), AXES, 1, (4,), 0)),
    Sample(LocalAllToAll(tensor(3, 4), AXES, 0, 1, (3,), (4,), 0)),
    Sample(StartAllReduce((tensor(3, 4), tensor(2)), AXES, "alone")),
    Sample(StartAllGather((tensor(3, 4), tensor(2, 2)), AXES, "alone", (0, 1), ((3,), (2,)), 0)),
    Sample(StartReduceScatter((tensor(3, 4),), AXES, "alone", (1,), ((4,),), 0)),
    Sample(StartAllToAll((tensor(3, 4),), AXES, "alone", (0,), (1,), ((3,),), ((4,),), 0)),
]
