"""What products of matrices compute: sums of products, which a code generator may tile."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Value
from lynx.ir.kernel import Scalar
from lynx.ir.ops import linear
from lynx.ir.types import DType

from .coordinates import ZERO, Coordinates, along
from .emit import Emission, Emitter, Want, axes_in, emits
from .emit_elementwise import aligned, computing_dtype, result_dtype

PRODUCTS = (linear.Matmul, linear.BatchMatmul, linear.AddMatmul, linear.AddBatchMatmul)
"""The products that kernels compute; `fuse` leaves them to the library."""


def _refuse(op: Any) -> str:
    dtype = result_dtype(op)
    if dtype not in (DType.F16, DType.BF16, DType.F32):
        return f"multiplies matrices of {dtype}"
    if any(isinstance(size, int) and size == 0 for size in (*op.a.shape, *op.b.shape)):
        return "multiplies matrices without elements"
    return ""


@emits(*PRODUCTS, unless=_refuse)
def _product(
    emitter: Emitter, op: linear.MatrixProduct | linear.AddProduct, want: Want
) -> Emission:
    """Multiply and add in `f32`; the term of an `AddProduct` is added before the one rounding."""
    builder = emitter.builder
    taken = axes_in(want.at)
    if want.mask is not None:
        taken.update(want.mask.axes)
    *batch, i, j = want.at
    size = op.a.shape[-1]
    is_one = isinstance(size, int) and size == 1
    axes = () if is_one else emitter.reduction_axes(op.a, len(op.a.shape) - 1, taken)
    k = along(axes) if axes else ZERO
    x = yield Want(op.a, _at(op.a, (*batch, i, k)), want.mask)
    y = yield Want(op.b, _at(op.b, (*batch, k, j)), want.mask)
    dtype = result_dtype(op)
    wide = computing_dtype(dtype)
    total = builder.apply("mul", builder.convert(x, wide), builder.convert(y, wide), dtype=wide)
    if axes:
        (total,) = builder.reduce("sum", total, tuple(name for name, _ in axes))
    if isinstance(op, linear.AddProduct):
        total = _scaled(emitter, total, op.alpha)
        if op.beta != 0:
            bias = yield Want(op.bias, aligned(want.at, op.bias), want.mask)
            term = _scaled(emitter, builder.convert(bias, wide), op.beta)
            total = builder.apply("add", total, term, dtype=wide)
    return (builder.convert(total, dtype),)


def _at(operand: Value, at: Coordinates) -> Coordinates:
    """Return coordinates of an operand; a dimension of size 1 has but one place."""
    return tuple(
        ZERO if isinstance(size, int) and size == 1 else c
        for size, c in zip(operand.shape, at, strict=True)
    )


def _scaled(emitter: Emitter, x: Scalar, factor: float) -> Scalar:
    if factor == 1:
        return x
    builder = emitter.builder
    return builder.apply("mul", x, builder.constant(float(factor), x.dtype), dtype=x.dtype)
