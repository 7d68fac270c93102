"""Ask for rules of operators that Lynx does not know: what of them can be cut, found by trials."""

from __future__ import annotations

import dataclasses

from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import CompileError
from lynx.ir.ops.aten import Aten
from lynx.passes.base import PassContext, Remark

from .propagate import constants


def with_found_rules(graph: Graph, context: PassContext) -> Graph:
    """Return the graph in which `aten` ops without a rule have those that the context finds.

    What depends on no input is left alone: each device has it whole. What was found, and why
    nothing was, is remarked once for an operator and a reason.
    """
    if context.find_rule is None:
        return graph
    whole = set(constants(graph))
    mapping: dict[Value, Value] = {}
    said: set[tuple[str, str]] = set()
    ops: list[Op] = []
    for op in graph.ops:
        made = op.replace_operands(mapping)
        if isinstance(made, Aten) and is_unknown(made) and whole.isdisjoint(op.results):
            found = context.find_rule(made)
            text = (
                f"can be cut as '{found.rule}', found by trials"
                if found.rule
                else f"cannot be cut: {found.reason}"
            )
            if (made.target, text) not in said:
                said.add((made.target, text))
                context.remarks.append(Remark("mesh", f"'{made.target}' {text}", made.loc))
            if found.rule:
                made = dataclasses.replace(made, rule=found.rule)
        ops.append(made)
        if made is not op:
            mapping.update(zip(op.results, made.results, strict=True))
    return graph.with_ops(tuple(ops), mapping) if mapping else graph


def is_unknown(op: Aten) -> bool:
    """Whether nobody says what of an op can be cut, although it has tensors that might be."""
    if op.rule or not op.operands or not op.results:
        return False
    try:
        return op.space() is None
    except CompileError:
        return False  # a rule of the user that does not fit: to be reported where it is used
