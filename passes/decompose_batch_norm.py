"""Batch normalization and its gradients in terms of reductions and elementwise ops."""

from __future__ import annotations

from collections.abc import Sequence

from lynx.ir.core import Value
from lynx.ir.dims import product
from lynx.ir.ops.factory import Full
from lynx.ir.ops.normalization import BatchNorm, BatchNormBackward
from lynx.ir.types import DType

from .decompose_build import Number, mean, refuse_empty, rsqrt, square, total, wide
from .rewrite import NoMatch, Rule, rule


def _others(x: Value) -> tuple[int, ...]:
    """Return the dimensions over which a channel is normalized."""
    return tuple(dim for dim in range(len(x.shape)) if dim != 1)


def _channels(vector: Value, like: Value) -> Number:
    """Return one value a channel in a shape that is broadcast against `n c s..`.

    All that is computed of channels has such a shape, so that it is part of the same kernels.
    """
    shape = (1, like.shape[1], *(1,) * (len(like.shape) - 2))
    return wide(vector).reshaped(shape)


def _scaled(scale: Number, weight: Value | None, like: Value) -> Number:
    return scale if weight is None else scale * _channels(weight, like)


def _as_vectors(values: Sequence[Number], results: Sequence[Value]) -> tuple[Value, ...]:
    """Return values of channels in the types of results."""
    return tuple(
        value.reshaped(result.shape).to(result.tensor_type.dtype)
        for value, result in zip(values, results, strict=True)
    )


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
    deviation = rsqrt(_channels(op.running_var, op.x) + op.eps)
    centred = wide(op.x) - _channels(op.running_mean, op.x)
    empty = (Full(0.0, (0,), v.tensor_type.dtype, v.tensor_type.device) for v in op.results[1:])
    return (_normalized(op, centred, deviation), *(factory.out for factory in empty))


def _normalized(op: BatchNorm, centred: Number, deviation: Number) -> Value:
    result = centred * _scaled(deviation, op.weight, op.x)
    if op.bias is not None:
        result = result + _channels(op.bias, op.x)
    return result.to(op.results[0].tensor_type.dtype)


def _by_batch(op: BatchNorm) -> tuple[Value, ...]:
    x, others = wide(op.x), _others(op.x)
    precise = _precise(op.x)
    average = mean(precise, others)
    squares = total(square(precise - average), others)
    count = product(op.x.shape[dim] for dim in others)
    deviation = Number(rsqrt(squares / count + op.eps).to(x.dtype))
    centred = x - Number(average.to(x.dtype))
    values = [average, deviation]
    if op.running_mean is not None and op.running_var is not None:
        variance = squares / (count - 1)
        values.append(_updated(op, op.running_mean, average))
        values.append(_updated(op, op.running_var, variance))
    statistics = _as_vectors(values, op.results[1:])
    return (_normalized(op, centred, deviation), *statistics)


def _precise(value: Value) -> Number:
    """Return a value in the type in which eager adds up what it knows of channels."""
    return Number(Number(value).to(DType.F64))


def _updated(op: BatchNorm, running: Value, current: Number) -> Number:
    kept = _channels(running, op.x)
    return Number(current.to(kept.dtype)) * op.momentum + kept * (1 - op.momentum)


@rule
def expand_batch_norm_backward(op: BatchNormBackward) -> tuple[Value | None, ...] | NoMatch:
    """Project the gradient of each channel; running statistics count as constants.

    batch_norm_backward(g, x, w, ..)  ==>  (g - mean(g) - c * mean(g c) * r * r) * r w, sum(g c) * r, sum(g), c = x - m
    """  # noqa: E501 - one equation
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    grad, others = wide(op.grad), _others(op.x)
    average, deviation = _statistics(op)
    scale = _scaled(deviation, op.weight, op.x)
    if not (op.training or any(op.mask[1:])):
        return (grad * scale).to(op.x.tensor_type.dtype), None, None
    centred = wide(op.x) - average
    precise = Number(grad.to(DType.F64))
    shifts = _precise(op.x) - Number(average.to(DType.F64))
    sums = Number(total(precise, others).to(grad.dtype))
    products = Number(total(precise * shifts, others).to(grad.dtype))
    if op.training:
        count = product(op.x.shape[dim] for dim in others)
        slope = products / count * deviation * deviation
        of_x = (grad - sums / count - centred * slope) * scale
    else:
        of_x = grad * scale
    values = (of_x, products * deviation, sums)
    return tuple(
        value.reshaped(result.shape).to(result.tensor_type.dtype) if wanted else None
        for value, result, wanted in zip(values, op.results, op.mask, strict=True)
    )


def _statistics(op: BatchNormBackward) -> tuple[Number, Number]:
    """Return means and inverse deviations of the channels."""
    if op.training:
        assert op.mean is not None
        assert op.rstd is not None
        return _channels(op.mean, op.x), _channels(op.rstd, op.x)
    assert op.running_mean is not None
    assert op.running_var is not None
    deviation = rsqrt(_channels(op.running_var, op.x) + op.eps)
    return _channels(op.running_mean, op.x), deviation


BATCH_NORM_RULES: tuple[Rule, ...] = (expand_batch_norm, expand_batch_norm_backward)
