"""Run a graph op by op in plain torch: the oracle for every other way of running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from lynx.ir.call import Call
from lynx.ir.core import Foreign, Graph, Op, Value
from lynx.ir.dims import evaluate as evaluate_dim
from lynx.ir.types import ScalarType, TensorType

from .registry import call_of


def evaluate(
    graph: Graph, inputs: Sequence[Any], symbols: Mapping[str, int] | None = None
) -> tuple[list[Any], list[Any]]:
    """Return the outputs, and the new values of the mutated inputs in the order of `mutations`.

    Inputs are not changed. Symbols are read off the inputs' shapes, or given.
    """
    values: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    sizes = dict(symbols or {}) or bind_symbols(graph, inputs)
    for op in graph.ops:
        values.update(zip(op.results, run(op, values, sizes, graph.resources), strict=True))
    outputs = [None if value is None else values[value] for value in graph.outputs]
    return outputs, [values[mutation.value] for mutation in graph.mutations]


def run(
    op: Op,
    values: Mapping[Value, Any],
    symbols: Mapping[str, int],
    resources: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Return the results of one op, given the values of its operands."""
    call: Call = call_of(op)
    arguments = [_fill(a, values, symbols, resources) for a in call.arguments]
    keywords = {k: _fill(a, values, symbols, resources) for k, a in call.keywords.items()}
    result = call.function(*arguments, **keywords)
    return tuple(result) if len(op.results) != 1 else (result,)


def bind_symbols(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    """Read the graph's symbols off its inputs: integers, and dimensions that are a bare symbol."""
    sizes: dict[str, int] = {}
    for value, given in zip(graph.inputs, inputs, strict=True):
        if isinstance(value.type, ScalarType) and isinstance(value.type.expr, sympy.Symbol):
            sizes[value.type.expr.name] = int(given)
        elif isinstance(value.type, TensorType) and isinstance(given, torch.Tensor):
            for dim, size in zip(value.type.shape, given.shape, strict=True):
                if isinstance(dim, sympy.Symbol):
                    sizes[dim.name] = int(size)
    return sizes


def _fill(
    item: Any,
    values: Mapping[Value, Any],
    symbols: Mapping[str, int],
    resources: Mapping[str, Any],
) -> Any:
    if isinstance(item, Value):
        return values[item]
    if isinstance(item, sympy.Expr):
        return evaluate_dim(item, symbols)
    if isinstance(item, Foreign) and item.kind == "resource":
        return resources[item.text]
    if isinstance(item, tuple | list):
        return [_fill(part, values, symbols, resources) for part in item]
    return item
