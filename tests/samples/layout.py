"""Samples of layout ops."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops.layout import (
    AsStrided,
    AsStridedScatter,
    Bitcast,
    Broadcast,
    Permute,
    Reshape,
    Squeeze,
    Unsqueeze,
)
from lynx.ir.ops.layout_slicing import (
    Concatenate,
    Diagonal,
    Flip,
    LowerTriangle,
    Pad,
    Roll,
    Select,
    Slice,
    SliceScatter,
    Unfold,
    UpperTriangle,
)
from lynx.ir.types import DType, TensorType
from tests.samples import Sample


def tensor(*shape: int, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


SAMPLES = [
    Sample(Reshape(tensor(4, 6), (24,))),
    Sample(Reshape(tensor(24), (2, 3, 4))),
    Sample(Reshape(tensor(2, 3, 8), (6, 4, 2))),
    Sample(Reshape(tensor(4, 6), (8, 3))),
    Sample(Reshape(tensor(4, 6, 5), (3, 8, 5))),
    Sample(Reshape(tensor(2, 3, 5), (10, 3))),
    Sample(Reshape(tensor(1, 7, 1), (7, 1, 1, 1))),
    Sample(Reshape(tensor(3, 0), (0, 5))),
    Sample(Reshape(tensor(), (1, 1))),
    Sample(Permute(tensor(3, 4, 5), (2, 0, 1))),
    Sample(Permute(tensor(), ())),
    Sample(Broadcast(tensor(3, 1), (2, 3, 4))),
    Sample(Broadcast(tensor(), (2, 3))),
    Sample(Broadcast(tensor(1, dtype=DType.I64), (0,))),
    Sample(Unsqueeze(tensor(3, 4), 1)),
    Sample(Unsqueeze(tensor(), 0)),
    Sample(Squeeze(tensor(1, 4, 1), (0, 2))),
    Sample(Squeeze(tensor(1, 4, 1), (2,))),
    Sample(Bitcast(tensor(3, 4), DType.I32)),
    Sample(AsStrided(tensor(4, 6), (3, 4), (1, 4), 2)),
    Sample(AsStrided(tensor(5), (3, 3), (1, 1))),
    Sample(AsStridedScatter(tensor(4, 6), tensor(3, 4), (6, 1), 2)),
    Sample(Slice(tensor(3, 10), 1, 2, 9, 3)),
    Sample(Slice(tensor(7, 2), 0, 7, 7)),
    Sample(Select(tensor(3, 4, 5), 1, 2)),
    Sample(SliceScatter(tensor(3, 10), tensor(3, 3), 1, 2, 9, 3)),
    Sample(Concatenate((tensor(3, 2), tensor(3, 0), tensor(3, 5)), 1)),
    Sample(Concatenate((tensor(4, dtype=DType.I64), tensor(1, dtype=DType.I64)), 0)),
    Sample(Pad(tensor(3, 4, 5), 0.5, (0, 1, -1), (0, 2, 3))),
    Sample(Pad(tensor(3, 4), 0, (0, -4), (0, 1))),
    Sample(Pad(tensor(3, dtype=DType.I64), 7, (2,), (0,))),
    Sample(Flip(tensor(3, 4, 5), (0, 2))),
    Sample(Roll(tensor(3, 4, 5), (2, -7), (0, 1))),
    Sample(Diagonal(tensor(3, 4, 5), -1, 2, 0)),
    Sample(Diagonal(tensor(3, 3), 4)),
    Sample(Unfold(tensor(3, 11), 1, 4, 3)),
    Sample(Unfold(tensor(9, 2), 0, 2, 2)),
    Sample(LowerTriangle(tensor(2, 5, 7), 1)),
    Sample(UpperTriangle(tensor(5, 3), -2)),
    Sample(Pad(tensor(3, 6), 1.5, (-1, -2), (-1, 3))),
    Sample(Pad(tensor(0, 4), 2.0, (1, 0), (2, -4))),
    Sample(Broadcast(tensor(1, 3, 1), (5, 1, 3, 4))),
    Sample(Broadcast(tensor(1), (1, 1))),
    Sample(Reshape(tensor(1, 6, 1, 4), (3, 1, 8, 1))),
    Sample(Reshape(tensor(12, 5), (3, 20))),
    Sample(Flip(tensor(1, 4), (0, 1))),
    Sample(Roll(tensor(4, 6), (0, 13), (1, 0))),
    Sample(Diagonal(tensor(3, 4, 5, 2), 1, 3, 1)),
    Sample(Unfold(tensor(3, 7, 2), 1, 3, 1)),
    Sample(SliceScatter(tensor(6, 4), tensor(6, 0), 1, 2, 2)),
    Sample(LowerTriangle(tensor(1, 6), 2)),
    Sample(UpperTriangle(tensor(2, 6, 6), 9)),
    Sample(Concatenate((tensor(1, 4), tensor(1, 4), tensor(1, 4)), 0)),
]
