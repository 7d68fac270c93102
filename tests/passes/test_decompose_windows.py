"""Look-ups in windows of tables: the sum over all windows is the look-up in the whole table."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir.core import Op, Value
from lynx.ir.dims import SymbolRange, symbol
from lynx.ir.ops.windows import EmbeddingWindow, EmbeddingWindowBackward, GatherWindow
from lynx.ir.types import DType, TensorType
from tests.passes.decompositions import decomposed, graph_of, run_graph

ROWS, STARTS = 10, (0, 3, 4, 9)
"""A table, and where windows begin: of several rows, and of one."""
DTYPES = [DType.F32, DType.F64, DType.BF16, DType.F16]


def windows() -> list[tuple[int, int]]:
    return list(zip(STARTS, (*STARTS[1:], ROWS), strict=True))


def value(dtype: DType, *shape: int) -> Value:
    return Value(TensorType(dtype, shape))


def run_expanded(op: Op, *tensors: torch.Tensor) -> Any:
    """Expand an op, which must not stay, and run what it became."""
    after = decomposed(graph_of(op))
    assert not any(type(one) is type(op) for one in after.ops)
    (result,) = run_graph(after, dict(zip(op.operands, tensors, strict=True)))
    assert op.results[0].type == after.outputs[0].type  # type: ignore[union-attr]
    return result


@pytest.mark.parametrize("index", [DType.I32, DType.I64], ids=str)
@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding(dtype: DType, shape: tuple[int, ...], index: DType) -> None:
    table = torch.randn(ROWS, 5).to(torch_dtype(dtype))
    places = torch.randint(0, ROWS, shape, dtype=torch_dtype(index))
    total = torch.zeros((*shape, 5), dtype=table.dtype)
    for start, end in windows():
        op = EmbeddingWindow(value(dtype, end - start, 5), value(index, *shape), start)
        total += run_expanded(op, table[start:end], places)
    assert torch.equal(total, torch.nn.functional.embedding(places, table))


@pytest.mark.parametrize("padding", [-1, 0, 5])
@pytest.mark.parametrize("shape", [(6,), (2, 30), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding_backward(dtype: DType, shape: tuple[int, ...], padding: int) -> None:
    """Rows are those of the whole gradient; the padding is that of the whole table."""
    grad = torch.randn(*shape, 5).to(torch_dtype(dtype))
    places = torch.randint(0, ROWS, shape)
    whole = torch.ops.aten.embedding_dense_backward(grad, places, ROWS, padding, False)
    operands = value(dtype, *shape, 5), value(DType.I64, *shape)
    for start, end in windows():
        op = EmbeddingWindowBackward(*operands, end - start, padding, start)
        assert torch.equal(run_expanded(op, grad, places), whole[start:end])


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [*DTYPES, DType.I64, DType.BOOL], ids=str)
def test_gather(dtype: DType, dim: int) -> None:
    sizes = (ROWS, 4) if dim == 0 else (4, ROWS)
    x = (torch.randn(sizes) * 3).to(torch_dtype(dtype))
    index = torch.randint(0, ROWS, (4, 4))
    whole = x.gather(dim, index)
    for start, end in windows():
        part = x.narrow(dim, start, end - start)
        op = GatherWindow(value(dtype, *part.shape), value(DType.I64, 4, 4), dim, start)
        inside = (index >= start) & (index < end)
        expected = torch.where(inside, whole, torch.zeros_like(whole))
        assert torch.equal(run_expanded(op, part, index), expected)


def test_what_lies_outside_is_not_multiplied() -> None:
    """Infinite rows that are not asked for leave no trace."""
    table = torch.full((2, 3), float("inf"))
    op = EmbeddingWindow(value(DType.F32, 2, 3), value(DType.I64, 4), 5)
    found = run_expanded(op, table, torch.tensor([0, 4, 7, 9]))
    assert torch.equal(found, torch.zeros(4, 3))


def of_rows(rows: Any) -> list[Op]:
    table = Value(TensorType(DType.F32, (rows, 5)))
    index, matrix = value(DType.I64, 4), value(DType.I64, 4, 5)
    return [
        EmbeddingWindow(table, index, 3),
        EmbeddingWindowBackward(value(DType.F32, 4, 5), index, rows, -1, 3),
        GatherWindow(table, matrix, 0, 3),
    ]


@pytest.mark.parametrize("op", of_rows(0), ids=lambda op: op.name)
def test_windows_without_rows_stay(op: Op) -> None:
    """There is no row that is safe to read."""
    graph = graph_of(op)
    assert decomposed(graph) is graph


@pytest.mark.parametrize("op", of_rows(symbol("s0")), ids=lambda op: op.name)
def test_windows_of_unknown_size_stay(op: Op) -> None:
    graph = dataclasses.replace(graph_of(op), symbols=(SymbolRange("s0", 2),))
    assert decomposed(graph) is graph
