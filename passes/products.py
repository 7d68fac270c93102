"""Products of matrices as native calls: which layouts these take, and how they are passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import sympy

from lynx.ir.core import Op
from lynx.ir.dims import Dim, is_equal, product
from lynx.ir.native import Matrix, Pointer, ProductCall
from lynx.ir.ops.linear import (
    AddMatmul,
    BatchMatmul,
    Dot,
    Matmul,
    MatrixProduct,
    MatrixVector,
)
from lynx.ir.types import DType

from .rewrite import NoMatch

Strides: TypeAlias = tuple[Dim, ...]

PRODUCTS: tuple[type[Op], ...] = (Matmul, AddMatmul, BatchMatmul, MatrixVector, Dot)
"""The op classes for which there may be a call."""

LIBRARY = frozenset({DType.F32, DType.F64})
"""The types that the library multiplies."""

_LARGEST = 2**31 - 1
"""The library takes sizes and strides as 32-bit integers."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A batch of matrices: the strides of the batch, of rows and of columns."""

    rows: Dim
    columns: Dim
    strides: tuple[Dim, Dim, Dim]


def product_call(
    op: MatrixProduct | AddMatmul,
    strides: tuple[Strides, ...],
    pointers: tuple[Pointer, ...],
    dtypes: frozenset[DType] = LIBRARY,
) -> ProductCall | NoMatch:
    """Return the call that multiplies tensors with these strides, or why there is none.

    The tensors are both operands, the result, and the term of an `AddMatmul`.

    In each matrix of the call exactly one of the strides of rows and columns is the integer 1 (both
    are if there is one element), and the other is at least the size that the first spans. Inputs
    may repeat along the batch by a stride of 0. Sizes that depend on symbols may turn out to be 0:
    the leading dimension that the library is told must then be raised to 1. `dtypes` are the types
    that are multiplied.
    """
    refused = _refused(op, dtypes)
    if refused is not None:
        return refused
    batch, m, n, k = sizes = _sizes(op)
    matrices: tuple[Strides, Strides, Strides]
    if isinstance(op, BatchMatmul):
        batches = _batches(op, strides)
        if isinstance(batches, NoMatch):
            return batches
        outer, batch, outer_steps, matrices = batches
        sizes = (batch, m, n, k)
    else:
        outer, outer_steps = 1, (0, 0, 0)
        matrices = _strides(op, *strides[:3])
    layouts = _layouts((m, n, k), matrices)
    if isinstance(layouts, NoMatch):
        return layouts
    if _overlaps(batch, layouts[2]):
        return NoMatch("the result overlaps itself along the batch")
    if any(isinstance(d, int) and d > _LARGEST for x in layouts for d in (*sizes, *x.strides[1:])):
        return NoMatch("has sizes that the library cannot take")
    merged = _merged(batch, layouts) if outer == 1 else None
    if merged is not None:
        batch, m, layouts = 1, product((batch, m)), merged
    x, y, z = (
        Matrix(pointer, layout.strides, step)
        for pointer, layout, step in zip(pointers[:3], layouts, outer_steps, strict=True)
    )
    term = None
    if isinstance(op, AddMatmul):
        term = Matrix(pointers[3], (0, *_repeated(op, strides[3])))
    dtype = op.out.tensor_type.dtype
    return ProductCall(dtype, batch, m, n, k, x, y, z, outer=outer, added=term, loc=op.loc)


def _refused(op: MatrixProduct | AddMatmul, dtypes: frozenset[DType]) -> NoMatch | None:
    """Return why there is no call whatever the layouts, None if there may be one."""
    dtype, device = op.out.tensor_type.dtype, op.out.tensor_type.device
    if dtype not in dtypes:
        return NoMatch(f"there is no native product of {dtype}")
    if isinstance(op, AddMatmul) and (dtype is not DType.BF16 or (op.alpha, op.beta) != (1, 1)):
        return NoMatch("is no plain sum of a product and a term, or not of low precision")
    if device != "cpu":
        return NoMatch(f"is on {device}")
    if any(size == 0 for size in _sizes(op)):
        return NoMatch("has a size of 0")
    return None


def _repeated(op: AddMatmul, strides: Strides) -> tuple[Dim, Dim]:
    """Return the strides of the added term as a matrix of the result's size."""
    shape, wanted = op.bias.shape, op.out.shape
    given: list[Dim] = [
        0 if is_equal(own, 1) and not is_equal(size, 1) else stride
        for own, size, stride in zip(
            shape, wanted[len(wanted) - len(shape) :], strides, strict=True
        )
    ]
    missing: list[Dim] = [0] * (2 - len(given))
    row, column = missing + given
    return row, column


def _layouts(
    sizes: tuple[Dim, Dim, Dim], strides: tuple[Strides, Strides, Strides]
) -> list[_Layout] | NoMatch:
    """Return how the matrices of both operands and of the result lie, or why one does not fit."""
    m, n, k = sizes
    found: list[_Layout] = []
    shapes = (("first operand", m, k), ("second operand", k, n), ("result", m, n))
    for (name, rows, columns), own in zip(shapes, strides, strict=True):
        layout = _normalized(rows, columns, own)
        if isinstance(layout, NoMatch):
            return NoMatch(f"the {name} {layout.reason}")
        found.append(layout)
    return found


_Triple: TypeAlias = tuple[Dim, Dim, Dim]


