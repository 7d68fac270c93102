"""Samples of random ops."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops.random import (
    Bernoulli,
    Dropout,
    RandomBernoulli,
    RandomExponential,
    RandomInteger,
    RandomNormal,
    RandomPermutation,
    RandomUniform,
)
from lynx.ir.types import DType, TensorType
from tests.samples import Sample

SAMPLES = [
    Sample(RandomUniform(0.0, 1.0, (4, 3), DType.F32)),
    Sample(RandomNormal(1.0, 2.0, (4, 3), DType.F32)),
    Sample(RandomInteger(0, 10, (7,), DType.I64)),
    Sample(RandomExponential(1.5, (5,), DType.F64)),
    Sample(RandomBernoulli(0.3, (5, 2), DType.F32)),
    Sample(RandomPermutation(6)),
    Sample(Bernoulli(Value(TensorType(DType.F32, (3, 3)))), bounds={0: (0, 1)}),
    Sample(Dropout(Value(TensorType(DType.F32, (4, 5))), 0.4)),
]
