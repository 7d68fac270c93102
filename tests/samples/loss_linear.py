"""Samples of the cross-entropy of a projection and of its gradients."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops.loss_linear import LinearCrossEntropy, LinearCrossEntropyBackward

from . import Sample
from .linear import tensor
from .loss import classes, of_loss

ALL = ("x", "weight", "bias")
CAP = ("divide 2.0", "tanh", "multiply 2.0", "convert f32")


def operands(
    *tokens: int, bias: bool = True, class_weight: bool = False, token_weight: bool = False
) -> tuple[Value, Value, Value | None, Value, Value | None, Value | None]:
    return (
        tensor(*tokens, 4),
        tensor(7, 4),
        tensor(7) if bias else None,
        classes(*tokens),
        tensor(7) if class_weight else None,
        tensor(*tokens) if token_weight else None,
    )


SAMPLES = [
    Sample(LinearCrossEntropy(*operands(2, 3)), {3: (0, 7)}, tolerance=1e-4),
    Sample(LinearCrossEntropy(*operands(6, bias=False), "none", 3), {2: (0, 7)}, tolerance=1e-4),
    Sample(
        LinearCrossEntropy(*operands(6, class_weight=True), "mean", 3, 0.1, CAP, ALL),
        {3: (0, 7)},
        positive=(4,),
        tolerance=1e-4,
    ),
    Sample(
        LinearCrossEntropy(*operands(2, 3, token_weight=True), "sum", None, 0.1, (), ALL[1:]),
        {3: (0, 7)},
        tolerance=1e-4,
    ),
    Sample(
        LinearCrossEntropyBackward(
            of_loss("none", 2, 3), *operands(2, 3), "none", 3, 0.0, CAP, ALL
        ),
        {4: (0, 7)},
        tolerance=1e-4,
    ),
    Sample(
        LinearCrossEntropyBackward(
            of_loss("mean"), *operands(6, bias=False), "mean", 3, 0.0, (), ("weight",)
        ),
        {3: (0, 7)},
        tolerance=1e-4,
    ),
]
