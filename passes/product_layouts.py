"""Layouts of products and attention: such that what rearranges them has nothing to copy."""

from __future__ import annotations

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import Dim, contiguous_strides
from lynx.ir.ops.attention import Attending
from lynx.ir.ops.layout import Permute
from lynx.ir.ops.linear import BatchMatmul
from lynx.ir.types import DType


def product_strides(graph: Graph) -> dict[Value, tuple[Dim, ...]]:
    """Return the strides in which to write results of products that only a permutation reads.

    The library writes matrices with contiguous rows or contiguous columns at any distance, so heads
    of attention can be written where a row-major result of the permutation has them. Attention
    itself always writes them so, as its operator does.
    """
    readers: dict[Value, list[Op | None]] = {}
    for op in graph.ops:
        for operand in op.operands:
            readers.setdefault(operand, []).append(op)
    for value in graph.uses:
        readers.setdefault(value, []).append(None)
    found: dict[Value, tuple[Dim, ...]] = {}
    for op in graph.ops:
        if isinstance(op, Attending):
            found.update((value, _with_heads_inside(value.shape)) for value in op.headed)
        if not isinstance(op, BatchMatmul) or len(op.a.shape) < 4:
            continue
        if op.out.tensor_type.dtype not in (DType.F32, DType.F64):
            continue
        reader, *others = readers.get(op.out, [None])
        if others or not isinstance(reader, Permute):
            continue
        rank = len(reader.dims)
        if reader.dims[-1] < rank - 2:
            continue  # neither rows nor columns would be contiguous
        inner = contiguous_strides(reader.out.shape)
        strides = dict(zip(reader.dims, inner, strict=True))
        found[op.out] = tuple(strides[dim] for dim in range(rank))
    return found


def _with_heads_inside(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return strides in which the second dimension lies inside the third."""
    batch, heads, rows, depth = shape
    strides = contiguous_strides((batch, rows, heads, depth))
    return strides[0], strides[2], strides[1], strides[3]
