"""Pooling over whole planes in terms of reductions."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.dims import product
from lynx.ir.ops.layout import Broadcast
from lynx.ir.ops.pooling import (
    AdaptiveAveragePool,
    AdaptiveAveragePoolBackward,
    AveragePool,
    AveragePoolBackward,
)

from .decompose_build import Number, mean, refuse_empty, total, wide
from .rewrite import NoMatch, Rule, rule

_PARTS = NoMatch("windows that are not the whole plane are no plain reduction")


def _plane(x: Value, count: int) -> tuple[int, ...]:
    rank = len(x.shape)
    return tuple(range(rank - count, rank))


@rule
def expand_adaptive_average_pool(op: AdaptiveAveragePool) -> Value | NoMatch:
    """Average the plane.

    adaptive_average_pool(x, 1)  ==>  mean(x)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    if any(size != 1 for size in op.size):
        return _PARTS
    return mean(Number(op.x), _plane(op.x, len(op.size))).value


@rule
def expand_adaptive_average_pool_backward(op: AdaptiveAveragePoolBackward) -> Value | NoMatch:
    """Spread the gradient over the plane.

    adaptive_average_pool_backward(g, x)  ==>  broadcast(g / n)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    plane = _plane(op.x, op.count)
    if any(op.grad.shape[dim] != 1 for dim in plane):
        return _PARTS
    share = wide(op.grad)
    for dim in plane:
        share = share / op.x.shape[dim]
    return Broadcast(share.to(op.x.tensor_type.dtype), op.x.shape).out


def _is_whole(op: AveragePool | AveragePoolBackward) -> bool:
    """Whether there is one window, which is the plane."""
    plane = op.x.shape[-len(op.kernel) :]
    return not any(op.padding) and plane == op.kernel


@rule
def expand_average_pool(op: AveragePool) -> Value | NoMatch:
    """Average the plane that is one window, or divide its sum by another number.

    average_pool(x)  ==>  mean(x)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    if not _is_whole(op):
        return _PARTS
    dims = _plane(op.x, len(op.kernel))
    if op.divisor is None:
        return mean(Number(op.x), dims).value
    return (total(wide(op.x), dims) / op.divisor).to(op.x.tensor_type.dtype)


@rule
def expand_average_pool_backward(op: AveragePoolBackward) -> Value | NoMatch:
    """Spread the gradient over the plane that is one window.

    average_pool_backward(g, x)  ==>  broadcast(g / n)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    if not _is_whole(op):
        return _PARTS
    divisor = product(op.kernel) if op.divisor is None else op.divisor
    share = wide(op.grad) / divisor
    return Broadcast(share.to(op.x.tensor_type.dtype), op.x.shape).out


POOLING_RULES: tuple[Rule, ...] = (
    expand_adaptive_average_pool,
    expand_adaptive_average_pool_backward,
    expand_average_pool,
    expand_average_pool_backward,
)
