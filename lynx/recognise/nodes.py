"""What recognisers ask of the nodes of a Dynamo graph, and how they add nodes to it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from lynx.compat import (
    GRAD_MODE_CHANGES,
    fake_mode_of,
    is_plain_fake,
    is_transformed,
    storage_identity,
    symbolic_expression,
)

Node = torch.fx.Node
Size = int | torch.SymInt

_PURE = ("and_", "or_", "not_", "is_")
"""Functions of `operator` whose names end as those of operations in place do."""

_META = ("stack_trace", "nn_module_stack", "source_fn_stack")


class Refusal(Exception):  # noqa: N818 - no error: the graph stays as it is
    """Why a recogniser leaves a place as it is, in words that a model's author understands."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def tensor_of(node: Any) -> torch.Tensor | None:
    """Return the traced tensor of a node, None if it is no ordinary dense one."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if is_plain_fake(value) else None


def traced(node: Any) -> torch.Tensor:
    """Return the traced tensor of a node; `Refusal` if it is no ordinary dense one."""
    value = tensor_of(node)
    if value is None:
        raise Refusal(f"'{node}' is no ordinary dense tensor")
    return value


def name_of(node: Node) -> str:
    """Return the name under which tensors, `torch` or `torch.nn.functional` know the operation.

    Reading an attribute is `.T`; the empty name stands for everything else.
    """
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    function: Any = node.target
    if function is getattr:
        return f".{node.args[1]}"
    name = str(getattr(function, "__name__", ""))
    spaces = (torch, torch.nn.functional, operator)
    return name if any(getattr(space, name, None) is function for space in spaces) else ""


def bind(node: Node, names: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a call by name; `Refusal` if it has others."""
    if len(node.args) > len(names) or not set(node.kwargs) <= set(names):
        raise Refusal(f"'{node}' has other arguments than are understood")
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def expression(size: Size) -> Any:
    """Return an integer, or the sympy expression of a symbolic one."""
    return symbolic_expression(size) if isinstance(size, torch.SymInt) else size


def is_same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are equal by what they are, without asking for a guard."""
    return bool(expression(a) == expression(b))


def is_same_product(a: Iterable[Size], b: Iterable[Size]) -> bool:
    """Whether two products of sizes are equal by what they are."""
    left, right = (sympy.Mul(*map(expression, sizes)) for sizes in (a, b))
    return bool(left == right)


def is_same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two shapes are equal by what they are."""
    return len(a) == len(b) and all(map(is_same_size, a, b))


def written_by(node: Node) -> list[Node]:
    """Return the tensors that a node writes to, by what it is called and given."""
    name = name_of(node) or str(getattr(node.target, "__name__", ""))
    items: list[Any] = [node.kwargs.get("out")]
    in_place = name.endswith("_") and not name.endswith("__") and name not in _PURE
    if in_place or name in ("setitem", "iadd", "isub", "imul", "itruediv"):
        items += node.args[:1]
    elif node.kwargs.get("inplace"):
        items += [node.args[0] if node.args else node.kwargs.get("input")]
    found: list[Node] = []
    torch.fx.map_arg(items, found.append)
    return found


def may_share_memory(a: Node, b: Node) -> bool:
    """Whether two tensors may lie in the same memory."""
    first, second = tensor_of(a), tensor_of(b)
    if first is None or second is None or is_transformed(first) or is_transformed(second):
        return True
    return storage_identity(first) == storage_identity(second)


def fold_sizes(graph: torch.fx.Graph) -> None:
    """Let nothing ask a tensor for a size that is known: a number, or one that another node has."""
    known: dict[Any, Node] = {}
    for node in list(graph.nodes):
        value = node.meta.get("example_value")
        if node.op == "call_method" and node.target == "size" and isinstance(value, int):
            _put(value, node)
        elif isinstance(value, torch.SymInt):
            first = known.setdefault(expression(value), node)
            if first is not node and node.op == "call_method":
                _put(first, node)


def _put(item: Any, node: Node) -> None:
    """Replace a node by another item, and remove it."""
    for user in list(node.users):
        user.args = torch.fx.map_arg(user.args, lambda used: item if used is node else used)
        user.kwargs = torch.fx.map_arg(user.kwargs, lambda used: item if used is node else used)
    node.graph.erase_node(node)


def changes_grad_mode(node: Node) -> bool:
    """Whether a node turns the recording of gradients on or off."""
    return node.op == "call_function" and node.target in GRAD_MODE_CHANGES


def _mode_of(node: Node) -> contextlib.AbstractContextManager[Any]:
    """Return the mode in which a node was traced, so that what makes tensors makes such ones."""
    value = node.meta.get("example_value")
    first = value[0] if isinstance(value, tuple | list) and value else value
    mode = fake_mode_of(first) if isinstance(first, torch.Tensor) else None
    return contextlib.nullcontext() if mode is None else mode


class Inserter:
    """Adds nodes before another one, with what the model's author wrote there and traced values.

    Nodes that are traced inside a transform of `torch.func` get no traced value.
    """

    def __init__(self, anchor: Node) -> None:
        self.anchor = anchor
        self.added: list[Node] = []
        self.meta = {name: anchor.meta[name] for name in _META if name in anchor.meta}
        self._mode = _mode_of(anchor)

    def call(self, target: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """Add the call of a method, given by its name, or of a function."""
        graph = self.anchor.graph
        with graph.inserting_before(self.anchor):
            if isinstance(target, str):
                node = graph.call_method(target, args, kwargs)
            else:
                node = graph.call_function(target, args, kwargs)
        self.added.append(node)
        node.meta.update(self.meta)
        operands = [item.meta.get("example_value") for item in node.all_input_nodes]
        if any(v is None or (isinstance(v, torch.Tensor) and is_transformed(v)) for v in operands):
            return node
        values = torch.fx.map_arg((args, kwargs), lambda item: item.meta.get("example_value"))
        given, named = values
        function = getattr(given[0], target) if isinstance(target, str) else target
        with self._mode:
            node.meta["example_value"] = function(
                *(given[1:] if isinstance(target, str) else given), **named
            )
        return node

    def undo(self) -> None:
        """Remove what was added."""
        for node in reversed(self.added):
            self.anchor.graph.erase_node(node)
        self.added.clear()
