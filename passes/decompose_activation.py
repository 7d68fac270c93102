"""Activation functions and their gradients in terms of primitive ops, as eager computes them."""

from __future__ import annotations

import math

from lynx.ir.core import Value
from lynx.ir.ops.activation import (
    Elu,
    Gelu,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyRelu,
    LogSigmoid,
    Mish,
    Prelu,
    Silu,
    Softplus,
    Threshold,
)
from lynx.ir.ops.activation_backward import (
    DropoutBackward,
    EluBackward,
    GeluBackward,
    HardsigmoidBackward,
    HardswishBackward,
    HardtanhBackward,
    LeakyReluBackward,
    LogSigmoidBackward,
    MishBackward,
    SigmoidBackward,
    SiluBackward,
    SoftplusBackward,
    TanhBackward,
    ThresholdBackward,
)
from lynx.ir.ops.random import Dropout, RandomBernoulli
from lynx.ir.types import DType

from .decompose_build import (
    Number,
    absolute,
    choose,
    erf,
    exp,
    expm1,
    log1p,
    minimum,
    product_plus,
    refuse_empty,
    tanh,
    wide,
)
from .rewrite import NoMatch, Rule, rule

_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715
_SIXTH = 0.1666666716337204
"""One sixth in `f32`, which eager takes for `f64` as well."""


@rule
def expand_gelu(op: Gelu) -> Value:
    """Weight by the error function, or by the hyperbolic tangent where that is asked for.

    gelu(x)  ==>  x * 0.5 * (1 + erf(x * sqrt(0.5)))
    """
    x = wide(op.x)
    if op.approximate == "none":
        result = x * 0.5 * (1 + erf(x * _SQRT_HALF))
    else:
        inner = _TANH_SCALE * product_plus(x * x * x, _TANH_CUBE, x)
        result = 0.5 * x * (1 + tanh(inner))
    return result.to(op.out.tensor_type.dtype)


@rule
def expand_gelu_backward(op: GeluBackward) -> Value:
    """Multiply by the derivative of the weighted distribution.

    gelu_backward(g, x)  ==>  g * (cdf(x) + x * pdf(x))
    """
    grad, x = wide(op.grad), wide(op.x)
    if op.approximate == "none":
        cdf = 0.5 * (1 + erf(x * _SQRT_HALF))
        pdf = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return (grad * (cdf + x * pdf)).to(op.out.tensor_type.dtype)
    squared = x * x
    inner = tanh(_TANH_SCALE * product_plus(squared * x, _TANH_CUBE, x))
    slope = _TANH_SCALE * product_plus(squared, 3 * _TANH_CUBE, 1.0)
    right = 0.5 * x * product_plus(-inner, inner, 1.0) * slope
    return (grad * (0.5 * (1 + inner) + right)).to(op.out.tensor_type.dtype)


@rule
def expand_silu(op: Silu) -> Value:
    """Divide by the denominator of the sigmoid.

    silu(x)  ==>  x / (1 + exp(-x))
    """
    x = wide(op.x)
    return (x / (1 + exp(-x))).to(op.out.tensor_type.dtype)


@rule
def expand_silu_backward(op: SiluBackward) -> Value | NoMatch:
    """Multiply by the derivative, with the sigmoid computed once.

    silu_backward(g, x)  ==>  g * s * (1 + x * (1 - s)), s = 1 / (1 + exp(-x))
    """
    if op.out.tensor_type.dtype.is_complex:
        return NoMatch("the gradient of complex numbers is conjugated")
    grad, x = wide(op.grad), wide(op.x)
    sigmoid = 1 / (1 + exp(-x))
    return (grad * sigmoid * product_plus(x, 1 - sigmoid, 1.0)).to(op.out.tensor_type.dtype)


@rule
def expand_leaky_relu(op: LeakyRelu) -> Value:
    """Scale where not positive.

    leaky_relu(x)  ==>  where(x > 0, x, x * slope)
    """
    x = wide(op.x)
    return choose(x > 0, x, x * op.negative_slope).to(op.out.tensor_type.dtype)


@rule
def expand_leaky_relu_backward(op: LeakyReluBackward) -> Value:
    """Scale the gradient where the operand is not positive.

    leaky_relu_backward(g, x)  ==>  where(x > 0, g, g * slope)
    """
    grad, x = wide(op.grad), wide(op.x)
    return choose(x > 0, grad, grad * op.negative_slope).to(op.out.tensor_type.dtype)


@rule
def expand_elu(op: Elu) -> Value:
    """Continue by an exponential below zero.

    elu(x)  ==>  where(x < 0, expm1(x * c) * alpha * scale, x * scale)
    """
    x = wide(op.x)
    below = expm1(x * op.input_scale) * (op.alpha * op.scale)
    return choose(x < 0, below, x * op.scale).to(op.out.tensor_type.dtype)


