"""The negative log-likelihood and its gradient in terms of reads, comparisons and sums."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.ops.elementwise_arithmetic import Where
from lynx.ir.ops.elementwise_compare import Equal
from lynx.ir.ops.factory import Iota
from lynx.ir.ops.indexing import Embedding, Gather
from lynx.ir.ops.layout import Reshape
from lynx.ir.ops.loss import NllLoss, NllLossBackward
from lynx.ir.types import DType

from .decompose_build import (
    Number,
    choose,
    constant,
    index_dtype,
    positions,
    refuse_empty,
    total,
    wide,
)
from .rewrite import NoMatch, Rule, rule


def _axis(x: Value) -> int:
    """Return the dimension of the classes."""
    return min(len(x.shape) - 1, 1)


def _targets(op: NllLoss | NllLossBackward) -> Number:
    return Number(Number(op.target).to(DType.I64))


def _weights(weight: Value, classes: Number) -> Number:
    """Return the weight of the class of each target."""
    table = Number(weight).reshaped((*weight.shape, 1))
    looked_up = Number(Embedding(table.value, classes.value).out)
    return looked_up.squeezed((len(classes.value.shape),))


@rule
def expand_nll_loss(op: NllLoss) -> tuple[Value, ...] | NoMatch:
    """Read the score of each target class, and zero what is ignored.

    nll_loss(x, t)  ==>  sum(where(t != ignore, -x[t], 0)) / sum(t != ignore)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    axis, target = _axis(op.x), _targets(op)
    kept = target.differs(op.ignore)
    classes = choose(kept, target, 0)
    read = Gather(op.x, classes.unsqueezed(axis).value, axis).out
    losses = -wide(Number(read).squeezed((axis,)).value)
    if op.weight is None:
        weights = Number(kept.to(losses.dtype))
    else:
        weight = wide(_weights(op.weight, classes).value)
        losses, weights = losses * weight, choose(kept, weight, 0.0)
    losses = choose(kept, losses, 0.0)
    return _reduced(op, losses, weights)


def _reduced(op: NllLoss, losses: Number, weights: Number) -> tuple[Value, Value]:
    """Return the loss and the total weight, which eager gives only where it is needed."""
    dtype = op.x.tensor_type.dtype
    dims = tuple(range(len(op.target.shape)))
    if op.reduction == "none":
        count = weights if not dims else constant(0.0, op.x)
        return losses.to(dtype), count.to(dtype)
    loss, count = (total(value, dims, keepdim=False) for value in (losses, weights))
    if op.reduction == "mean":
        loss = loss / count
    return loss.to(dtype), count.to(dtype)


@rule
def expand_nll_loss_backward(op: NllLossBackward) -> Value | NoMatch:
    """Put the gradient where the class is the target.

    nll_loss_backward(g, x, t, w, n)  ==>  where(classes == t and t != ignore, -g / n * w, 0)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    axis, grad = _axis(op.x), Number(op.grad)
    count = op.x.shape[axis]
    if op.reduction == "mean":
        grad = grad / Number(op.total_weight)
    elif op.reduction == "none":
        grad = grad.unsqueezed(axis)
    grad = -grad
    if op.weight is not None:
        grad = grad * _along(Number(op.weight), op.x, axis)
    return choose(_is_target(op, axis, index_dtype(count)), grad, 0.0).value


def _along(vector: Number, x: Value, axis: int) -> Number:
    """Return one value a class in a shape that is broadcast against `x`."""
    rest = len(x.shape) - 1 - axis
    return vector.reshaped((x.shape[axis], *(1,) * rest)) if rest else vector


def _is_target(op: NllLossBackward, axis: int, dtype: DType) -> Number:
    """Return where the class is a target that counts; no class is -1."""
    target = _targets(op)
    counted = Number(choose(target.differs(op.ignore), target, -1).to(dtype))
    classes = _along(positions(op.x.shape[axis], op.x, dtype), op.x, axis)
    return classes.equals(counted.unsqueezed(axis))


def one_hot_sum(value: Value, dim: int) -> Number | None:
    """Return the sum along a dimension of what `expand_nll_loss_backward` makes, without adding.

    The dimension stays with size 1. None if the value is something else.
    """
    choice = value.defined_by(Where)
    if choice is None or choice.y != 0 or not isinstance(choice.x, Value):
        return None
    match = choice.condition.defined_by(Equal)
    if match is None or not (isinstance(match.x, Value) and isinstance(match.y, Value)):
        return None
    classes, target = match.x, match.y
    counter = classes.defined_by(Reshape)
    iota = (classes if counter is None else counter.x).defined_by(Iota)
    rank, size = len(value.shape), value.shape[dim]
    if iota is None or (iota.start, iota.step, iota.length) != (0, 1, size):
        return None
    along_dim = len(classes.shape) == rank - dim and classes.shape[0] == size
    if not along_dim or len(target.shape) != rank or target.shape[dim] != 1:
        return None
    gradient = Number(choice.x)
    if gradient.value.shape and (
        len(gradient.value.shape) != rank or gradient.value.shape[dim] != 1
    ):
        return None
    counts = (Number(target) >= 0) & (Number(target) < size)
    return choose(counts, gradient, 0.0)


NLL_LOSS_RULES: tuple[Rule, ...] = (expand_nll_loss, expand_nll_loss_backward)
