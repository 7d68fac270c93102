"""Joins products of matrices with the elementwise kernels around them, to be tiled as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.elementwise import Elementwise
from lynx.ir.ops.fusion import Fused, Region
from lynx.ir.ops.linear import AddProduct, MatrixProduct
from lynx.ir.types import TensorType

from .base import PassContext, Requirement, register_pass
from .fusion import why_not
from .fusion.emit_products import PRODUCTS
from .requirements import IS_GRAPH

SMALLEST = 16
"""Sides of matrices below which a tile would be mostly empty."""

_CHEAP = frozenset(("cast", "add", "sub", "mul", "neg", "where", "clamp", "copy"))
"""What may be computed again for each tile that reads it."""

MAX_OPS = 64

Product: TypeAlias = MatrixProduct | AddProduct


@register_pass
@dataclass(frozen=True)
class FuseProducts:
    """Make each product of matrices a fused op, with what can be computed tile by tile around it.

    That is the one kernel that reads the product, if it is elementwise, and kernels that make an
    operand by a few simple ops. The back end measures whether such a kernel is faster than the
    library with kernels of their own before and after. Only for targets that launch kernels.
    """

    name: ClassVar[str] = "fuse-products"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with fused products."""
        target = context.target
        if not (target.launches and target.generates_code):
            return module
        return _Joiner(module, target.device).joined()


@dataclass(eq=False)
class _Group:
    """A product with the fused ops before and after it that become one."""

    product: Product
    before: list[Fused] = field(default_factory=list)
    after: Fused | None = None

    @property
    def last(self) -> Op:
        """The op in whose place the group runs."""
        return self.product if self.after is None else self.after


class _Joiner:
    def __init__(self, graph: Graph, device: str) -> None:
        self.graph = graph
        self.device = device
        self.users: dict[Value, list[Op | None]] = {}
        for op in graph.ops:
            for operand in dict.fromkeys(op.operands):
                self.users.setdefault(operand, []).append(op)
        for value in graph.uses:
            self.users.setdefault(value, []).append(None)
        self.taken: set[Op] = set()

    def joined(self) -> Graph:
        """Return the graph with each group in the place of its last op."""
        groups = [self._group(op) for op in self.graph.ops if self._is_tiled(op)]
        if not groups:
            return self.graph
        at = {group.last: group for group in groups}
        gone = {op for g in groups for op in (g.product, *g.before) if op is not g.last}
        mapping: dict[Value, Value] = {}
        ops: list[Op] = []
        for op in self.graph.ops:
            if op in gone:
                continue
            group = at.get(op)
            if group is None:
                made = op.replace_operands(mapping)
            else:
                made = _fused(group).replace_operands(mapping)
            mapping.update(zip(op.results, made.results, strict=True))
            ops.append(made)
        return self.graph.with_ops(tuple(ops), mapping)

    def _is_tiled(self, op: Op) -> bool:
        if not isinstance(op, PRODUCTS) or why_not(op):
            return False
        if op.out.tensor_type.device.partition(":")[0] != self.device:
            return False
        sizes = (*op.a.shape[-2:], op.b.shape[-1])
        return not any(isinstance(size, int) and size < SMALLEST for size in sizes)

    def _group(self, op: Op) -> _Group:
        assert isinstance(op, MatrixProduct | AddProduct), op
        group = _Group(op)
        for operand in dict.fromkeys((op.a, op.b)):
            maker = operand.op
            if isinstance(maker, Fused) and maker not in self.taken and self._is_before(maker, op):
                group.before.append(maker)
                self.taken.add(maker)
        reader = self._only_user(op.out)
        if isinstance(reader, Fused) and reader not in self.taken and _is_after(reader, op):
            group.after = reader
            self.taken.add(reader)
        return group

    def _only_user(self, value: Value) -> Op | None:
        users = self.users.get(value, [])
        return users[0] if len(users) == 1 else None

    def _is_before(self, maker: Fused, op: Op) -> bool:
        """Whether an operand may be computed again for each tile: simple, and read by no other."""
        if len(maker.results) != 1 or self._only_user(maker.out) is not op:
            return False
        shape = maker.out.shape
        tensors = [v for v in maker.inputs if isinstance(v.type, TensorType)]
        wide = [v for v in tensors if v.shape == shape]
        is_narrow = all(len(v.shape) < len(shape) or v in wide for v in tensors)
        is_cheap = all(
            part.name in _CHEAP or not part.operands or part.is_view for part in maker.body.ops
        )
        return len(wide) == 1 and is_narrow and is_cheap


def _is_after(reader: Fused, op: Product) -> bool:
    """Whether a fused op computes each of its elements from the product's element at that place."""
    if len(reader.body.ops) >= MAX_OPS or any(r.shape != op.out.shape for r in reader.results):
        return False
    place = reader.inputs.index(op.out)
    depends = {reader.body.parameters[place]}
    for part in reader.body.ops:
        if depends.isdisjoint(part.operands):
            if not (isinstance(part, Elementwise) or part.is_view or not part.operands):
                return False
            continue
        if not isinstance(part, Elementwise) or part.results[0].shape != op.out.shape:
            return False
        depends.update(part.results)
    return True


class _RegionBuilder:
    """Builds the region of a group, over the values of the graph as it was."""

    def __init__(self) -> None:
        self.parameters: dict[Value, Value] = {}
        self.inner: dict[Value, Value] = {}
        self.ops: list[Op] = []

    def use(self, value: Value) -> Value:
        """Return what stands for a value: what computes it here, or else a parameter."""
        if value in self.inner:
            return self.inner[value]
        if value not in self.parameters:
            self.parameters[value] = Value(value.type, name=f"x{len(self.parameters)}")
        return self.parameters[value]

    def append(self, op: Op, given: dict[Value, Value]) -> None:
        made = op.replace_operands(given)
        self.ops.append(made)
        given.update(zip(op.results, made.results, strict=True))

    def inline(self, fused: Fused) -> None:
        given = {parameter: self.use(value) for parameter, value in fused.bound.items()}
        for op in fused.body.ops:
            self.append(op, given)
        pairs = zip(fused.results, fused.body.results, strict=True)
        self.inner.update((value, given[result]) for value, result in pairs)


def _fused(group: _Group) -> Fused:
    builder = _RegionBuilder()
    for fused in group.before:
        builder.inline(fused)
    product = group.product
    given = {operand: builder.use(operand) for operand in product.operands}
    builder.append(product, given)
    builder.inner[product.results[0]] = given[product.results[0]]
    if group.after is not None:
        builder.inline(group.after)
    results = tuple(builder.inner[result] for result in group.last.results)
    region = Region(tuple(builder.parameters.values()), tuple(builder.ops), results)
    return Fused(tuple(builder.parameters), region, loc=product.loc)
