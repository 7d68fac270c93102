"""Lets attention read keys and values that several heads share, without copies for each head."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Argument, Graph, Op, Value
from lynx.ir.dims import Dim, is_equal, product
from lynx.ir.ops.aten import Aten
from lynx.ir.ops.elementwise_arithmetic import Copy
from lynx.ir.ops.layout import Broadcast, Reshape, Squeeze, Unsqueeze

from .base import PassContext, Remark, Requirement, register_pass
from .fuse import expected_strides
from .layouts import Strides, view_strides
from .requirements import IS_GRAPH
from .rewrite import NoMatch

_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
"""For head `h` it reads head `h // (heads of queries / heads)` of keys and values."""

_HEADS = 2
"""The dimension along which repeated heads lie before they are counted with the others."""


@register_pass
@dataclass(frozen=True)
class ShareHeads:
    """Pass keys and values to attention as they were before each head was repeated.

    The kernel of torch for CPUs computes the same for both, bit by bit. It needs rows of
    neighbouring elements.
    """

    name: ClassVar[str] = "share-heads"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph in which nothing needs the repeated heads, if attention alone did."""
        if not any(map(_is_attention, module.ops)):
            return module
        strides = expected_strides(module, context)
        ops: list[Op] = []
        mapping: dict[Value, Value] = {}
        for op in module.ops:
            made = op.replace_operands(mapping)
            if isinstance(op, Aten) and _is_attention(op):
                shared = _shared(op, strides)
                if isinstance(shared, NoMatch):
                    context.remarks.append(Remark(self.name, shared.reason, op.loc))
                else:
                    ops += (view.replace_operands(mapping) for view in shared[:-1])
                    made = shared[-1].replace_operands(mapping)
            ops.append(made)
            if made is not op:
                mapping.update(zip(op.results, made.results, strict=True))
        return module.with_ops(tuple(ops), mapping) if mapping else module


def _is_attention(op: Op) -> bool:
    return isinstance(op, Aten) and op.target == _ATTENTION and len(op.operand_strides) > _HEADS


def _shared(op: Aten, strides: Mapping[Value, Strides | None]) -> tuple[Op, ...] | NoMatch:
    """Return the attention over the heads that there are, after views that it takes."""
    views: list[Op] = []
    arguments, layouts = list(op.arguments), list(op.operand_strides)
    for place in (1, 2):
        found = _before_repetition(op.arguments[place])
        if isinstance(found, NoMatch):
            return found
        source, view = found
        layout = strides.get(source)
        if layout is not None and view is not None:
            layout = view_strides(view, layout)
        if layout is None or not is_equal(layout[-1], 1):
            return NoMatch("keys or values have no rows of neighbouring elements")
        if view is not None:
            views.append(view)
        arguments[place], layouts[place] = source if view is None else view.results[0], layout
    shared = dataclasses.replace(op, arguments=tuple(arguments), operand_strides=tuple(layouts))
    return (*views, shared)


def _before_repetition(repeated: Argument) -> tuple[Value, Op | None] | NoMatch:
    """Return a value of which each head was repeated, or what it is a view of, with the view."""
    merged = repeated.defined_by(Reshape) if isinstance(repeated, Value) else None
    if merged is None or len(merged.shape) != 4 or len(merged.x.shape) != 5:
        return NoMatch("heads of keys and values are not repeated")
    heads = product(merged.x.shape[_HEADS - 1 : _HEADS + 1])
    if not is_equal(merged.shape[1], heads):
        return NoMatch("heads are not counted with their repetitions")
    copy = merged.x.defined_by(Copy)
    spread = (merged.x if copy is None else copy.x).defined_by(Broadcast)
    if spread is None or len(spread.x.shape) != 5 or not is_equal(spread.x.shape[_HEADS], 1):
        return NoMatch("heads of keys and values are not repeated")
    if not all(map(is_equal, _without(spread.x.shape), _without(spread.shape))):
        return NoMatch("more than heads is repeated")
    inserted = spread.x.defined_by(Unsqueeze)
    if inserted is not None and inserted.dim == _HEADS:
        return inserted.x, None
    return spread.x, Squeeze(spread.x, (_HEADS,), loc=spread.loc)


def _without(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return (*shape[:_HEADS], *shape[_HEADS + 1 :])
