"""Import rules of losses and their gradients."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Value
from lynx.ir.dims import Dim
from lynx.ir.ops.loss import (
    REDUCTIONS,
    BinaryCrossEntropy,
    BinaryCrossEntropyBackward,
    BinaryCrossEntropyLogits,
    HuberLoss,
    HuberLossBackward,
    MseLoss,
    MseLossBackward,
    NllLoss,
    NllLossBackward,
    SmoothL1Loss,
    SmoothL1LossBackward,
    SoftMarginLoss,
    SoftMarginLossBackward,
)

from .elementwise import coefficient
from .registry import Context, Decline, Imported, imports

_MEAN = REDUCTIONS.index("mean")


@imports("aten.mse_loss.default", "aten.soft_margin_loss.default")
def pair_loss(context: Context, x: Value, target: Value, reduction: int = _MEAN) -> Imported:
    """Compare two tensors."""
    kind = MseLoss if "mse" in context.target else SoftMarginLoss
    return context.emit(kind(x, target, REDUCTIONS[reduction]))


@imports("aten.mse_loss_backward.default", "aten.soft_margin_loss_backward.default")
def pair_loss_backward(
    context: Context, grad: Value, x: Value, target: Value, reduction: int
) -> Imported:
    """Return the gradient of such a loss."""
    kind = MseLossBackward if "mse" in context.target else SoftMarginLossBackward
    return context.emit(kind(grad, x, target, REDUCTIONS[reduction]))


@imports("aten.smooth_l1_loss.default")
def smooth_l1_loss(
    context: Context, x: Value, target: Value, reduction: int = _MEAN, beta: Any = 1.0
) -> Imported:
    """Compare two tensors, quadratically when close."""
    bound = coefficient(beta)
    if bound is None:
        return Decline(f"a bound {beta} that is no float")
    return context.emit(SmoothL1Loss(x, target, REDUCTIONS[reduction], bound))


@imports("aten.huber_loss.default")
def huber_loss(
    context: Context, x: Value, target: Value, reduction: int = _MEAN, delta: Any = 1.0
) -> Imported:
    """Compare two tensors, quadratically when close."""
    bound = coefficient(delta)
    if bound is None:
        return Decline(f"a bound {delta} that is no float")
    return context.emit(HuberLoss(x, target, REDUCTIONS[reduction], bound))


@imports("aten.smooth_l1_loss_backward.default", "aten.huber_loss_backward.default")
def bounded_loss_backward(
    context: Context, grad: Value, x: Value, target: Value, reduction: int, bound: Any
) -> Imported:
    """Return the gradient of such a loss."""
    number = coefficient(bound)
    if number is None:
        return Decline(f"a bound {bound} that is no float")
    kind = HuberLossBackward if "huber" in context.target else SmoothL1LossBackward
    return context.emit(kind(grad, x, target, REDUCTIONS[reduction], number))


@imports("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    context: Context,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
) -> Imported:
    """Compare probabilities with targets."""
    return context.emit(BinaryCrossEntropy(x, target, weight, REDUCTIONS[reduction]))


@imports("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    context: Context,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = _MEAN,
) -> Imported:
    """Return the gradient of that."""
    return context.emit(BinaryCrossEntropyBackward(grad, x, target, weight, REDUCTIONS[reduction]))


@imports("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_logits(
    context: Context,
    x: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = _MEAN,
) -> Imported:
    """Compare logits with targets."""
    return context.emit(
        BinaryCrossEntropyLogits(x, target, weight, pos_weight, REDUCTIONS[reduction])
    )


@imports("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss(
    context: Context,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: Dim,
) -> Imported:
    """Pick the log-probabilities of classes."""
    if not isinstance(ignore_index, int):
        return Decline("a symbolic class to ignore")
    return context.add(NllLoss(x, target, weight, REDUCTIONS[reduction], ignore_index))


@imports("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(
    context: Context,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: Dim,
    total_weight: Value,
) -> Imported:
    """Return the gradient of that."""
    if not isinstance(ignore_index, int):
        return Decline("a symbolic class to ignore")
    rest = (weight, total_weight, REDUCTIONS[reduction], ignore_index)
    return context.emit(NllLossBackward(grad, x, target, *rest))
