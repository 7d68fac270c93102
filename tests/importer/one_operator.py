"""Import one call of a torch operator and run it, next to what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from lynx.backends.reference import evaluate
from lynx.importer.graph import import_graph
from lynx.ir.core import Graph
from lynx.ir.ops.aten import Aten


def operator(name: str) -> Any:
    """Return the overload called `aten.<packet>.<overload>`."""
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def imported(
    target: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> tuple[Graph, list[torch.Tensor]]:
    """Return the Lynx graph of one call, and its inputs: the tensors among the arguments."""
    mode = FakeTensorMode()
    graph = torch.fx.Graph()
    inputs: list[torch.Tensor] = []

    def enter(item: Any) -> Any:
        if isinstance(item, list | tuple):
            return [enter(part) for part in item]
        if not isinstance(item, torch.Tensor):
            return item
        node = graph.placeholder(f"x{len(inputs)}")
        node.meta["val"] = mode.from_tensor(item)
        inputs.append(item)
        return node

    nodes = tuple(enter(argument) for argument in arguments)
    named = {name: enter(argument) for name, argument in keywords.items()}
    call = graph.call_function(target, nodes, named)
    with mode:
        call.meta["val"] = target(*_traced(nodes), **{k: _traced(n) for k, n in named.items()})
    results = call.meta["val"]
    if isinstance(results, tuple | list):
        parts = []
        for index, value in enumerate(results):
            part = graph.call_function(getitem, (call, index))
            part.meta["val"] = value
            parts.append(part)
        graph.output(tuple(parts))
    else:
        graph.output((call,))
    return import_graph(torch.fx.GraphModule({}, graph), "inference"), inputs


def _traced(item: Any) -> Any:
    if isinstance(item, torch.fx.Node):
        return item.meta["val"]
    if isinstance(item, list | tuple):
        return type(item)(_traced(part) for part in item)
    return item


def reasons(graph: Graph) -> list[str]:
    """Return why calls of a graph run through torch."""
    return [op.reason for op in graph.ops if isinstance(op, Aten)]


def assert_imports_exactly(
    name: str, *arguments: Any, seed: int | None = None, **keywords: Any
) -> bool:
    """Check that an operator has a structured form that gives eager's bits.

    Return False where eager refuses the call.
    """
    target = operator(name)
    try:
        expected = _run(lambda: target(*arguments, **keywords), seed)
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return False
    graph, inputs = imported(target, arguments, keywords)
    assert not reasons(graph), (name, reasons(graph))
    actual, _ = _run(lambda: evaluate(graph, inputs), seed)
    wanted = expected if isinstance(expected, tuple | list) else (expected,)
    for ours, theirs in zip(actual, wanted, strict=True):
        assert_same_bits(ours, theirs)
    return True


def _run(function: Callable[[], Any], seed: int | None) -> Any:
    if seed is not None:
        torch.manual_seed(seed)
    return function()


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Check type, shape and every bit; a NaN is like any other."""
    assert actual.dtype is expected.dtype
    assert actual.shape == expected.shape
    if expected.is_floating_point():
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        zeros = expected == 0
        assert torch.equal(torch.signbit(actual[zeros]), torch.signbit(expected[zeros]))
    else:
        assert torch.equal(actual, expected)
