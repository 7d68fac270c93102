"""Import rules of operators that take parts of tensors, put parts together, or move elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy

from lynx.ir.core import Number, Value
from lynx.ir.dims import Dim, ceil_div, is_equal, simplify
from lynx.ir.ops.layout import Unsqueeze
from lynx.ir.ops.layout_slicing import (
    Concatenate,
    Diagonal,
    Flip,
    LowerTriangle,
    Pad,
    Roll,
    Select,
    Slice,
    SliceScatter,
    Unfold,
    UpperTriangle,
)
from lynx.ir.types import TensorType

from .layout import cast, reshaped, sized, wrap
from .ranges import Ranges, is_nonnegative
from .registry import Context, Decline, Imported, imports

_ENDLESS = 2**62
"""Bounds beyond this mean the end of the dimension."""


def _readings(bound: Dim | None, size: Dim, default: Dim, ranges: Ranges) -> Iterator[Dim]:
    """Yield what a bound may mean, counted from the front, before the length of the result tells.

    Integers in a dimension of known size are clamped. A symbolic bound may be negative, and a bound
    of a symbolic dimension may lie beyond its end.
    """
    if bound is None:
        yield default
    elif isinstance(bound, int) and isinstance(size, int):
        yield max(0, min(bound + size if bound < 0 else bound, size))
    elif isinstance(bound, int):
        if bound >= _ENDLESS:
            yield size
        elif bound >= 0:
            yield bound
            yield size
        elif bound > -_ENDLESS:
            yield simplify(size + bound)
            yield 0
        else:
            yield 0
    else:
        yield bound
        yield size
        if not is_nonnegative(bound, ranges):
            yield simplify(sympy.sympify(size) + bound)
            yield 0


def bounds(
    size: Dim,
    start: Dim | None,
    end: Dim | None,
    step: Dim,
    length: Dim,
    ranges: Ranges,
) -> tuple[Dim, Dim] | None:
    """Return `start` and `stop` with `0 <= start <= stop <= size`; None if they cannot be told.

    The length that torch worked out decides between the readings of a bound: where the bounds were
    clamped the length is another one. Where two readings have that length there is no answer.
    """
    if isinstance(step, int) and step < 1:
        return None
    fitting: list[tuple[Dim, Dim]] = []
    for first in _readings(start, size, 0, ranges):
        for end_reading in _readings(end, size, size, ranges):
            stop = end_reading
            if isinstance(first, int) and isinstance(stop, int):
                stop = max(first, stop)
            count = ceil_div(simplify(sympy.sympify(stop - first)), step)
            if is_equal(count, length) and (first, stop) not in fitting:
                fitting.append((first, stop))
    return fitting[0] if len(fitting) == 1 else None


@imports("aten.slice.Tensor", "aten.slice_copy.Tensor")
@sized
def slice_(
    context: Context,
    self: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: Dim = 1,
) -> Imported:
    """Count bounds from the front and clamp them."""
    dim = wrap(dim, len(self.shape))
    size, length = self.shape[dim], context.type.shape[dim]
    found = bounds(size, start, end, step, length, context.ranges)
    if found is None:
        return Decline("it cannot be told which part of a symbolic dimension is meant")
    if found[0] == 0 and is_equal(length, size):
        return self
    return context.emit(Slice(self, dim, *found, step))


@imports("aten.narrow.default", "aten.narrow_copy.default")
@sized
def narrow(context: Context, self: Value, dim: int, start: Dim, length: Dim) -> Imported:
    """Take `length` elements; a negative start counts from the end."""
    dim = wrap(dim, len(self.shape))
    first = _index(start, self.shape[dim], context.ranges)
    if isinstance(first, Decline):
        return first
    return context.emit(Slice(self, dim, first, simplify(sympy.sympify(first + length))))


def _index(index: Dim, size: Dim, ranges: Ranges) -> Dim | Decline:
    """Count an index from the front."""
    if is_nonnegative(index, ranges):
        return index
    if not isinstance(index, int):
        return Decline("a symbolic index may be negative")
    return simplify(size + index)


@imports("aten.select.int", "aten.select_copy.int")
@sized
def select(context: Context, self: Value, dim: int, index: Dim) -> Imported:
    """Count the index from the front."""
    dim = wrap(dim, len(self.shape))
    place = _index(index, self.shape[dim], context.ranges)
    if isinstance(place, Decline):
        return place
    return context.emit(Select(self, dim, place))


@imports("aten.slice_scatter.default")
@sized
def slice_scatter(
    context: Context,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: Dim = 1,
) -> Imported:
    """Count bounds from the front; the source is broadcast by none."""
    dim = wrap(dim, len(self.shape))
    if len(src.shape) != len(self.shape):
        return Decline("the source has another rank")
    size = self.shape[dim]
    found = bounds(size, start, end, step, src.shape[dim], context.ranges)
    if found is None:
        return Decline("it cannot be told which part of a symbolic dimension is meant")
    source = cast(context, src, self.tensor_type.dtype)
    if found[0] == 0 and step == 1 and source.type == self.type:
        return source
    return context.emit(SliceScatter(self, source, dim, *found, step))


@imports("aten.select_scatter.default")
@sized
def select_scatter(context: Context, self: Value, src: Value, dim: int, index: Dim) -> Imported:
    """Write a slice of size 1."""
    dim = wrap(dim, len(self.shape))
    place = _index(index, self.shape[dim], context.ranges)
    if isinstance(place, Decline):
        return place
    if len(src.shape) != len(self.shape) - 1:
        return Decline("the source has another rank")
    source = context.emit(Unsqueeze(cast(context, src, self.tensor_type.dtype), dim))
    return context.emit(SliceScatter(self, source, dim, place, place + 1))


@imports("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def cat(context: Context, tensors: tuple[Value, ...], dim: int = 0) -> Imported:
    """Drop the empty vectors that torch ignores, and convert to the common type."""
    rank = context.type.rank
    parts = tuple(value for value in tensors if len(value.shape) == rank)
    for value in tensors:
        if len(value.shape) != rank and value.shape != (0,):
            return Decline("a vector that may be empty is put beside tensors of another rank")
    return _concatenate(context, parts, wrap(dim, rank))


def _concatenate(context: Context, parts: tuple[Value, ...], dim: int) -> Imported:
    converted = tuple(cast(context, part, context.type.dtype) for part in parts)
    if len(converted) == 1:
        return converted[0]
    return context.emit(Concatenate(converted, dim))


@imports("aten.stack.default")
def stack(context: Context, tensors: tuple[Value, ...], dim: int = 0) -> Imported:
    """Give each part the new dimension first."""
    dim = wrap(dim, context.type.rank)
    parts = tuple(context.emit(Unsqueeze(value, dim)) for value in tensors)
    return _concatenate(context, parts, dim)


@imports(
    "aten.split.Tensor",
    "aten.split.sizes",
    "aten.split_with_sizes.default",
    "aten.unsafe_split.Tensor",
    "aten.unsafe_split_with_sizes.default",
    "aten.split_copy.Tensor",
    "aten.split_with_sizes_copy.default",
    "aten.chunk.default",
    "aten.unsafe_chunk.default",
    "aten.tensor_split.sections",
)
def split(context: Context, self: Value, *arguments: Any, **keywords: Any) -> Imported:
    """Slice at the ends of the parts, whose lengths torch worked out."""
    dim = wrap(arguments[1] if len(arguments) > 1 else keywords.get("dim", 0), len(self.shape))
    parts: list[Value] = []
    start: Dim = 0
    for type_ in context.types:
        assert isinstance(type_, TensorType), type_
        stop = simplify(sympy.sympify(start + type_.shape[dim]))
        whole = start == 0 and is_equal(stop, self.shape[dim])
        parts.append(self if whole else context.emit(Slice(self, dim, start, stop)))
        start = stop
    if not is_equal(start, self.shape[dim]):
        return Decline("the parts do not add up to the whole")
    return tuple(parts)


@imports("aten.unbind.int", "aten.unbind_copy.int")
def unbind(context: Context, self: Value, dim: int = 0) -> Imported:
    """Select each index."""
    dim = wrap(dim, len(self.shape))
    return tuple(context.emit(Select(self, dim, index)) for index in range(len(context.types)))


@imports("aten.constant_pad_nd.default")
@sized
def constant_pad(
    context: Context, self: Value, pad: tuple[Dim, ...], value: Number = 0
) -> Imported:
    """Sort the pads, which come in pairs, those of the last dimension first."""
    rank = len(self.shape)
    unpadded = (0,) * (rank - len(pad) // 2)
    low = unpadded + tuple(pad[index] for index in range(len(pad) - 2, -1, -2))
    high = unpadded + tuple(pad[index] for index in range(len(pad) - 1, -1, -2))
    if all(side == 0 for side in (*low, *high)):
        return self
    return context.emit(Pad(self, value, low, high))


@imports("aten.flip.default")
def flip(context: Context, self: Value, dims: tuple[int, ...]) -> Imported:
    """Leave a 0-dim tensor as it is."""
    rank = len(self.shape)
    places = tuple(sorted({wrap(dim, rank) for dim in dims}))
    return context.emit(Flip(self, places)) if places and rank else self


@imports("aten.roll.default")
@sized
def roll(
    context: Context, self: Value, shifts: tuple[Dim, ...], dims: tuple[int, ...] = ()
) -> Imported:
    """Without dimensions the row-major order is rolled."""
    if dims:
        rank = len(self.shape)
        return context.emit(Roll(self, shifts, tuple(wrap(dim, rank) for dim in dims)))
    flat = reshaped(context, self, (self.tensor_type.numel,))
    return reshaped(context, context.emit(Roll(flat, shifts, (0,))), self.shape)


@imports("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(
    context: Context, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Imported:
    """Count dimensions from the front."""
    rank = len(self.shape)
    return context.emit(Diagonal(self, offset, wrap(dim1, rank), wrap(dim2, rank)))


@imports("aten.unfold.default", "aten.unfold_copy.default")
@sized
def unfold(context: Context, self: Value, dimension: int, size: Dim, step: Dim) -> Imported:
    """Leave a 0-dim tensor, which counts as having one dimension, to torch."""
    if not self.shape:
        return Decline("windows of a 0-dim tensor run through torch")
    if not isinstance(size, int) or not isinstance(step, int):
        return Decline("windows have a symbolic size")
    return context.emit(Unfold(self, wrap(dimension, len(self.shape)), size, step))


@imports("aten.tril.default")
@sized
def tril(context: Context, self: Value, diagonal: Dim = 0) -> Imported:
    """Keep the lower triangle."""
    return context.emit(LowerTriangle(self, diagonal))


@imports("aten.triu.default")
@sized
def triu(context: Context, self: Value, diagonal: Dim = 0) -> Imported:
    """Keep the upper triangle."""
    return context.emit(UpperTriangle(self, diagonal))
