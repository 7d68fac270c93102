"""Loss functions and their gradients, as torch's operators of the same names."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, may_equal
from lynx.ir.space import FactorKind, IndexMap, IterationSpace
from lynx.ir.types import TensorType

from .factors import (
    Factors,
    broadcast_axes,
    broadcast_shapes,
    require_rank,
    require_same_dtype,
    require_shape,
)

REDUCTIONS = ("none", "mean", "sum")
"""What is done with the losses of single elements, in the order of torch's numbers for them."""

_KINDS = {
    "none": FactorKind.PARALLEL,
    "mean": FactorKind.OPAQUE,
    "sum": FactorKind.REDUCTION,
}


def _require_reduction(op: Op, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise op.error("bad-attribute", f"does not know the reduction '{reduction}'")


class PairLoss(Op):
    """Base of losses that compare `x` with `target`, which has the same shape, by element.

    `reduction` is none, mean or sum; a mean cannot be cut, since its parts do not add up.
    """

    x: Value
    target: Value
    reduction: str = "mean"

    def infer(self) -> TensorType:
        """Return the type of `x`, or a 0-dim one if the losses are reduced."""
        return _loss_type(self, self.x, self.target, self.reduction)

    def space(self) -> IterationSpace:
        """Run in parallel, or reduce."""
        return _loss_space(self, self.x, self.reduction)


class MseLoss(PairLoss, name="mse_loss"):
    """Compute `(x - target)**2`.

    %l = mse_loss %x, %target {reduction = "sum"} : f32[]
    """


class SmoothL1Loss(PairLoss, name="smooth_l1_loss"):
    """Compute `|difference| - beta / 2`, or `difference**2 / (2 * beta)` below `beta`.

    %l = smooth_l1_loss %x, %target {beta = 0.5} : f32[]
    """

    beta: float = 1


class HuberLoss(PairLoss, name="huber_loss"):
    """Compute half the squared difference, continued by a line from `delta` on.

    %l = huber_loss %x, %target {delta = 0.5} : f32[]
    """

    delta: float = 1


class SoftMarginLoss(PairLoss, name="soft_margin_loss"):
    """Compute `log(1 + exp(-target * x))`.

    %l = soft_margin_loss %x, %target : f32[]
    """


class BinaryCrossEntropy(Op, name="binary_cross_entropy"):
    """Compute `-weight * (target * log(x) + (1 - target) * log(1 - x))`, logarithms at least -100.

    %l = binary_cross_entropy %x, %target, none : f32[]
    """

    x: Value
    target: Value
    weight: Value | None
    reduction: str = "mean"

    def infer(self) -> TensorType:
        """Return the type of `x`, or a 0-dim one if the losses are reduced."""
        _require_broadcast(self, self.x, self.weight)
        return _loss_type(self, self.x, self.target, self.reduction)

    def space(self) -> IterationSpace:
        """Run in parallel, or reduce."""
        return _loss_space(self, self.x, self.reduction)


class BinaryCrossEntropyLogits(Op, name="binary_cross_entropy_logits"):
    """Compute the binary cross entropy of `sigmoid(x)`, in a way that does not overflow.

        %l = binary_cross_entropy_logits %x, %target, none, none : f32[]

    `positive_weight` multiplies the part of positive targets.
    """

    x: Value
    target: Value
    weight: Value | None
    positive_weight: Value | None
    reduction: str = "mean"

    def infer(self) -> TensorType:
        """Return the type of `x`, or a 0-dim one if the losses are reduced."""
        _require_broadcast(self, self.x, self.weight)
        _require_broadcast(self, self.x, self.positive_weight)
        return _loss_type(self, self.x, self.target, self.reduction)

    def space(self) -> IterationSpace:
        """Run in parallel, or reduce."""
        return _loss_space(self, self.x, self.reduction)


class PairLossBackward(Op):
    """Base of gradients with respect to `x`; `grad` is 0-dim if the losses were reduced."""

    grad: Value
    x: Value
    target: Value
    reduction: str = "mean"

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        return _loss_gradient_type(self, self.grad, self.x, self.target, self.reduction)

    def space(self) -> IterationSpace:
        """Run in parallel; a mean divides by the whole number of elements."""
        return _loss_gradient_space(self, self.x, self.reduction)


class MseLossBackward(PairLossBackward, name="mse_loss_backward"):
    """Return the gradient of `mse_loss`.

    %g = mse_loss_backward %grad, %x, %target : f32[4, 8]
    """


class SmoothL1LossBackward(PairLossBackward, name="smooth_l1_loss_backward"):
    """Return the gradient of `smooth_l1_loss`.

    %g = smooth_l1_loss_backward %grad, %x, %target {beta = 0.5} : f32[4, 8]
    """

    beta: float = 1


class HuberLossBackward(PairLossBackward, name="huber_loss_backward"):
    """Return the gradient of `huber_loss`.

    %g = huber_loss_backward %grad, %x, %target {delta = 0.5} : f32[4, 8]
    """

    delta: float = 1


class SoftMarginLossBackward(PairLossBackward, name="soft_margin_loss_backward"):
    """Return the gradient of `soft_margin_loss`.

    %g = soft_margin_loss_backward %grad, %x, %target : f32[4, 8]
    """


class BinaryCrossEntropyBackward(Op, name="binary_cross_entropy_backward"):
    """Return the gradient of `binary_cross_entropy`.

    %g = binary_cross_entropy_backward %grad, %x, %target, none : f32[4, 8]
    """

    grad: Value
    x: Value
    target: Value
    weight: Value | None
    reduction: str = "mean"

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        _require_broadcast(self, self.x, self.weight)
        return _loss_gradient_type(self, self.grad, self.x, self.target, self.reduction)

    def space(self) -> IterationSpace:
        """Run in parallel; a mean divides by the whole number of elements."""
        return _loss_gradient_space(self, self.x, self.reduction)


class NllLoss(Op, name="nll_loss"):
    """Return the negative log-likelihood of target classes, and the total weight.

        %l, %w = nll_loss %x, %target, none : f32[], f32[]

    `x` holds log-probabilities: `[batch, classes]`, `[batch, classes, height, width]` or just
    `[classes]`; `target` has all dimensions but that of the classes. Classes may have weights; a
    mean is the sum divided by the total weight. Targets that are `ignore` count as nothing.
    """

    x: Value
    target: Value
    weight: Value | None
    reduction: str = "mean"
    ignore: int = -100

    def infer(self) -> tuple[TensorType, TensorType]:
        """Return the types of the loss and of the total weight."""
        x = self.x.tensor_type
        _check_classes(self, self.x, self.target, self.weight)
        _require_reduction(self, self.reduction)
        shape = self.target.shape if self.reduction == "none" else ()
        return x.with_shape(shape), x.with_shape(())

    def space(self) -> IterationSpace:
        """Need all classes at once, and the whole batch for a mean."""
        factors = Factors()
        x, target, weight = _class_axes(
            factors, self.x, self.target, self.weight, _KINDS[self.reduction]
        )
        loss = target if self.reduction == "none" else ()
        return factors.space((x, target, *weight), (loss, ()))


class NllLossBackward(Op, name="nll_loss_backward"):
    """Return the gradient of `nll_loss`.

    %g = nll_loss_backward %grad, %x, %target, none, %total {reduction = "sum"} : f32[4, 8]
    """

    grad: Value
    x: Value
    target: Value
    weight: Value | None
    total_weight: Value
    reduction: str = "mean"
    ignore: int = -100

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        require_same_dtype(self, self.x, self.grad, self.total_weight)
        _check_classes(self, self.x, self.target, self.weight)
        _require_reduction(self, self.reduction)
        shape = self.target.shape if self.reduction == "none" else ()
        require_shape(self, self.grad, shape, "an incoming gradient")
        require_rank(self, self.total_weight, 0)
        return self.x.tensor_type

    def space(self) -> IterationSpace:
        """Run in parallel over the batch, whose total weight is given."""
        factors = Factors()
        x, target, weight = _class_axes(
            factors, self.x, self.target, self.weight, FactorKind.PARALLEL
        )
        grad = target if self.reduction == "none" else ()
        return factors.space((grad, x, target, *weight, ()), (x,), ((0,),))


def _loss_type(op: Op, x: Value, target: Value, reduction: str) -> TensorType:
    _require_reduction(op, reduction)
    require_same_dtype(op, x, target)
    require_shape(op, target, x.shape, "a target")
    return x.tensor_type if reduction == "none" else x.tensor_type.with_shape(())


def _loss_space(op: Op, x: Value, reduction: str) -> IterationSpace:
    """Return the space of a loss whose operands, `x` first, are broadcast to it."""
    factors = Factors()
    kind = _KINDS[reduction]
    axes = tuple(factors.of(kind, f"d{n}", size) for n, size in enumerate(x.shape))
    operands = tuple(broadcast_axes(operand.shape, x.shape, axes) for operand in op.operands)
    return factors.space(operands, (axes if reduction == "none" else (),))


def _loss_gradient_type(op: Op, grad: Value, x: Value, target: Value, reduction: str) -> TensorType:
    loss = _loss_type(op, x, target, reduction)
    require_same_dtype(op, x, grad)
    require_shape(op, grad, loss.shape, "an incoming gradient")
    return x.tensor_type


def _loss_gradient_space(op: Op, x: Value, reduction: str) -> IterationSpace:
    factors = Factors()
    add = factors.opaque if reduction == "mean" else factors.parallel
    axes = tuple(add(f"d{n}", size) for n, size in enumerate(x.shape))
    operands = tuple(broadcast_axes(operand.shape, x.shape, axes) for operand in op.operands)
    return factors.space(operands, (axes,), ((0,),))


def _require_broadcast(op: Op, x: Value, weight: Value | None) -> None:
    """Check that a weight is broadcast to `x`."""
    if weight is None:
        return
    require_same_dtype(op, x, weight)
    shape = broadcast_shapes(op, [x.shape, weight.shape])
    if len(shape) != len(x.shape) or not all(map(may_equal, shape, x.shape)):
        raise op.error("shape-mismatch", f"cannot broadcast {weight.type} to {x.type}")


def _check_classes(op: Op, x: Value, target: Value, weight: Value | None) -> None:
    type_ = x.tensor_type
    require_rank(op, x, 1, 2, 4)
    if target.tensor_type.dtype.is_floating:
        raise op.error("bad-dtype", f"expects classes as integers, got {target.type}")
    axis = min(type_.rank - 1, 1)
    shape: tuple[Dim, ...] = (*type_.shape[:axis], *type_.shape[axis + 1 :])
    require_shape(op, target, shape, "a target")
    if weight is not None:
        require_same_dtype(op, x, weight)
        require_shape(op, weight, (type_.shape[axis],), "a weight")


def _class_axes(
    factors: Factors, x: Value, target: Value, weight: Value | None, kind: FactorKind
) -> tuple[IndexMap, IndexMap, tuple[IndexMap, ...]]:
    """Return the axes of scores, targets, and of the weight if there is one."""
    axes: IndexMap = tuple(factors.of(kind, f"d{n}", size) for n, size in enumerate(target.shape))
    axis = min(len(x.shape) - 1, 1)
    classes = factors.opaque("c", x.shape[axis])
    scores = (*axes[:axis], classes, *axes[axis:])
    return scores, axes, () if weight is None else ((classes,),)
