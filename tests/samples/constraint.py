"""Samples of constraints."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops.constraint import Constrain
from lynx.ir.types import DType, TensorType
from tests.samples import Sample

SAMPLES = [
    Sample(Constrain(Value(TensorType(DType.F32, (4, 6))), "dp, (tp, ep) by 2")),
    Sample(Constrain(Value(TensorType(DType.F32, (4, 6))), "_, _", 0, (1,))),
]
