"""Which dimensions of an op's operands run together with which dimensions of its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, is_equal
from lynx.ir.ops.elementwise import Elementwise
from lynx.ir.ops.indexing import Embedding, Gather, Index, IndexSelect
from lynx.ir.ops.layout import Broadcast, Permute, Reshape, Squeeze, Unsqueeze
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
from lynx.ir.ops.reduction import Reduction
from lynx.ir.types import TensorType
from lynx.ir.writing import is_write, write_pairs, written_into

Pairs = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Pairs of dimensions of an operand and dimensions of the result that span the same elements in the
same order; dimensions of size 1 and those that are indexed in another way are in no pair."""

_O = TypeVar("_O", bound=Op)
_RULES: dict[type[Op], Callable[[Any, Value], Pairs]] = {}


def _relates(
    *kinds: type[_O],
) -> Callable[[Callable[[_O, Value], Pairs]], Callable[[_O, Value], Pairs]]:
    def register(rule: Callable[[_O, Value], Pairs]) -> Callable[[_O, Value], Pairs]:
        for kind in kinds:
            _RULES[kind] = rule
        return rule

    return register


def related(op: Op, operand: Value) -> Pairs:
    """Return the pairs for one tensor operand of an op."""
    if not isinstance(operand.type, TensorType):
        return ()
    if isinstance(op, Elementwise):
        return _broadcast_pairs(operand.shape, op.results[0].shape)
    if isinstance(op, Reduction):
        return _reduction_pairs(op)
    if is_write(op):
        return write_pairs(op, operand)
    rule = _RULES.get(type(op))
    return rule(op, operand) if rule is not None else ()


def moves(op: Op, operand: Value) -> bool:
    """Whether the op reads elements of the operand that lie at other places along some dimension.

    Then the operand's own loops, if it has any, are not those of the op.
    """
    if isinstance(op, Elementwise | Reduction) or type(op) in _KEEPS_PLACE:
        return False
    if is_write(op):
        return operand is written_into(op)
    if isinstance(op, Embedding | IndexSelect | Gather) and operand is _index_of(op):
        return False
    return not isinstance(op, Index) or operand is op.x


_KEEPS_PLACE = (Reshape, Permute, Broadcast, Squeeze, Unsqueeze, LowerTriangle, UpperTriangle)


def _index_of(op: Embedding | IndexSelect | Gather) -> Value:
    return op.indices if isinstance(op, Embedding) else op.index


def _is_one(dim: Dim) -> bool:
    return isinstance(dim, int) and dim == 1


def _broadcast_pairs(operand: tuple[Dim, ...], result: tuple[Dim, ...]) -> Pairs:
    first = len(result) - len(operand)
    return tuple(
        ((index,), (index + first,)) for index, dim in enumerate(operand) if not _is_one(dim)
    )


def _reduction_pairs(op: Reduction) -> Pairs:
    pairs = []
    position = 0
    for index, dim in enumerate(op.x.shape):
        if index not in op.dims:
            if not _is_one(dim):
                pairs.append(((index,), (position,)))
            position += 1
        elif op.keepdim:
            position += 1
    return tuple(pairs)


@_relates(LowerTriangle, UpperTriangle, Flip)
def _same(op: Op, operand: Value) -> Pairs:
    del op
    return tuple(((n,), (n,)) for n, dim in enumerate(operand.shape) if not _is_one(dim))


@_relates(Permute)
def _permute(op: Permute, operand: Value) -> Pairs:
    shape = operand.shape
    return tuple(((dim,), (n,)) for n, dim in enumerate(op.dims) if not _is_one(shape[dim]))


@_relates(Broadcast)
def _broadcast(op: Broadcast, operand: Value) -> Pairs:
    return _broadcast_pairs(operand.shape, op.shape)


@_relates(Unsqueeze)
def _unsqueeze(op: Unsqueeze, operand: Value) -> Pairs:
    places = [n for n in range(len(operand.shape) + 1) if n != op.dim]
    return _line_up(operand, places)


@_relates(Squeeze)
def _squeeze(op: Squeeze, operand: Value) -> Pairs:
    pairs = []
    position = 0
    for n, dim in enumerate(operand.shape):
        if n in op.dims:
            continue
        if not _is_one(dim):
            pairs.append(((n,), (position,)))
        position += 1
    return tuple(pairs)


