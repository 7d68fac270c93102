"""Normalization ops and their gradients in terms of reductions and elementwise ops."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.dims import Dim, floor_div, product
from lynx.ir.ops.layout import Reshape
from lynx.ir.ops.normalization import (
    GroupNorm,
    GroupNormBackward,
    LayerNorm,
    LayerNormBackward,
    RmsNorm,
    RmsNormBackward,
)
from lynx.ir.types import DType

from .decompose_build import Number, mean, product_plus, refuse_empty, rsqrt, square, total, wide
from .rewrite import NoMatch, Rule, rule

_EPSILON = {DType.F32: 2.0**-23, DType.F64: 2.0**-52}
"""The machine epsilon of the types in which norms are computed."""


def _inner(x: Value, axis: int) -> tuple[int, ...]:
    return tuple(range(axis, len(x.shape)))


def _standardized(x: Number, dims: tuple[int, ...], eps: float) -> tuple[Number, Number, Number]:
    """Return the centred and scaled value, the mean, and the inverse deviation.

    The mean of what is left without the mean is the rounding of the mean itself. It is taken out
    too: else numbers that are all equal, of which eager leaves nothing, would leave noise that the
    inverse of their deviation makes large. On GPUs the one sweep of Welford does as much.
    """
    average = mean(x, dims)
    centred = x - average
    scale = rsqrt(mean(square(centred), dims) + eps)
    if x.value.tensor_type.device == "cpu":
        average = average + mean(centred, dims)
        centred = x - average
    return centred * scale, average, scale


def _affine(x: Number, weight: Value | None, bias: Value | None) -> Number:
    if weight is None:
        return x if bias is None else x + wide(bias)
    return x * wide(weight) if bias is None else product_plus(x, wide(weight), wide(bias))


def _as(value: Number, like: Value) -> Value:
    return value.to(like.tensor_type.dtype)


@rule
def expand_layer_norm(op: LayerNorm) -> tuple[Value, ...] | NoMatch:
    """Centre, divide by the deviation, scale and shift.

    layer_norm(x, w, b)  ==>  (x - mean(x)) * rsqrt(var(x) + eps) * w + b
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    result, average, scale = _standardized(wide(op.x), _inner(op.x, op.axis), op.eps)
    values = (_affine(result, op.weight, op.bias), average, scale)
    return tuple(_as(value, like) for value, like in zip(values, op.results, strict=True))


def _gradient(grad: Number, normal: Number, scale: Number, dims: tuple[int, ...]) -> Number:
    """Return the gradient of a standardized value with respect to the value."""
    return (grad - mean(grad, dims) - normal * mean(grad * normal, dims)) * scale


@rule
def expand_layer_norm_backward(op: LayerNormBackward) -> tuple[Value | None, ...] | NoMatch:
    """Project the gradient, and sum over the rows for weight and bias.

    layer_norm_backward(g, x, ..)  ==>  (g w - mean(g w) - n mean(g w n)) * rstd, sum(g n), sum(g)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    grad, scale = wide(op.grad), wide(op.rstd)
    normal = (wide(op.x) - wide(op.mean)) * scale
    rows = tuple(range(op.axis))
    values = (
        _gradient(_affine(grad, op.weight, None), normal, scale, _inner(op.x, op.axis)),
        total(grad * normal, rows, keepdim=False),
        total(grad, rows, keepdim=False),
    )
    return _wanted(values, op.results, op.mask)


def _wanted(
    values: tuple[Number, ...], results: tuple[Value, ...], mask: tuple[bool, ...]
) -> tuple[Value | None, ...]:
    triples = zip(values, results, mask, strict=True)
    return tuple(_as(value, like) if wants else None for value, like, wants in triples)


@rule
def expand_rms_norm(op: RmsNorm) -> tuple[Value, ...] | NoMatch:
    """Divide by the root of the mean square, and scale.

    rms_norm(x, w)  ==>  x * rsqrt(mean(x * x) + eps) * w
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    x = wide(op.x)
    eps = _EPSILON.get(x.dtype) if op.eps is None else op.eps
    if eps is None:
        return NoMatch(f"no epsilon is known for {x.dtype}")
    scale = rsqrt(mean(square(x), _inner(op.x, op.axis)) + eps)
    values = (_affine(x * scale, op.weight, None), scale)
    return tuple(_as(value, like) for value, like in zip(values, op.results, strict=True))


