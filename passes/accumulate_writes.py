"""Adds what is scattered straight into the product that it would be added to."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import product
from lynx.ir.ops.elementwise_arithmetic import Add, Where
from lynx.ir.ops.elementwise_compare import Equal
from lynx.ir.ops.factory import Full
from lynx.ir.ops.indexing import EmbeddingBackward
from lynx.ir.ops.layout import Permute, Reshape, Squeeze, Unsqueeze
from lynx.ir.ops.linear import MatrixProduct
from lynx.ir.ops.scatter import IndexAdd, IndexPut, ScatterAdd, ScatterReduce
from lynx.ir.traversal import reachable
from lynx.ir.types import DType, is_same_type
from lynx.ir.writing import is_adding, is_write, written_into

from .base import PassContext, Remark, Requirement, register_pass
from .requirements import IS_GRAPH
from .rewrite import NoMatch

_Uses: TypeAlias = "Counter[Value]"

_REARRANGING = (Permute, Reshape, Squeeze, Unsqueeze)


@register_pass
@dataclass(frozen=True)
class AccumulateWrites:
    """Add what is scattered into zeros to the product itself that these are added to afterwards.

    The gradient of an embedding whose weight is the output projection too is such a sum: a buffer
    of its size, filled with zeros, is saved, and a pass over both. Only the order of the sum
    changes, so low precision is left alone: there eager rounds twice. Nor is anything added to what
    is read elsewhere, or may hold -0.0, to which eager adds a zero.
    """

    name: ClassVar[str] = "accumulate-writes"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with such sums replaced; what they added before is left to `dce`."""
        if not any(isinstance(op, Add) for op in module.ops):
            return module
        uses = _uses(module)
        ops: list[Op] = []
        mapping: dict[Value, Value] = {}
        for given in module.ops:
            op = given.replace_operands(mapping)
            outcome = _accumulated(op, uses) if isinstance(op, Add) else None
            if isinstance(outcome, NoMatch) and context.reasons:
                context.remarks.append(Remark(self.name, outcome.reason, op.loc))
            made = [op] if outcome is None or isinstance(outcome, NoMatch) else outcome
            ops += made
            for old, new in zip(given.results, made[-1].results, strict=True):
                if old is not new:
                    mapping[old] = new
                    uses[new] = uses[old]
        return module.with_ops(tuple(ops), mapping) if mapping else module


def _uses(graph: Graph) -> _Uses:
    """Count how often values are used by what is needed."""
    uses: _Uses = Counter(graph.uses)
    for op in reachable(graph):
        uses.update(op.operands)
    return uses


def _accumulated(op: Add, uses: _Uses) -> list[Op] | NoMatch:
    """Add to the product, instead of to zeros and then to the product.

    add(matmul(a, b), index_add(0, i, v))  ==>  index_add(matmul(a, b), i, v)
    """
    reason = NoMatch("neither operand is scattered into zeros")
    for x, y in ((op.x, op.y), (op.y, op.x)):
        if not isinstance(x, Value) or not isinstance(y, Value) or not _begins_with_zeros(y.op):
            continue
        refusal = _refusal(op, x, y, uses)
        if not refusal:
            assert y.op is not None, y
            return _into(x, y.op)
        reason = NoMatch(refusal)
    return reason


def _begins_with_zeros(op: Op | None) -> bool:
    """Whether an op adds at given places, to nothing but zeros."""
    if op is None or not is_write(op) or not is_adding(op):
        return False
    into = written_into(op)
    full = None if into is None else into.defined_by(Full)
    return into is None or (full is not None and full.value == 0)


def _refusal(op: Add, x: Value, y: Value, uses: _Uses) -> str:
    """Return why what is scattered is not added to `x` itself, empty if it is."""
    dtype = op.out.tensor_type.dtype
    if not (dtype in (DType.F32, DType.F64) or dtype.is_integer):
        return f"sums of {dtype} depend on how they are rounded in between"
    if op.alpha != 1:
        return "what is added is scaled"
    if not (is_same_type(x.type, op.out.type) and is_same_type(y.type, op.out.type)):
        return "an operand is broadcast"
    if isinstance(y.op, EmbeddingBackward) and y.op.by_frequency:
        return "what is added is divided by how often each row was looked up"
    if isinstance(y.op, ScatterReduce) and not (y.op.reduction == "sum" and y.op.include_self):
        return "what is scattered does not add up"
    if uses[y] != 1:
        return "what is scattered is used elsewhere"
    return _why_not_into(x, uses)


def _why_not_into(x: Value, uses: _Uses) -> str:
    """Return why nothing is added to a value, which must be its only reader, empty if it may be."""
    while uses[x] == 1 and isinstance(x.op, _REARRANGING):
        x = x.op.operands[0]
    if uses[x] != 1:
        return "what it is added to is used elsewhere"
    # These add up from zero, and so hold no -0.0.
    while x.op is not None and is_write(x.op) and is_adding(x.op):
        into = written_into(x.op)
        if _begins_with_zeros(x.op) or into is None:
            return ""
        x = into
    while isinstance(x.op, _REARRANGING):
        x = x.op.operands[0]
    return "" if isinstance(x.op, MatrixProduct) else "what it is added to is no product"


def _into(x: Value, op: Op) -> list[Op]:
    """Return the ops that add to `x` what an op adds to zeros, the last one doing so."""
    if not isinstance(op, EmbeddingBackward):
        assert isinstance(op, IndexAdd | IndexPut | ScatterAdd | ScatterReduce), op
        return [dataclasses.replace(op, x=x)]
    grad, indices, loc = op.grad, op.indices, op.loc
    made: list[Op] = []

    def add(new: Op) -> Value:
        made.append(new)
        return new.results[0]

    if len(indices.shape) != 1:
        count = product(indices.shape)
        indices = add(Reshape(indices, (count,), loc=loc))
        grad = add(Reshape(grad, (count, grad.shape[-1]), loc=loc))
    if op.padding >= 0:
        is_padding = add(Equal(indices, op.padding, loc=loc))
        column = add(Unsqueeze(is_padding, 1, loc=loc))
        grad = add(Where(column, 0, grad, loc=loc))
    add(IndexAdd(x, indices, grad, 0, loc=loc))
    return made
