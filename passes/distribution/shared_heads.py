"""Attention whose heads are cut inside of a group that shares its keys and values.

Each device then has its own copy of the keys and values of its heads; gradients of the copies are
added up over heads, in parts on the devices. Queries stay where they are.
"""

from __future__ import annotations

import dataclasses

from lynx.ir.core import Op, Value
from lynx.ir.ops.attention import Attending, Attention, AttentionBackward
from lynx.ir.ops.elementwise_arithmetic import Cast, DivideRounded
from lynx.ir.ops.elementwise_compare import Equal
from lynx.ir.ops.factory import Iota
from lynx.ir.ops.indexing import IndexSelect
from lynx.ir.ops.layout import Permute, Reshape
from lynx.ir.ops.linear import Matmul
from lynx.ir.shard_rules import factor_splits
from lynx.ir.structure import shared_space
from lynx.ir.types import DType
from lynx.passes.rewrite import NoMatch, rule

from .propagate import Layouts

_SHARED_OPERANDS = (1, 2)


def cuts_groups(op: Op, layouts: Layouts) -> bool:
    """Whether heads are cut that share keys and values, but not between groups of them."""
    if not isinstance(op, Attending) or op.group in (None, 1):
        return False
    space, sharding = shared_space(op), layouts.of(op.q)
    if space is None or sharding is None:
        return False
    axis, split = space.operands[0][1], sharding.splits[1]
    assert isinstance(axis, tuple)
    sizes = [space.factor(name).size for name in axis]
    return bool(split.axes) and factor_splits(axis, sizes, split, layouts.mesh) is None


@rule
def repeat_shared_heads(op: Attention) -> tuple[Value, ...] | NoMatch:
    """Read keys and values once for each head of queries.

    attention(q, k, v)  ==>  attention(q, k[:, h // r], v[:, h // r])
    """
    if not _is_shared(op):
        return NoMatch("no heads are shared")
    made = dataclasses.replace(op, k=_repeated(op, op.k), v=_repeated(op, op.v))
    return made.results


@rule
def repeat_shared_heads_backward(op: AttentionBackward) -> tuple[Value, ...] | Value | NoMatch:
    """Add up the gradients that heads of queries give to the keys and values that they share."""
    if not _is_shared(op):
        return NoMatch("no heads are shared")
    made = dataclasses.replace(op, k=_repeated(op, op.k), v=_repeated(op, op.v))
    places = [place for place, wanted in enumerate(op.wanted) if wanted]
    results = tuple(
        _added(result, op) if place in _SHARED_OPERANDS else result
        for place, result in zip(places, made.results, strict=True)
    )
    return results if len(results) != 1 else results[0]


def _is_shared(op: Attending) -> bool:
    return op.group not in (None, 1) and all(
        isinstance(size, int) for size in (*op.q.shape, *op.k.shape, *op.v.shape)
    )


def _owners(op: Attending) -> Value:
    """Return which shared head each head of queries reads."""
    heads = Iota(0, 1, op.q.shape[1], DType.I64, op.q.tensor_type.device).out
    return DivideRounded(heads, op.group).out


def _repeated(op: Attending, x: Value) -> Value:
    return IndexSelect(x, _owners(op), 1).out


def _added(grad: Value, op: Attending) -> Value:
    """Add up a gradient over the heads that share one: a product, whose sums may stay in parts."""
    type_, shared = grad.tensor_type, op.k.shape[1]
    batch, heads, keys, depth = type_.shape
    rows = Reshape(Iota(0, 1, shared, DType.I64, type_.device).out, (shared, 1)).out
    columns = Reshape(_owners(op), (1, heads)).out
    belongs = Cast(Equal(columns, rows).out, type_.dtype).out
    flat = Reshape(Permute(grad, (1, 0, 2, 3)).out, (heads, batch * keys * depth)).out
    added = Reshape(Matmul(belongs, flat).out, (shared, batch, keys, depth)).out
    return Permute(added, (1, 0, 2, 3)).out
