"""From nodes of a Dynamo graph to a Lynx graph: run them on fake tensors, and import what ran."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from lynx.compat import (
    fake_mode_of,
    guard_count,
    is_plain_fake,
    python_dispatch,
    traced_graph,
)
from lynx.importer import import_graph
from lynx.ir.core import Graph, Value
from lynx.ir.errors import LynxError
from lynx.passes import PassContext, Pipeline
from lynx.passes.canonicalize import Canonicalize
from lynx.passes.cse import MergeCommonSubexpressions
from lynx.passes.dce import RemoveDeadCode
from lynx.recognise.nodes import Node, Refusal

from .vocabulary import CASTS, DROPOUTS, kind_of

CLEAN = Pipeline((Canonicalize(), MergeCommonSubexpressions(), RemoveDeadCode()))
"""What makes traced graphs comparable."""

_ATTENTION = torch.ops.lynx.attention.default
_NARROW = re.compile(r"\b(?:bf16|f16|f32)\b")

FULL = 4
"""The bytes of an element of which no precision is left out."""


@dataclass
class Trace:
    """What nodes compute, as a Lynx graph with one result.

    `inputs` are the nodes that the graph's inputs stand for, in order; None for the scores.
    `dropped` gives, for each dropout on the way, the input that it multiplies by.
    """

    graph: Graph
    result: Value
    inputs: dict[Value, Node]
    scores: Value
    dropped: dict[Value, Node] = field(default_factory=dict)


def is_dropout(node: Node) -> bool:
    """Whether a node draws what it drops."""
    return kind_of(node) in DROPOUTS and dropout_probability(node) != 0


def dropout_probability(node: Node) -> float:
    """Return the probability with which elements are dropped; `Refusal` if it is not known."""
    if kind_of(node) != "dropout":
        raise Refusal(f"'{node}' drops in a way that is not understood")
    names: tuple[str, ...] = ("input", "p", "training", "inplace")
    if node.target is torch.dropout:
        names = ("input", "p", "train")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    training = given.get("training", given.get("train", True))
    probability = given.get("p", 0.5)
    if not isinstance(training, bool) or not isinstance(probability, int | float):
        raise Refusal(f"whether '{node}' drops anything is known only when it runs")
    return float(probability) if training else 0.0


class Replay:
    """Runs nodes on other values; conversions to less precision of what is on a path are left out.

    `drop` is what to do for a dropout. What is converted to elements of fewer bytes than `least`
    stays as precise as it is.
    """

    def __init__(
        self,
        path: Sequence[Node],
        drop: Callable[[Node, torch.Tensor], torch.Tensor] | None = None,
        *,
        least: int = FULL,
    ) -> None:
        self.path = set(path)
        self.drop = drop
        self.least = least

    def run(self, nodes: Sequence[Node], known: dict[Node, Any]) -> None:
        """Add what the nodes compute to what is known."""
        for node in nodes:
            if node not in known:
                known[node] = self._value(node, known)

    def _value(self, node: Node, known: Mapping[Node, Any]) -> Any:
        given: Sequence[Any]
        named: Mapping[str, Any]
        given, named = torch.fx.map_arg((node.args, node.kwargs), lambda item: known[item])
        if node in self.path and given and isinstance(given[0], torch.Tensor):
            if self.drop is not None and is_dropout(node):
                return self.drop(node, given[0])
            if self.least and kind_of(node) in CASTS:
                return self._converted(node, given, named)
            if self.least and named.get("dtype") is not None:
                named = self._without_rounding(given[0], named)
        if self.least > FULL and node.target is _ATTENTION:
            given = [_with_wide_elements(item) if isinstance(item, str) else item for item in given]
        return called(node, given, named)

    def _converted(self, node: Node, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        value, wanted = given[0], node.meta["example_value"].dtype
        if not value.is_floating_point() or not wanted.is_floating_point:
            return called(node, given, named)
        return value if wanted.itemsize < self.least else value.to(wanted)

    def _without_rounding(self, value: torch.Tensor, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call that converts first, but not to less precision."""
        dtype = named["dtype"]
        if dtype.is_floating_point and value.is_floating_point() and dtype.itemsize < self.least:
            return {name: item for name, item in named.items() if name != "dtype"}
        return named


def _with_wide_elements(score: str) -> str:
    """Return the text of a score function that computes with twice the digits."""
    return _NARROW.sub("f64", score)