@rule
def expand_rms_norm_backward(op: RmsNormBackward) -> tuple[Value | None, ...] | NoMatch:
    """Project the gradient, and sum over the rows for the weight.

    rms_norm_backward(g, x, r, w)  ==>  (g w - n mean(g w n)) * r, sum(g n)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    grad, scale = wide(op.grad), wide(op.rstd)
    normal = wide(op.x) * scale
    weighted = _affine(grad, op.weight, None)
    share = normal * mean(weighted * normal, _inner(op.x, op.axis))
    rows = tuple(range(op.axis))
    values = ((weighted - share) * scale, total(grad * normal, rows, keepdim=False))
    return _wanted(values, op.results, op.mask)


class _Groups:
    """Shapes in which the channels of `n c s..` are split into groups: `n g m s..`.

    Only the channels are reshaped, so that any layout of the input is read by strides.
    """

    def __init__(self, x: Value, groups: Dim) -> None:
        batch, channels, *space = x.shape
        members = floor_div(channels, groups)
        self.x = x
        self.shape = (batch, groups, members, *space)
        self.vector_shape = (groups, members, *(1,) * len(space))
        self.statistics_shape = (batch, groups, *(1,) * (1 + len(space)))
        self.inner = tuple(range(2, len(self.shape)))
        self.space = self.inner[1:]
        self.count = product((members, *space))

    def split(self, value: Value) -> Number:
        """Return a value of the shape of `x`, in groups."""
        return wide(value).reshaped(self.shape)

    def vector(self, value: Value | None) -> Value | None:
        """Return one value a channel."""
        return None if value is None else Reshape(value, self.vector_shape).out

    def statistics(self, value: Value) -> Number:
        """Return one value a sample and group."""
        return wide(value).reshaped(self.statistics_shape)


@rule
def expand_group_norm(op: GroupNorm) -> tuple[Value, ...] | NoMatch:
    """Standardize each group of channels, then scale and shift the channels.

    group_norm(x, w, b)  ==>  standardized(reshape(x)) * w + b
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    groups = _Groups(op.x, op.groups)
    normal, average, scale = _standardized(groups.split(op.x), groups.inner, op.eps)
    result = _affine(normal, groups.vector(op.weight), groups.vector(op.bias))
    values = zip((result, average, scale), op.results, strict=True)
    return tuple(_as(value.reshaped(like.shape), like) for value, like in values)


@rule
def expand_group_norm_backward(op: GroupNormBackward) -> tuple[Value | None, ...] | NoMatch:
    """Project the gradient within each group, and sum over all but the channels.

    group_norm_backward(g, x, ..)  ==>  (g w - mean(g w) - n mean(g w n)) * rstd, sum(g n), sum(g)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    groups = _Groups(op.x, op.groups)
    grad, scale = groups.split(op.grad), groups.statistics(op.rstd)
    normal = (groups.split(op.x) - groups.statistics(op.mean)) * scale
    # Sums over space come first: they are small, and all that the rest needs of the whole.
    sums, products = total(grad, groups.space), total(grad * normal, groups.space)
    weight = groups.vector(op.weight)
    average, slope = (
        total(_affine(value, weight, None), (2,)) / groups.count for value in (sums, products)
    )
    values = (
        (_affine(grad, weight, None) - average - normal * slope) * scale,
        total(products, (0,)),
        total(sums, (0,)),
    )
    return tuple(
        _as(value.reshaped(like.shape), like) if wants else None
        for value, like, wants in zip(values, op.results, op.mask, strict=True)
    )


NORMALIZATION_RULES: tuple[Rule, ...] = (
    expand_layer_norm,
    expand_layer_norm_backward,
    expand_rms_norm,
    expand_rms_norm_backward,
    expand_group_norm,
    expand_group_norm_backward,
)
