"""What ops compute that write parts of a tensor: where each number goes, and how it combines."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any

from lynx.ir.core import Op, Operand, Value
from lynx.ir.dims import Dim, contiguous_strides, is_equal
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Index, Scalar
from lynx.ir.ops import layout, scatter
from lynx.ir.ops import layout_slicing as slicing
from lynx.ir.ops.indexing import EmbeddingBackward
from lynx.ir.types import DType, TensorType
from lynx.ir.writing import carried_by, index_place, indices_shape, is_write, may_collide

from .coordinates import ZERO, Coordinates, position_of, scaled, shifted
from .emit import Emitter, Want, Write, WriteEmission, writes
from .emit_elementwise import aligned, apply, argument
from .emit_layout import all_of, checked_place, replaced

_MASKS = (DType.BOOL, DType.U8)


def _combine(op: Any) -> str:
    """Return how an op combines what it writes to one place, unless it adds."""
    return "last" if may_collide(op) else "set"


def _refuse_sums(dtype: DType) -> str:
    return "adds truth values" if dtype is DType.BOOL else ""


@writes(slicing.SliceScatter)
def _slice_scatter(emitter: Emitter, op: slicing.SliceScatter, at: Coordinates) -> WriteEmission:
    """Write the source, or what it differs by from what lies there already."""
    found = carried_by(op)
    if found is None or not is_write(found.inner):
        value = yield Want(op.source, at)
        write = Write(at, value)
    else:
        write = emitter.write(found.inner, at)
        for view in found.below:
            write = dataclasses.replace(write, at=_below(emitter, view, write.at))
    place = shifted(scaled(write.at[op.dim], op.step), op.start)
    return dataclasses.replace(write, at=replaced(write.at, op.dim, place))


def _below(emitter: Emitter, view: Op, at: Coordinates) -> Coordinates:
    """Return where an element lies in a view of the tensor in which it has coordinates."""
    match view:
        case layout.Permute():
            return tuple(at[dim] for dim in view.dims)
        case layout.Unsqueeze():
            return (*at[: view.dim], ZERO, *at[view.dim :])
        case layout.Squeeze():
            return tuple(place for n, place in enumerate(at) if n not in view.dims)
        case layout.Reshape():
            flat = position_of(at, contiguous_strides(view.x.shape))
            return emitter.splitter.delinearized(flat, view.shape)
    raise CompileError("no-kernel", f"'{view.name}' leads a write to another place", view.loc)


def _refuse_slices(op: scatter.IndexCopy | scatter.IndexAdd | scatter.IndexFill) -> str:
    if not op.x.shape:
        return "writes into a single number"
    dtype = op.x.tensor_type.dtype
    if not isinstance(op, scatter.IndexAdd):
        return ""
    if op.alpha != 1 and dtype.is_low_precision:
        return "rounds once what is scaled and added"
    rank = len(op.x.shape)
    if dtype.is_low_precision and rank > 1 and op.dim % rank in (0, rank - 1):
        return "adds in a precision that torch chooses by strides"
    return _refuse_sums(dtype)


def _slice_place(
    emitter: Emitter, op: scatter.IndexCopy | scatter.IndexAdd | scatter.IndexFill, at: Coordinates
) -> Generator[Want, Scalar, tuple[Coordinates, Scalar]]:
    dim = op.dim % len(op.x.shape)
    own = (at[dim],) if op.index.shape else ()
    size = op.x.shape[dim]
    place, valid = yield from checked_place(emitter, None, op.index, own, size, wraps=False)
    return replaced(at, dim, place), valid


@writes(scatter.IndexCopy, unless=_refuse_slices)
def _index_copy(emitter: Emitter, op: scatter.IndexCopy, at: Coordinates) -> WriteEmission:
    place, valid = yield from _slice_place(emitter, op, at)
    value = yield Want(op.source, at)
    return Write(place, value, valid, _combine(op))


@writes(scatter.IndexFill, unless=_refuse_slices)
def _index_fill(emitter: Emitter, op: scatter.IndexFill, at: Coordinates) -> WriteEmission:
    # Unlike the others of its kind, it counts negative indices from the end.
    dim = op.dim % len(op.x.shape)
    own = (at[dim],) if op.index.shape else ()
    size = op.x.shape[dim]
    place, valid = yield from checked_place(emitter, None, op.index, own, size, wraps=True)
    value = yield from _number(emitter, op.x, op.value)
    # One number for all of a slice: it does not matter which point comes last.
    return Write(replaced(at, dim, place), value, valid, _combine(op))


def _number(emitter: Emitter, x: Value, value: Operand) -> Generator[Want, Scalar, Scalar]:
    """Return a number or 0-dim tensor as an element of `x`."""
    dtype = x.tensor_type.dtype
    scalar = yield from argument(emitter, Want(x, ()), value, dtype)
    return emitter.builder.convert(scalar, dtype)


@writes(scatter.IndexAdd, unless=_refuse_slices)
def _index_add(emitter: Emitter, op: scatter.IndexAdd, at: Coordinates) -> WriteEmission:
    place, valid = yield from _slice_place(emitter, op, at)
    value = yield Want(op.source, at)
    if op.alpha != 1:
        builder, dtype = emitter.builder, op.x.tensor_type.dtype
        value = apply(builder, "mul", value, builder.constant(op.alpha, dtype), dtype=dtype)
    return Write(place, value, valid, "add")


def _refuse_scatter(op: Any) -> str:
    if not op.x.shape:
        return "writes into a single number"
    if isinstance(op, scatter.ScatterReduce) and (op.reduction != "sum" or not op.include_self):
        return f"combines by {op.reduction}"
    if isinstance(op, scatter.Scatter):
        return ""
    dtype = op.x.tensor_type.dtype
    if dtype.is_low_precision:
        return "adds in a precision that torch chooses by the strides of the index"
    return _refuse_sums(dtype)


@writes(scatter.Scatter, scatter.ScatterAdd, scatter.ScatterReduce, unless=_refuse_scatter)
def _scatter(emitter: Emitter, op: Any, at: Coordinates) -> WriteEmission:
    dim = op.dim % len(op.x.shape)
    own = _within(op.index, at)
    size = op.x.shape[dim]
    place, valid = yield from checked_place(emitter, None, op.index, own, size, wraps=False)
    if isinstance(op.src, Value) and isinstance(op.src.type, TensorType):
        value = yield Want(op.src, _within(op.src, at))
    else:
        value = yield from _number(emitter, op.x, op.src)
    combine = _combine(op) if isinstance(op, scatter.Scatter) else "add"
    return Write(replaced(at, dim, place), value, valid, combine)


def _within(value: Value, at: Coordinates) -> Coordinates:
    """Return coordinates, fixed where the value has only one element."""
    return tuple(ZERO if is_equal(n, 1) else c for n, c in zip(value.shape, at, strict=True))


def _refuse_put(op: scatter.IndexPut) -> str:
    if any(index is not None and index.tensor_type.dtype in _MASKS for index in op.indices):
        return "writes by a mask"
    return _refuse_sums(op.x.tensor_type.dtype) if op.accumulate else ""


@writes(scatter.IndexPut, unless=_refuse_put)
def _index_put(emitter: Emitter, op: scatter.IndexPut, at: Coordinates) -> WriteEmission:
    """Take the coordinates of the indices for these, the others for the kept dimensions."""
    first = index_place(op)
    last = first + len(indices_shape(op))
    rest = iter((*at[:first], *at[last:]))
    places: list[Index] = []
    conditions: list[Scalar] = []
    for n, size in enumerate(op.x.shape):
        index = op.indices[n] if n < len(op.indices) else None
        if index is None:
            places.append(next(rest))
            continue
        own = aligned(at[first:last], index)
        found = yield from checked_place(emitter, None, index, own, size, wraps=True)
        places.append(found[0])
        conditions.append(found[1])
    value = yield Want(op.values, aligned(at, op.values))
    valid = all_of(emitter.builder, conditions)
    return Write(tuple(places), value, valid, "add" if op.accumulate else _combine(op))


def _refuse_rows(op: EmbeddingBackward) -> str:
    if op.by_frequency:
        return "divides by how often each row was looked up"
    return _refuse_sums(op.grad.tensor_type.dtype)


@writes(EmbeddingBackward, unless=_refuse_rows)
def _embedding_backward(emitter: Emitter, op: EmbeddingBackward, at: Coordinates) -> WriteEmission:
    """Add each row of the gradient to that of the table, but for padding."""
    builder = emitter.builder
    size: Dim = op.rows
    place, valid = yield from checked_place(emitter, None, op.indices, at[:-1], size, wraps=False)
    if op.padding >= 0:
        row = builder.position(place)
        padding = builder.constant(op.padding, DType.I64)
        kept = builder.apply("ne", row, padding, dtype=DType.BOOL)
        valid = builder.apply("and", valid, kept, dtype=DType.BOOL)
    value = yield Want(op.grad, at)
    return Write((place, at[-1]), value, valid, "add")
