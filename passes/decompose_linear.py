"""Products with an added term, as products and sums."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.ops.layout import Unsqueeze
from lynx.ir.ops.linear import (
    AddBatchMatmul,
    AddMatmul,
    AddMatrixVector,
    AddOuter,
    BatchMatmul,
    Matmul,
    MatrixVector,
)
from lynx.ir.types import TensorType

from .decompose_build import Number, wide
from .rewrite import Rule, rule


def _scaled(value: Number, factor: float, type_: TensorType) -> Number:
    """Return a multiple; the factor is a whole number for integers."""
    if factor == 1:
        return value
    is_whole = type_.dtype.is_integer
    return value * (int(factor) if is_whole else factor)


def _sum(op: AddMatmul | AddBatchMatmul | AddMatrixVector | AddOuter, product: Op) -> Value:
    type_ = op.out.tensor_type
    result = _scaled(Number(product.out), op.alpha, type_)
    if op.beta != 0:
        result = _scaled(wide(op.bias), op.beta, type_) + result
    return result.to(type_.dtype)


@rule
def expand_addmm(
    op: AddMatmul | AddBatchMatmul | AddMatrixVector | AddOuter,
) -> Value:
    """Multiply, scale and add; low precision is multiplied in `f32`, to be rounded once.

    addmm(bias, a, b)  ==>  beta * bias + alpha * matmul(a, b)
    """
    a, b = wide(op.a).value, wide(op.b).value
    if isinstance(op, AddMatmul):
        return _sum(op, Matmul(a, b))
    if isinstance(op, AddBatchMatmul):
        return _sum(op, BatchMatmul(a, b))
    if isinstance(op, AddMatrixVector):
        return _sum(op, MatrixVector(a, b))
    outer = Number(Unsqueeze(a, 1).out) * Number(Unsqueeze(b, 0).out)
    assert outer.value.op is not None
    return _sum(op, outer.value.op)


LINEAR_RULES: tuple[Rule, ...] = (expand_addmm,)
