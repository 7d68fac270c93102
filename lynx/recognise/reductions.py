"""What a model does to the losses of tokens until they are one number.

Gradients of a sum can be computed along with the loss and scaled afterwards; those of the losses of
single tokens need the logits once more. So the sum is taken into the operator where that is
possible, along with weights of tokens, such as a mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .nodes import Node, is_same_product, is_same_shape, name_of, tensor_of, traced

_SCALINGS = {"mul": "multiply", "div": "divide", "truediv": "divide"}
_RESHAPES = ("view", "reshape", "flatten", "squeeze", "unsqueeze", "ravel", "contiguous")
_CASTS = ("float", "double", "to")


@dataclass
class Reduction:
    """A sum or mean of token losses, computed by `anchor` after `factors` and a `mask`.

    `factors` are products with, or quotients by, numbers, a negation being one. `nodes` are those
    between the losses and the anchor.
    """

    anchor: Node
    is_mean: bool = False
    mask: Node | None = None
    factors: list[tuple[str, float]] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


def reduction_of(losses: Node) -> Reduction | None:
    """Return how the losses of tokens are reduced; None where they are not, or are used twice."""
    found = Reduction(losses)
    node = losses
    while True:
        users = list(node.users)
        if len(users) != 1 or users[0].op == "output":
            return None
        node = users[0]
        name = name_of(node)
        if tensor_of(node) is None:
            return None
        if name in ("sum", "mean") and _is_over_all(node):
            found.anchor, found.is_mean = node, name == "mean"
            return found
        if not _is_passed(node, name, found):
            return None
        found.nodes.append(node)


def _is_over_all(node: Node) -> bool:
    operand = traced(node.args[0])
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
    if len(node.args) > 2 or not set(node.kwargs) <= {"dim"} or operand.dtype.is_complex:
        return False
    dims = () if dims is None else dims
    dims = tuple(dims) if isinstance(dims, list | tuple) else (dims,)
    if not all(type(dim) is int for dim in dims) or operand.dtype != traced(node).dtype:
        return False
    return not dims or len({dim % operand.dim() for dim in dims}) == operand.dim()


def _is_passed(node: Node, name: str, found: Reduction) -> bool:
    """Whether a node keeps the losses in order and only scales them; note by what."""
    operand = node.args[0]
    if name in _RESHAPES or name in _CASTS:
        before, after = tensor_of(operand), traced(node)
        return (
            before is not None
            and is_same_product(before.shape, after.shape)
            and (after.is_floating_point() and before.device == after.device)
        )
    if name == "neg":
        found.factors.append(("multiply", -1.0))
        return True
    if name not in _SCALINGS or node.kwargs or len(node.args) != 2:
        return False
    return _is_scaling(node, _SCALINGS[name], found)


def _is_scaling(node: Node, kind: str, found: Reduction) -> bool:
    losses = found.nodes[-1] if found.nodes else None
    a, b = node.args
    is_first = isinstance(a, Node) and (a is losses or (losses is None and a is found.anchor))
    other = b if is_first else a
    if type(other) in (int, float) and (is_first or kind == "multiply"):
        found.factors.append((kind, float(other)))  # type: ignore[arg-type]
        return True
    mask = tensor_of(other)
    if kind != "multiply" or mask is None or found.mask is not None or mask.requires_grad:
        return False
    if not is_same_shape(mask.shape, traced(node).shape) or mask.dtype.is_complex:
        return False
    assert isinstance(other, Node)
    found.mask = other
    return traced(node).is_floating_point()
