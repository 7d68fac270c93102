"""Import rules of contractions."""

from __future__ import annotations

from typing import Any

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

from .elementwise import coefficient
from .registry import Context, Decline, Imported, imports

_PRODUCTS: dict[str, type[Matmul | BatchMatmul | Dot | MatrixVector]] = {
    "aten.mm.default": Matmul,
    "aten.bmm.default": BatchMatmul,
    "lynx.matmul.default": BatchMatmul,
    "aten.dot.default": Dot,
    "aten.vdot.default": Dot,
    "aten.mv.default": MatrixVector,
}

_SUMS: dict[str, type[AddMatmul | AddBatchMatmul | AddMatrixVector | AddOuter]] = {
    "aten.addmm.default": AddMatmul,
    "aten.baddbmm.default": AddBatchMatmul,
    "aten.addmv.default": AddMatrixVector,
    "aten.addr.default": AddOuter,
}


@imports(*_PRODUCTS)
def product(context: Context, a: Value, b: Value) -> Imported:
    """Multiply. Without complex numbers, `vdot` conjugates nothing."""
    return context.emit(_PRODUCTS[context.target](a, b))


@imports(*_SUMS)
def add_product(
    context: Context, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1
) -> Imported:
    """Multiply and add."""
    product_factor, bias_factor = coefficient(alpha), coefficient(beta)
    if product_factor is None or bias_factor is None:
        return Decline(f"coefficients {alpha} and {beta} that are no floats")
    return context.emit(_SUMS[context.target](bias, a, b, product_factor, bias_factor))
