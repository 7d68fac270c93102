"""Evaluates at compile time what depends on nothing but constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import sympy

from lynx.ir.core import Foreign, Graph, Op, Value
from lynx.ir.dims import is_static
from lynx.ir.ops.aten import Aten, Resource
from lynx.ir.ops.factory import Full
from lynx.ir.types import TensorType

from .base import PassContext, Remark, Requirement, register_pass
from .cse import is_mergeable
from .requirements import IS_GRAPH


@register_pass
@dataclass(frozen=True)
class FoldConstants:
    """Replace ops on constants by literals: `full` if all elements are equal, else a resource.

    No operand and no result of a folded op has more than `max_bytes`. Random ops, `aten` ops and
    ops with symbolic sizes are never folded. Does nothing where the context cannot evaluate.
    """

    name: ClassVar[str] = "fold-constants"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    max_bytes: int = 65536

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph in which constant ops are literals."""
        if context.evaluate is None or context.constant_info is None:
            return module
        if not module.resources and any(map(_names_resource, module.ops)):
            return module  # read from a text, without its resources
        folder = _Folder(module, context, self.max_bytes)
        for op in module.ops:
            folder.visit(op)
        if not folder.mapping:
            return module
        graph = module.with_ops(tuple(folder.ops), folder.mapping)
        return dataclasses.replace(graph, resources=folder.resources)


class _Folder:
    """Rebuilds one graph; `sources` are the ops that constant values come from."""

    def __init__(self, graph: Graph, context: PassContext, max_bytes: int) -> None:
        self.context = context
        self.max_bytes = max_bytes
        self.resources = dict(graph.resources)
        self.sources: dict[Value, Op] = {}
        self.known: dict[Value, Any] = {}
        self.mapping: dict[Value, Value] = {}
        self.ops: list[Op] = []

    def visit(self, op: Op) -> None:
        current = op.replace_operands(self.mapping)
        if self._is_foldable(current):
            if not current.operands:
                self.sources.update(dict.fromkeys(current.results, current))
            elif self._is_constant(current) and self._fold(op, current):
                return
        self.ops.append(current)
        if current is not op:
            self.mapping.update(zip(op.results, current.results, strict=True))

    def _is_constant(self, op: Op) -> bool:
        return all(operand in self.sources for operand in op.operands)

    def _is_foldable(self, op: Op) -> bool:
        if isinstance(op, Aten) or not is_mergeable(op) or not op.results:
            return False
        fields = (*op.operand_fields, *op.attribute_fields)
        return all(map(self._is_small, op.results)) and not any(
            _is_symbolic(getattr(op, name)) for name in fields
        )

    def _is_small(self, value: Value) -> bool:
        type_ = value.type
        if not isinstance(type_, TensorType) or type_.sharding is not None:
            return False
        if type_.device == "meta" or not is_static(type_.shape):
            return False
        return bool(type_.nbytes <= self.max_bytes)

    def _fold(self, op: Op, current: Op) -> bool:
        try:
            operands = [self._value(operand) for operand in current.operands]
            results = self._evaluate(current, operands)
        except Exception as error:  # whatever it is, the program must raise it, and not Lynx
            message = f"'{op.name}' fails on its constants: {error}"
            self.context.remarks.append(Remark("fold-constants", message, op.loc))
            return False
        for old, result in zip(op.results, results, strict=True):
            literal = self._literal(old, current, result)
            self.ops.append(literal)
            self.sources[literal.results[0]] = literal
            self.known[literal.results[0]] = result
            self.mapping[old] = literal.results[0]
        message = f"'{op.name}' is computed at compile time"
        self.context.remarks.append(Remark("fold-constants", message, op.loc))
        return True

    def _value(self, value: Value) -> Any:
        """Return what a constant value is, evaluating its source when it is first asked for."""
        if value not in self.known:
            source = self.sources[value]
            if isinstance(source, Resource):
                self.known[value] = self.resources[source.key]
            else:
                self.known.update(zip(source.results, self._evaluate(source, ()), strict=True))
        return self.known[value]

    def _evaluate(self, op: Op, operands: Sequence[Any]) -> Sequence[Any]:
        assert self.context.evaluate is not None
        return self.context.evaluate(op, operands)

    def _literal(self, old: Value, current: Op, result: Any) -> Op:
        """Return the op that gives a constant tensor, and keep the tensor if it is needed."""
        assert self.context.constant_info is not None
        type_ = old.tensor_type
        info = self.context.constant_info(result)
        if info.uniform is not None:
            return Full(info.uniform, type_.shape, type_.dtype, type_.device, loc=current.loc)
        key = f"constant_{info.digest[:32]}"
        self.resources[key] = result
        return Resource(key, type_.dtype, type_.shape, type_.device, loc=current.loc)


def _names_resource(op: Op) -> bool:
    if isinstance(op, Aten):
        return _has_resource((op.arguments, op.keywords))
    return isinstance(op, Resource)


def _has_resource(item: Any) -> bool:
    if isinstance(item, tuple):
        return any(map(_has_resource, item))
    return isinstance(item, Foreign) and item.kind == "resource"


def _is_symbolic(item: Any) -> bool:
    if isinstance(item, tuple):
        return any(map(_is_symbolic, item))
    return isinstance(item, sympy.Expr)
