"""Import rules of the fused cross-entropy of a linear projection."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Value
from lynx.ir.ops.factory import Empty
from lynx.ir.ops.loss_linear import GRADIENTS, LinearCrossEntropy, LinearCrossEntropyBackward

from .registry import Context, Decline, Imported, imports


@imports("lynx.linear_cross_entropy.default")
def linear_cross_entropy(
    context: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    target: Value,
    class_weight: Value | None,
    token_weight: Value | None,
    *form: Any,
) -> Imported:
    """Compute the loss, and gradients for a gradient of one."""
    *attributes, wanted = form
    gradients = _names(wanted, bias)
    operands = (x, weight, bias, target, class_weight, token_weight)
    loss, *found = context.add(LinearCrossEntropy(*operands, *_plain(attributes), gradients))
    return (loss, *_filled(context, found, gradients, x))


@imports("lynx.linear_cross_entropy_backward.default")
def linear_cross_entropy_backward(
    context: Context,
    grad: Value,
    x: Value,
    weight: Value,
    bias: Value | None,
    target: Value,
    class_weight: Value | None,
    token_weight: Value | None,
    unit_x: Value | None,
    unit_weight: Value | None,
    unit_bias: Value | None,
    *form: Any,
) -> Imported:
    """Compute the gradients, if none is known up to a factor."""
    *attributes, wanted = form
    gradients = _names(wanted, bias)
    if any(unit is not None for unit in (unit_x, unit_weight, unit_bias)) or not gradients:
        return Decline("gradients that are known up to a factor")
    operands = (grad, x, weight, bias, target, class_weight, token_weight)
    plain = _plain(attributes)
    found = context.add(LinearCrossEntropyBackward(*operands, *plain, gradients))
    return _filled(context, list(found), gradients, x)


def _names(wanted: tuple[bool, ...], bias: Value | None) -> tuple[str, ...]:
    return tuple(
        name
        for name, want in zip(GRADIENTS, wanted, strict=True)
        if want and (name != "bias" or bias is not None)
    )


def _plain(attributes: list[Any]) -> tuple[str, int | None, float, tuple[str, ...]]:
    reduction, ignore, smoothing, steps = attributes
    return reduction, ignore, float(smoothing), tuple(steps)


def _filled(
    context: Context, found: list[Value], gradients: tuple[str, ...], x: Value
) -> tuple[Value, ...]:
    """Return a result for each gradient that there could be; the operator makes others empty."""
    by_name = dict(zip(gradients, found, strict=True))
    type_ = x.tensor_type
    return tuple(
        by_name[name] if name in by_name else context.emit(Empty((0,), type_.dtype, type_.device))
        for name in GRADIENTS
    )
