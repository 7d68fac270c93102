"""Removes ops whose results nobody needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import sympy

from lynx.ir.core import Graph, Op, Value
from lynx.ir.types import ScalarType, TensorType, symbols_told

from .base import PassContext, Requirement, register_pass
from .lower import bound_symbols
from .requirements import IS_GRAPH


@register_pass
@dataclass(frozen=True)
class RemoveDeadCode:
    """Remove the ops that no output, mutation or lasting effect depends on.

    An op also stays if it is the first to tell the value of a symbol that others mention, such as
    `nonzero`, of whose result perhaps only the size is used. Inputs stay; resources that nothing
    refers to any more stay too, being shared with the caller.
    """

    name: ClassVar[str] = "dce"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph without dead ops."""
        live: set[Value] = set(module.uses)
        tellers = _first_tellers(module)
        mentioned: set[str] = set()
        if tellers:
            mentioned.update(_mentioned([spec.strides for spec in module.output_specs]))
        kept: list[Op] = []
        for op in reversed(module.ops):
            is_live = not op.is_removable or any(result in live for result in op.results)
            if is_live or not mentioned.isdisjoint(tellers.get(op, ())):
                kept.append(op)
                live.update(op.operands)
                if tellers:
                    mentioned.update(_symbols_of(op))
        if len(kept) == len(module.ops):
            return module
        return dataclasses.replace(module, ops=tuple(reversed(kept)))


def _first_tellers(graph: Graph) -> dict[Op, list[str]]:
    """Return the ops from which the program learns symbols that no input tells."""
    known = set(bound_symbols(graph.inputs, graph.input_specs))
    if known.issuperset(entry.name for entry in graph.symbols):
        return {}
    tellers: dict[Op, list[str]] = {}
    for op in graph.ops:
        for name in (name for result in op.results for name in symbols_told(result.type)):
            if name not in known:
                known.add(name)
                tellers.setdefault(op, []).append(name)
    return tellers


def _symbols_of(op: Op) -> Iterator[str]:
    for name in (*op.operand_fields, *op.attribute_fields):
        yield from _mentioned(getattr(op, name))
    for result in op.results:
        yield from _mentioned(result)
    for region in op.regions.values():
        yield from _mentioned(region.parameters)
        for inner in region.ops:
            yield from _symbols_of(inner)


def _mentioned(item: Any) -> Iterator[str]:
    """Yield the symbols in an argument, and in the type of a value."""
    if isinstance(item, sympy.Expr):
        yield from (symbol.name for symbol in item.free_symbols)
    elif isinstance(item, tuple | list):
        for part in item:
            yield from _mentioned(part)
    elif isinstance(item, Value):
        if isinstance(item.type, TensorType):
            yield from _mentioned(item.type.shape)
        elif isinstance(item.type, ScalarType):
            yield from _mentioned(item.type.expr)
