"""Removes ops whose results nobody needs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op, Value

from .base import PassContext, Requirement, register_pass
from .requirements import IS_GRAPH


@register_pass
@dataclass(frozen=True)
class RemoveDeadCode:
    """Remove the ops that no output, mutation or lasting effect depends on.

    Inputs stay; resources that nothing refers to any more stay too, being shared with the caller.
    """

    name: ClassVar[str] = "dce"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph without dead ops."""
        live: set[Value] = set(module.uses)
        kept: list[Op] = []
        for op in reversed(module.ops):
            if not op.is_removable or any(result in live for result in op.results):
                kept.append(op)
                live.update(op.operands)
        if len(kept) == len(module.ops):
            return module
        return dataclasses.replace(module, ops=tuple(reversed(kept)))
