"""Losses that compare values, and their gradients, in the steps in which eager rounds them."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.dims import Dim, product
from lynx.ir.ops.elementwise_arithmetic import Clamp
from lynx.ir.ops.elementwise_math import Sigmoid
from lynx.ir.ops.loss import (
    BinaryCrossEntropy,
    BinaryCrossEntropyBackward,
    BinaryCrossEntropyLogits,
    HuberLoss,
    HuberLossBackward,
    MseLoss,
    MseLossBackward,
    PairLossBackward,
    SmoothL1Loss,
    SmoothL1LossBackward,
    SoftMarginLoss,
    SoftMarginLossBackward,
)

from .decompose_build import (
    Number,
    absolute,
    choose,
    exp,
    log,
    log1p,
    mean,
    minimum,
    refuse_empty,
    square,
    total,
    wide,
)
from .rewrite import NoMatch, Rule, rule

_LEAST_LOGARITHM = -100.0
_LEAST_VARIANCE = 9.999999960041972e-13
"""1e-12 in `f32`, which eager takes for `f64` as well."""


def _reduced(losses: Number, reduction: str) -> Value:
    """Return losses of single elements, or their mean or sum."""
    dims = tuple(range(len(losses.value.shape)))
    if reduction == "none" or not (dims or reduction == "mean"):
        return losses.value
    reduce = mean if reduction == "mean" else total
    return reduce(losses, dims, keepdim=False).value


def _share(value: Number, op: PairLossBackward | BinaryCrossEntropyBackward) -> Number:
    """Divide by the number of elements if the loss was their mean."""
    if op.reduction != "mean":
        return value
    count: Dim = product(op.x.shape)
    return value * (1 / count) if isinstance(count, int) else value / count


@rule
def expand_mse_loss(op: MseLoss) -> Value:
    """Square the difference.

    mse_loss(x, t)  ==>  (x - t) * (x - t)
    """
    return _reduced(square(Number(op.x) - Number(op.target)), op.reduction)


@rule
def expand_mse_loss_backward(op: MseLossBackward) -> Value | NoMatch:
    """Multiply by twice the difference.

    mse_loss_backward(g, x, t)  ==>  (x - t) * 2 * g
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    difference = Number(op.x) - Number(op.target)
    return (_share(difference * 2.0, op) * Number(op.grad)).value


@rule
def expand_smooth_l1_loss(op: SmoothL1Loss) -> Value:
    """Continue a parabola by a line.

    smooth_l1_loss(x, t)  ==>  where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), z = |x - t|
    """
    size = absolute(wide(op.x) - wide(op.target))
    line = size - 0.5 * op.beta
    loss = choose(size < op.beta, size * 0.5 * size / op.beta, line)
    return _reduced(Number(loss.to(op.x.tensor_type.dtype)), op.reduction)


@rule
def expand_smooth_l1_loss_backward(op: SmoothL1LossBackward) -> Value | NoMatch:
    """Pass the gradient with the sign of the difference, in proportion to it between.

    smooth_l1_loss_backward(g, x, t)  ==>  where(d <= -beta, -g, where(d >= beta, g, d * g / beta))
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    difference = wide(op.x) - wide(op.target)
    grad = _share(wide(op.grad), op)
    right = choose(difference >= op.beta, grad, difference * grad / op.beta)
    return choose(difference <= -op.beta, -grad, right).to(op.x.tensor_type.dtype)


@rule
def expand_huber_loss(op: HuberLoss) -> Value:
    """Continue half a parabola by a line.

    huber_loss(x, t)  ==>  where(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta)), z = |x - t|
    """
    size = absolute(wide(op.x) - wide(op.target))
    line = (size - 0.5 * op.delta) * op.delta
    loss = choose(size <= op.delta, size * 0.5 * size, line)
    return _reduced(Number(loss.to(op.x.tensor_type.dtype)), op.reduction)


@rule
def expand_huber_loss_backward(op: HuberLossBackward) -> Value | NoMatch:
    """Multiply by the difference within limits.

    huber_loss_backward(g, x, t)  ==>  where(d <= -c, -g * c, where(d >= c, g * c, d * g))
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    difference = wide(op.x) - wide(op.target)
    grad = _share(wide(op.grad), op)
    limit = grad * op.delta
    right = choose(difference >= op.delta, limit, difference * grad)
    return choose(difference <= -op.delta, -limit, right).to(op.x.tensor_type.dtype)


