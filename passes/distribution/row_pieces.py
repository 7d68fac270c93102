"""Searches, running sums and single rows along a dimension that is cut: each device on its piece.

Running sums take the sums of all earlier pieces; the largest elements are among those of the
pieces. Which of equal elements a search names is left to torch, and so is every `topk` whose places
are used: of `argmax` and `max` it is known, the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import is_static
from lynx.ir.ops.elementwise_arithmetic import DivideRounded
from lynx.ir.ops.factory import Full, Iota
from lynx.ir.ops.indexing import Gather, IndexSelect
from lynx.ir.ops.layout import Reshape, Squeeze
from lynx.ir.ops.layout_slicing import Concatenate, Select, Slice
from lynx.ir.ops.pieces import CumulativeSumPieces, TopKPieces, length_of
from lynx.ir.ops.reduction import ArgMax, ArgMin, MaxWithIndex, MinWithIndex
from lynx.ir.ops.scan import CumulativeSum
from lynx.ir.ops.sorting import TopK
from lynx.ir.tiles import are_pieces
from lynx.ir.types import DType
from lynx.passes.decompose_build import Number, amax, amin, choose, is_nan, zero
from lynx.passes.rewrite import NoMatch, Rewritten, Rule, rule

from .propagate import Layouts

Uses = Mapping[Value, int]


def row_pieces(op: Op, layouts: Layouts, uses: Uses) -> int:
    """Return into how many pieces an op's rows are cut; 0 where they are not, or are gathered."""
    if not isinstance(op, TopK | CumulativeSum) or not op.x.shape:
        return 0
    sharding = layouts.of(op.x)
    size = op.x.shape[op.dim]
    is_truth = op.results[0].tensor_type.dtype is DType.BOOL
    if sharding is None or not isinstance(size, int) or size == 0 or is_truth:
        return 0
    split = sharding.splits[op.dim]
    pieces = layouts.mesh.size(*split.axes)
    length = -(-size // pieces)
    if pieces < 2 or size <= pieces or not are_pieces(size, length, split, layouts.mesh):
        return 0
    return 0 if isinstance(op, TopK) and not _is_small(op, length, uses) else pieces


def _is_small(op: TopK, length: int, uses: Uses) -> bool:
    """Whether only values are used, in order, and pieces have more elements than are wanted."""
    places = op.results[1]
    return op.ordered and isinstance(op.k, int) and op.k < length and not uses.get(places, 0)


def rules_for(pieces: Mapping[Hashable, int], key: Callable[[Op], Hashable]) -> tuple[Rule, ...]:
    """Return the rules that let ops run on pieces of rows, as many as `pieces` says."""

    def search_pieces(op: TopK) -> Rewritten:
        count = pieces.get(key(op), 0)
        return largest_of_pieces(op, count) if count else NoMatch("its rows stay together")

    def add_up_pieces(op: CumulativeSum) -> Rewritten:
        count = pieces.get(key(op), 0)
        return running_sums(op, count) if count else NoMatch("its rows stay together")

    return (
        Rule("search_pieces", (TopK,), search_pieces),
        Rule("add_up_pieces", (CumulativeSum,), add_up_pieces),
    )


def largest_of_pieces(op: TopK, pieces: int) -> tuple[Value, Value]:
    """Search what was found in pieces.

    topk(x, k)  ==>  topk(topk of pieces of x, k), whose places nobody uses
    """
    dim, shape = op.dim, op.x.shape
    assert isinstance(op.k, int)
    length = length_of(shape[dim], pieces)
    found = TopKPieces(op.x, dim, pieces, length, op.k, op.largest).out
    rows = Reshape(found, (*shape[:dim], pieces * op.k, *shape[dim + 1 :])).out
    values, places = TopK(rows, op.k, dim, op.largest, op.ordered).results
    return values, places


def running_sums(op: CumulativeSum, pieces: int) -> Value:
    """Add the sums of earlier pieces to running sums of pieces.

    cumsum(x)  ==>  r + exclusive cumsum(t) of the piece, (r, t) of cumsum_pieces(x)
    """
    dim, size, dtype = op.dim, op.x.shape[op.dim], op.out.tensor_type.dtype
    wide = DType.F32 if dtype.is_low_precision else dtype
    length = length_of(size, pieces)
    running, totals = CumulativeSumPieces(op.x, dim, pieces, length, wide).results
    sums = CumulativeSum(totals, dim, wide).out
    type_ = sums.tensor_type
    first = (*type_.shape[:dim], 1, *type_.shape[dim + 1 :])
    nothing = Full(zero(wide), first, wide, type_.device).out
    earlier = Concatenate((nothing, Slice(sums, dim, 0, pieces - 1).out), dim).out
    places = Iota(0, 1, size, DType.I64, type_.device).out
    mine = DivideRounded(places, length).out
    return (Number(running) + Number(IndexSelect(earlier, mine, dim).out)).to(dtype)


@rule
def expand_argument(op: ArgMax | ArgMin) -> Value | NoMatch:
    """Find the first place of the extreme element: the first NaN if there is one.

    argmax(x)  ==>  amin(where(x == amax(x), place, size)), if no x is NaN
    """
    found = _extreme(op) if len(op.dims) == 1 else NoMatch("it reduces several axes")
    return found if isinstance(found, NoMatch) else found[1]


@rule
def expand_extreme(op: MaxWithIndex | MinWithIndex) -> tuple[Value, Value] | NoMatch:
    """Find the extreme element, and its first place: the first NaN if there is one.

    max(x)  ==>  amax(x), amin(where(x == amax(x), place, size)), if no x is NaN
    """
    return _extreme(op) if op.dims else NoMatch("it reduces no axis")


@rule
def read_row_where_it_is(op: Select) -> Value | NoMatch:
    """Look a row up on the device that has it; all others add zeros.

    select(x, dim, i)  ==>  squeeze(gather(x, full(i, [.., 1, ..])), dim)
    """
    shape, dim = op.x.shape, op.dim
    type_ = op.x.tensor_type
    if not isinstance(op.index, int) or not is_static(shape):
        return NoMatch("the place or a size is symbolic")
    if type_.dtype is DType.BOOL or type_.dtype.is_complex:
        return NoMatch("truth values and complex numbers are not added up")
    places = Full(op.index, (*shape[:dim], 1, *shape[dim + 1 :]), DType.I64, type_.device)
    return Squeeze(Gather(op.x, places.out, dim).out, (dim,)).out


def many_rows(graph: Graph) -> set[Value]:
    """Return the values of which so many rows are read that all of them are better gathered."""
    counts: dict[tuple[Value, int], int] = {}
    for op in graph.ops:
        if isinstance(op, Select):
            counts[op.x, op.dim] = counts.get((op.x, op.dim), 0) + 1
    return {
        x
        for (x, dim), count in counts.items()
        if not isinstance(size := x.shape[dim], int) or 2 * count >= size
    }


ROW_RULES = (expand_argument, expand_extreme, read_row_where_it_is)
"""Rules that need no number of pieces."""


def _extreme(op: ArgMax | ArgMin | MaxWithIndex | MinWithIndex) -> tuple[Value, Value] | NoMatch:
    """Return the extreme elements, and their first places.

    Libraries for communication do not agree on the larger one of a number and NaN, so places of NaN
    are told apart by their sign: they are less than all others.
    """
    (dim,), x = op.dims, Number(op.x)
    size = op.x.shape[dim]
    if not isinstance(size, int) or 0 in op.x.shape:
        return NoMatch("there is nothing to compare, or its number is symbolic")
    is_largest = isinstance(op, ArgMax | MaxWithIndex)
    numbers = x
    if x.dtype.is_floating:
        numbers = choose(is_nan(x), math.inf if is_largest else -math.inf, x)
    extreme = (amax if is_largest else amin)(numbers, (dim,))
    places = Iota(0, 1, size, DType.I64, op.x.tensor_type.device).out
    column = Number(
        Reshape(places, tuple(size if n == dim else 1 for n in range(op.x.tensor_type.rank))).out
    )
    candidates = choose(numbers.equals(extreme), column, size)
    if x.dtype.is_floating:
        candidates = choose(is_nan(x), column - size, candidates)
    place = amin(candidates, (dim,), keepdim=op.keepdim)
    extreme = extreme.reshaped(place.value.shape)
    if x.dtype.is_floating:
        is_number = place >= 0
        extreme = choose(is_number, extreme, math.nan)
        place = choose(is_number, place, place + size)
    return extreme.value, place.value
