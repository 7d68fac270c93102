"""What losses and their gradients mean."""

from __future__ import annotations

from typing import Any

from lynx.ir.call import Call
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
    PairLoss,
    PairLossBackward,
    SmoothL1Loss,
    SmoothL1LossBackward,
    SoftMarginLoss,
    SoftMarginLossBackward,
)

from .registry import aten, means
from .strides import contiguous_only, contiguous_operands, without_out


def _code(reduction: str) -> int:
    """Return torch's number for a reduction."""
    return REDUCTIONS.index(reduction)


def _shape_of_loss(op: PairLoss | PairLossBackward) -> tuple[Any, ...]:
    """Return the extra attribute of the losses that have one."""
    if isinstance(op, SmoothL1Loss | SmoothL1LossBackward):
        return (op.beta,)
    return (op.delta,) if isinstance(op, HuberLoss | HuberLossBackward) else ()


@means(MseLoss, SmoothL1Loss, HuberLoss, SoftMarginLoss)
def pair_loss(op: PairLoss) -> Call:
    """Call the operator of the same name."""
    call = aten(op.name, op.x, op.target, _code(op.reduction), *_shape_of_loss(op))
    return call if op.reduction == "none" else without_out(call)


@means(MseLossBackward, SmoothL1LossBackward, HuberLossBackward, SoftMarginLossBackward)
def pair_loss_backward(op: PairLossBackward) -> Call:
    """Call the operator of the same name."""
    code = _code(op.reduction)
    return aten(op.name, op.grad, op.x, op.target, code, *_shape_of_loss(op))


@means(BinaryCrossEntropy)
def binary_cross_entropy(op: BinaryCrossEntropy) -> Call:
    """Call the operator of the same name."""
    call = aten("binary_cross_entropy", op.x, op.target, op.weight, _code(op.reduction))
    return call if op.reduction == "none" else without_out(call)


@means(BinaryCrossEntropyBackward)
def binary_cross_entropy_backward(op: BinaryCrossEntropyBackward) -> Call:
    """Call the operator of the same name."""
    code = _code(op.reduction)
    return aten("binary_cross_entropy_backward", op.grad, op.x, op.target, op.weight, code)


@means(BinaryCrossEntropyLogits)
def binary_cross_entropy_logits(op: BinaryCrossEntropyLogits) -> Call:
    """Call torch's operator `binary_cross_entropy_with_logits`."""
    weights = (op.weight, op.positive_weight)
    code = _code(op.reduction)
    return aten("binary_cross_entropy_with_logits", op.x, op.target, *weights, code)


@means(NllLoss)
def nll_loss(op: NllLoss) -> Call:
    """Call the operator for vectors, or the one for images."""
    name = "nll_loss_forward" if op.x.tensor_type.rank < 3 else "nll_loss2d_forward"
    call = aten(name, op.x, op.target, op.weight, _code(op.reduction), op.ignore)
    return contiguous_only(call)


@means(NllLossBackward)
def nll_loss_backward(op: NllLossBackward) -> Call:
    """Call the operator for vectors, or the one for images."""
    name = "nll_loss_backward" if op.x.tensor_type.rank < 3 else "nll_loss2d_backward"
    code = _code(op.reduction)
    call = aten(name, op.grad, op.x, op.target, op.weight, code, op.ignore, op.total_weight)
    return contiguous_only(contiguous_operands(call))
