"""Ops that write parts of a tensor: over which space they run, and along what their operands.

The result of such an op is another tensor than the one that it writes into, for all that the graph
knows. Its kernel runs over the written part alone if the result takes that tensor's place, and
copies it first otherwise. So what such an op gives is complete only when its kernel is.

A write into a part of a tensor that is put back is one write into the tensor:

    %1 = select %x {dim = 0, index = 1}
    %2 = index_copy %1, %i, %v {dim = 2}
    %3 = unsqueeze %2 {dim = 0}
    %4 = slice_scatter %x, %3 {dim = 0, start = 1, stop = 2, in_place = true}

Apart from what `%2` writes, `%4` puts elements of `%x` where they are already. So it is enough to
write what `%2` does, at the place that `%4` gives it: `%4` *carries* `%2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .core import Op, Value
from .dims import Dim, is_equal, simplify
from .ops.indexing import EmbeddingBackward
from .ops.layout import Permute, Reshape, Squeeze, Unsqueeze
from .ops.layout_slicing import Select, Slice, SliceScatter
from .ops.scatter import (
    IndexAdd,
    IndexCopy,
    IndexFill,
    IndexPut,
    Scatter,
    ScatterAdd,
    ScatterReduce,
)

_KINDS = (
    EmbeddingBackward,
    IndexAdd,
    IndexCopy,
    IndexFill,
    IndexPut,
    Scatter,
    ScatterAdd,
    ScatterReduce,
)

_Pairs: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

_Place: TypeAlias = tuple[object, Dim, Dim]
"""A coordinate: what it is a multiple of (None for nothing), the factor, and what is added."""

_CARRIERS = (Permute, Reshape, Squeeze, Unsqueeze)


def is_write(op: Op | None) -> bool:
    """Whether an op writes a part of a tensor, and nothing is computed for the rest."""
    return isinstance(op, _KINDS) or (isinstance(op, SliceScatter) and op.in_place)


def written_into(op: Op) -> Value | None:
    """Return the tensor that an op writes into; None if it begins with zeros."""
    return None if isinstance(op, EmbeddingBackward) else op.operands[0]


def storage_of(value: Value) -> Value:
    """Return the value in whose memory a view lies."""
    while value.op is not None and value.op.is_view:
        value = value.op.operands[0]
    return value


def reads_part_of(op: Op, reader: Op | None) -> bool:
    """Whether a view is exactly the part of a tensor that a write replaces."""
    if not isinstance(op, SliceScatter) or not isinstance(reader, Select | Slice):
        return False
    if reader.x is not op.x:
        return False
    if isinstance(reader, Slice):
        read = (reader.dim, reader.start, reader.stop, reader.step)
    else:
        read = (reader.dim, reader.index, reader.index + 1, 1)
    return all(map(is_equal, read, (op.dim, op.start, op.stop, op.step)))


def written_shape(op: Op) -> tuple[Dim, ...]:
    """Return the shape of what is written: one number, or index, for each point."""
    inner = carried(op)
    while inner is not None:
        op, inner = inner, carried(inner)
    match op:
        case EmbeddingBackward():
            return op.grad.shape
        case IndexAdd() | IndexCopy() | SliceScatter():
            return op.source.shape
        case IndexFill():
            axis = _axis(op)
            return (*op.x.shape[:axis], op.index.tensor_type.numel, *op.x.shape[axis + 1 :])
        case IndexPut():
            return _put_shape(op)
        case Scatter() | ScatterAdd() | ScatterReduce():
            return op.index.shape
    raise AssertionError(op)


def may_collide(op: Op) -> bool:
    """Whether an op may write one place several times, so that it does so in order."""
    match op:
        case SliceScatter():
            inner = carried(op)
            return inner is not None and may_collide(inner)
        case EmbeddingBackward():
            return not _is_single(op.indices.shape)
        case IndexPut():
            return not _is_single(indices_shape(op))
        case IndexAdd() | IndexCopy() | IndexFill():
            return not _is_single(op.index.shape)
        case Scatter() | ScatterAdd() | ScatterReduce():
            return not is_equal(op.index.shape[_axis(op)], 1)
    raise AssertionError(op)


def is_adding(op: Op) -> bool:
    """Whether a write adds to what is there."""
    while (inner := carried(op)) is not None:
        op = inner
    if isinstance(op, IndexPut):
        return op.accumulate
    return isinstance(op, EmbeddingBackward | IndexAdd | ScatterAdd | ScatterReduce)


def write_pairs(op: Op, operand: Value) -> _Pairs:
    """Return which dimensions of an operand run along which of what is written."""
    if operand is written_into(op) or carried(op) is not None:
        return ()
    shape = written_shape(op)
    match op:
        case EmbeddingBackward():
            return _equal(operand.shape, range(len(operand.shape)), shape)
        case IndexAdd() | IndexCopy() | IndexFill() if operand is op.index:
            return _equal(operand.shape, (_axis(op),), shape)
        case IndexPut() if operand is not op.values:
            first, rank = index_place(op), len(indices_shape(op))
            last = first + rank
            return _equal(operand.shape, range(last - len(operand.shape), last), shape)
    first = len(shape) - len(operand.shape)
    return _equal(operand.shape, range(first, len(shape)), shape)


def _equal(operand: Sequence[Dim], places: Sequence[int], shape: Sequence[Dim]) -> _Pairs:
    """Pair dimensions with those at these places, unless they are read in part, or repeated."""
    return tuple(
        ((n,), (place,))
        for n, (size, place) in enumerate(zip(operand, places, strict=False))
        if not is_equal(size, 1) and is_equal(size, shape[place])
    )


def indices_shape(op: IndexPut) -> tuple[Dim, ...]:
    """Return the shape to which the indices are broadcast."""
    given = [index.shape for index in op.indices if index is not None]
    rank = max(len(shape) for shape in given)
    padded = [(1,) * (rank - len(shape)) + shape for shape in given]
    return tuple(
        next((size for size in sizes if not is_equal(size, 1)), 1)
        for sizes in zip(*padded, strict=True)
    )


def index_place(op: IndexPut) -> int:
    """Return how many dimensions of what is written come before those of the indices."""
    given = [n for n, index in enumerate(op.indices) if index is not None]
    return given[0] if given[-1] - given[0] + 1 == len(given) else 0


def _put_shape(op: IndexPut) -> tuple[Dim, ...]:
    given = len(op.indices)
    sizes = [size for n, size in enumerate(op.x.shape) if n >= given or op.indices[n] is None]
    place = index_place(op)
    return (*sizes[:place], *indices_shape(op), *sizes[place:])


def _axis(op: IndexAdd | IndexCopy | IndexFill | Scatter | ScatterAdd | ScatterReduce) -> int:
    return op.dim % max(1, len(op.x.shape))


def _is_single(shape: Sequence[Dim]) -> bool:
    return all(is_equal(size, 1) for size in shape)


def carried(op: Op) -> Op | None:
    """Return the write that is all that this one changes, None if there is none."""
    found = carried_by(op)
    if found is None or not is_write(op) or not is_write(found.inner):
        return None
    return found.inner


def is_within(op: Op, other: Op) -> bool:
    """Whether a write is what another one carries on, or what that one does, and so on."""
    inner = carried(other)
    while inner is not None and inner is not op:
        inner = carried(inner)
    return inner is op


@dataclass(frozen=True, slots=True)
class Carried:
    """An op whose writes another one carries on.

    `below` are the views that lead from its result to the source of the other op, `above` those
    that lead from the tensor which the other one writes into to the one that this writes into.
    """

    inner: Op
    below: tuple[Op, ...]
    above: tuple[Op, ...]


def carried_by(op: Op) -> Carried | None:
    """Return the op whose writes are all that this one changes.

    That op may also be a `slice_scatter` which is not, or not yet, to be done in place.
    """
    if not isinstance(op, SliceScatter):
        return None
    below: list[Op] = []
    value = op.source
    while value.op is not None and isinstance(value.op, _CARRIERS):
        below.insert(0, value.op)
        value = value.op.operands[0]
    inner = value.op
    if inner is None or not (is_write(inner) or isinstance(inner, SliceScatter)):
        return None
    into = written_into(inner)
    if into is None:
        return None
    above = _views_between(op.x, into)
    if above is None:
        return None
    own = _numbered(value)
    if _above(above, own) != _placed(op, _below(below, own)):
        return None
    return Carried(inner, tuple(below), tuple(above))


def _views_between(root: Value, value: Value) -> list[Op] | None:
    """Return the views that lead from one value to another; None if none do."""
    views: list[Op] = []
    while value is not root:
        if value.op is None or not isinstance(value.op, (*_CARRIERS, Select, Slice)):
            return None
        views.insert(0, value.op)
        value = value.op.operands[0]
    return views


def _numbered(value: Value) -> tuple[_Place, ...]:
    places = ((n, 1, 0) for n in range(len(value.shape)))
    return _normal(value, tuple(places))


def _normal(value: Value, places: tuple[_Place, ...]) -> tuple[_Place, ...]:
    """Return the coordinates with those that can only be 0 as such."""
    return tuple(
        (None, 0, 0) if is_equal(size, 1) else place
        for size, place in zip(value.shape, places, strict=True)
    )


def _above(views: list[Op], places: tuple[_Place, ...]) -> tuple[_Place, ...]:
    """Return the coordinates, where some views begin, of an element of the last."""
    for op in reversed(views):
        match op:
            case Slice():
                places = _moved(places, op.dim, op.start, op.step)
            case Select():
                places = (*places[: op.dim], (None, 0, op.index), *places[op.dim :])
            case Permute():
                inverse = [op.dims.index(dim) for dim in range(len(op.dims))]
                places = tuple(places[n] for n in inverse)
            case Unsqueeze():
                places = (*places[: op.dim], *places[op.dim + 1 :])
            case Squeeze():
                rest = iter(places)
                places = tuple(
                    (None, 0, 0) if n in op.dims else next(rest) for n in range(len(op.x.shape))
                )
            case Reshape():
                places = _reshaped(op.shape, op.x.shape, places)
        if not isinstance(op, Select | Slice):
            places = _normal(op.operands[0], places)
    return places


def _below(views: list[Op], places: tuple[_Place, ...]) -> tuple[_Place, ...]:
    """Return the coordinates in the last of some views of an element of the first operand."""
    for op in views:
        match op:
            case Permute():
                places = tuple(places[dim] for dim in op.dims)
            case Unsqueeze():
                places = (*places[: op.dim], (None, 0, 0), *places[op.dim :])
            case Squeeze():
                places = tuple(place for n, place in enumerate(places) if n not in op.dims)
            case Reshape():
                places = _reshaped(op.x.shape, op.shape, places)
        places = _normal(op.results[0], places)
    return places


def _reshaped(
    given: tuple[Dim, ...], made: tuple[Dim, ...], places: tuple[_Place, ...]
) -> tuple[_Place, ...]:
    """Return coordinates after a reshape: what they are is told apart, but not worked out."""
    return tuple((("reshape", given, made, places, n), 1, 0) for n in range(len(made)))


def _placed(op: SliceScatter, places: tuple[_Place, ...]) -> tuple[_Place, ...]:
    return _moved(places, op.dim, op.start, op.step)


def _moved(places: tuple[_Place, ...], dim: int, start: Dim, step: Dim) -> tuple[_Place, ...]:
    of, factor, offset = places[dim]
    moved = (of, simplify(factor * step), simplify(offset * step + start))
    return (*places[:dim], moved, *places[dim + 1 :])
