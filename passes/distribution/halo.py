"""Windows that slide along a dimension which is cut: devices get the borders of their neighbours.

Each device's piece, with the rows of its neighbours that its windows reach into (a halo), becomes
an image of its own: pieces go into the batch, as plain ops of the whole tensor. Only borders are
gathered, which are few rows next to a piece. Gradients of an input come back the same way: what a
piece has of its neighbours' rows is added there. The method is that of spatial partitioning in
GSPMD (Xu et al. 2021, section 4.3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, is_static
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
    Geometry,
)
from lynx.ir.ops.elementwise_arithmetic import DivideRounded, Remainder
from lynx.ir.ops.factory import Full, Iota
from lynx.ir.ops.layout import Permute, Reshape
from lynx.ir.ops.layout_slicing import Concatenate, Slice
from lynx.ir.ops.pooling import AveragePool, AveragePoolBackward, MaxPool, MaxPoolBackward
from lynx.ir.tiles import are_pieces
from lynx.ir.types import DType
from lynx.passes.decompose_build import Number, choose
from lynx.passes.rewrite import NoMatch, Rewritten, Rule

from .propagate import Layouts

Pool = MaxPool | MaxPoolBackward | AveragePool | AveragePoolBackward
Sliding = Convolution | ConvolutionBackwardInput | ConvolutionBackwardWeight | Pool
SLIDING = (
    Convolution, ConvolutionBackwardInput, ConvolutionBackwardWeight,
    MaxPool, MaxPoolBackward, AveragePool, AveragePoolBackward,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Halo:
    """How windows along dimension `dim` of the input become those of `pieces` pieces.

    Each has `length` rows of its own and makes `windows` ones of the result. It needs `before` rows
    of the piece before, and `after` of the next: where that is negative, so many of its own are in
    no window. `fill` takes the place of rows that are not there.
    """

    dim: int
    pieces: int
    length: int
    windows: int
    before: int
    after: int
    fill: float = 0.0

    @property
    def reach(self) -> int:
        """How many rows a piece has with its halo."""
        return self.before + self.length + self.after


@dataclass(frozen=True, slots=True)
class _Window:
    """How a window slides along one dimension."""

    kernel: int
    stride: int
    padding: int
    end_padding: int
    dilation: int


def halo_of(op: Op, layouts: Layouts) -> Halo | None:
    """Return how an op can run on pieces along a dimension that is cut; None if it had better not.

    Pieces must be equal, begin with a window each, and be longer than their halos together.
    """
    if not isinstance(op, SLIDING):
        return None
    x, made = op.x, _made(op)
    if not (is_static(x.shape) and is_static(made.shape)) or 0 in (*x.shape, *made.shape):
        return None
    for place in range(_planes_of(op)):
        dim = x.tensor_type.rank - _planes_of(op) + place
        window = _window(op, place)
        if window is None or window == _Window(1, 1, 0, 0, 1):
            continue
        for value in (made, x) if isinstance(op, _BACKWARD) else (x,):
            found = _along(dim, window, int(x.shape[dim]), int(made.shape[dim]), value, layouts)
            if found is not None and not (found.reach == found.length and _can_tile(op)):
                fill = -math.inf if isinstance(op, MaxPool | MaxPoolBackward) else 0.0
                return dataclasses.replace(found, fill=fill)
    return None


def _along(
    dim: int, window: _Window, rows: int, windows: int, value: Value, layouts: Layouts
) -> Halo | None:
    sharding = layouts.of(value)
    if sharding is None:
        return None
    split = sharding.splits[dim]
    pieces = layouts.mesh.size(*split.axes)
    if pieces < 2 or rows % pieces or windows % pieces:
        return None
    length, count = rows // pieces, windows // pieces
    if length != count * window.stride or not are_pieces(
        int(value.shape[dim]), int(value.shape[dim]) // pieces, split, layouts.mesh
    ):
        return None
    before = window.padding
    after = window.dilation * (window.kernel - 1) + 1 - window.padding - window.stride
    if before < 0 or before + max(after, 0) >= length or after > window.end_padding:
        return None
    return Halo(dim, pieces, length, count, before, after)


_BACKWARD = (
    ConvolutionBackwardInput, ConvolutionBackwardWeight, MaxPoolBackward, AveragePoolBackward
)  # fmt: skip


def _made(op: Sliding) -> Value:
    """Return the value, or the gradient of it, that has an element for each window."""
    return op.grad if isinstance(op, _BACKWARD) else op.results[0]


def _can_tile(op: Sliding) -> bool:
    """Whether the rule of an op itself lets windows be cut that lie side by side."""
    if isinstance(op, AveragePoolBackward):
        return op.tiles_planes()
    return not isinstance(op, MaxPool | MaxPoolBackward) and not any(op.padding)


def _planes_of(op: Sliding) -> int:
    if isinstance(op, Pool):
        return len(op.kernel)
    return op.x.tensor_type.rank - 2


def _window(op: Sliding, place: int) -> _Window | None:
    """Return the window along one spatial dimension; None if pieces cannot have such ones."""
    if isinstance(op, Pool):
        padding = op.padding[place] if op.padding else 0
        stride = op.stride[place] if op.stride else op.kernel[place]
        dilation = 1
        if isinstance(op, MaxPool | MaxPoolBackward):
            dilation = op.dilation[place] if op.dilation else 1
            if not op.x.tensor_type.dtype.is_floating:
                return None
        elif padding and not op.counts_padding and op.divisor is None:
            return None  # at the ends windows count fewer elements
        if op.ceil_mode:
            return None
        return _Window(op.kernel[place], stride, padding, padding, dilation)
    geometry = Geometry.of(op)
    sizes = (
        op.weight.shape[2 + place], geometry.stride[place], geometry.padding[place],
        geometry.end_padding[place], geometry.dilation[place],
    )  # fmt: skip
    if geometry.transposed or not is_static(sizes):
        return None
    return _Window(*map(int, sizes))


# pieces as images, and back


def _apart(x: Value, dim: int, pieces: int) -> Value:
    """Return `[.., pieces, rows of a piece, ..]`."""
    shape = x.shape
    rows = int(shape[dim]) // pieces
    return Reshape(x, (*shape[:dim], pieces, rows, *shape[dim + 1 :])).out


def _as_images(x: Value, dim: int) -> Value:
    """Merge pieces, which dimension `dim` counts, with the first dimension."""
    rank = x.tensor_type.rank
    order = (dim, *(n for n in range(rank) if n != dim))
    moved = Permute(x, order).out
    first, second, *rest = moved.shape
    return Reshape(moved, (int(first) * int(second), *rest)).out


def _of_images(x: Value, halo: Halo) -> Value:
    """Return `[.., pieces, rows of an image, ..]`, the inverse."""
    first, *rest = x.shape
    split = Reshape(x, (halo.pieces, int(first) // halo.pieces, *rest)).out
    order = (*range(1, halo.dim + 1), 0, *range(halo.dim + 1, split.tensor_type.rank))
    return Permute(split, order).out


def _joined(x: Value, dim: int) -> Value:
    shape = x.shape
    rows = int(shape[dim]) * int(shape[dim + 1])
    return Reshape(x, (*shape[:dim], rows, *shape[dim + 2 :])).out


def _filled(like: Value, dim: int, size: int, fill: float) -> Value:
    type_ = like.tensor_type
    shape: tuple[Dim, ...] = (*type_.shape[:dim], size, *type_.shape[dim + 1 :])
    return Full(fill, shape, type_.dtype, type_.device).out


def _shifted(x: Value, dim: int, pieces: int, by: int, fill: float) -> Value:
    """Return for each piece what its neighbour has: the one before (1), or the next one (-1)."""
    nothing = _filled(x, dim, 1, fill)
    if by > 0:
        return Concatenate((nothing, Slice(x, dim, 0, pieces - 1).out), dim).out
    return Concatenate((Slice(x, dim, 1, pieces).out, nothing), dim).out


def with_halo(x: Value, halo: Halo) -> Value:
    """Return the pieces of an input with their halos, as images."""
    whole = _apart(x, halo.dim, halo.pieces)
    rows = halo.dim + 1
    parts: list[Value] = []
    if halo.before:
        last = Slice(whole, rows, halo.length - halo.before, halo.length).out
        parts.append(_shifted(last, halo.dim, halo.pieces, 1, halo.fill))
    parts.append(whole if halo.after >= 0 else Slice(whole, rows, 0, halo.length + halo.after).out)
    if halo.after > 0:
        first = Slice(whole, rows, 0, halo.after).out
        parts.append(_shifted(first, halo.dim, halo.pieces, -1, halo.fill))
    together = parts[0] if len(parts) == 1 else Concatenate(tuple(parts), rows).out
    return _as_images(together, halo.dim)


def without_halo(x: Value, halo: Halo) -> Value:
    """Return what images make of their windows, put together."""
    return _joined(_of_images(x, halo), halo.dim)


def folded(x: Value, halo: Halo) -> Value:
    """Return the sums over all images that have a row: the gradient of `with_halo`."""
    images = _of_images(x, halo)
    dim, rows, length = halo.dim, halo.dim + 1, halo.length
    own = Slice(images, rows, halo.before, halo.before + length + min(halo.after, 0)).out
    if halo.after < 0:
        own = Concatenate((own, _filled(own, rows, -halo.after, 0.0)), rows).out
    total = Number(own)
    if halo.after > 0:
        tail = Slice(images, rows, halo.reach - halo.after, halo.reach).out
        mine = _shifted(tail, dim, halo.pieces, 1, 0.0)
        rest = _filled(mine, rows, length - halo.after, 0.0)
        total = total + Number(Concatenate((mine, rest), rows).out)
    if halo.before:
        head = Slice(images, rows, 0, halo.before).out
        mine = _shifted(head, dim, halo.pieces, -1, 0.0)
        rest = _filled(mine, rows, length - halo.before, 0.0)
        total = total + Number(Concatenate((rest, mine), rows).out)
    return _joined(total.value, dim)


def _images_of(made: Value, halo: Halo) -> Value:
    """Return the pieces of a result, or of its gradient, as images."""
    return _as_images(_apart(made, halo.dim, halo.pieces), halo.dim)


def _blank(op: Sliding, halo: Halo) -> Value:
    """Return something of the type that images have, where only that matters."""
    type_, dim = op.x.tensor_type, halo.dim
    shape = (int(type_.shape[0]) * halo.pieces, *type_.shape[1:dim], halo.reach,
             *type_.shape[dim + 1 :])  # fmt: skip
    return Full(0.0, shape, type_.dtype, type_.device).out


def _unpadded(sizes: tuple[Dim, ...], count: int, place: int) -> tuple[Dim, ...]:
    """Return padding without that of one dimension."""
    given = list(sizes or (0,) * count)
    given[place] = 0
    return tuple(given)


# ops on images


def on_pieces(op: Sliding, halo: Halo) -> Rewritten:
    """Return the results of an op as those of pieces, see the module."""
    count = _planes_of(op)
    place = halo.dim - (op.x.tensor_type.rank - count)
    if isinstance(op, Convolution):
        geometry = Geometry.of(op)
        made = dataclasses.replace(
            op, x=with_halo(op.x, halo), padding=_unpadded(geometry.padding, count, place),
            end_padding=_unpadded(geometry.end_padding, count, place),
        )  # fmt: skip
        return without_halo(made.results[0], halo)
    padding = _unpadded(op.padding, count, place)
    if isinstance(op, ConvolutionBackwardInput):
        grad = _images_of(op.grad, halo)
        part = dataclasses.replace(op, grad=grad, x=_blank(op, halo), padding=padding)
        return folded(part.results[0], halo)
    if isinstance(op, ConvolutionBackwardWeight):
        grad = _images_of(op.grad, halo)
        return dataclasses.replace(op, grad=grad, x=with_halo(op.x, halo), padding=padding).results
    return _pooled(op, halo, tuple(map(int, padding)))


def _pooled(op: Pool, halo: Halo, padding: tuple[int, ...]) -> Rewritten:
    match op:
        case AveragePool():
            part = dataclasses.replace(op, x=with_halo(op.x, halo), padding=padding)
            return without_halo(part.results[0], halo)
        case AveragePoolBackward():
            grad = _images_of(op.grad, halo)
            back = dataclasses.replace(op, grad=grad, x=_blank(op, halo), padding=padding)
            return folded(back.results[0], halo)
        case MaxPool():
            found = dataclasses.replace(op, x=with_halo(op.x, halo), padding=padding)
            values, places = found.results
            return without_halo(values, halo), _places_in_all(op, places, halo)
        case MaxPoolBackward():
            grad, places = _images_of(op.grad, halo), _places_in_images(op, halo)
            added = dataclasses.replace(
                op, grad=grad, x=_blank(op, halo), places=places, padding=padding
            )
            return folded(added.results[0], halo)


def _places_in_all(op: MaxPool, places: Value, halo: Halo) -> Value:
    """Count places in images as places in the plane.

    Of windows in which all is less than any number it is the first row: of those that are there.
    """
    whole = _of_images(places, halo)
    outer, row, inner = _taken_apart(op, whole, halo, halo.reach)
    row = row + _first_rows(whole, halo)
    dilation = op.dilation[halo.dim - op.x.tensor_type.rank] if op.dilation else 1
    row = choose(row < 0, Number(Remainder(row.value, dilation).out), row)
    return _joined(_put_together(op, outer, row, inner, halo, halo.pieces * halo.length), halo.dim)


def _places_in_images(op: MaxPoolBackward, halo: Halo) -> Value:
    """Count places in the plane as places in images, of which they are in any case."""
    whole = _apart(op.places, halo.dim, halo.pieces)
    outer, row, inner = _taken_apart(op, whole, halo, halo.pieces * halo.length)
    rows = (row - _first_rows(whole, halo)).clamped(0, halo.reach - 1)
    return _as_images(_put_together(op, outer, rows, inner, halo, halo.reach), halo.dim)


def _inner(op: MaxPool | MaxPoolBackward, halo: Halo) -> int:
    return math.prod(int(size) for size in op.x.shape[halo.dim + 1 :])


def _taken_apart(
    op: MaxPool | MaxPoolBackward, places: Value, halo: Halo, rows: int
) -> tuple[Number, Number, Number]:
    """Return what of places lies outside of the rows, the row, and what lies within it."""
    inner = _inner(op, halo)
    row = Remainder(DivideRounded(places, inner).out, rows).out
    return (
        Number(DivideRounded(places, inner * rows).out), Number(row),
        Number(Remainder(places, inner).out),
    )  # fmt: skip


def _put_together(
    op: MaxPool | MaxPoolBackward, outer: Number, row: Number, inner: Number, halo: Halo, rows: int
) -> Value:
    return ((outer * rows + row) * _inner(op, halo) + inner).value


def _first_rows(whole: Value, halo: Halo) -> Number:
    """Return the row of the input that each image begins with."""
    device, rank = whole.tensor_type.device, whole.tensor_type.rank
    numbers = Iota(-halo.before, halo.length, halo.pieces, DType.I64, device).out
    shape = tuple(halo.pieces if dim == halo.dim else 1 for dim in range(rank))
    return Number(Reshape(numbers, shape).out)


def rules_for(halos: Mapping[Hashable, Halo], key: Callable[[Op], Hashable]) -> tuple[Rule, ...]:
    """Return the rule that lets ops run on pieces with halos, as `halos` says."""

    def exchange_borders(op: Sliding) -> Rewritten:
        halo = halos.get(key(op))
        return NoMatch("its windows stay together") if halo is None else on_pieces(op, halo)

    return (Rule("exchange_borders", SLIDING, exchange_borders),)
