"""Batch normalization and its gradients in terms of reductions and elementwise ops."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.dims import product
from lynx.ir.ops.factory import Full
from lynx.ir.ops.normalization import BatchNorm, BatchNormBackward

from .decompose_build import Number, mean, refuse_empty, rsqrt, square, total, wide
from .rewrite import NoMatch, Rule, rule


def _others(x: Value) -> tuple[int, ...]:
    """Return the dimensions over which a channel is normalized."""
    return tuple(dim for dim in range(len(x.shape)) if dim != 1)


def _channels(vector: Number, like: Value) -> Number:
    """Return one value a channel in a shape that is broadcast against `n c s..`."""
    space = len(like.shape) - 2
    return vector.reshaped((like.shape[1], *(1,) * space)) if space else vector


def _vector(value: Number, like: Value) -> Number:
    """Return `1 c 1..` as a vector."""
    return value.reshaped((like.shape[1],))


def _scaled(scale: Number, weight: Value | None) -> Number:
    return scale if weight is None else scale * wide(weight)


@rule
def expand_batch_norm(op: BatchNorm) -> tuple[Value, ...] | NoMatch:
    """Centre and scale each channel, by the statistics of the batch or by running ones.

    batch_norm(x, w, b)  ==>  (x - mean(x)) * (rsqrt(var(x) + eps) * w) + b
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    return _by_batch(op) if op.training else _by_running(op)


def _by_running(op: BatchNorm) -> tuple[Value, ...]:
    assert op.running_mean is not None
    assert op.running_var is not None
    scale = _scaled(rsqrt(wide(op.running_var) + op.eps), op.weight)
    centred = wide(op.x) - _channels(wide(op.running_mean), op.x)
    result = _shifted(centred * _channels(scale, op.x), op)
    empty = (Full(0.0, (0,), v.tensor_type.dtype, v.tensor_type.device) for v in op.results[1:])
    return (result, *(factory.out for factory in empty))


def _shifted(value: Number, op: BatchNorm) -> Value:
    if op.bias is not None:
        value = value + _channels(wide(op.bias), op.x)
    return value.to(op.results[0].tensor_type.dtype)


def _by_batch(op: BatchNorm) -> tuple[Value, ...]:
    x, others = wide(op.x), _others(op.x)
    average = mean(x, others)
    centred = x - average
    squares = total(square(centred), others)
    count = product(op.x.shape[dim] for dim in others)
    deviation = rsqrt(_vector(squares, op.x) / count + op.eps)
    scale = _channels(_scaled(deviation, op.weight), op.x)
    values = [_vector(average, op.x), deviation]
    if op.running_mean is not None and op.running_var is not None:
        variance = _vector(squares, op.x) / (count - 1)
        values.append(_updated(op.running_mean, values[0], op.momentum))
        values.append(_updated(op.running_var, variance, op.momentum))
    pairs = zip(values, op.results[1:], strict=True)
    statistics = (value.to(result.tensor_type.dtype) for value, result in pairs)
    return (_shifted(centred * scale, op), *statistics)


def _updated(running: Value, current: Number, momentum: float) -> Number:
    return current * momentum + wide(running) * (1 - momentum)


@rule
def expand_batch_norm_backward(op: BatchNormBackward) -> tuple[Value | None, ...] | NoMatch:
    """Project the gradient of each channel; running statistics count as constants.

    batch_norm_backward(g, x, w, ..)  ==>  (g - mean(g) - c * mean(g c) * r * r) * r w, sum(g c) * r, sum(g), c = x - m
    """  # noqa: E501 - one equation
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    grad, others = wide(op.grad), _others(op.x)
    average, deviation = _statistics(op)
    of_x, of_weight, of_bias = op.mask
    results: list[Number | None] = [None, None, None]
    scale = _channels(_scaled(deviation, op.weight), op.x)
    if of_x and not op.training:
        results[0] = grad * scale
    if of_weight or of_bias or op.training:
        centred = wide(op.x) - _channels(average, op.x)
        sums, products = total(grad, others), total(grad * centred, others)
        if of_x and op.training:
            count = product(op.x.shape[dim] for dim in others)
            slope = _vector(products, op.x) / count * square(deviation)
            rest = grad - sums / count - centred * _channels(slope, op.x)
            results[0] = rest * scale
        results[1:] = [_vector(products, op.x) * deviation, _vector(sums, op.x)]
    return tuple(
        value.to(result.tensor_type.dtype) if wanted and value is not None else None
        for value, result, wanted in zip(results, op.results, op.mask, strict=True)
    )


def _statistics(op: BatchNormBackward) -> tuple[Number, Number]:
    """Return means and inverse deviations of the channels."""
    if op.training:
        assert op.mean is not None
        assert op.rstd is not None
        return wide(op.mean), wide(op.rstd)
    assert op.running_mean is not None
    assert op.running_var is not None
    return wide(op.running_mean), rsqrt(wide(op.running_var) + op.eps)


BATCH_NORM_RULES: tuple[Rule, ...] = (expand_batch_norm, expand_batch_norm_backward)
