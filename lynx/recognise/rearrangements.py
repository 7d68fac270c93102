"""Operations that move whole rows of logits, so that the projection might as well come after them.

Logits are `[*tokens, classes]`, or have their classes at another axis. A view, a slice of the
tokens or a transposition does the same to the rows of what is projected.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .nodes import Inserter, Node, Refusal, Size, is_same_product, is_same_size, name_of, traced

Replay = Callable[[Inserter, Node, Any], Node]
"""Does the same to a tensor with another size at the class axis: inserter, tensor, that size."""

_RESHAPES = ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel")
_PERMUTATIONS = (
    *("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis"),
    *("t", "adjoint", ".T", ".mT"),
)
_COPIES = ("contiguous", "clone", "float", "double", "half", "bfloat16", "to", "type")


@dataclass(frozen=True)
class Rearrangement:
    """What one node does: `axis` is the class axis of its operand.

    `classes` is the range of classes that it keeps, None for all; `replay` is None where nothing
    moves.
    """

    operand: Node
    axis: int
    replay: Replay | None = None
    classes: tuple[int, int] | None = None


def rearrangement_of(node: Node, axis: int) -> Rearrangement | None:
    """Return what a node does to rows, given the class axis of its result; None if it is no such.

    `Refusal` if it is of a known kind but takes rows apart.
    """
    name = name_of(node)
    if name in _RESHAPES:
        return _reshape(node, axis, name)
    if name in _PERMUTATIONS:
        return _permutation(node, axis)
    if name in _COPIES:
        return _copy(node, axis)
    if name == "getitem":
        return _slice(node, axis)
    return _part(node, axis) if name in ("narrow", "select") else None


def _operand(node: Node) -> Node:
    operand = node.args[0] if node.args else None
    if not isinstance(operand, Node):
        raise Refusal(f"'{node}' has other arguments than are understood")
    return operand


def _reshape(node: Node, axis: int, name: str) -> Rearrangement:
    operand = _operand(node)
    before, after = traced(operand).shape, traced(node).shape
    for index in reversed(range(len(before))):
        if is_same_size(before[index], after[axis]) and is_same_product(
            before[index + 1 :], after[axis + 1 :]
        ):
            break
    else:
        raise Refusal(f"'{node}' mixes classes with tokens")
    rest: tuple[Any, ...] = node.args[1:]
    if name not in ("view", "reshape"):
        return Rearrangement(operand, index, _again(node))
    given: Any = node.kwargs.get("shape", node.kwargs.get("size", rest))
    sizes = tuple(given)
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = tuple(sizes[0])
    if len(sizes) != len(after) or any(isinstance(size, torch.dtype) for size in sizes):
        raise Refusal(f"'{node}' has other arguments than are understood")

    def replay(insert: Inserter, x: Node, width: Any) -> Node:
        return insert.call("reshape", x, (*sizes[:axis], width, *sizes[axis + 1 :]))

    return Rearrangement(operand, index, replay)


def _again(node: Node) -> Replay:
    """Return the replay that calls the same with the same arguments."""

    def replay(insert: Inserter, x: Node, width: Any) -> Node:
        target: Any = node.target
        return insert.call(target, x, *node.args[1:], **node.kwargs)

    return replay


def _permutation(node: Node, axis: int) -> Rearrangement:
    operand = _operand(node)
    rank = traced(operand).dim()
    # Sizes that are all different show where each dimension goes.
    probe = torch.empty(tuple(range(2, 2 + rank)), device="meta")
    target: Any = node.target
    function = getattr(torch.Tensor, target) if node.op == "call_method" else target
    moved = function(probe, *node.args[1:], **node.kwargs)
    return Rearrangement(operand, moved.shape[axis] - 2, _again(node))


def _copy(node: Node, axis: int) -> Rearrangement:
    operand = _operand(node)
    if traced(operand).device != traced(node).device:
        raise Refusal(f"'{node}' moves the logits to another device")
    return Rearrangement(operand, axis)


def _slice(node: Node, axis: int) -> Rearrangement:
    """Follow an index of slices, numbers, None and an ellipsis."""
    operand = _operand(node)
    index: Any = node.args[1]
    shape = traced(operand).shape
    items: list[Any] = list(index) if isinstance(index, list | tuple) else [index]
    taking = [item for item in items if item is not None and item is not Ellipsis]
    if not all(isinstance(item, slice) or _is_number(item) for item in taking):
        raise Refusal(f"'{node}' picks logits by a tensor of indices")
    if Ellipsis not in items:
        items.append(Ellipsis)
    place = items.index(Ellipsis)
    items[place : place + 1] = [slice(None)] * (len(shape) - len(taking))
    source, result = 0, 0
    for position, item in enumerate(items):
        is_class = isinstance(item, slice) and result == axis
        if is_class:
            classes = _class_range(node, item, shape[source])
            items[position] = slice(None)
            return Rearrangement(operand, source, _indexing(items), classes)
        source += item is not None
        result += item is None or isinstance(item, slice)
    raise Refusal(f"'{node}' adds an axis where the classes should be")


def _indexing(items: list[Any]) -> Replay:
    def replay(insert: Inserter, x: Node, width: Any) -> Node:
        return insert.call(operator.getitem, x, tuple(items))

    return replay


def _is_number(item: Any) -> bool:
    if isinstance(item, Node):
        return isinstance(item.meta.get("example_value"), int | torch.SymInt)
    return isinstance(item, int) and not isinstance(item, bool)


def _class_range(node: Node, item: slice, size: Size) -> tuple[int, int] | None:
    if item == slice(None):
        return None
    parts = (item.start, item.stop, item.step)
    if not isinstance(size, int) or not all(p is None or type(p) is int for p in parts):
        raise Refusal(f"'{node}' takes classes whose number is not fixed")
    start, stop, step = item.indices(size)
    if step != 1 or start >= stop:
        raise Refusal(f"'{node}' takes classes that are not next to each other")
    return None if (start, stop) == (0, size) else (start, stop)


def _part(node: Node, axis: int) -> Rearrangement:
    """Follow `select` and `narrow` along tokens."""
    operand = _operand(node)
    rank = traced(operand).dim()
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if not isinstance(dim, int):
        raise Refusal(f"'{node}' has other arguments than are understood")
    dim %= rank
    if name_of(node) == "select":
        return Rearrangement(operand, axis + (dim <= axis), _again(node))
    if dim == axis:
        raise Refusal(f"'{node}' takes only some classes")
    return Rearrangement(operand, axis, _again(node))