def _line_up(operand: Value, places: list[int]) -> Pairs:
    pairs = zip(operand.shape, enumerate(places), strict=True)
    return tuple(((n,), (place,)) for dim, (n, place) in pairs if not _is_one(dim))


@_relates(Reshape)
def _reshape(op: Reshape, operand: Value) -> Pairs:
    """Cut both shapes into the shortest runs of dimensions with equal products."""
    given = [n for n, dim in enumerate(operand.shape) if not _is_one(dim)]
    wanted = [n for n, dim in enumerate(op.shape) if not _is_one(dim)]
    pairs = []
    a = b = 0
    while a < len(given) and b < len(wanted):
        left, right = [given[a]], [wanted[b]]
        size, other = operand.shape[given[a]], op.shape[wanted[b]]
        a, b = a + 1, b + 1
        while not is_equal(size, other):
            if b < len(wanted) and (a == len(given) or _is_less(other, size)):
                other = other * op.shape[wanted[b]]
                right.append(wanted[b])
                b += 1
            elif a < len(given):
                size = size * operand.shape[given[a]]
                left.append(given[a])
                a += 1
            else:
                break
        pairs.append((tuple(left), tuple(right)))
    return tuple(pairs)


def _is_less(a: Dim, b: Dim) -> bool:
    """Whether `a` looks smaller: an integer than a symbol, fewer symbols than more."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return isinstance(a, int) or (
        not isinstance(b, int) and len(a.free_symbols) < len(b.free_symbols)
    )


@_relates(Slice)
def _slice(op: Slice, operand: Value) -> Pairs:
    return _all_but(operand, (op.dim,))


@_relates(Select)
def _select(op: Select, operand: Value) -> Pairs:
    return tuple(
        ((n,), (n - (n > op.dim),))
        for n, dim in enumerate(operand.shape)
        if n != op.dim and not _is_one(dim)
    )


@_relates(Concatenate)
def _concatenate(op: Concatenate, operand: Value) -> Pairs:
    return _all_but(operand, (op.dim,))


@_relates(SliceScatter)
def _slice_scatter(op: SliceScatter, operand: Value) -> Pairs:
    return _all_but(operand, () if operand is op.x else (op.dim,))


@_relates(Pad)
def _pad(op: Pad, operand: Value) -> Pairs:
    limits = zip(op.low, op.high, strict=True)
    return _all_but(operand, tuple(n for n, (a, b) in enumerate(limits) if a != 0 or b != 0))


@_relates(Roll)
def _roll(op: Roll, operand: Value) -> Pairs:
    return _all_but(operand, ())


def _all_but(operand: Value, dims: tuple[int, ...]) -> Pairs:
    shape = operand.shape
    return tuple(((n,), (n,)) for n, d in enumerate(shape) if n not in dims and not _is_one(d))


@_relates(Diagonal)
def _diagonal(op: Diagonal, operand: Value) -> Pairs:
    rest = [n for n in range(len(operand.shape)) if n not in (op.dim1, op.dim2)]
    return tuple(((n,), (place,)) for place, n in enumerate(rest) if not _is_one(operand.shape[n]))


@_relates(Unfold)
def _unfold(op: Unfold, operand: Value) -> Pairs:
    return _all_but(operand, (op.dim,))


@_relates(Embedding)
def _embedding(op: Embedding, operand: Value) -> Pairs:
    rank = len(op.indices.shape)
    if operand is op.weight:
        return () if _is_one(operand.shape[1]) else (((1,), (rank,)),)
    return _line_up(operand, list(range(rank)))


@_relates(IndexSelect)
def _index_select(op: IndexSelect, operand: Value) -> Pairs:
    if operand is op.x:
        return _all_but(operand, (op.dim % max(len(operand.shape), 1),)) if operand.shape else ()
    return _line_up(operand, [op.dim % max(len(op.x.shape), 1)]) if operand.shape else ()


@_relates(Gather)
def _gather(op: Gather, operand: Value) -> Pairs:
    if operand is op.index:
        return _all_but(operand, ())
    shape = op.out.shape
    kept = [n for n, d in enumerate(operand.shape) if is_equal(d, shape[n]) and not _is_one(d)]
    return tuple(((n,), (n,)) for n in kept if n != op.dim % len(shape))
