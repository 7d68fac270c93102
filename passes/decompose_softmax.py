"""Softmax and its relatives in terms of reductions and elementwise ops."""

from __future__ import annotations

import math

from lynx.ir.core import Value
from lynx.ir.ops.elementwise_compare import Equal
from lynx.ir.ops.layout import Squeeze, Unsqueeze
from lynx.ir.ops.reduction import AllNonzero
from lynx.ir.ops.softmax import (
    LogSoftmax,
    LogSoftmaxBackward,
    SafeSoftmax,
    Softmax,
    SoftmaxBackward,
)

from .decompose_build import Number, amax, choose, exp, log, total, wide
from .rewrite import NoMatch, Rule, rule


def _refusal(value: Value) -> NoMatch | None:
    if 0 in value.shape:
        return NoMatch("nothing has no largest element")
    return None


@rule
def expand_softmax(op: Softmax) -> Value | NoMatch:
    """Divide powers, kept finite by the largest element, by their sum.

    softmax(x)  ==>  e / sum(e), e = exp(x - amax(x))
    """
    if (refusal := _refusal(op.x)) is not None:
        return refusal
    if not op.x.shape:
        return Squeeze(Softmax(Unsqueeze(op.x, 0).out, 0).out, (0,)).out
    x = wide(op.x)
    power = exp(x - amax(x, (op.dim,)))
    return (power / total(power, (op.dim,))).to(op.out.tensor_type.dtype)


@rule
def expand_safe_softmax(op: SafeSoftmax) -> Value | NoMatch:
    """Put zeros where all elements are negative infinity.

    safe_softmax(x)  ==>  where(all(x == -inf), 0, softmax(x))
    """
    if (refusal := _refusal(op.x)) is not None:
        return refusal
    masked = Equal(op.x, -math.inf).out
    if op.x.shape:
        masked = AllNonzero(masked, (op.dim,), keepdim=True).out
    return choose(Number(masked), 0.0, Number(Softmax(op.x, op.dim).out)).value


@rule
def expand_log_softmax(op: LogSoftmax) -> Value | NoMatch:
    """Subtract the logarithm of the sum of powers.

    log_softmax(x)  ==>  d - log(sum(exp(d))), d = x - amax(x)
    """
    if (refusal := _refusal(op.x)) is not None:
        return refusal
    if not op.x.shape:
        return Squeeze(LogSoftmax(Unsqueeze(op.x, 0).out, 0).out, (0,)).out
    x = wide(op.x)
    shifted = x - amax(x, (op.dim,))
    return (shifted - log(total(exp(shifted), (op.dim,)))).to(op.out.tensor_type.dtype)


@rule
def expand_softmax_backward(op: SoftmaxBackward) -> Value:
    """Subtract the weighted sum of gradients.

    softmax_backward(g, y)  ==>  (g - sum(g * y)) * y
    """
    grad, result = wide(op.grad), wide(op.result)
    dims = (op.dim,) if op.grad.shape else ()
    return ((grad - total(grad * result, dims)) * result).to(op.out.tensor_type.dtype)


@rule
def expand_log_softmax_backward(op: LogSoftmaxBackward) -> Value:
    """Subtract the sum of gradients, weighted by the softmax.

    log_softmax_backward(g, y)  ==>  g - exp(y) * sum(g)
    """
    grad, result = wide(op.grad), wide(op.result)
    dims = (op.dim,) if op.grad.shape else ()
    return (grad - exp(result) * total(grad, dims)).to(op.out.tensor_type.dtype)


SOFTMAX_RULES: tuple[Rule, ...] = (
    expand_softmax,
    expand_safe_softmax,
    expand_log_softmax,
    expand_softmax_backward,
    expand_log_softmax_backward,
)
