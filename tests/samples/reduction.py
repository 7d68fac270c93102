"""Samples of reductions, scans and softmax."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops import reduction, scan, softmax
from lynx.ir.types import DType, TensorType
from tests.samples import Sample


def tensor(*shape: int, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


SAMPLES = [
    Sample(reduction.Sum(tensor(3, 4, 5), (0, 2))),
    Sample(reduction.Sum(tensor(3, 4), (1,), True, DType.F64)),
    Sample(reduction.Sum(tensor(3, 4, dtype=DType.BOOL), (0, 1))),
    Sample(reduction.Sum(tensor(), ())),
    Sample(reduction.Sum(tensor(3, 0), (1,))),
    Sample(reduction.Sum(tensor(5, 3, dtype=DType.BF16), (0,)), tolerance=2e-2),
    Sample(reduction.Mean(tensor(3, 4, 5), (0, 1))),
    Sample(reduction.Mean(tensor(3, 4, dtype=DType.I32), (1,), True, DType.F32)),
    Sample(reduction.Product(tensor(3, 4), (1,))),
    Sample(reduction.Product(tensor(3, 4, dtype=DType.I32), (0, 1), True)),
    Sample(reduction.Product(tensor(2, 3, 4), (0, 2))),
    Sample(reduction.NanSum(tensor(3, 4), (0,))),
    Sample(reduction.Amax(tensor(3, 4, 5), (1,), True)),
    Sample(reduction.Amin(tensor(3, 4, dtype=DType.I64), (0, 1))),
    Sample(reduction.MaxOfAll(tensor(3, 4), (0, 1))),
    Sample(reduction.MinOfAll(tensor(5, dtype=DType.U8), (0,))),
    Sample(reduction.MaxWithIndex(tensor(3, 4), (1,))),
    Sample(reduction.MinWithIndex(tensor(3, 4), (0,), True)),
    Sample(reduction.MaxWithIndex(tensor(), ())),
    Sample(reduction.ArgMax(tensor(3, 4), (0,), True)),
    Sample(reduction.ArgMin(tensor(3, 4), (0, 1))),
    Sample(reduction.AnyNonzero(tensor(3, 4, dtype=DType.BOOL), (1,))),
    Sample(reduction.AllNonzero(tensor(3, 4, dtype=DType.U8), (0, 1))),
    Sample(reduction.AnyNonzero(tensor(), ())),
    Sample(reduction.CountNonzero(tensor(3, 4, dtype=DType.I32), (0,), True)),
    Sample(reduction.Variance(tensor(3, 4), (1,), False, 0.0)),
    Sample(reduction.StandardDeviation(tensor(3, 4), (0, 1), True)),
    Sample(reduction.VarianceAndMean(tensor(3, 4), (0,), True)),
    Sample(reduction.DeviationAndMean(tensor(3, 4), (1,))),
    Sample(reduction.LogSumExp(tensor(3, 4), (1,))),
    Sample(reduction.LogSumExp(tensor(), ())),
    Sample(reduction.VectorNorm(tensor(3, 4), (0, 1))),
    Sample(reduction.VectorNorm(tensor(3, 4), (0,), True, 1.0)),
    Sample(reduction.VectorNorm(tensor(3, 4), (1,), False, 0.0)),
    Sample(reduction.VectorNorm(tensor(3, 4), (1,), False, float("inf"))),
    Sample(reduction.VectorNorm(tensor(3, 4), (1,), False, float("-inf"))),
    Sample(reduction.VectorNorm(tensor(3, 4), (0,), False, 3.0, DType.F64)),
    Sample(scan.CumulativeSum(tensor(3, 4), 1)),
    Sample(scan.CumulativeSum(tensor(3, 4, dtype=DType.BOOL), 0)),
    Sample(scan.CumulativeProduct(tensor(3, 4), 0, DType.F64)),
    Sample(scan.CumulativeLogSumExp(tensor(3, 4), 1)),
    Sample(scan.CumulativeMax(tensor(3, 4), 0)),
    Sample(scan.CumulativeMin(tensor(), 0)),
    Sample(softmax.Softmax(tensor(3, 4), 1)),
    Sample(softmax.Softmax(tensor(), 0)),
    Sample(softmax.SafeSoftmax(tensor(3, 4), 0)),
    Sample(softmax.LogSoftmax(tensor(2, 3, 4), 1)),
    Sample(softmax.SoftmaxBackward(tensor(3, 4), tensor(3, 4), 1), positive=(1,)),
    Sample(softmax.LogSoftmaxBackward(tensor(3, 4), tensor(3, 4), 0)),
]