@rule
def expand_elu_backward(op: EluBackward) -> Value:
    """Multiply by the slope, which below zero follows from the result or the operand.

    elu_backward(g, x)  ==>  where(x > 0, g * scale, g * c * alpha * scale * exp(x * c))
    """
    grad, x = wide(op.grad), wide(op.x)
    weight = op.alpha * op.scale
    if op.is_result:
        below = grad * op.input_scale * (x + weight)
    else:
        below = grad * op.input_scale * weight * exp(x * op.input_scale)
    return choose(x > 0, grad * op.scale, below).to(op.out.tensor_type.dtype)


@rule
def expand_softplus(op: Softplus) -> Value:
    """Take the logarithm, except where it is the operand itself.

    softplus(x)  ==>  where(x * beta > threshold, x, log1p(exp(x * beta)) / beta)
    """
    x = wide(op.x)
    scaled = x * op.beta
    smooth = log1p(exp(scaled)) / op.beta
    return choose(scaled > op.threshold, x, smooth).to(op.out.tensor_type.dtype)


@rule
def expand_softplus_backward(op: SoftplusBackward) -> Value:
    """Multiply by the sigmoid, except where it is one.

    softplus_backward(g, x)  ==>  where(x * beta > threshold, g, g * z / (z + 1)), z = exp(x * beta)
    """
    grad, x = wide(op.grad), wide(op.x)
    scaled = x * op.beta
    power = exp(scaled)
    smooth = grad * power / (power + 1)
    return choose(scaled > op.threshold, grad, smooth).to(op.out.tensor_type.dtype)


@rule
def expand_hardtanh(op: Hardtanh) -> Value:
    """Limit to the interval.

    hardtanh(x)  ==>  clamp(x, min, max)
    """
    return Number(op.x).clamped(op.min, op.max).value


@rule
def expand_hardtanh_backward(op: HardtanhBackward) -> Value:
    """Pass the gradient inside the interval, in which NaN is not.

    hardtanh_backward(g, x)  ==>  where(x > min, where(x < max, g, 0), 0)
    """
    grad, x = Number(op.grad), wide(op.x)
    return choose(x > op.min, choose(x < op.max, grad, 0.0), 0.0).value


@rule
def expand_hardswish(op: Hardswish) -> Value:
    """Weight by the limited line.

    hardswish(x)  ==>  x * clamp(x + 3, 0, 6) / 6
    """
    x = wide(op.x)
    return (x * (x + 3.0).clamped(0.0, 6.0) / 6.0).to(op.out.tensor_type.dtype)


@rule
def expand_hardswish_backward(op: HardswishBackward) -> Value:
    """Multiply by the slope of each of the three pieces.

    hardswish_backward(g, x)  ==>  where(x <= -3, 0, where(x >= 3, g, g * (x / 3 + 0.5)))
    """
    grad, x = wide(op.grad), wide(op.x)
    right = choose(x >= 3.0, grad, grad * (x / 3.0 + 0.5))
    return choose(x <= -3.0, 0.0, right).to(op.out.tensor_type.dtype)


@rule
def expand_hardsigmoid(op: Hardsigmoid) -> Value:
    """Limit the line.

    hardsigmoid(x)  ==>  clamp(x + 3, 0, 6) / 6
    """
    x = wide(op.x)
    return ((x + 3.0).clamped(0.0, 6.0) / 6.0).to(op.out.tensor_type.dtype)


@rule
def expand_hardsigmoid_backward(op: HardsigmoidBackward) -> Value:
    """Multiply by the slope inside the limits.

    hardsigmoid_backward(g, x)  ==>  where(x > -3, where(x < 3, g / 6, 0), 0)
    """
    grad, x = wide(op.grad), wide(op.x)
    inside = choose(x < 3.0, grad * _SIXTH, 0.0)
    return choose(x > -3.0, inside, 0.0).to(op.out.tensor_type.dtype)


@rule
def expand_mish(op: Mish) -> Value:
    """Weight by the hyperbolic tangent of softplus.

    mish(x)  ==>  x * tanh(log1p(exp(x)))
    """
    x = wide(op.x)
    return (x * tanh(log1p(exp(x)))).to(op.out.tensor_type.dtype)


@rule
def expand_mish_backward(op: MishBackward) -> Value:
    """Multiply by the derivative of the product.

    mish_backward(g, x)  ==>  g * (t + x * s * (1 - t * t)), t = tanh(log1p(exp(x)))
    """
    grad, x = wide(op.grad), wide(op.x)
    sigmoid, inner = 1 / (1 + exp(-x)), tanh(log1p(exp(x)))
    slope = product_plus(x * sigmoid, product_plus(-inner, inner, 1.0), inner)
    return (grad * slope).to(op.out.tensor_type.dtype)


