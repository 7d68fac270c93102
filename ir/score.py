"""The text of score functions, in which sizes have names that do not depend on who wrote it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import sympy

from .core import Graph, Op, Value
from .dims import Dim, simplify, symbol
from .location import UNKNOWN
from .ops.fusion import Region
from .parser import parse_graph
from .printer import print_graph
from .types import ScalarType, TensorType, Type

_SIZE = re.compile(r'"(?:\\.|[^"\\\n])*"|[%@#][\w.]+|\b[A-Za-z_]\w*')
_DOT = "dot"
_WRITTEN: dict[str, Region] = {}
"""What texts written in this process describe: to read them again needs a parser, slow to make."""

_REMEMBERED = 1024


def score_text(region: Region) -> tuple[str, tuple[Dim, ...]]:
    """Return the text of a region, and the sizes that its symbols `s0, s1, ...` stand for.

    Symbols are numbered as they appear, and locations are left out: regions that differ in nothing
    else have one text.
    """
    graph = _graph(region)
    order = _symbols_in_order(graph)
    renamed = {symbol(name): symbol(f"s{index}") for index, name in enumerate(order)}
    named = _graph(with_sizes(region, renamed))
    text = print_graph(named, locations=False)
    if len(_WRITTEN) < _REMEMBERED:
        _WRITTEN.setdefault(text, _without_locations(named))
    return text, tuple(symbol(name) for name in order)


@functools.lru_cache(maxsize=1024)
def score_region(text: str, sizes: tuple[Dim, ...] = ()) -> Region:
    """Return the region that a text describes, for the sizes that its symbols stand for."""
    region = _WRITTEN.get(text) or _region(parse_graph(text, file="<score>"))
    return with_sizes(region, {symbol(f"s{n}"): size for n, size in enumerate(sizes)})


def _region(graph: Graph) -> Region:
    results = tuple(value for value in graph.outputs if value is not None)
    return Region(graph.inputs, graph.ops, results)


def _without_locations(graph: Graph) -> Region:
    """Return what the text of a graph without locations describes."""
    values: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        copy = op.replace_operands(values)
        ops.append(dataclasses.replace(copy, loc=UNKNOWN))
        values.update(zip(op.results, ops[-1].results, strict=True))
    region = _region(graph)
    return Region(region.parameters, tuple(ops), tuple(values.get(r, r) for r in region.results))


def with_sizes(region: Region, sizes: Mapping[sympy.Symbol, Dim]) -> Region:
    """Return a region with other sizes for some of its symbols."""
    if not sizes:
        return region
    values: dict[Value, Value] = {}
    for parameter in region.parameters:
        values[parameter] = Value(_resized_type(parameter.type, sizes), name=parameter.name)
    ops: list[Op] = []
    for op in region.ops:
        ops.append(resized(op, values, sizes))
        values.update(zip(op.results, ops[-1].results, strict=True))
    parameters = tuple(values[parameter] for parameter in region.parameters)
    return Region(parameters, tuple(ops), tuple(values[result] for result in region.results))


def resized(op: Op, values: Mapping[Value, Value], sizes: Mapping[sympy.Symbol, Dim]) -> Op:
    """Return an op over other operands and with other sizes; what it gives is inferred anew."""
    fields = (*op.operand_fields, *op.attribute_fields)
    changed = {name: _resized(getattr(op, name), values, sizes) for name in fields}
    return dataclasses.replace(op, **changed)


def _resized(item: Any, values: Mapping[Value, Value], sizes: Mapping[sympy.Symbol, Dim]) -> Any:
    if isinstance(item, Value):
        return values.get(item, item)
    if isinstance(item, tuple):
        return tuple(_resized(part, values, sizes) for part in item)
    if isinstance(item, sympy.Expr):
        return resized_dim(item, sizes)
    if isinstance(item, TensorType | ScalarType):
        return _resized_type(item, sizes)
    return item


def resized_dim(dim: Dim, sizes: Mapping[sympy.Symbol, Dim]) -> Dim:
    """Return a dimension with other sizes for some of its symbols."""
    if isinstance(dim, int):
        return dim
    return simplify(dim.xreplace({name: sympy.sympify(size) for name, size in sizes.items()}))


def _resized_type(type_: Type, sizes: Mapping[sympy.Symbol, Dim]) -> Type:
    if isinstance(type_, TensorType):
        shape = tuple(resized_dim(dim, sizes) for dim in type_.shape)
        return dataclasses.replace(type_, shape=shape)
    if isinstance(type_, ScalarType) and type_.expr is not None:
        return dataclasses.replace(type_, expr=resized_dim(type_.expr, sizes))
    return type_


def _graph(region: Region) -> Graph:
    """Return a graph of the region, with names for its parameters that tell their place."""
    names = [_DOT, *(f"p{index}" for index in range(len(region.parameters) - 1))]
    named = {
        value: Value(value.type, name=name)
        for value, name in zip(region.parameters, names, strict=False)
    }
    values: dict[Value, Value] = dict(named)
    ops: list[Op] = []
    for op in region.ops:
        ops.append(op.replace_operands(values))
        values.update(zip(op.results, ops[-1].results, strict=True))
    results = tuple(values[result] for result in region.results)
    return Graph("score", tuple(named.values()), tuple(ops), results)


def symbols_of(region: Region) -> tuple[str, ...]:
    """Return the names of all symbols that a region mentions, sorted."""
    return tuple(sorted(_symbols(region.parameters, region.ops)))


def _symbols_in_order(graph: Graph) -> list[str]:
    """Return the names of the symbols in the order in which the text of a graph mentions them."""
    known = _symbols(graph.inputs, graph.ops)
    found = _SIZE.findall(print_graph(graph, locations=False))
    return [name for name in dict.fromkeys(found) if name in known]


def _symbols(inputs: tuple[Value, ...], ops: tuple[Op, ...]) -> frozenset[str]:
    names: set[str] = set()
    stack: list[Any] = [value.type for value in inputs]
    for op in ops:
        stack += (getattr(op, name) for name in (*op.operand_fields, *op.attribute_fields))
        stack += (value.type for value in op.results)
    while stack:
        item = stack.pop()
        if isinstance(item, sympy.Expr):
            names.update(part.name for part in item.free_symbols)
        elif isinstance(item, tuple):
            stack += item
        elif isinstance(item, TensorType):
            stack += item.shape
        elif isinstance(item, ScalarType):
            stack.append(item.expr)
    return frozenset(names)


def is_plain(score: Region | None) -> bool:
    """Whether a score is the product of query and key itself."""
    return score is None or score.results == score.parameters[:1]
