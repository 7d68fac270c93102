"""Where masks and biases are cut off: what is computed inside a score function, and what is given.

A mask that is a cheap function of indices, or of something smaller than itself, is computed again
where it is used; the score function then shows its structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lynx.compat import is_batched, is_transformed, size_hint
from lynx.recognise.nodes import Node, tensor_of

from .vocabulary import CHEAP, FACTORIES, kind_of

_THROUGH_GRADIENTS = frozenset(
    (
        "add", "sub", "neg", "mul", "unsqueeze", "expand", "view", "reshape", "permute",
        "transpose", "to", "getitem", "squeeze", "type", "contiguous", "expand_as", "float",
        "broadcast_to"
    )
)  # fmt: skip
"""What may be computed in a score function although gradients flow through it."""

DEEPEST = 64
"""How many nodes of a mask are followed."""


@dataclass(frozen=True)
class Cut:
    """What a score function computes, in order, and what it is given."""

    inside: tuple[Node, ...]
    given: tuple[Node, ...]


def cut_at(roots: Sequence[Node]) -> Cut:
    """Return the cut that computes nothing."""
    return Cut((), tuple(roots))


def cheapest_cut(roots: Sequence[Node], is_written: Callable[[Node], bool]) -> Cut:
    """Choose what to compute, so that what is given is no larger than the roots would be."""
    costs: dict[Node, int] = {}
    inside: dict[Node, None] = {}
    for root in roots:
        _weigh(root, is_written, costs, inside)
    chosen: dict[Node, None] = {}
    given: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in inside:
            given[node] = None
        elif node not in chosen:
            chosen[node] = None
            stack += node.all_input_nodes
    place = {node: n for n, node in enumerate(roots[0].graph.nodes)} if roots else {}
    in_order = sorted(chosen, key=place.__getitem__)
    return Cut(tuple(in_order), tuple(sorted(given, key=place.__getitem__)))


def _weigh(
    root: Node,
    is_written: Callable[[Node], bool],
    costs: dict[Node, int],
    inside: dict[Node, None],
) -> None:
    """Find the bytes that must be given for a node, and whether it had better be computed."""
    stack = [(root, False)]
    while stack:
        node, is_ready = stack.pop()
        if node in costs and not is_ready:
            continue
        own = bytes_of(node)
        if not is_ready:
            costs[node] = own
            if len(costs) < DEEPEST and _is_cheap(node) and not is_written(node):
                stack.append((node, True))
                stack += [(operand, False) for operand in node.all_input_nodes]
            continue
        needed = sum(costs.get(operand, own + 1) for operand in node.all_input_nodes)
        if needed <= own:
            costs[node] = needed
            inside[node] = None


def _is_cheap(node: Node) -> bool:
    kind = kind_of(node)
    value = tensor_of(node)
    if kind not in CHEAP or value is None or is_transformed(value) or is_batched(value):
        return False
    if kind == "getitem" and _indexes_by_tensors(node):
        return False
    if kind == "tensor" and node.all_input_nodes:
        return False
    if node.kwargs.get("out") is not None:
        return False
    if value.requires_grad:
        return kind in _THROUGH_GRADIENTS
    if kind in FACTORIES:
        return all(
            tensor_of(n) is not None or n.op != "call_function" for n in node.all_input_nodes
        )
    return True


def _indexes_by_tensors(node: Node) -> bool:
    if tensor_of(node.args[0]) is None:
        return True
    index = node.args[1]
    items = index if isinstance(index, tuple) else (index,)
    return any(isinstance(i, Node) and tensor_of(i) is not None for i in items) or any(
        isinstance(i, list | torch.Tensor) for i in items
    )


SMALL = 1 << 16
"""Up to so many elements it does not matter how many bytes one takes."""


def bytes_of(node: Node) -> int:
    """Return about how many bytes a tensor takes; sizes are as they were when it was traced.

    Elements of small tensors count as one.
    """
    value = tensor_of(node)
    if value is None:
        return 0
    sizes = [size_hint(size) for size in value.shape]
    count = math.prod(64 if size is None else size for size in sizes)
    return count if count <= SMALL else count * value.dtype.itemsize
