"""Samples of contractions."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops.linear import (
    AddBatchMatmul,
    AddMatmul,
    AddMatrixVector,
    AddOuter,
    BatchMatmul,
    Dot,
    Matmul,
    MatrixVector,
)
from lynx.ir.types import DType, TensorType

from . import Sample


def tensor(*shape: int, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


BF16, F64, I64 = DType.BF16, DType.F64, DType.I64

SAMPLES = [
    Sample(Matmul(tensor(5, 7), tensor(7, 3)), tolerance=1e-4),
    Sample(Matmul(tensor(1, 1), tensor(1, 1)), tolerance=1e-4),
    Sample(Matmul(tensor(4, 6, dtype=F64), tensor(6, 1, dtype=F64))),
    Sample(Matmul(tensor(5, 7, dtype=I64), tensor(7, 3, dtype=I64))),
    Sample(Matmul(tensor(0, 7), tensor(7, 3))),
    Sample(Matmul(tensor(5, 0), tensor(0, 3))),
    Sample(Matmul(tensor(5, 7, dtype=BF16), tensor(7, 3, dtype=BF16)), tolerance=0.05),
    Sample(BatchMatmul(tensor(3, 5, 7), tensor(3, 7, 2)), tolerance=1e-4),
    Sample(BatchMatmul(tensor(1, 1, 5), tensor(1, 5, 1)), tolerance=1e-4),
    Sample(BatchMatmul(tensor(3, 2, 4, dtype=I64), tensor(3, 4, 2, dtype=I64))),
    Sample(Dot(tensor(7), tensor(7)), tolerance=1e-4),
    Sample(Dot(tensor(7, dtype=I64), tensor(7, dtype=I64))),
    Sample(MatrixVector(tensor(5, 7), tensor(7)), tolerance=1e-4),
    Sample(AddMatmul(tensor(3), tensor(5, 7), tensor(7, 3)), tolerance=1e-4),
    Sample(AddMatmul(tensor(5, 3), tensor(5, 7), tensor(7, 3), 2.0, 0.5), tolerance=1e-4),
    Sample(AddMatmul(tensor(5, 1), tensor(5, 7), tensor(7, 3)), tolerance=1e-4),
    Sample(AddMatmul(tensor(1, 3), tensor(5, 7), tensor(7, 3), beta=0.0), tolerance=1e-4),
    Sample(AddMatmul(tensor(), tensor(5, 7), tensor(7, 3)), tolerance=1e-4),
    Sample(AddMatmul(*(tensor(*s, dtype=I64) for s in ((3,), (5, 7), (7, 3))), 2.0, 3.0)),
    Sample(AddBatchMatmul(tensor(3), tensor(4, 5, 7), tensor(4, 7, 3)), tolerance=1e-4),
    Sample(
        AddBatchMatmul(tensor(4, 1, 3), tensor(4, 5, 7), tensor(4, 7, 3), beta=0.0),
        tolerance=1e-4,
    ),
    Sample(AddMatrixVector(tensor(5), tensor(5, 7), tensor(7), 0.5, 2.0), tolerance=1e-4),
    Sample(AddOuter(tensor(5, 3), tensor(5), tensor(3), 0.5, 2.0), tolerance=1e-4),
    Sample(AddOuter(tensor(1), tensor(5), tensor(3)), tolerance=1e-4),
]
