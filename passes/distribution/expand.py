"""Expand composite ops where a mesh cuts what they need as a whole.

A softmax over an axis that lies on several devices is a maximum, a sum and a quotient, of which the
first two can be combined; the same holds for norms, losses and means. Ops that nothing cuts there
stay whole.
"""

from __future__ import annotations

from collections.abc import Hashable

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.attention import Attending
from lynx.ir.ops.elementwise_arithmetic import Cast, Multiply
from lynx.ir.ops.factory import Full
from lynx.ir.ops.layout_slicing import Select
from lynx.ir.ops.random import Dropout
from lynx.ir.ops.reduction import Mean
from lynx.ir.ops.scan import CumulativeSum
from lynx.ir.ops.sorting import TopK
from lynx.ir.sharding import Sharding
from lynx.ir.space import FactorKind, IterationSpace, Window
from lynx.ir.structure import shared_space
from lynx.ir.traversal import use_counts
from lynx.passes.base import PassContext
from lynx.passes.decompose import RULES
from lynx.passes.decompose_build import total, wide
from lynx.passes.rewrite import NoMatch, Rule, rewrite, rule

from . import attention_keys, halo
from .alternatives import alternative
from .blocks import join_equal_blocks, slice_whole_block
from .merged_scores import cuts_merged, take_scores_apart, take_scores_apart_backward
from .propagate import Layouts
from .row_pieces import ROW_RULES, many_rows, row_pieces, rules_for
from .shared_heads import cuts_groups, repeat_shared_heads, repeat_shared_heads_backward


@rule
def expand_mean(op: Mean) -> Value | NoMatch:
    """Add up and divide by the number of all elements.

    mean(x, dims)  ==>  sum(x, dims) / count
    """
    count = 1
    for dim in op.dims:
        size = op.x.shape[dim]
        if not isinstance(size, int):
            return NoMatch("the number of elements is symbolic")
        count *= size
    if not op.dims or not count:
        return NoMatch("there is nothing to add")
    dtype = op.result_dtype()
    x = op.x if op.dtype is None else Cast(op.x, dtype).out
    added = total(wide(x), op.dims, keepdim=op.keepdim)
    return (added / float(count)).to(dtype)


@rule
def expand_dropout(op: Dropout) -> tuple[Value, Value] | NoMatch:
    """Draw for the whole tensor, as one device does; multiply part by part.

    dropout(x)  ==>  x * mask * (1 / (1 - p)), mask of dropout(ones)
    """
    type_ = op.x.tensor_type
    ones = Full(1, type_.shape, type_.dtype, type_.device)
    if op.x.defined_by(Full) is not None:
        return NoMatch("it draws for a constant")
    _, mask = Dropout(ones.out, op.p, loc=op.loc).results
    kept = Multiply(op.x, Cast(mask, type_.dtype).out).out
    scale = 0.0 if op.p >= 1 else 1.0 / (1.0 - op.p)
    return Multiply(kept, scale).out, mask


EXPANSIONS: tuple[Rule, ...] = (
    *RULES,
    expand_mean,
    expand_dropout,
    take_scores_apart,
    take_scores_apart_backward,
    repeat_shared_heads,
    repeat_shared_heads_backward,
    slice_whole_block,
    join_equal_blocks,
    *ROW_RULES,
)
_PIECED = (Attending, CumulativeSum, TopK)
"""Ops that may run on pieces of what they need."""
_KINDS = tuple(kind for one in EXPANSIONS for kind in one.kinds)


def expand_blocked(graph: Graph, layouts: Layouts, context: PassContext) -> Graph:
    """Return the graph with the ops expanded that shardings cut where they need all at once."""
    by_keys = attention_keys.KeyPieces(layouts)
    uses = use_counts(graph)
    counts: dict[Hashable, set[int]] = {}
    for op in graph.ops:
        if not isinstance(op, _PIECED):
            continue
        counts.setdefault(_key(op), set()).add(by_keys.of(op) or row_pieces(op, layouts, uses))
    # Of ops that cannot be told apart, none runs in pieces unless all do: places may be used.
    pieces = {key: max(found) for key, found in counts.items() if len(found) == 1 and max(found)}
    halos = halo_exchanges(graph, layouts)
    many = many_rows(graph)
    blocked = {
        _key(op)
        for op in graph.ops
        if isinstance(op, _KINDS)
        and _is_blocked(op, layouts)
        and not (isinstance(op, Select) and op.x in many)
    }
    if not blocked and not pieces and not halos:
        return graph

    def is_chosen(op: Op) -> bool:
        key = _key(op)
        return key in blocked or key in pieces or key in halos

    of_pieces = (
        *attention_keys.rules_for(pieces, _key), *rules_for(pieces, _key),
        *halo.rules_for(halos, _key),
    )  # fmt: skip
    return rewrite(graph, (*of_pieces, *EXPANSIONS), context, is_chosen)


def halo_exchanges(graph: Graph, layouts: Layouts) -> dict[Hashable, halo.Halo]:
    """Return the ops that run on pieces with the borders of their neighbours, by their keys.

    Ops that cannot be told apart do so in one way, or not at all.
    """
    found: dict[Hashable, set[halo.Halo | None]] = {}
    for op in graph.ops:
        if isinstance(op, halo.SLIDING):
            found.setdefault(_key(op), set()).add(halo.halo_of(op, layouts))
    chosen: dict[Hashable, halo.Halo] = {}
    for key, ways in found.items():
        (way, *others) = ways
        if way is not None and not others:
            chosen[key] = way
    return chosen


def _key(op: Op) -> Hashable:
    """Return what stays of an op while a graph is rewritten and its operands change."""
    types = (tuple(value.type for value in values) for values in (op.operands, op.results))
    return type(op), op.loc, *types


def _is_blocked(op: Op, layouts: Layouts) -> bool:
    """Whether a dimension is cut that the op needs whole."""
    given = [layouts.of(operand) for operand in op.operands]
    if op.is_random:
        cut = [*given, *(layouts.of(result) for result in op.results)]
        return any(sharding is not None and any(sharding.dims) for sharding in cut)
    if isinstance(op, Attending):
        return cuts_groups(op, layouts) or cuts_merged(op, layouts)
    if not any(sharding is not None and any(sharding.dims) for sharding in given):
        return False
    wider = alternative(op) or op
    space = shared_space(wider)
    return any(
        sharding is not None and any(sharding.dims) and _cuts_whole(space, position, sharding)
        for position, sharding in enumerate(given)
    )


def _cuts_whole(space: IterationSpace | None, position: int, sharding: Sharding) -> bool:
    if space is None:
        return True
    for axis, split in zip(space.operands[position], sharding.splits, strict=True):
        if not split.axes or isinstance(axis, Window):
            continue
        kinds = {space.factor(name).kind for name in axis[:1]}
        if not kinds or kinds.intersection((FactorKind.OPAQUE, FactorKind.SCAN)):
            return True
    return False
