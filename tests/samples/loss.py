"""Samples of losses and their gradients."""

from __future__ import annotations

from lynx.ir.core import Value
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
from lynx.ir.types import DType

from . import Sample
from .linear import tensor

PAIRS = (MseLoss, SmoothL1Loss, HuberLoss, SoftMarginLoss)
BACKWARD = (MseLossBackward, SmoothL1LossBackward, HuberLossBackward, SoftMarginLossBackward)


def of_loss(reduction: str, *shape: int) -> Value:
    return tensor(*(shape if reduction == "none" else ()))


def classes(*shape: int) -> Value:
    return tensor(*shape, dtype=DType.I64)


SAMPLES = [
    *(
        Sample(kind(tensor(4, 5), tensor(4, 5), reduction), tolerance=1e-4)
        for kind in PAIRS
        for reduction in REDUCTIONS
    ),
    *(
        Sample(kind(of_loss(reduction, 4, 5), tensor(4, 5), tensor(4, 5), reduction))
        for kind in BACKWARD
        for reduction in REDUCTIONS
    ),
    Sample(SmoothL1Loss(tensor(7), tensor(7), "sum", 0.25), tolerance=1e-4),
    Sample(HuberLoss(tensor(7), tensor(7), "sum", 0.25), tolerance=1e-4),
    *(
        Sample(op, tolerance=1e-4)
        for reduction in REDUCTIONS
        for op in (
            BinaryCrossEntropyLogits(tensor(4, 5), tensor(4, 5), None, None, reduction),
            BinaryCrossEntropyLogits(tensor(4, 5), tensor(4, 5), tensor(5), tensor(5), reduction),
            BinaryCrossEntropyBackward(
                of_loss(reduction, 4, 5), tensor(4, 5), tensor(4, 5), tensor(4, 1), reduction
            ),
        )
    ),
    *(
        Sample(
            BinaryCrossEntropy(tensor(4, 5), tensor(4, 5), weight, reduction),
            {0: (0, 1), 1: (0, 1)},
            tolerance=1e-4,
        )
        for reduction in REDUCTIONS
        for weight in (None, tensor(1, 5))
    ),
    Sample(MseLoss(tensor(), tensor(), "sum")),
    *(
        Sample(NllLoss(tensor(6, 5), classes(6), weight, reduction), {1: (0, 5)}, tolerance=1e-4)
        for reduction in REDUCTIONS
        for weight in (None, tensor(5))
    ),
    Sample(NllLoss(tensor(5), classes(), None, "sum", 2), {1: (0, 5)}),
    Sample(
        NllLoss(tensor(2, 3, 4, 5), classes(2, 4, 5), None, "sum", 1), {1: (0, 3)}, tolerance=1e-4
    ),
    Sample(NllLoss(tensor(2, 3, 4, 5), classes(2, 4, 5), tensor(3), "none"), {1: (0, 3)}),
    *(
        Sample(
            NllLossBackward(
                of_loss(reduction, 6), tensor(6, 5), classes(6), weight, tensor(), reduction, 3
            ),
            {2: (0, 5)},
            positive=(3, 4),
        )
        for reduction in REDUCTIONS
        for weight in (None, tensor(5))
    ),
    Sample(
        NllLossBackward(
            of_loss("mean"), tensor(2, 3, 4, 5), classes(2, 4, 5), None, tensor(), "mean"
        ),
        {2: (0, 3)},
        positive=(3,),
    ),
]
