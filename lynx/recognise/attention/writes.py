"""Write out of place what a model writes in place into memory that nothing else looks at.

AOTAutograd would do so later; recognisers want to see one value at a time.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from lynx.compat import is_transformed, storage_identity
from lynx.recognise.nodes import Inserter, Node, tensor_of, written_by

from .vocabulary import ELEMENTWISE, kind_of

_OPERATORS: dict[Any, Any] = {
    operator.iadd: torch.add,
    operator.isub: torch.sub,
    operator.imul: torch.mul,
    operator.itruediv: torch.div,
    operator.iand: torch.bitwise_and,
    operator.ior: torch.bitwise_or,
}


def targets_of(node: Node) -> list[Node]:
    """Return the tensors that a node writes to."""
    found = written_by(node)
    if node.op == "call_function" and node.target in (operator.iand, operator.ior):
        found += [item for item in node.args[:1] if isinstance(item, Node)]
    if kind_of(node) == "dropout" and len(node.args) > 3 and node.args[3]:
        found += [item for item in node.args[:1] if isinstance(item, Node)]
    return [item for item in dict.fromkeys(found) if tensor_of(item) is not None]


class Writes:
    """Tells which nodes of a graph lie in memory that something writes to."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.unknown = False
        self.memory: set[int] = set()
        for node in graph.nodes:
            for target in targets_of(node):
                value = tensor_of(target)
                if value is None or is_transformed(value):
                    self.unknown = True
                else:
                    self.memory.add(storage_identity(value))

    def __call__(self, node: Node) -> bool:
        """Whether anything may write to the memory of a node."""
        value = tensor_of(node)
        if value is None or not (self.memory or self.unknown):
            return False
        if self.unknown or is_transformed(value):
            return True
        return storage_identity(value) in self.memory


def write_out_of_place(graph: torch.fx.Graph) -> bool:
    """Replace writes to intermediate tensors in a graph, in place; return whether there were any.

    A write stays if another view of the memory is used later, or if the memory is not the graph's.
    """
    written = [node for node in graph.nodes if targets_of(node)]
    if not written:
        return False
    memory = _Memory(graph)
    changed = False
    for node in written:
        targets = targets_of(node)
        if len(targets) == 1 and memory.is_free(targets[0], node):
            changed |= _replace(node, targets[0], memory)
    return changed


class _Memory:
    """Which nodes lie in the same memory, and where they are used."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.places = {node: n for n, node in enumerate(graph.nodes)}
        self.groups: dict[int, list[Node]] = {}
        self.of: dict[Node, int] = {}
        for node in graph.nodes:
            value = tensor_of(node)
            if value is not None and not is_transformed(value):
                self.enter(node, storage_identity(value))

    def enter(self, node: Node, group: int) -> None:
        """Note that a node lies in some memory."""
        self.of[node] = group
        self.groups.setdefault(group, []).append(node)

    def is_free(self, target: Node, writer: Node) -> bool:
        """Whether a tensor's memory is read only through the tensor after a write."""
        group = self.of.get(target)
        if group is None:
            return False
        place = self.places[writer]
        for other in self.groups[group]:
            if other.op not in ("call_function", "call_method"):
                return False
            if other is target or self.places[other] >= place:
                continue
            if any(self.places[user] > place for user in other.users):
                return False
        return not _is_expanded(tensor_of(target))


def _is_expanded(value: torch.Tensor | None) -> bool:
    return value is None or any(
        isinstance(stride, int) and stride == 0 for stride in value.stride()
    )


def _differs(value: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether what is written would be another kind of tensor by itself.

    What requires gradients does so after every write, of truth values and constants too.
    """
    return value.shape != before.shape or (before.requires_grad and not value.requires_grad)


def _replace(node: Node, target: Node, memory: _Memory) -> bool:
    insert = Inserter(node)
    try:
        result = _computed(node, target, insert)
    except (RuntimeError, TypeError, ValueError):
        result = None
    before = tensor_of(target)
    value = None if result is None else tensor_of(result)
    if value is None or before is None or _differs(value, before):
        insert.undo()
        return False
    assert result is not None
    if value.dtype != before.dtype:
        result = insert.call("to", result, before.dtype)
    place = memory.places[node]
    for added in insert.added:
        memory.places[added] = place
        memory.enter(added, memory.of[target])
    for user in list(target.users):
        if memory.places[user] > place:
            user.replace_input_with(target, result)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
    return True


def _computed(node: Node, target: Node, insert: Inserter) -> Node | None:
    """Return what a write leaves in its target."""
    if node.op == "call_function" and node.target in _OPERATORS:
        return insert.call(_OPERATORS[node.target], *node.args, **node.kwargs)
    if node.op == "call_function" and node.target is operator.setitem:
        return _masked(node, target, insert)
    kind = kind_of(node)
    if kind == "dropout":
        arguments = list(node.args[:3])
        named = {name: item for name, item in node.kwargs.items() if name != "inplace"}
        return insert.call(torch.nn.functional.dropout, *arguments, **named)
    if kind in ("fill_", "zero_") and node.args[0] is target and not node.kwargs:
        number = node.args[1] if kind == "fill_" else 0
        is_number = isinstance(number, int | float)
        return insert.call(torch.full_like, target, number) if is_number else None
    plain = kind.removesuffix("_")
    if kind == plain or plain not in ELEMENTWISE or node.kwargs.get("out") is not None:
        return None
    function = getattr(torch, plain, None)
    if function is None or not node.args or node.args[0] is not target:
        return None
    return insert.call(function, *node.args, **node.kwargs)


def _masked(node: Node, target: Node, insert: Inserter) -> Node | None:
    """Return a tensor in which a number is written where a mask of its shape says so."""
    _, index, number = node.args
    mask, before = tensor_of(index), tensor_of(target)
    if mask is None or before is None or mask.dtype is not torch.bool:
        return None
    if mask.dim() != before.dim() or not isinstance(number, int | float):
        return None
    return insert.call(torch.masked_fill, target, index, number)
