"""Print calls of the library's matrix products, whose columns are contiguous in Fortran's way."""

from __future__ import annotations

from collections.abc import Callable

from lynx.ir.dims import Dim
from lynx.ir.errors import CompileError
from lynx.ir.native import Matrix, Pointer, ProductCall
from lynx.ir.types import DType

from .library import has_products
from .text import SymbolNames, dim

LARGEST = (1 << 31) - 1


def product_lines(
    call: ProductCall, pointer: Callable[[Pointer], str], names: SymbolNames
) -> list[str]:
    """Return the statements of a product.

    Row-major matrices are the transposes of what the library sees, so `out = a b` is computed as
    `out^T = b^T a^T`. A result whose columns are contiguous is computed as it is.
    """
    if not has_products():
        raise CompileError(
            "product-unsupported", "torch exports no matrix products on this machine"
        )
    check_type(call.dtype)
    m, n, a, b = call.m, call.n, call.a, call.b
    a_rows, b_rows = (call.m, call.k), (call.k, call.n)
    out_is_columns = _is_transposed(call.out, call.m, call.n)
    if not out_is_columns:
        # out^T = b^T a^T: the library sees the row-major b as b^T already.
        m, n, a, b = call.n, call.m, call.b, call.a
        a_rows, b_rows = b_rows, a_rows
    first = _operand(a, a_rows, out_is_columns, names)
    second = _operand(b, b_rows, out_is_columns, names)
    rows = dim(call.m if out_is_columns else call.n, names)
    leading = call.out.strides[2 if out_is_columns else 1]
    sizes = [dim(size, names) for size in (m, n, call.k)]
    for size in (call.m, call.n, call.k):
        if isinstance(size, int) and size > LARGEST:
            raise CompileError(
                "product-unsupported", f"a matrix of {size} rows or columns is too large"
            )
    kind = "s" if call.dtype is DType.F32 else "d"
    place = [f"    /* {str(call.loc).replace('*/', '* /')} */"] if call.loc.is_known else []
    steps = [dim(matrix.strides[0], names) for matrix in (a, b, call.out)]
    far = [dim(size, names) for size in (call.outer, a.outer, b.outer, call.out.outer)]
    return [
        "  {",
        *place,
        "    struct product p = {",
        f"      lynx_{kind}gemm, '{first[0]}', '{second[0]}', {', '.join(sizes)},",
        f"      {first[1]}, {second[1]}, lynx_max({rows}, lynx_max(1, {dim(leading, names)})),",
        f"      {pointer(a.pointer)}, {pointer(b.pointer)}, {pointer(call.out.pointer)},",
        f"      {dim(call.batch, names)}, {', '.join(steps)}, {call.dtype.itemsize}, 0,",
        f"      {int(call.accumulate)}, {', '.join(far)}}};",
        "    lynx_product(&p);",
        "  }",
    ]


def check_type(dtype: DType) -> None:
    """Raise `CompileError` for element types that the library does not multiply."""
    if dtype not in (DType.F32, DType.F64):
        raise CompileError("product-unsupported", f"no library product of type {dtype}")


def _is_transposed(matrix: Matrix, rows: Dim, columns: Dim) -> bool:
    """Whether the elements of a column are neighbours, and not those of a row."""
    _, row_stride, column_stride = matrix.strides
    if column_stride == 1 or columns == 1:
        return False
    if row_stride == 1 or rows == 1:
        return True
    raise CompileError(
        "product-unsupported", f"neither rows nor columns are contiguous: {matrix.strides}"
    )


def _operand(
    matrix: Matrix, sizes: tuple[Dim, Dim], as_it_is: bool, names: SymbolNames
) -> tuple[str, str]:
    """Return whether the library transposes an operand, and its leading dimension."""
    is_columns = _is_transposed(matrix, *sizes)
    stride, smallest = (matrix.strides[2], sizes[0]) if is_columns else (
        matrix.strides[1], sizes[1]
    )  # fmt: skip
    flag = "N" if is_columns == as_it_is else "T"
    leading = f"lynx_max({dim(smallest, names)}, lynx_max(1, {dim(stride, names)}))"
    return flag, leading
