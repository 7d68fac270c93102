"""Samples of factory ops."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops.aten import Symbolic
from lynx.ir.ops.factory import Empty, Full, Iota
from lynx.ir.types import DType, ScalarType
from tests.samples import Sample

SAMPLES = [
    Sample(Full(0.5, (4, 3), DType.F32)),
    Sample(Full(True, (5, 1), DType.BOOL)),
    Sample(Full(7, (), DType.I64)),
    Sample(Full(Value(ScalarType("int")), (2, 0), DType.I64)),
    Sample(Symbolic(6)),
    Sample(Empty((3, 4), DType.F32)),
    Sample(Iota(0, 1, 7, DType.I64)),
    Sample(Iota(9, -2, 5, DType.I32)),
    Sample(Iota(0.5, 0.25, 6, DType.F32)),
    Sample(Iota(0, 1, 0, DType.I64)),
    Sample(Iota(0, 1, 5, DType.BF16)),
]
