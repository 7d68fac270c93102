"""Which tensors hold nothing but zeros and ones, by how they are made."""

from __future__ import annotations

from typing import Any

import torch

from lynx.recognise.nodes import Node, tensor_of

from .vocabulary import CASTS, LAYOUT, kind_of

_SAME = (LAYOUT - {"cat", "concat", "concatenate", "stack", "pad"}) | CASTS | {"tril", "triu"}
_MADE = frozenset(("ones", "zeros", "ones_like", "zeros_like", "new_ones", "new_zeros", "eye"))


def is_truth(node: Node) -> bool:
    """Whether all elements of a tensor are zero or one, by how it is made."""
    stack: list[Any] = [node]
    seen: set[Node] = set()
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        more = _decisive(item)
        if more is None:
            return False
        if isinstance(item, Node):
            seen.add(item)
        stack += more
    return True


def _decisive(item: Any) -> list[Any] | None:
    """Return what must be zero or one for an item to be so; None if it may be anything."""
    if isinstance(item, int | float):
        return [] if item in (0, 1) else None
    value = tensor_of(item)
    if value is None or (isinstance(item, Node) and item.kwargs.get("out") is not None):
        return None
    kind = kind_of(item)
    if value.dtype is torch.bool or kind in _MADE:
        return []
    if kind == "where" and len(item.args) == 3:
        return list(item.args[1:])
    if kind == "mul":
        return list(item.args)
    return list(item.args[:1]) if kind in _SAME else None
