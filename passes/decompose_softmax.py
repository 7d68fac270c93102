"""Softmax and its relatives in terms of reductions and elementwise ops."""

from __future__ import annotations

import math

from lynx.ir.core import Value
from lynx.ir.ops.layout import Squeeze, Unsqueeze
from lynx.ir.ops.softmax import (
    LogSoftmax,
    LogSoftmaxBackward,
    SafeSoftmax,
    Softmax,
    SoftmaxBackward,
)

from .decompose_build import Number, amax, choose, exp, log, product_plus, refuse_empty, total, wide
from .decompose_nll_loss import one_hot_sum
from .rewrite import NoMatch, Rule, rule


def _shares(x: Number, dim: int) -> tuple[Number, Number]:
    """Return the powers divided by their sum, and the largest elements."""
    largest = amax(x, (dim,))
    power = exp(x - largest)
    return power / total(power, (dim,)), largest


@rule
def expand_softmax(op: Softmax) -> Value | NoMatch:
    """Divide powers, kept finite by the largest element, by their sum.

    softmax(x)  ==>  e / sum(e), e = exp(x - amax(x))
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    if not op.x.shape:
        return Squeeze(Softmax(Unsqueeze(op.x, 0).out, 0).out, (0,)).out
    shares, _ = _shares(wide(op.x), op.dim)
    return shares.to(op.out.tensor_type.dtype)


@rule
def expand_safe_softmax(op: SafeSoftmax) -> Value | NoMatch:
    """Put zeros where all elements are negative infinity.

    safe_softmax(x)  ==>  where(amax(x) == -inf, 0, softmax(x))
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    if not op.x.shape:
        return Squeeze(SafeSoftmax(Unsqueeze(op.x, 0).out, 0).out, (0,)).out
    shares, largest = _shares(wide(op.x), op.dim)
    return choose(largest.equals(-math.inf), 0.0, shares).to(op.out.tensor_type.dtype)


@rule
def expand_log_softmax(op: LogSoftmax) -> Value | NoMatch:
    """Subtract the logarithm of the sum of powers.

    log_softmax(x)  ==>  d - log(sum(exp(d))), d = x - amax(x)
    """
    if (refusal := refuse_empty(op.x)) is not None:
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
    """Subtract the sum of gradients, weighted by the softmax; of one class it is the gradient.

    log_softmax_backward(g, y)  ==>  g - exp(y) * sum(g)
    """
    grad, result = wide(op.grad), wide(op.result)
    dims = (op.dim,) if op.grad.shape else ()
    sums = one_hot_sum(op.grad, op.dim)
    sums = total(grad, dims) if sums is None else wide(sums.value)
    return product_plus(-exp(result), sums, grad).to(op.out.tensor_type.dtype)


SOFTMAX_RULES: tuple[Rule, ...] = (
    expand_softmax,
    expand_safe_softmax,
    expand_log_softmax,
    expand_softmax_backward,
    expand_log_softmax_backward,
)