def called(node: Node, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Call what a node calls."""
    if node.op == "call_method":
        return getattr(given[0], str(node.target))(*given[1:], **named)
    if node.op != "call_function":
        raise Refusal(f"'{node}' is no operation")
    function: Any = node.target
    return function(*given, **named)


def fresh(value: Any, dtype: torch.dtype | None = None) -> Any:
    """Return a traced tensor of the same layout that nothing else knows, and other values as is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(
        value.shape, value.stride(), dtype=dtype or value.dtype, device=value.device
    )


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which scores are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def trace(
    scores: Node,
    path: Sequence[Node],
    inside: Sequence[Node],
    given: Sequence[Node],
    start: Callable[[torch.Tensor, Callable[[Node], Any]], torch.Tensor],
) -> Trace:
    """Trace what the last node of a path computes of the scores and of what is given.

    `start` makes of the product, and of nodes that are given, what the node `scores` computes.
    """
    value = scores.meta["example_value"]
    dropouts = [node for node in path if is_dropout(node)]
    with tracing(value):
        product = fresh(value.detach(), computing_dtype(value.dtype))
        given = [*given, *(n for n in _sizes(scores.graph) if n not in given)]
        others = [_operand(node, value) for node in given]
        noises = [fresh(_value_of(node).detach(), product.dtype) for node in dropouts]

        def compute(product: torch.Tensor, *rest: Any) -> Any:
            known: dict[Node, Any] = dict(zip(given, rest, strict=False))
            noise = dict(zip(dropouts, rest[len(given) :], strict=True))
            replay = Replay(path, lambda node, x: x * noise[node],
                            least=0 if value.dtype is torch.float16 else FULL)  # fmt: skip
            replay.run(inside, known)
            known[scores] = start(product, known.__getitem__)
            replay.run(path, known)
            result = known[path[-1]]
            return result.to(product.dtype)

        before = guard_count(value)
        module = traced_graph(compute, (product, *others, *noises))
        if guard_count(value) != before:
            raise Refusal("its shapes hold only for some sizes")
    return _imported(module, scores, given, dropouts)


@contextlib.contextmanager
def tracing(value: torch.Tensor) -> Iterator[None]:
    """Compute with fake tensors of the kind of a traced one, and record no gradients."""
    mode = fake_mode_of(value)
    fake = contextlib.nullcontext() if mode is None else mode
    with torch.no_grad(), fake, python_dispatch():
        yield


def _sizes(graph: torch.fx.Graph) -> list[Node]:
    """Return the inputs of a graph that are sizes."""
    return [
        node
        for node in graph.find_nodes(op="placeholder")
        if isinstance(node.meta.get("example_value"), torch.SymInt)
    ]


def _value_of(node: Node) -> torch.Tensor:
    value = node.meta.get("example_value")
    if not is_plain_fake(value):
        raise Refusal(f"'{node}' is no ordinary dense tensor")
    assert isinstance(value, torch.Tensor)
    return value


def _operand(node: Node, like: torch.Tensor) -> Any:
    value = node.meta.get("example_value")
    if isinstance(value, torch.Tensor):
        return fresh(_value_of(node).detach())
    if isinstance(value, torch.SymFloat):
        return torch.empty((), dtype=computing_dtype(like.dtype), device=like.device)
    if isinstance(value, int | float | torch.SymInt) or value is None:
        return value
    raise Refusal(f"'{node}' is no tensor and no number")


def _imported(
    module: torch.fx.GraphModule, scores: Node, given: Sequence[Node], dropouts: Sequence[Node]
) -> Trace:
    _without_conversions_of_numbers(module.graph)
    try:
        graph = import_graph(module, "score")
        if graph.mutations:
            raise Refusal("what it computes changes its own operands")
        graph = CLEAN.run(graph, PassContext(), (), verify=False)
    except LynxError as error:
        raise Refusal(f"what lies between the two products is not understood: {error}") from error
    (result,) = graph.outputs
    if result is None:
        raise Refusal("it has no result")
    first, *others = graph.inputs
    inputs = dict(zip(others, given, strict=False))
    dropped = dict(zip(others[len(given) :], dropouts, strict=True))
    return Trace(graph, result, inputs, first, dropped)


def _without_conversions_of_numbers(graph: torch.fx.Graph) -> None:
    """Let numbers be what they are: tracing leaves conversions of some, which are no tensors."""
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten._to_copy.default:
            continue
        (item,) = node.args
        if isinstance(item, int | float):
            dtype = node.kwargs.get("dtype")
            floats = isinstance(dtype, torch.dtype) and dtype.is_floating_point
            number = float(item) if floats else item
            for user in list(node.users):
                user.args = _replaced(user.args, node, number)
            graph.erase_node(node)


def _replaced(arguments: Any, node: Node, item: Any) -> Any:
    return torch.fx.map_arg(arguments, lambda given: item if given is node else given)
