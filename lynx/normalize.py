"""Bring a Dynamo graph to one spelling per operation, which is what recognisers then look at.

Users write the same thing in many ways: `x @ y`, `torch.matmul(x, y)`, `x.matmul(y)`.
Recognisers run after this and before autograd, and see one of them. Only the spelling changes: a
node is renamed when both names are bound to the same implementation with the same signature, never
when an argument would have to be moved or a default be filled in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

_OPERATORS: Mapping[Any, Callable[..., Any]] = {
    operator.add: torch.add,
    operator.sub: torch.sub,
    operator.mul: torch.mul,
    operator.truediv: torch.div,
    operator.matmul: torch.matmul,
    operator.neg: torch.neg,
    operator.pow: torch.pow,
    operator.eq: torch.eq,
    operator.ne: torch.ne,
    operator.lt: torch.lt,
    operator.le: torch.le,
    operator.gt: torch.gt,
    operator.ge: torch.ge,
}
"""Python operators and what they mean when their first operand is a tensor."""

_METHODS = (
    "abs", "add", "addmm", "all", "amax", "amin", "any", "argmax", "baddbmm", "bitwise_and",
    "bitwise_not", "bitwise_or", "bmm", "clamp", "cos", "cumsum", "div", "eq", "erf",
    "exp", "flatten", "ge", "gather", "gt", "index_select", "le", "log", "log_softmax",
    "logical_and", "logical_not", "logical_or", "logsumexp", "lt", "masked_fill", "matmul", "max",
    "maximum", "mean", "min", "minimum", "mm", "movedim", "mul", "ne", "neg", "pow", "prod",
    "relu", "rsqrt", "scatter", "sigmoid", "sin", "softmax", "sqrt", "squeeze", "sub",
    "sum", "swapaxes", "tanh", "transpose", "tril", "triu", "unflatten", "unsqueeze", "var",
)  # fmt: skip
"""Methods of tensors that a function of `torch` with the same name and arguments stands for."""

_SEVERAL_POSITIONS = frozenset(
    ("addmm", "baddbmm", "clamp", "gather", "index_select", "masked_fill", "movedim", "scatter",
     "swapaxes", "transpose")
)  # fmt: skip
"""Methods that may be given more than one argument by position (others might take `*dims`)."""

_ALIASES: Mapping[Any, Callable[..., Any]] = {
    torch.nn.functional.relu: torch.relu,
    torch.true_divide: torch.div,
    torch.divide: torch.div,
    torch.multiply: torch.mul,
    torch.subtract: torch.sub,
    torch.negative: torch.neg,
    torch.absolute: torch.abs,
    torch.clip: torch.clamp,
    torch.swapaxes: torch.transpose,
    torch.swapdims: torch.transpose,
    torch.greater: torch.gt,
    torch.greater_equal: torch.ge,
    torch.less: torch.lt,
    torch.less_equal: torch.le,
    torch.not_equal: torch.ne,
    torch.linalg.matmul: torch.matmul,
    torch.special.softmax: torch.softmax,
    torch.special.log_softmax: torch.log_softmax,
    torch.special.logsumexp: torch.logsumexp,
    torch.special.expit: torch.sigmoid,
}
"""Functions of torch that are other names for another one, argument names included."""


def normalize(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the graph with one spelling per operation; the given one is not changed."""
    graph = _copy(module.graph)
    for node in graph.nodes:
        if node.op == "call_method" and _is_renamable(node):
            function = getattr(torch, node.target)
            node.op, node.target = "call_function", _ALIASES.get(function, function)
        elif node.op == "call_function":
            node.target = _spelling(node)
    renamed = torch.fx.GraphModule(module, graph)
    renamed.meta.update(module.meta)
    return renamed


def _copy(graph: torch.fx.Graph) -> torch.fx.Graph:
    copied = torch.fx.Graph(tracer_cls=graph._tracer_cls)
    output = copied.graph_copy(graph, {}, return_output_node=True)
    assert isinstance(output, tuple)
    values, original = output
    node = copied.output(values)
    node.meta.update(original.meta)
    return copied


def _is_renamable(node: torch.fx.Node) -> bool:
    few = len(node.args) <= 2 or node.target in _SEVERAL_POSITIONS
    return node.target in _METHODS and few and _is_tensor(node.args[:1])


def _spelling(node: torch.fx.Node) -> Any:
    target = node.target
    if target in _OPERATORS and not node.kwargs and _is_tensor(node.args[:1]):
        known = all(isinstance(a, torch.fx.Node | int | float | complex) for a in node.args)
        return _OPERATORS[target] if known else target
    if target is torch.nn.functional.relu and (len(node.args) != 1 or node.kwargs):
        return target
    return _ALIASES.get(target, target) if callable(target) else target


def _is_tensor(arguments: tuple[Any, ...]) -> bool:
    """Whether the only argument is a node that holds a plain tensor."""
    (node,) = arguments or (None,)
    if not isinstance(node, torch.fx.Node):
        return False
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor)
