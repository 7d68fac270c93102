"""Print calls of matrix products: sizes and strides as the program has them."""

from __future__ import annotations

from collections.abc import Callable

from lynx.ir.errors import CompileError
from lynx.ir.native import Matrix, Pointer, ProductCall
from lynx.ir.types import DType

from .library import has_products
from .text import SymbolNames, dim

LARGEST = (1 << 31) - 1


def product_lines(
    call: ProductCall, pointer: Callable[[Pointer], str], names: SymbolNames
) -> list[str]:
    """Return the statements of a product."""
    check(call)
    place = [f"    /* {str(call.loc).replace('*/', '* /')} */"] if call.loc.is_known else []
    matrices = (call.a, call.b, call.out)
    (_, *a), (_, *b), (_, *out) = (matrix.strides for matrix in matrices)
    sizes = (call.m, call.n, call.k)
    steps = (call.batch, *(matrix.strides[0] for matrix in matrices))
    far = (call.outer, *(matrix.outer for matrix in matrices))
    strides = (*a, b[1], b[0], *out)
    added = [] if call.added is None else _added(call.added, pointer, names)
    numbers = [
        ", ".join(dim(value, names) for value in values) for values in (sizes, strides, steps, far)
    ]
    return [
        "  {",
        *place,
        "    struct product p = {",
        f"      {call.dtype.itemsize}, {', '.join(pointer(x.pointer) for x in matrices)},",
        f"      {numbers[0]},",
        f"      {numbers[1]}, {int(call.accumulate)},",
        f"      {numbers[2]},",
        f"      {numbers[3]}, 0}};",
        *added,
        "    lynx_product(&p);",
        "  }",
    ]


def _added(matrix: Matrix, pointer: Callable[[Pointer], str], names: SymbolNames) -> list[str]:
    step, row, column = (dim(stride, names) for stride in matrix.strides)
    far = dim(matrix.outer, names)
    return [
        f"    p.added = {pointer(matrix.pointer)};",
        f"    p.added_row = {row}; p.added_column = {column};",
        f"    p.added_step = {step}; p.added_far = {far};",
    ]


def check(call: ProductCall) -> None:
    """Raise `CompileError` for what the library does not multiply."""
    if not has_products():
        raise CompileError(
            "product-unsupported", "torch exports no matrix products on this machine"
        )
    check_type(call.dtype)
    if call.dtype is DType.BF16 and call.accumulate:
        raise CompileError("product-unsupported", "sums of bf16 would be rounded twice")
    if call.dtype is not DType.BF16 and call.added is not None:
        raise CompileError("product-unsupported", f"no term is added to products of {call.dtype}")
    for size in (call.m, call.n, call.k):
        if isinstance(size, int) and size > LARGEST:
            raise CompileError(
                "product-unsupported", f"a matrix of {size} rows or columns is too large"
            )
    for matrix, rows, columns in (
        (call.a, call.m, call.k),
        (call.b, call.k, call.n),
        (call.out, call.m, call.n),
    ):
        _check_layout(matrix, rows == 1, columns == 1)


def check_type(dtype: DType) -> None:
    """Raise `CompileError` for element types that neither the library nor we multiply."""
    if dtype not in (DType.F32, DType.F64, DType.BF16):
        raise CompileError("product-unsupported", f"no product of type {dtype}")


def _check_layout(matrix: Matrix, is_row: bool, is_column: bool) -> None:
    """Raise `CompileError` unless the numbers of rows or those of columns are neighbours."""
    _, row_stride, column_stride = matrix.strides
    if not (column_stride == 1 or row_stride == 1 or is_row or is_column):
        raise CompileError(
            "product-unsupported", f"neither rows nor columns are contiguous: {matrix.strides}"
        )