@rule
def expand_soft_margin_loss(op: SoftMarginLoss) -> Value:
    """Take the logarithm as eager does, which overflows for large margins.

    soft_margin_loss(x, t)  ==>  log1p(exp(-x * t))
    """
    return _reduced(log1p(exp(-Number(op.x) * Number(op.target))), op.reduction)


@rule
def expand_soft_margin_loss_backward(op: SoftMarginLossBackward) -> Value | NoMatch:
    """Multiply by the derivative, in eager's order.

    soft_margin_loss_backward(g, x, t)  ==>  -t * z / (z + 1) * g, z = exp(-t * x)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    target = Number(op.target)
    power = exp(-target * Number(op.x))
    weighted = _share(-(target * power), op)
    return (weighted / (power + 1.0) * Number(op.grad)).value


def _is_probability(x: Value) -> bool:
    """Whether a value is between 0 and 1 by the way it is computed."""
    clamp = x.defined_by(Clamp)
    if clamp is None:
        return x.defined_by(Sigmoid) is not None
    low, high = clamp.min, clamp.max
    if not (isinstance(low, int | float) and isinstance(high, int | float)):
        return False
    return 0 <= low <= high <= 1


@rule
def expand_binary_cross_entropy(op: BinaryCrossEntropy) -> Value | NoMatch:
    """Weight limited logarithms; eager refuses what is no probability, which no kernel can do.

    binary_cross_entropy(x, t)  ==>  (t - 1) * max(log1p(-x), -100) - t * max(log(x), -100)
    """
    if not _is_probability(op.x):
        return NoMatch("nothing shows that the operand is between 0 and 1, which torch checks")
    x, target = Number(op.x), Number(op.target)
    positive = log(x).clamped(_LEAST_LOGARITHM, None)
    negative = log1p(-x).clamped(_LEAST_LOGARITHM, None)
    loss = (target - 1.0) * negative - target * positive
    if op.weight is not None:
        loss = loss * Number(op.weight)
    return _reduced(loss, op.reduction)


@rule
def expand_binary_cross_entropy_backward(op: BinaryCrossEntropyBackward) -> Value | NoMatch:
    """Divide by the variance of the probability, kept away from zero.

    binary_cross_entropy_backward(g, x, t)  ==>  g * (x - t) / max((1 - x) * x, 1e-12)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    grad, x = Number(op.grad), Number(op.x)
    variance = ((1.0 - x) * x).clamped(_LEAST_VARIANCE, None)
    result = grad * (x - Number(op.target)) / variance
    if op.weight is not None:
        result = result * Number(op.weight)
    return _share(result, op).value


@rule
def expand_binary_cross_entropy_logits(op: BinaryCrossEntropyLogits) -> Value:
    """Take the logarithm of the sigmoid, with the weight of positive targets.

    binary_cross_entropy_logits(x, t)  ==>  (1 - t) * x - log(sigmoid(x))
    """
    x, target = Number(op.x), Number(op.target)
    logarithm = log_of_sigmoid(op.x)
    if op.positive_weight is not None:
        logarithm = logarithm * ((Number(op.positive_weight) - 1.0) * target + 1.0)
    loss = (1.0 - target) * x - logarithm
    if op.weight is not None:
        loss = loss * Number(op.weight)
    return _reduced(loss, op.reduction)


def log_of_sigmoid(x: Value) -> Number:
    """Return `log(sigmoid(x))` in the type of `x`, without overflow."""
    value = wide(x)
    result = minimum(value, 0.0) - log1p(exp(-absolute(value)))
    return Number(result.to(x.tensor_type.dtype))


LOSS_RULES: tuple[Rule, ...] = (
    expand_mse_loss,
    expand_mse_loss_backward,
    expand_smooth_l1_loss,
    expand_smooth_l1_loss_backward,
    expand_huber_loss,
    expand_huber_loss_backward,
    expand_soft_margin_loss,
    expand_soft_margin_loss_backward,
    expand_binary_cross_entropy,
    expand_binary_cross_entropy_backward,
    expand_binary_cross_entropy_logits,
)