def _batches(
    op: BatchMatmul, strides: tuple[Strides, ...]
) -> tuple[Dim, Dim, _Triple, tuple[_Triple, _Triple, _Triple]] | NoMatch:
    """Return outer and inner batch size, the outer strides, and those of each batch of matrices.

    Batch axes that run together in all three tensors are one.
    """
    sizes: list[Dim] = []
    steps: list[_Triple] = []
    for axis, size in enumerate(op.a.shape[:-2]):
        if is_equal(size, 1):
            continue
        step = (strides[0][axis], strides[1][axis], strides[2][axis])
        if steps and all(
            is_equal(o, product((size, s))) for o, s in zip(steps[-1], step, strict=True)
        ):
            sizes[-1], steps[-1] = product((sizes[-1], size)), step
        else:
            sizes.append(size)
            steps.append(step)
    if len(sizes) > 2:
        return NoMatch(f"runs along {len(sizes)} separate batch axes")
    sizes = [1] * (2 - len(sizes)) + sizes
    none: _Triple = (0, 0, 0)
    steps = [none] * (2 - len(steps)) + steps
    a, b, out = ((step, *own[-2:]) for step, own in zip(steps[1], strides, strict=True))
    return sizes[0], sizes[1], steps[0], (a, b, out)  # type: ignore[return-value]


def _sizes(op: MatrixProduct | AddMatmul) -> tuple[Dim, Dim, Dim, Dim]:
    """Return the number of matrices, the rows and columns of the result, and the terms of a sum."""
    a, b = op.a.shape, op.b.shape
    if isinstance(op, BatchMatmul):
        return product(a[:-2]), a[-2], b[-1], a[-1]
    if isinstance(op, Matmul | AddMatmul):
        return 1, a[0], b[1], a[1]
    if isinstance(op, MatrixVector):
        return 1, a[0], 1, a[1]
    return 1, 1, 1, a[0]


def _strides(
    op: MatrixProduct | AddMatmul, a: Strides, b: Strides, out: Strides
) -> tuple[Strides, Strides, Strides]:
    """Return strides of batch, rows and columns; those of missing dimensions are 0."""
    if isinstance(op, Matmul | AddMatmul):
        return (0, *a), (0, *b), (0, *out)
    if isinstance(op, MatrixVector):
        return (0, *a), (0, *b, 0), (0, *out, 0)
    return (0, 0, *a), (0, *b, 0), (0, 0, 0)


def _normalized(rows: Dim, columns: Dim, strides: Strides) -> _Layout | NoMatch:
    """Choose the strides of dimensions of size 1, which nothing depends on."""
    batch, row, column = strides
    one_row, one_column = is_equal(rows, 1), is_equal(columns, 1)
    if one_row:
        row = columns if one_column or is_equal(column, 1) else 1
    if one_column:
        column = rows if is_equal(row, 1) else 1
    if is_equal(column, 1) and _at_least(row, columns):
        return _Layout(rows, columns, (batch, row, 1))
    if is_equal(row, 1) and _at_least(column, rows):
        return _Layout(rows, columns, (batch, 1, column))
    if is_equal(row, 0) or is_equal(column, 0):
        return NoMatch("repeats rows or columns")
    return NoMatch(f"has strides {row} and {column} over {rows} rows and {columns} columns")


def _at_least(step: Dim, size: Dim) -> bool:
    """Whether a stride surely spans this many elements: as a number, or as a multiple of them.

    Symbols in strides are sizes of the tensor, so none is 0 where there are elements.
    """
    if isinstance(step, int) and isinstance(size, int):
        return step >= size
    if is_equal(step, size):
        return True
    ratio = sympy.sympify(step) / sympy.sympify(size)
    terms = [factor for term in sympy.Add.make_args(ratio) for factor in sympy.Mul.make_args(term)]
    return all(_is_positive(factor) for factor in terms)


def _is_positive(factor: sympy.Expr) -> bool:
    base, exponent = factor.as_base_exp()
    if base.is_Symbol:
        return bool(exponent.is_Integer and exponent > 0)
    return bool(factor.is_Integer and factor > 0)


def _overlaps(batch: Dim, layout: _Layout) -> bool:
    """Whether matrices of a result surely overlap; symbolic strides are dense by construction."""
    step, row, column = layout.strides
    pairs = [(step, batch), (row, layout.rows), (column, layout.columns)]
    reach = 1
    for stride, size in sorted(
        (p for p in pairs if not is_equal(p[1], 1)), key=lambda pair: _order(pair[0])
    ):
        if not (isinstance(stride, int) and isinstance(size, int)):
            return False
        if stride < reach:
            return True
        reach = stride * size
    return False


def _order(stride: Dim) -> float:
    return stride if isinstance(stride, int) else float("inf")


def _merged(batch: Dim, layouts: list[_Layout]) -> list[_Layout] | None:
    """Return the layouts of one product of many rows, if all matrices share the second operand."""
    a, b, out = layouts
    if is_equal(batch, 1) or not is_equal(b.strides[0], 0):
        return None
    steps = [_one_step(layout) for layout in (a, out)]
    if steps[0] is None or steps[1] is None:
        return None
    rows = product((batch, a.rows))
    return [
        _Layout(rows, a.columns, (0, steps[0], 1)),
        b,
        _Layout(rows, out.columns, (0, steps[1], 1)),
    ]


def _one_step(layout: _Layout) -> Dim | None:
    """Return the stride of the rows of all matrices together, None if there is none."""
    step, row, column = layout.strides
    if is_equal(layout.rows, 1):
        is_row_major = is_equal(column, 1) or is_equal(layout.columns, 1)
        return step if is_row_major and _at_least(step, layout.columns) else None
    return row if column == 1 and is_equal(step, product((layout.rows, row))) else None
