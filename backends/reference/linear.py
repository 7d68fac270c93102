"""What contractions mean."""

from __future__ import annotations

import torch

from lynx.ir.call import Call
from lynx.ir.ops.linear import (
    AddBatchMatmul,
    AddMatmul,
    AddMatrixVector,
    AddOuter,
    AddProduct,
    BatchMatmul,
    Dot,
    Matmul,
    MatrixProduct,
    MatrixVector,
)

from .elementwise import exact
from .registry import aten, means

_PRODUCTS: dict[type[MatrixProduct], str] = {
    Matmul: "mm",
    BatchMatmul: "bmm",
    Dot: "dot",
    MatrixVector: "mv",
}


@means(*_PRODUCTS)
def product(op: MatrixProduct) -> Call:
    """Call the product of these ranks; torch flattens several batch axes itself."""
    if isinstance(op, BatchMatmul) and len(op.a.shape) > 3:
        return Call(torch.matmul, (op.a, op.b), out=torch.matmul)
    return aten(_PRODUCTS[type(op)], op.a, op.b)


@means(AddMatmul, AddBatchMatmul, AddMatrixVector, AddOuter)
def add_product(op: AddProduct) -> Call:
    """Call the product with an added term."""
    dtype = op.a.tensor_type.dtype
    return aten(
        op.name,
        op.bias,
        op.a,
        op.b,
        beta=exact(op.beta, dtype),
        alpha=exact(op.alpha, dtype),
    )
