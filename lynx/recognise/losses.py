"""The ways in which a cross-entropy is written, down to the scores that it looks at.

`cross_entropy`; `nll_loss` of a `log_softmax`; a `log_softmax` of which the entries of the targets
are gathered or indexed; `logsumexp` less the gathered logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .nodes import (
    Inserter,
    Node,
    Refusal,
    bind,
    is_same_product,
    is_same_shape,
    name_of,
    tensor_of,
    traced,
)
from .rearrangements import rearrangement_of

_CROSS_ENTROPY = (
    *("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction"),
    "label_smoothing",
)


@dataclass
class Loss:
    """A cross-entropy that `anchor` computes from scores, whose classes are at `axis`.

    The scores are logits, or with `of_softmax` logarithms of a softmax. `target` adds what gives
    the targets. Without a reduction the anchor has the loss of each token, times `sign`; with
    `keeps_axis` its classes stay as an axis of size one. `nodes` are what would no longer be needed
    besides the anchor and what leads to the scores.
    """

    anchor: Node
    scores: Node
    axis: int
    target: Callable[[Inserter], Node]
    of_softmax: bool = False
    class_weight: Node | None = None
    reduction: str = "none"
    ignore: int | None = None
    smoothing: float = 0.0
    sign: int = 1
    keeps_axis: bool = False
    nodes: list[Node] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[Any, ...]:
        """The shape of the scores without their classes."""
        return _without(self.scores, self.axis)


def loss_of(node: Node) -> Loss | None:
    """Return the cross-entropy that a node computes, None if it is no such node.

    `Refusal` if it is one that is not understood.
    """
    rule = _RULES.get(name_of(node))
    return rule(node) if rule is not None else None


def _cross_entropy(node: Node) -> Loss:
    return _of_classes(node, bind(node, _CROSS_ENTROPY))


def _nll_loss(node: Node) -> Loss | None:
    given = bind(node, _CROSS_ENTROPY[:-1])
    if not _is_of_softmax(given["input"], min(1, traced(given["input"]).dim() - 1)):
        return None
    loss = _of_classes(node, given)
    loss.of_softmax = True
    return loss


def _of_classes(node: Node, given: dict[str, Any]) -> Loss:
    """Read the arguments that the functions of torch have in common."""
    scores, target, weight = given["input"], given["target"], given.get("weight")
    axis = min(1, traced(scores).dim() - 1)
    if traced(target).is_floating_point():
        raise Refusal("the targets are probabilities")
    if not is_same_shape(_without(scores, axis), traced(target).shape):
        raise Refusal("the targets do not go with the logits")
    if given.get("size_average") is not None or given.get("reduce") is not None:
        raise Refusal("the reduction is given in a deprecated way")
    if weight is not None and traced(weight).requires_grad:
        raise Refusal("the weights of classes need gradients")
    ignore, smoothing = given.get("ignore_index", -100), given.get("label_smoothing", 0.0)
    reduction = given.get("reduction", "mean")
    plain = type(ignore) is int and type(smoothing) in (int, float)
    if not plain or reduction not in ("none", "mean", "sum"):
        raise Refusal(f"'{node}' has other arguments than are understood")
    return Loss(
        node, scores, axis, lambda _: target,
        class_weight=weight, reduction=reduction, ignore=ignore, smoothing=float(smoothing),
    )  # fmt: skip


def _gather(node: Node) -> Loss | None:
    found = _gathered(node)
    if found is None or not _is_of_softmax(*found[:2]):
        return None
    scores, axis, index = found
    return Loss(
        node, scores, axis, _squeezed(index, axis), of_softmax=True, sign=-1, keeps_axis=True
    )  # fmt: skip


def _gathered(node: Node) -> tuple[Node, int, Node] | None:
    """Return from what one number for each token is gathered, along which axis, and the index."""
    given = bind(
        node, ("input", "dim", "index") if name_of(node) == "gather" else ("input", "index", "dim")
    )
    scores: Any = given.get("input")
    axis: Any = given.get("dim")
    index: Any = given.get("index")
    known = tensor_of(scores) is not None and tensor_of(index) is not None
    if type(axis) is not int or not known or not traced(scores).dim():
        return None
    axis %= traced(scores).dim()
    is_one = traced(index).dim() == traced(scores).dim() and traced(index).shape[axis] == 1
    if not is_one or not is_same_shape(_without(scores, axis), _without(index, axis)):
        return None
    return scores, axis, index


def _squeezed(index: Node, axis: int) -> Callable[[Inserter], Node]:
    return lambda insert: insert.call(torch.squeeze, index, axis)


def _indexed(node: Node) -> Loss | None:
    """Read `scores[arange(tokens), target]`."""
    scores, index = node.args
    if not isinstance(index, list | tuple) or len(index) != 2 or not isinstance(scores, Node):
        return None
    rows: Any = index[0]
    target: Any = index[1]
    if not all(tensor_of(item) is not None for item in (scores, rows, target)):
        return None
    shape = traced(scores).shape
    counts = len(shape) == 2 and name_of(rows) == "arange" and _counts_from_zero(rows)
    if not counts or not _is_of_softmax(scores, 1):
        return None
    vector = traced(target)
    lengths = (traced(rows).shape, vector.shape)
    if vector.dtype is not torch.int64 or not all(is_same_shape(s, shape[:1]) for s in lengths):
        raise Refusal(f"'{node}' takes from some tokens only")

    def from_front(insert: Inserter) -> Node:
        """Count classes from the front: an index may be negative."""
        classes: Any = shape[1]
        if isinstance(classes, torch.SymInt):
            classes = insert.call("size", scores, 1)
        is_negative = insert.call(torch.lt, target, 0)
        return insert.call(
            torch.where, is_negative, insert.call(torch.add, target, classes), target
        )

    return Loss(node, scores, 1, from_front, of_softmax=True, sign=-1)


def _counts_from_zero(node: Node) -> bool:
    start = node.args[0] if len(node.args) > 1 else 0
    return bool(start == 0) and len(node.args) in (1, 2) and "step" not in node.kwargs


def _difference(node: Node) -> Loss | None:
    """Read `logsumexp(logits) - logits[target]`, or its negative."""
    if len(node.args) != 2 or node.kwargs:
        return None
    for sign, (total, picked) in ((1, node.args), (-1, node.args[::-1])):
        if isinstance(total, Node) and name_of(total) == "logsumexp" and isinstance(picked, Node):
            return _from_total(node, total, picked, sign)
    return None


def _from_total(node: Node, total: Node, picked: Node, sign: int) -> Loss | None:
    given = bind(total, ("input", "dim", "keepdim"))
    between = []
    gather = picked
    while name_of(gather) in ("squeeze", "getitem", "view", "reshape", "flatten", "select"):
        source = gather.args[0]
        if not isinstance(source, Node) or not is_same_product(
            traced(source).shape, traced(gather).shape
        ):
            return None
        between.append(gather)
        gather = source
    if name_of(gather) not in ("gather", "take_along_dim"):
        return None
    found = _gathered(gather)
    if found is None:
        return None
    scores, axis, index = found
    dims = given["dim"] if isinstance(given["dim"], list | tuple) else (given["dim"],)
    rank = traced(scores).dim()
    is_same = scores is given["input"] and [dim % rank for dim in dims] == [axis]
    if not is_same or not is_same_shape(traced(total).shape, traced(picked).shape):
        return None
    return Loss(
        node, scores, axis, _squeezed(index, axis),
        sign=sign,
        keeps_axis=bool(given.get("keepdim", False)),
        nodes=[total, *between, gather],
    )  # fmt: skip


def _is_of_softmax(node: Node, axis: int) -> bool:
    """Whether scores are the logarithms of a softmax, their rows moved."""
    try:
        while name_of(node) != "log_softmax":
            move = rearrangement_of(node, axis)
            if move is None or move.classes is not None:
                return False
            node, axis = move.operand, move.axis
    except Refusal:
        return False
    return True


def _without(node: Node, axis: int) -> tuple[Any, ...]:
    shape = traced(node).shape
    return (*shape[:axis], *shape[axis + 1 :])


_RULES: dict[str, Callable[[Node], Loss | None]] = {
    "cross_entropy": _cross_entropy,
    "nll_loss": _nll_loss,
    "gather": _gather,
    "take_along_dim": _gather,
    "getitem": _indexed,
    "sub": _difference,
}
