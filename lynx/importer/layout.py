"""Import rules of operators that rearrange whole tensors, and help for other rules."""

from __future__ import annotations

import functools
from typing import Any

import sympy

from lynx.ir.core import Value
from lynx.ir.dims import Dim, contiguous_strides, difference, is_equal, is_static, simplify
from lynx.ir.ops.elementwise_arithmetic import Cast
from lynx.ir.ops.layout import (
    AsStrided,
    AsStridedScatter,
    Bitcast,
    Broadcast,
    Permute,
    Reshape,
    Squeeze,
    Unsqueeze,
)
from lynx.ir.types import DType, ScalarType

from .registry import Context, Decline, Imported, Rule, imports


def wrap(dim: int, rank: int) -> int:
    """Return the dimension counted from the front; a 0-dim tensor counts as having one."""
    return dim % max(rank, 1)


def sized(rule: Rule) -> Rule:
    """Let a rule see a size that is computed while running as the expression that it has."""

    @functools.wraps(rule)
    def with_sizes(context: Context, *arguments: Any, **keywords: Any) -> Imported:
        named = {name: _with_expressions(item) for name, item in keywords.items()}
        return rule(context, *map(_with_expressions, arguments), **named)

    return with_sizes


def _with_expressions(item: Any) -> Any:
    if isinstance(item, tuple):
        return tuple(_with_expressions(part) for part in item)
    if isinstance(item, Value) and isinstance(item.type, ScalarType):
        return item if item.type.expr is None else item.type.expr
    return item


def cast(context: Context, x: Value, dtype: DType | None) -> Value:
    """Convert to an element type, if one is given and it is another."""
    if dtype is None or x.tensor_type.dtype is dtype:
        return x
    return context.emit(Cast(x, dtype))


def reshaped(context: Context, x: Value, shape: tuple[Dim, ...]) -> Value:
    """Give a value another shape, if it has not got that."""
    return x if x.shape == shape else context.emit(Reshape(x, shape))


def permuted(context: Context, x: Value, dims: tuple[int, ...]) -> Value:
    """Reorder dimensions, if that changes their order."""
    return x if list(dims) == list(range(len(dims))) else context.emit(Permute(x, dims))


@imports("aten.alias.default", "aten.detach.default", "aten.alias_copy.default")
def alias(context: Context, self: Value) -> Imported:
    """Values have no identity beyond their elements."""
    return self


@imports(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.view_copy.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
    "aten._reshape_alias.default",
)
def view(context: Context, self: Value, *arguments: Any, **keywords: Any) -> Imported:
    """Take the shape that torch worked out."""
    return reshaped(context, self, context.type.shape)


@imports("aten.view.dtype", "aten.view_copy.dtype")
def view_dtype(context: Context, self: Value, dtype: DType) -> Imported:
    """Only element types of one size keep the shape."""
    given = self.tensor_type.dtype
    if given is dtype:
        return self
    if given.itemsize != dtype.itemsize:
        return Decline("elements are read as others of another size")
    return context.emit(Bitcast(self, dtype))


@imports("aten.permute.default", "aten.permute_copy.default")
def permute(context: Context, self: Value, dims: tuple[int, ...]) -> Imported:
    """Negative dimensions count from the end."""
    rank = len(self.shape)
    return permuted(context, self, tuple(wrap(dim, rank) for dim in dims))


@imports("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes.default")
def transpose(context: Context, self: Value, dim0: int, dim1: int) -> Imported:
    """Swap two dimensions."""
    rank = len(self.shape)
    dims = list(range(rank))
    if rank:
        first, second = wrap(dim0, rank), wrap(dim1, rank)
        dims[first], dims[second] = second, first
    return permuted(context, self, tuple(dims))


@imports("aten.t.default", "aten.t_copy.default")
def t(context: Context, self: Value) -> Imported:
    """Vectors stay as they are."""
    return permuted(context, self, tuple(reversed(range(len(self.shape)))))


@imports("aten.movedim.int", "aten.movedim.intlist")
def movedim(
    context: Context,
    self: Value,
    source: int | tuple[int, ...],
    destination: int | tuple[int, ...],
) -> Imported:
    """Move dimensions, the others keep their order."""
    rank = len(self.shape)
    sources = (source,) if isinstance(source, int) else source
    places = (destination,) if isinstance(destination, int) else destination
    moved = {wrap(to, rank): wrap(dim, rank) for dim, to in zip(sources, places, strict=True)}
    rest = iter(dim for dim in range(rank) if dim not in moved.values())
    dims = tuple(moved[place] if place in moved else next(rest) for place in range(rank))
    return permuted(context, self, dims)


@imports("aten.expand.default", "aten.expand_copy.default", "aten.broadcast_to.default")
def expand(
    context: Context, self: Value, size: tuple[Dim, ...], *, implicit: bool = False
) -> Imported:
    """Take the shape of the result, in which a size of -1 is resolved."""
    shape = context.type.shape
    return self if self.shape == shape else context.emit(Broadcast(self, shape))


