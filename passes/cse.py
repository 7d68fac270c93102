"""Merges ops that compute the same."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.aten import Aten
from lynx.ir.ops.fusion import Fused, Region
from lynx.ir.printer import region_text
from lynx.ir.types import TensorType

from .base import PassContext, Requirement, register_pass
from .requirements import IS_GRAPH


@register_pass
@dataclass(frozen=True)
class MergeCommonSubexpressions:
    """Compute once what several ops compute alike: same class, operands, numbers and attributes.

    The first op stays, with its location. Random ops, ops with effects and tensors with undefined
    contents are never merged; `aten` ops only if torch defines them as functions of their
    arguments.
    """

    name: ClassVar[str] = "cse"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with each expression computed once."""
        first: dict[Hashable, Op] = {}
        mapping: dict[Value, Value] = {}
        ops: list[Op] = []
        for op in module.ops:
            current = op.replace_operands(mapping)
            known = first.setdefault(key_of(current), current) if is_mergeable(current) else current
            if known is current:
                ops.append(current)
            if known is not op:
                mapping.update(zip(op.results, known.results, strict=True))
        return module.with_ops(tuple(ops), mapping) if mapping else module


def is_mergeable(op: Op) -> bool:
    """Whether two such ops with equal operands always give the same results."""
    if op.is_random or not op.is_removable or has_undefined_contents(op):
        return False
    if isinstance(op, Aten):
        return op.target.startswith("aten.") and all(
            isinstance(result.type, TensorType) for result in op.results
        )
    return True


def has_undefined_contents(op: Op) -> bool:
    """Whether the op gives memory as it is, such as `empty`."""
    name = op.target if isinstance(op, Aten) else op.name
    return "empty" in name


def key_of(op: Op) -> Hashable:
    """Return what two ops must share to compute the same; locations and reasons do not count."""
    fields = (*op.operand_fields, *op.attribute_fields)
    regions = [_region_key(op, region) for region in op.regions.values()]
    return (
        type(op),
        *(_key(getattr(op, name)) for name in fields if name != "reason"),
        tuple(regions),
    )


def _region_key(op: Op, region: Region) -> Hashable:
    """Return what equal regions share; fused ops are told apart without a look into them."""
    return region if isinstance(op, Fused) else region_text(region)


def _key(item: Any) -> Hashable:
    """Tell apart what Python takes for equal: 1, True and 1.0; 0.0 and -0.0; and equate NaNs."""
    if isinstance(item, Value):
        return item
    if isinstance(item, float):
        return ("float", struct.pack("<d", item))
    if isinstance(item, complex):
        return ("complex", struct.pack("<dd", item.real, item.imag))
    if isinstance(item, tuple):
        return ("tuple", *map(_key, item))
    return (type(item), item)
