"""What the cross-entropy of a linear projection means."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from lynx.ir.call import Call
from lynx.ir.ops.loss_linear import GRADIENTS, LinearCrossEntropy, LinearCrossEntropyBackward

from .linear_cross_entropy import (
    Gradients,
    LossForm,
    Operands,
    linear_cross_entropy,
    linear_cross_entropy_backward,
)
from .registry import means


@means(LinearCrossEntropy)
def projected_loss(op: LinearCrossEntropy) -> Call:
    """Compute loss and gradients chunk by chunk."""
    bound = (LossForm(op.reduction, op.ignore, op.smoothing, op.steps), op.gradients)
    arguments = (op.x, op.weight, op.bias, op.target, op.class_weight, op.token_weight)
    out = functools.partial(_loss_into, *bound)
    function = functools.partial(_loss, *bound)
    return Call(function, arguments, {}, out, ("loss", *op.gradients))


@means(LinearCrossEntropyBackward)
def projected_loss_backward(op: LinearCrossEntropyBackward) -> Call:
    """Compute gradients chunk by chunk."""
    form = LossForm(op.reduction, op.ignore, op.smoothing, op.steps)
    operands = (op.grad, op.x, op.weight, op.bias, op.target, op.class_weight, op.token_weight)
    return Call(functools.partial(_gradients, form, op.gradients), operands)


def _loss(form: LossForm, gradients: Sequence[str], *operands: *Operands) -> Any:
    loss, found = linear_cross_entropy(*operands, form, _wanted(gradients))
    return (loss, *_chosen(found, gradients)) if gradients else loss


def _loss_into(
    form: LossForm, gradients: Sequence[str], *operands: *Operands, loss: torch.Tensor, **out: Any
) -> Any:
    given = (out.get("x"), out.get("weight"), out.get("bias"))
    found, computed = linear_cross_entropy(*operands, form, _wanted(gradients), given)
    loss.copy_(found)
    return (loss, *_chosen(computed, gradients))


def _gradients(
    form: LossForm, gradients: Sequence[str], grad: torch.Tensor, *operands: *Operands
) -> Any:
    found = linear_cross_entropy_backward(grad, *operands, form, _wanted(gradients))
    dtype = operands[0].dtype
    rounded = tuple(gradient.to(dtype) for gradient in _chosen(found, gradients))
    return rounded if len(rounded) > 1 else rounded[0]


def _wanted(gradients: Sequence[str]) -> tuple[bool, ...]:
    return tuple(name in gradients for name in GRADIENTS)


def _chosen(found: Gradients, gradients: Sequence[str]) -> tuple[torch.Tensor, ...]:
    by_name = dict(zip(GRADIENTS, found, strict=True))
    chosen = (by_name[name] for name in gradients)
    return tuple(gradient for gradient in chosen if gradient is not None)