@rule
def expand_threshold(op: Threshold) -> Value:
    """Replace what is not above the threshold.

    threshold(x)  ==>  where(x <= threshold, value, x)
    """
    return choose(wide(op.x) <= op.threshold, op.value, Number(op.x)).value


@rule
def expand_threshold_backward(op: ThresholdBackward) -> Value:
    """Pass the gradient where the operand is above the threshold.

    threshold_backward(g, x)  ==>  where(x <= threshold, 0, g)
    """
    if op.out.tensor_type.dtype.is_floating:
        return choose(wide(op.x) <= op.threshold, 0.0, Number(op.grad)).value
    return choose(Number(op.x) <= int(op.threshold), 0, Number(op.grad)).value


@rule
def expand_tanh_backward(op: TanhBackward) -> Value | NoMatch:
    """Multiply by the derivative, from the result.

    tanh_backward(g, y)  ==>  g * (1 - y * y)
    """
    if op.out.tensor_type.dtype.is_complex:
        return NoMatch("the gradient of complex numbers is conjugated")
    y = wide(op.y)
    return (wide(op.grad) * product_plus(-y, y, 1.0)).to(op.out.tensor_type.dtype)


@rule
def expand_sigmoid_backward(op: SigmoidBackward) -> Value | NoMatch:
    """Multiply by the derivative, from the result.

    sigmoid_backward(g, y)  ==>  g * (1 - y) * y
    """
    if op.out.tensor_type.dtype.is_complex:
        return NoMatch("the gradient of complex numbers is conjugated")
    y = wide(op.y)
    return (wide(op.grad) * (1 - y) * y).to(op.out.tensor_type.dtype)


@rule
def expand_prelu(op: Prelu) -> Value:
    """Scale where not positive, by a weight.

    prelu(x, w)  ==>  where(x > 0, x, w * x)
    """
    x = Number(op.x)
    return choose(x > 0, x, Number(op.weight) * x).value


@rule
def expand_log_sigmoid(op: LogSigmoid) -> tuple[Value, ...]:
    """Take the logarithm of the part that does not overflow; what it is of is the buffer.

    log_sigmoid(x)  ==>  min(x, 0) - log1p(z), z = exp(-|x|)
    """
    x = wide(op.x)
    power = exp(-absolute(x))
    values = (minimum(x, 0.0) - log1p(power), power)
    return tuple(value.to(op.x.tensor_type.dtype) for value in values)


@rule
def expand_log_sigmoid_backward(op: LogSigmoidBackward) -> Value:
    """Multiply by the derivative, from the buffer.

    log_sigmoid_backward(g, x, z)  ==>  where(x < 0, 1 - z / (1 + z), z / (1 + z)) * g
    """
    x, buffer = wide(op.x), wide(op.buffer)
    share = buffer / (buffer + 1)
    return (choose(x < 0, 1 - share, share) * wide(op.grad)).to(op.out.tensor_type.dtype)


@rule
def expand_dropout(op: Dropout) -> tuple[Value, ...] | NoMatch:
    """Draw the mask as eager does, and multiply by it; eager rounds the scaled mask.

    dropout(x, p)  ==>  x * (cast(mask) * (1 / (1 - p))), mask = random_bernoulli(1 - p)
    """
    type_ = op.x.tensor_type
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    if type_.dtype.is_complex or not type_.device.startswith("cpu"):
        return NoMatch("the numbers are complex, or drawn on another device")
    kept = 1 - op.p
    mask = RandomBernoulli(kept, type_.shape, DType.BOOL, type_.device).out
    scale = Number(Number(mask).to(type_.dtype)) * (0.0 if kept == 0 else 1 / kept)
    return (Number(op.x) * scale).value, mask


@rule
def expand_dropout_backward(op: DropoutBackward) -> Value:
    """Scale what was kept; eager rounds the scaled mask before it multiplies.

    dropout_backward(g, mask)  ==>  g * (cast(mask) * scale)
    """
    mask = Number(Number(op.mask).to(op.grad.tensor_type.dtype))
    return (Number(op.grad) * (mask * op.scale)).value


ACTIVATION_RULES: tuple[Rule, ...] = (
    expand_gelu,
    expand_gelu_backward,
    expand_silu,
    expand_silu_backward,
    expand_leaky_relu,
    expand_leaky_relu_backward,
    expand_elu,
    expand_elu_backward,
    expand_softplus,
    expand_softplus_backward,
    expand_hardtanh,
    expand_hardtanh_backward,
    expand_hardswish,
    expand_hardswish_backward,
    expand_hardsigmoid,
    expand_hardsigmoid_backward,
    expand_mish,
    expand_mish_backward,
    expand_threshold,
    expand_threshold_backward,
    expand_tanh_backward,
    expand_sigmoid_backward,
    expand_prelu,
    expand_log_sigmoid,
    expand_log_sigmoid_backward,
    expand_dropout,
    expand_dropout_backward,
)
