"""Samples of normalization ops."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops.normalization import (
    BatchNorm,
    BatchNormBackward,
    GroupNorm,
    GroupNormBackward,
    LayerNorm,
    LayerNormBackward,
    RmsNorm,
    RmsNormBackward,
)
from lynx.ir.types import DType, TensorType
from tests.samples import Sample


def tensor(*shape: int, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


def rows() -> tuple[Value, Value, Value, Value]:
    return tensor(5, 6), tensor(5, 6), tensor(5, 1), tensor(5, 1)


def groups() -> tuple[Value, Value, Value, Value]:
    return tensor(3, 4, 5), tensor(3, 4, 5), tensor(3, 2), tensor(3, 2)


def channels(count: int) -> tuple[Value, ...]:
    return tuple(tensor(4) for _ in range(count))


SAMPLES = [
    Sample(LayerNorm(tensor(5, 6), tensor(6), tensor(6), 1, 1e-5), tolerance=1e-4),
    Sample(LayerNorm(tensor(2, 3, 4), None, None, 1, 1e-5), tolerance=1e-4),
    Sample(LayerNorm(tensor(5, 6, dtype=DType.BF16), None, None, 1, 1e-5), tolerance=2e-2),
    Sample(LayerNormBackward(*rows(), tensor(6), tensor(6), 1), tolerance=1e-4),
    Sample(LayerNormBackward(*rows(), tensor(6), None, 1, (True, True, False)), tolerance=1e-4),
    Sample(LayerNormBackward(*rows(), None, None, 1, (True, False, False)), tolerance=1e-4),
    Sample(RmsNorm(tensor(5, 6), tensor(6), 1, 1e-6), tolerance=1e-4),
    Sample(RmsNorm(tensor(2, 3, 4), None, 1), tolerance=1e-4),
    Sample(RmsNormBackward(tensor(5, 6), tensor(5, 6), tensor(5, 1), tensor(6), 1), tolerance=1e-4),
    Sample(GroupNorm(tensor(3, 6, 5), tensor(6), tensor(6), 3, 1e-5), tolerance=1e-4),
    Sample(GroupNorm(tensor(3, 4, 2, 3), None, None, 2, 1e-5), tolerance=1e-4),
    Sample(GroupNormBackward(*groups(), tensor(4), 2), tolerance=1e-4),
    Sample(GroupNormBackward(*groups(), None, 2, (True, False, False)), tolerance=1e-4),
    Sample(BatchNorm(tensor(3, 4, 5), *channels(4), 0.1, 1e-5), positive=(4,), tolerance=1e-4),
    Sample(BatchNorm(tensor(3, 4), None, None, None, None, 0.1, 1e-5), tolerance=1e-4),
    Sample(
        BatchNorm(tensor(3, 4, 5), *channels(4), 0.1, 1e-5, training=False),
        positive=(4,),
        tolerance=1e-4,
    ),
    Sample(
        BatchNormBackward(
            tensor(3, 4, 5), tensor(3, 4, 5), tensor(4), None, None, *channels(2), 1e-5
        ),
        positive=(4,),
        tolerance=1e-4,
    ),
    Sample(
        BatchNormBackward(
            tensor(3, 4, 5),
            tensor(3, 4, 5),
            tensor(4),
            None,
            None,
            *channels(2),
            1e-5,
            mask=(False, True, True),
        ),
        positive=(4,),
        tolerance=1e-4,
    ),
    Sample(
        BatchNormBackward(
            tensor(3, 4, 5), tensor(3, 4, 5), *channels(3), None, None, 1e-5, training=False
        ),
        positive=(4,),
        tolerance=1e-4,
    ),
    Sample(LayerNorm(tensor(2, 3, 4), tensor(2, 3, 4), None, 0, 1e-5), tolerance=1e-4),
    Sample(RmsNorm(tensor(3, 1), tensor(1), 1, 1e-6), tolerance=1e-4),
    Sample(GroupNorm(tensor(2, 4, 3), tensor(4), None, 4, 1e-5), tolerance=1e-4),
    Sample(GroupNorm(tensor(2, 4), None, tensor(4), 1, 1e-5), tolerance=1e-4),
    Sample(BatchNorm(tensor(2, 4, 1, 3), *channels(4), 1.0, 0.5), positive=(4,), tolerance=1e-4),
]
