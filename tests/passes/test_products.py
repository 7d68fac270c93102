"""Calls of the library's products give what torch gives, whatever the layouts."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.ir.core import Value
from lynx.ir.dims import Dim, symbol
from lynx.ir.native import Matrix, Pointer, ProductCall
from lynx.ir.ops.linear import (
    AddMatmul,
    BatchMatmul,
    Dot,
    Matmul,
    MatrixProduct,
    MatrixVector,
)
from lynx.ir.types import DType, TensorType
from lynx.passes import NoMatch
from lynx.passes.products import product_call
from lynx.target import library_products

LIBRARY = library_products()
POINTERS = (Pointer(0), Pointer(1), Pointer(2))
TYPES = {DType.F32: torch.float32, DType.F64: torch.float64}


def value(*shape: Dim, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


def call_of(op: MatrixProduct, a: Any, b: Any, out: Any) -> ProductCall | NoMatch:
    return product_call(op, (a, b, out), POINTERS)


def multiply(call: ProductCall, addresses: tuple[int, int, int]) -> None:
    """Run a call, one matrix after the other, as C code would."""
    library = ctypes.CDLL(str(LIBRARY))
    is_single = call.dtype is DType.F32
    function = library.sgemm_ if is_single else library.dgemm_
    number, width = (ctypes.c_float, 4) if is_single else (ctypes.c_double, 8)
    m, n, a, b, out = call.m, call.n, call.a, call.b, call.out
    if out.strides[2] != 1:
        m, n, a, b, out = n, m, transposed(b), transposed(a), transposed(out)

    def integer(item: Any) -> Any:
        return ctypes.byref(ctypes.c_int(item))

    for index in range(call.batch):  # type: ignore[arg-type]
        places = [
            ctypes.c_void_p(addresses[x.pointer.slot] + index * x.strides[0] * width)  # type: ignore[operator]
            for x in (a, b, out)
        ]
        function(
            *(b"n" if x.strides[2] == 1 else b"t" for x in (b, a)),
            *map(integer, (n, m, call.k)),
            ctypes.byref(number(1)),
            places[1], integer(leading(b)),
            places[0], integer(leading(a)),
            ctypes.byref(number(0)),
            places[2], integer(leading(out)),
        )  # fmt: skip


def transposed(matrix: Matrix) -> Matrix:
    batch, row, column = matrix.strides
    return Matrix(matrix.pointer, (batch, column, row))


def leading(matrix: Matrix) -> Dim:
    _, row, column = matrix.strides
    return row if column == 1 else column


@st.composite
def laid_out(draw: Any, sizes: tuple[int, ...], *, dense: bool) -> tuple[int, ...]:
    """Return strides: any order of dimensions, with gaps, repeated along some unless dense."""
    strides = [0] * len(sizes)
    running = 1
    for dim in draw(st.permutations(range(len(sizes)))):
        kinds = ["next"] if dense else ["next", "next", "next", "gap", "repeat"]
        kind = draw(st.sampled_from(kinds))
        if kind == "repeat":
            continue
        running += draw(st.integers(1, 3)) if kind == "gap" else 0
        strides[dim] = running
        running *= sizes[dim]
    return tuple(strides)


@pytest.mark.skipif(LIBRARY is None, reason="torch exports no matrix product here")
@settings(max_examples=400, deadline=None)
@given(
    st.data(),
    st.tuples(*[st.integers(1, 4)] * 4),
    st.sampled_from([Matmul, BatchMatmul, MatrixVector, Dot]),
    st.sampled_from([DType.F32, DType.F64]),
)
def test_all_layouts(data: Any, sizes: tuple[int, ...], kind: Any, dtype: DType) -> None:
    batch, m, n, k = sizes
    shapes = {
        Matmul: ((m, k), (k, n), (m, n)),
        BatchMatmul: ((batch, m, k), (batch, k, n), (batch, m, n)),
        MatrixVector: ((m, k), (k,), (m,)),
        Dot: ((k,), (k,), ()),
    }[kind]
    strides = [data.draw(laid_out(shape, dense=index == 2)) for index, shape in enumerate(shapes)]
    op = kind(value(*shapes[0], dtype=dtype), value(*shapes[1], dtype=dtype))
    call = call_of(op, *strides)
    if isinstance(call, NoMatch):
        assert not is_plain(shapes, strides), call.reason
        return
    generator = torch.Generator().manual_seed(0)
    a, b, out = (
        torch.as_strided(
            torch.randint(-9, 9, (4096,), generator=generator).to(TYPES[dtype]), shape, stride
        )
        for shape, stride in zip(shapes, strides, strict=True)
    )
    expected = torch.matmul(a, b)
    multiply(call, (a.data_ptr(), b.data_ptr(), out.data_ptr()))
    assert torch.equal(out, expected)


def is_plain(shapes: Any, strides: Any) -> bool:
    """Whether every matrix is stored by rows or by columns, dimensions of size 1 left out."""
    for shape, stride in zip(shapes, strides, strict=True):
        inner = [(s, d) for s, d in zip(shape[-2:], stride[-2:], strict=True) if s != 1]
        if any(step == 0 for _, step in inner):
            return False
        if len(inner) == 2 and all(step != 1 for _, step in inner):
            return False
    return True


def test_a_shared_matrix_makes_one_product() -> None:
    op = BatchMatmul(value(8, 4, 16), value(8, 16, 32))
    call = call_of(op, (64, 16, 1), (0, 1, 16), (128, 32, 1))
    assert isinstance(call, ProductCall)
    assert (call.batch, call.m, call.n, call.k) == (1, 32, 32, 16)
    assert call.b.strides == (0, 1, 16)


def test_single_rows_of_a_batch_are_the_rows_of_one_product() -> None:
    op = BatchMatmul(value(8, 1, 16), value(8, 16, 32))
    call = call_of(op, (160, 16, 1), (0, 32, 1), (32, 32, 1))
    assert isinstance(call, ProductCall)
    assert (call.batch, call.m) == (1, 8)
    assert call.a.strides == (0, 160, 1)
    repeated = call_of(op, (0, 16, 1), (0, 32, 1), (32, 32, 1))
    assert isinstance(repeated, ProductCall)
    assert repeated.batch == 8


def test_heads_are_written_between_each_other() -> None:
    op = BatchMatmul(value(4, 10, 10), value(4, 10, 8))
    call = call_of(op, (100, 10, 1), (80, 8, 1), (8, 32, 1))
    assert isinstance(call, ProductCall)
    assert call.out.strides == (8, 32, 1)


@pytest.mark.parametrize(
    ("a", "b", "out", "reason"),
    [
        ((0, 1), (8, 1), (8, 1), "the first operand repeats rows or columns"),
        ((4, 1), (8, 0), (8, 1), "the second operand repeats rows or columns"),
        ((8, 2), (8, 1), (8, 1), "the first operand has strides 8 and 2"),
        ((2, 1), (8, 1), (8, 1), "the first operand has strides 2 and 1"),
        ((4, 1), (8, 1), (4, 1), "the result has strides 4 and 1"),
        ((2**31, 1), (8, 1), (8, 1), "sizes that the library cannot take"),
    ],
)
def test_refusals(a: Any, b: Any, out: Any, reason: str) -> None:
    call = call_of(Matmul(value(4, 4), value(4, 8)), a, b, out)
    assert isinstance(call, NoMatch)
    assert reason in call.reason


def test_refused_types_and_sizes() -> None:
    for dtype in (DType.BF16, DType.I64, DType.C64):
        op = Matmul(value(4, 4, dtype=dtype), value(4, 8, dtype=dtype))
        assert isinstance(call_of(op, (4, 1), (8, 1), (8, 1)), NoMatch)
    assert isinstance(call_of(Matmul(value(4, 0), value(0, 8)), (1, 1), (8, 1), (8, 1)), NoMatch)
    overlapping = call_of(BatchMatmul(value(2, 3, 4), value(2, 4, 5)), (12, 4, 1), (20, 5, 1),
                          (5, 5, 1))  # fmt: skip
    assert isinstance(overlapping, NoMatch)
    a = Value(TensorType(DType.F32, (4, 4), "cuda:0"))
    assert isinstance(call_of(Matmul(a, a), (4, 1), (4, 1), (4, 1)), NoMatch)


def test_symbolic_sizes() -> None:
    rows, terms = symbol("s0"), symbol("s1")
    op = BatchMatmul(value(8, rows, terms), value(8, terms, 64))
    call = call_of(op, (rows * terms, terms, 1), (64 * terms, 64, 1), (64, 512, 1))
    assert isinstance(call, ProductCall)
    assert (call.m, call.k) == (rows, terms)
    assert call.a.strides == (rows * terms, terms, 1)
    assert isinstance(call_of(op, (1, 3 * terms, 1), (64, 64, 1), (64, 512, 1)), ProductCall)
    heads = call_of(op, (terms, terms * rows, 1), (1, 1, terms), (64, 512, 1))
    assert isinstance(heads, ProductCall)
    assert heads.b.strides == (1, 1, terms)
    # A row of 1024 may be shorter than the number of terms, for all that is known here.
    assert isinstance(call_of(op, (1, 1024, 1), (64, 64, 1), (64, 512, 1)), NoMatch)


def test_dimensions_of_one_have_any_stride() -> None:
    shapes = itertools.product((1, 3), (1, 5), (1, 4))
    for m, n, k in shapes:
        op = Matmul(value(m, k), value(k, n))
        a = (k if m > 1 else 99, 1 if k > 1 else 77)
        b = (n if k > 1 else 99, 1 if n > 1 else 77)
        out = (n if m > 1 else 99, 1 if n > 1 else 77)
        call = call_of(op, a, b, out)
        assert isinstance(call, ProductCall), (m, n, k)
        for matrix in (call.a, call.b, call.out):
            assert 1 in matrix.strides[1:]
            assert leading(matrix) >= 1  # type: ignore[operator]


def added_call(shape: tuple[Dim, ...], strides: tuple[Dim, ...], **options: Any) -> Any:
    dtype = options.pop("dtype", DType.BF16)
    dtypes = options.pop("dtypes", frozenset({DType.BF16}))
    factors = value(8, 4, dtype=dtype), value(4, 6, dtype=dtype)
    op = AddMatmul(value(*shape, dtype=dtype), *factors, **options)
    all_strides = ((4, 1), (6, 1), (6, 1), strides)
    return product_call(op, all_strides, (*POINTERS, Pointer(3)), dtypes)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((6,), (1,), (0, 0, 1)),
        ((8, 6), (6, 1), (0, 6, 1)),
        ((8, 6), (1, 8), (0, 1, 8)),
        ((8, 1), (1, 1), (0, 1, 0)),
        ((1, 6), (6, 2), (0, 0, 2)),
        ((1,), (1,), (0, 0, 0)),
        ((), (), (0, 0, 0)),
    ],
)
def test_a_term_that_is_added_repeats_by_strides_of_0(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    call = added_call(shape, strides)
    assert isinstance(call, ProductCall)
    assert call.added == Matrix(Pointer(3), expected)


def test_refused_terms() -> None:
    refused = [
        added_call((6,), (1,), beta=2.0),
        added_call((6,), (1,), alpha=0.5),
        added_call((6,), (1,), dtypes=frozenset({DType.F32})),
        added_call((6,), (1,), dtype=DType.F32, dtypes=frozenset({DType.F32, DType.BF16})),
    ]
    assert all(isinstance(call, NoMatch) for call in refused)
