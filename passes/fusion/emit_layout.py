"""What ops compute that rearrange a tensor, take parts of it, or read where indices say."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from lynx.ir.core import Value
from lynx.ir.dims import Dim, is_equal, remainder, simplify
from lynx.ir.kernel import Index, KernelBuilder, Scalar, Term
from lynx.ir.ops import indexing, layout
from lynx.ir.ops import layout_slicing as slicing
from lynx.ir.types import DType

from .coordinates import ZERO, Coordinates, position_of, scaled, shifted, total
from .emit import Emission, Emitter, Want, emits
from .emit_elementwise import aligned, number
from .relations import related


@emits(layout.Reshape)
def _reshape(emitter: Emitter, op: layout.Reshape, want: Want) -> Emission:
    """Count the elements along each run of dimensions, and find the place of that number."""
    found = [ZERO] * len(op.x.shape)
    for given, made in related(op, op.x):
        sizes = [op.shape[n] for n in made]
        coordinates = tuple(want.at[n] for n in made)
        flat = position_of(coordinates, _row_major(sizes))
        taken = emitter.splitter.delinearized(flat, [op.x.shape[n] for n in given])
        for n, coordinate in zip(given, taken, strict=True):
            found[n] = coordinate
    x = yield Want(op.x, tuple(found), want.mask)
    return (x,)


def _row_major(sizes: list[Dim]) -> list[Dim]:
    strides: list[Dim] = []
    stride: Dim = 1
    for size in reversed(sizes):
        strides.append(stride)
        stride = simplify(stride * size)
    return strides[::-1]


@emits(layout.Permute)
def _permute(emitter: Emitter, op: layout.Permute, want: Want) -> Emission:
    del emitter
    at = [ZERO] * len(op.dims)
    for coordinate, dim in zip(want.at, op.dims, strict=True):
        at[dim] = coordinate
    x = yield Want(op.x, tuple(at), want.mask)
    return (x,)


@emits(layout.Broadcast)
def _broadcast(emitter: Emitter, op: layout.Broadcast, want: Want) -> Emission:
    del emitter
    x = yield Want(op.x, aligned(want.at, op.x), want.mask)
    return (x,)


@emits(layout.Unsqueeze)
def _unsqueeze(emitter: Emitter, op: layout.Unsqueeze, want: Want) -> Emission:
    del emitter
    x = yield Want(op.x, (*want.at[: op.dim], *want.at[op.dim + 1 :]), want.mask)
    return (x,)


@emits(layout.Squeeze)
def _squeeze(emitter: Emitter, op: layout.Squeeze, want: Want) -> Emission:
    del emitter
    rest = iter(want.at)
    at = tuple(ZERO if n in op.dims else next(rest) for n in range(len(op.x.shape)))
    x = yield Want(op.x, at, want.mask)
    return (x,)


@emits(slicing.Slice)
def _slice(emitter: Emitter, op: slicing.Slice, want: Want) -> Emission:
    del emitter
    moved = shifted(scaled(want.at[op.dim], op.step), op.start)
    x = yield Want(op.x, replaced(want.at, op.dim, moved), want.mask)
    return (x,)


def replaced(at: Coordinates, dim: int, coordinate: Index) -> Coordinates:
    """Return coordinates with another one along a dimension."""
    return (*at[:dim], coordinate, *at[dim + 1 :])


@emits(slicing.Select)
def _select(emitter: Emitter, op: slicing.Select, want: Want) -> Emission:
    del emitter
    at = (*want.at[: op.dim], Index((), op.index), *want.at[op.dim :])
    x = yield Want(op.x, at, want.mask)
    return (x,)


@emits(slicing.Flip)
def _flip(emitter: Emitter, op: slicing.Flip, want: Want) -> Emission:
    del emitter
    at = tuple(
        shifted(scaled(c, -1), op.x.shape[n] - 1) if n in op.dims else c
        for n, c in enumerate(want.at)
    )
    x = yield Want(op.x, at, want.mask)
    return (x,)


@emits(slicing.Roll)
def _roll(emitter: Emitter, op: slicing.Roll, want: Want) -> Emission:
    """Read the first ones from the end, the others from so far before."""
    builder = emitter.builder
    at = list(want.at)
    for dim, shift in zip(op.dims, op.shifts, strict=True):
        size = op.x.shape[dim]
        first = remainder(shift, size) if size != 0 else 0
        if is_equal(size, 1) or is_equal(first, 0):
            continue
        here, limit = builder.position(at[dim]), builder.constant(first, DType.I64)
        is_first = builder.apply("lt", here, limit, dtype=DType.BOOL)
        end = builder.position(shifted(at[dim], simplify(size - first)))
        before = builder.position(shifted(at[dim], simplify(-first)))
        place = builder.apply("where", is_first, end, before, dtype=DType.I64)
        at[dim] = Index((Term(place),))
    x = yield Want(op.x, tuple(at), want.mask)
    return (x,)


@emits(slicing.Diagonal)
def _diagonal(emitter: Emitter, op: slicing.Diagonal, want: Want) -> Emission:
    del emitter
    along = want.at[-1]
    first = shifted(along, max(-op.offset, 0))
    second = shifted(along, max(op.offset, 0))
    rest = iter(want.at[:-1])
    at = []
    for n in range(len(op.x.shape)):
        at.append(first if n == op.dim1 else second if n == op.dim2 else next(rest))
    x = yield Want(op.x, tuple(at), want.mask)
    return (x,)


@emits(slicing.Unfold)
def _unfold(emitter: Emitter, op: slicing.Unfold, want: Want) -> Emission:
    del emitter
    place = total((scaled(want.at[op.dim], op.step), want.at[-1]))
    x = yield Want(op.x, replaced(want.at[:-1], op.dim, place), want.mask)
    return (x,)


@emits(slicing.LowerTriangle, slicing.UpperTriangle)
def _triangle(emitter: Emitter, op: Any, want: Want) -> Emission:
    builder = emitter.builder
    dtype = op.x.tensor_type.dtype
    row, column = want.at[-2:]
    difference = builder.position(total((column, scaled(row, -1))))
    limit = builder.constant(op.diagonal, DType.I64)
    name = "le" if isinstance(op, slicing.LowerTriangle) else "ge"
    inside = builder.apply(name, difference, limit, dtype=DType.BOOL)
    x = yield Want(op.x, want.at, want.mask)
    zero = builder.constant(0, dtype)
    return (builder.apply("where", inside, x, zero, dtype=dtype),)


@emits(slicing.Concatenate)
def _concatenate(emitter: Emitter, op: slicing.Concatenate, want: Want) -> Emission:
    """Choose among the parts; each is read only where it is the chosen one."""
    builder = emitter.builder
    dtype = op.out.tensor_type.dtype
    here = want.at[op.dim]
    chosen: Scalar | None = None
    start: Dim = 0
    for part in op.parts:
        if part.tensor_type.rank == 1 and is_equal(part.shape[0], 0):
            continue  # torch lets an empty vector go with anything
        end = simplify(start + part.shape[op.dim])
        inside = _between(builder, here, start, end, op.out.shape[op.dim], want.mask)
        at = replaced(want.at, op.dim, shifted(here, -start))
        x = yield Want(part, at, inside)
        x = builder.convert(x, dtype)
        if chosen is None or inside is None:
            chosen = x
        else:
            chosen = builder.apply("where", inside, x, chosen, dtype=dtype)
        start = end
    return (chosen if chosen is not None else builder.constant(0, dtype),)


def _between(
    builder: KernelBuilder, place: Index, low: Dim, high: Dim, size: Dim, mask: Scalar | None
) -> Scalar | None:
    """Return whether `low <= place < high` and `mask`; None if that is always so."""
    conditions = [] if mask is None else [mask]
    if not is_equal(low, 0):
        position = builder.position(place)
        limit = builder.constant(low, DType.I64)
        conditions.append(builder.apply("ge", position, limit, dtype=DType.BOOL))
    if not is_equal(high, size):
        position = builder.position(place)
        limit = builder.constant(high, DType.I64)
        conditions.append(builder.apply("lt", position, limit, dtype=DType.BOOL))
    return all_of(builder, conditions)


def all_of(builder: KernelBuilder, conditions: list[Scalar]) -> Scalar | None:
    """Return whether all conditions hold; None if there is none."""
    result: Scalar | None = None
    for condition in conditions:
        if result is None:
            result = condition
        else:
            result = builder.apply("and", result, condition, dtype=DType.BOOL)
    return result


@emits(slicing.Pad)
def _pad(emitter: Emitter, op: slicing.Pad, want: Want) -> Emission:
    builder = emitter.builder
    dtype = op.x.tensor_type.dtype
    conditions = [] if want.mask is None else [want.mask]
    at = []
    for n, (low, high) in enumerate(zip(op.low, op.high, strict=True)):
        inside = _inside(builder, want.at[n], low, high, op.x.shape[n])
        conditions += inside
        at.append(shifted(want.at[n], -low))
    mask = all_of(builder, conditions)
    x = yield Want(op.x, tuple(at), mask)
    if mask is None or mask is want.mask:
        return (x,)
    fill = op.value
    if isinstance(fill, Value):
        expression = getattr(fill.type, "expr", None)
        assert expression is not None, fill
        fill = expression
    other = number(builder, fill, dtype, dtype)
    return (builder.apply("where", mask, x, other, dtype=dtype),)


def _inside(builder: KernelBuilder, place: Index, low: Dim, high: Dim, size: Dim) -> list[Scalar]:
    """Return the conditions under which a place in the padded tensor is one of the operand."""
    conditions = []
    position = builder.position(shifted(place, -low))
    if not (isinstance(low, int) and low <= 0):
        zero = builder.constant(0, DType.I64)
        conditions.append(builder.apply("ge", position, zero, dtype=DType.BOOL))
    if not (isinstance(high, int) and high <= 0):
        limit = builder.constant(size, DType.I64)
        conditions.append(builder.apply("lt", position, limit, dtype=DType.BOOL))
    return conditions


@emits(slicing.SliceScatter)
def _slice_scatter(emitter: Emitter, op: slicing.SliceScatter, want: Want) -> Emission:
    """Read the source within the slice, and `x` elsewhere."""
    builder = emitter.builder
    dtype = op.out.tensor_type.dtype
    here = builder.position(shifted(want.at[op.dim], -op.start))
    zero, last = builder.constant(0, DType.I64), builder.constant(op.stop - op.start, DType.I64)
    conditions = [
        builder.apply("ge", here, zero, dtype=DType.BOOL),
        builder.apply("lt", here, last, dtype=DType.BOOL),
    ]
    steps = not is_equal(op.step, 1)
    if steps:
        step = builder.constant(op.step, DType.I64)
        rest = builder.apply("remainder", here, step, dtype=DType.I64)
        conditions.append(builder.apply("eq", rest, zero, dtype=DType.BOOL))
    inside = all_of(builder, conditions)
    assert inside is not None
    place = shifted(want.at[op.dim], -op.start)
    if steps:
        safe = builder.apply("where", inside, here, zero, dtype=DType.I64)
        place = Index((Term(safe, 1, op.step),))
    mask = inside if want.mask is None else all_of(builder, [want.mask, inside])
    source = yield Want(op.source, replaced(want.at, op.dim, place), mask)
    x = yield Want(op.x, want.at, want.mask)
    return (builder.apply("where", inside, builder.convert(source, dtype), x, dtype=dtype),)


def looked_up(
    emitter: Emitter, want: Want, index: Value, at: Coordinates, size: Dim, *, wraps: bool
) -> Generator[Want, Scalar, Index]:
    """Return the coordinate that an element of an index tensor names, checked against the size.

    With `wraps` negative indices count from the end.
    """
    place, _ = yield from checked_place(emitter, want.mask, index, at, size, wraps=wraps)
    return place


def checked_place(
    emitter: Emitter, mask: Scalar | None, index: Value, at: Coordinates, size: Dim, *, wraps: bool
) -> Generator[Want, Scalar, tuple[Index, Scalar]]:
    """Return the coordinate that an element of an index tensor names, and whether it is valid.

    Where it is not, and `mask` holds, the kernel fails; the coordinate is 0 then.
    """
    builder = emitter.builder
    raw = yield Want(index, at, mask)
    place = builder.convert(raw, DType.I64)
    zero, end = builder.constant(0, DType.I64), builder.constant(size, DType.I64)
    if wraps:
        negative = builder.apply("lt", place, zero, dtype=DType.BOOL)
        wrapped = builder.apply("add", place, end, dtype=DType.I64)
        place = builder.apply("where", negative, wrapped, place, dtype=DType.I64)
    low = builder.apply("ge", place, zero, dtype=DType.BOOL)
    high = builder.apply("lt", place, end, dtype=DType.BOOL)
    valid = builder.apply("and", low, high, dtype=DType.BOOL)
    checked = valid
    if mask is not None:
        unneeded = builder.apply("not", mask, dtype=DType.BOOL)
        checked = builder.apply("or", valid, unneeded, dtype=DType.BOOL)
    builder.check(checked, "index out of range in self")
    safe = builder.apply("where", valid, place, zero, dtype=DType.I64)
    return Index((Term(safe),)), valid


def _nonempty(size: Dim) -> bool:
    """Whether a dimension that is indexed is sure to have an element to fall back to."""
    return not (isinstance(size, int) and size == 0)


def _refuse_empty(op: Any) -> str:
    value = op.weight if isinstance(op, indexing.Embedding) else op.x
    return "" if all(map(_nonempty, value.shape)) else "looks up in an empty tensor"


@emits(indexing.Embedding, unless=_refuse_empty)
def _embedding(emitter: Emitter, op: indexing.Embedding, want: Want) -> Emission:
    at, rows = want.at[:-1], op.weight.shape[0]
    place = yield from looked_up(emitter, want, op.indices, at, rows, wraps=False)
    x = yield Want(op.weight, (place, want.at[-1]), want.mask)
    return (x,)


@emits(indexing.IndexSelect, unless=_refuse_empty)
def _index_select(emitter: Emitter, op: indexing.IndexSelect, want: Want) -> Emission:
    if not op.x.shape:
        x = yield Want(op.x, (), want.mask)
        return (x,)
    dim = op.dim % len(op.x.shape)
    at = (want.at[dim],) if op.index.shape else ()
    place = yield from looked_up(emitter, want, op.index, at, op.x.shape[dim], wraps=False)
    x = yield Want(op.x, replaced(want.at, dim, place), want.mask)
    return (x,)


@emits(indexing.Gather, unless=_refuse_empty)
def _gather(emitter: Emitter, op: indexing.Gather, want: Want) -> Emission:
    if not op.x.shape:
        x = yield Want(op.x, (), want.mask)
        return (x,)
    dim = op.dim % len(op.x.shape)
    at = tuple(
        ZERO if isinstance(size, int) and size == 1 else c
        for c, size in zip(want.at, op.index.shape, strict=True)
    )
    place = yield from looked_up(emitter, want, op.index, at, op.x.shape[dim], wraps=False)
    x = yield Want(op.x, replaced(want.at, dim, place), want.mask)
    return (x,)


def _refuse_index(op: indexing.Index) -> str:
    for index in op.indices:
        if index is not None and index.tensor_type.dtype in (DType.BOOL, DType.U8):
            return "indexes by a mask"
    return _refuse_empty(op)


@emits(indexing.Index, unless=_refuse_index)
def _index(emitter: Emitter, op: indexing.Index, want: Want) -> Emission:
    """Take the broadcast dimensions for the indices, the others for the kept dimensions."""
    given = [n for n, index in enumerate(op.indices) if index is not None]
    tensors = [index for index in op.indices if index is not None]
    rank = max((len(index.shape) for index in tensors), default=0)
    adjacent = given == list(range(given[0], given[0] + len(given))) if given else True
    first = given[0] if given and adjacent else 0
    inner = want.at[first : first + rank]
    rest = iter((*want.at[:first], *want.at[first + rank :]))
    at = []
    for n, size in enumerate(op.x.shape):
        index = op.indices[n] if n < len(op.indices) else None
        if index is None:
            at.append(next(rest))
            continue
        own = aligned(inner, index)
        place = yield from looked_up(emitter, want, index, own, size, wraps=True)
        at.append(place)
    x = yield Want(op.x, tuple(at), want.mask)
    return (x,)