@imports("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def unsqueeze(context: Context, self: Value, dim: int) -> Imported:
    """Negative dimensions count from the end of the result."""
    return context.emit(Unsqueeze(self, dim % (len(self.shape) + 1)))


@imports("aten.squeeze.default", "aten.squeeze_copy.default")
def squeeze_all(context: Context, self: Value) -> Imported:
    """Remove the dimensions that are 1."""
    return _squeeze(context, self, tuple(range(len(self.shape))))


@imports("aten.squeeze.dim", "aten.squeeze_copy.dim")
def squeeze_dim(context: Context, self: Value, dim: int) -> Imported:
    """Remove one dimension if it is 1."""
    return _squeeze(context, self, (wrap(dim, len(self.shape)),))


@imports("aten.squeeze.dims", "aten.squeeze_copy.dims")
def squeeze_dims(context: Context, self: Value, dim: tuple[int, ...]) -> Imported:
    """Remove dimensions that are 1."""
    rank = len(self.shape)
    return _squeeze(context, self, tuple(sorted({wrap(d, rank) for d in dim})))


def _squeeze(context: Context, x: Value, dims: tuple[int, ...]) -> Imported:
    """Remove those of the dimensions that are 1; a symbolic one may be, for all that is known."""
    chosen = tuple(dim for dim in dims if dim < len(x.shape) and x.shape[dim] == 1)
    if len(chosen) + context.type.rank != len(x.shape):
        return Decline("it cannot be told which dimensions are 1")
    return context.emit(Squeeze(x, chosen)) if chosen else x


@imports("aten.repeat.default")
@sized
def repeat(context: Context, self: Value, repeats: tuple[Dim, ...]) -> Imported:
    """Broadcast along new dimensions, then merge each with the one that it repeats."""
    missing = len(repeats) - len(self.shape)
    shape = ((1,) * missing) + self.shape
    split: list[Dim] = []
    spread: list[Dim] = []
    for count, size in zip(repeats, shape, strict=True):
        if count != 1 and size != 1:
            split += [1, size]
            spread += [count, size]
        else:
            split.append(size)
            spread.append(count if size == 1 else size)
    value = reshaped(context, self, tuple(split))
    if split != spread:
        value = context.emit(Broadcast(value, tuple(spread)))
    return reshaped(context, value, context.type.shape)


@imports("aten.repeat_interleave.self_int")
@sized
def repeat_interleave(
    context: Context,
    self: Value,
    repeats: Dim,
    dim: int | None = None,
    *,
    output_size: Dim | None = None,
) -> Imported:
    """Broadcast along a new dimension after the repeated one, then merge the two."""
    if dim is None:
        self = reshaped(context, self, (self.tensor_type.numel,))
    place = wrap(dim or 0, len(self.shape)) + 1
    shape = self.shape
    value = context.emit(Unsqueeze(self, place))
    value = context.emit(Broadcast(value, (*shape[:place], repeats, *shape[place:])))
    return reshaped(context, value, context.type.shape)


def row_major(
    context: Context, x: Value, reach: Dim, offset: Dim | None
) -> tuple[tuple[int, ...], Dim] | Decline:
    """Return how the memory of a traced operand is its row-major order, for reading by strides.

    The answer is the order of dimensions that makes it so, and where reading begins. `reach` is the
    distance from the first to the last element read. Declined where the operand is not dense, or
    reading leaves its own elements: those of a tensor that it is a view of are out of sight.
    """
    known = context.operand_layouts.get(x)
    if known is None:
        return Decline("it is not known how the operand lies in memory")
    strides, own_offset = known
    order = _memory_order(x.shape, strides)
    if order is None:
        return Decline("the operand is not dense in memory")
    begin = difference(own_offset if offset is None else offset, own_offset)
    left = difference(x.tensor_type.numel, begin + reach + 1)
    if not (isinstance(begin, int) and begin >= 0 and isinstance(left, int) and left >= 0):
        return Decline("strides reach memory outside of the operand, or it cannot be told")
    return order, begin


def _memory_order(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> tuple[int, ...] | None:
    """Return the order of dimensions in which a dense tensor is contiguous, None if it is not."""
    order = list(range(len(shape)))
    if is_static(strides) and is_static(shape):
        order.sort(key=lambda dim: (strides[dim], shape[dim]), reverse=True)
    dense = contiguous_strides(tuple(shape[dim] for dim in order))
    for dim, expected in zip(order, dense, strict=True):
        if shape[dim] != 1 and not is_equal(strides[dim], expected):
            return None
    return tuple(order)


def _reach(size: tuple[Dim, ...], stride: tuple[Dim, ...]) -> Dim:
    """Return the distance between the first and the last element; -1 if there is none."""
    if 0 in size:
        return -1
    steps = (sympy.sympify((n - 1) * step) for n, step in zip(size, stride, strict=True))
    return simplify(sympy.expand(sum(steps, start=sympy.Integer(0))))


@imports("aten.as_strided.default", "aten.as_strided_copy.default")
@sized
def as_strided(
    context: Context,
    self: Value,
    size: tuple[Dim, ...],
    stride: tuple[Dim, ...],
    storage_offset: Dim | None = None,
) -> Imported:
    """Read the operand in the order in which it lay in memory."""
    place = row_major(context, self, _reach(size, stride), storage_offset)
    if isinstance(place, Decline):
        return place
    order, begin = place
    return context.emit(AsStrided(permuted(context, self, order), size, stride, begin))


@imports("aten.as_strided_scatter.default")
@sized
def as_strided_scatter(
    context: Context,
    self: Value,
    src: Value,
    size: tuple[Dim, ...],
    stride: tuple[Dim, ...],
    storage_offset: Dim | None = None,
) -> Imported:
    """Write in the order in which the operand lay in memory, and bring its order back."""
    place = row_major(context, self, _reach(size, stride), storage_offset)
    if isinstance(place, Decline):
        return place
    order, begin = place
    x, source = permuted(context, self, order), cast(context, src, self.tensor_type.dtype)
    result = context.emit(AsStridedScatter(x, source, stride, begin))
    inverse = tuple(order.index(dim) for dim in range(len(order)))
    return permuted(context, result, inverse)
