"""Fuses ops into groups, each of which becomes one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import Dim, contiguous_strides, free_symbols
from lynx.ir.ops.aten import Aten
from lynx.ir.ops.layout import Reshape
from lynx.ir.types import TensorType
from lynx.ir.writing import is_adding, is_write, may_collide

from .base import PassContext, Remark, Requirement, register_pass
from .fusion import why_not
from .fusion.cluster import Clusters
from .fusion.emit_products import PRODUCTS
from .fusion.regions import Rewriter
from .layouts import chosen_strides, has_rule, view_strides
from .lower import bound_symbols
from .output_groups import views_of_groups
from .product_layouts import product_strides
from .requirements import IS_GRAPH


@register_pass
@dataclass(frozen=True)
class Fuse:
    """Group elementwise ops, reductions, views and look-ups into kernels.

    Producers go with their consumers, and ops that read the same over one space with each other, as
    long as all of a group can run over one space: see `lynx.passes.fusion.groups`. Masks and other
    values made from nothing are computed again wherever they are needed. `max-ops` limits a group.
    Does nothing on a target without code generation.
    """

    name: ClassVar[str] = "fuse"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    max_ops: int = 64

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with `fused` ops."""
        if not context.target.generates_code:
            return module
        fusion = _Fusion(module, context, self.max_ops)
        return fusion.rebuilt()


class _Fusion:
    def __init__(self, graph: Graph, context: PassContext, max_ops: int) -> None:
        self.graph = graph
        self.context = context
        self.bound = frozenset(bound_symbols(graph.inputs, graph.input_specs))
        self.strides = expected_strides(graph, context)
        self.shared = views_of_groups(graph)
        self.refused: dict[str, None] = {}
        self.clusters = Clusters(graph, self._fits, self._copies, max_ops)

    def _fits(self, op: Op) -> bool:
        if isinstance(op, Aten):
            return False
        if isinstance(op, PRODUCTS):
            return False  # the library multiplies matrices
        reason = why_not(op) or self._foreign(op) or self._disorderly(op)
        if not reason:
            return True
        message = f"is not part of a kernel: {reason}"
        if f"{op.name} {reason}" not in self.refused:
            self.refused[f"{op.name} {reason}"] = None
            self.context.remarks.append(Remark(op.name, message, op.loc))
        return False

    def _disorderly(self, op: Op) -> str:
        """Return why a GPU, which knows no order, should not write what an op does."""
        if self.context.target.is_cpu or not is_write(op) or not may_collide(op):
            return ""
        if not is_adding(op):
            return "may write a place several times, of which the last counts"
        dtype = op.results[0].tensor_type.dtype
        return f"would round each sum to {dtype}" if dtype.is_low_precision else ""

    def _foreign(self, op: Op) -> str:
        """Return why a value of the op is out of a kernel's reach."""
        devices: dict[str, None] = {}
        for value in (*op.operands, *op.results):
            if not isinstance(value.type, TensorType):
                continue
            if value.type.sharding is not None:
                return "is spread over a mesh"
            device = value.type.device
            devices[device] = None
            # A number that lies in a tensor on the CPU goes with any device, as in eager.
            is_given = value in op.operands or not op.operands
            is_number = is_given and device == "cpu" and not value.shape
            if device.split(":")[0] != self.context.target.device and not is_number:
                return f"runs on {device}"
            if any(isinstance(size, int) and size == 0 for size in value.type.shape):
                return "has no elements"
            if not self.bound.issuperset(free_symbols(value.type.shape)):
                return "has a size that no input tells"
        devices.pop("cpu", None)
        return f"runs on {' and '.join(devices)}" if len(devices) > 1 else ""

    def _copies(self, op: Op) -> bool:
        """Whether a reshape needs a copy, as far as layouts can be told by now."""
        assert isinstance(op, Reshape), op
        if op in self.shared:
            return False  # what it is a view of will be laid out for it
        strides = self.strides.get(op.x)
        return strides is None or view_strides(op, strides) is None

    def rebuilt(self) -> Graph:
        """Return the graph with each group replaced by one op."""
        rewriter = Rewriter(self.graph, self.clusters)
        ops = rewriter.ops()
        for op, reason in self.clusters.refusals:
            self.context.remarks.append(Remark(op.name, f"starts another kernel: {reason}", op.loc))
        return self.graph.with_ops(ops, rewriter.mapping) if rewriter.regions else self.graph


def expected_strides(graph: Graph, context: PassContext) -> dict[Value, tuple[Dim, ...] | None]:
    """Return the layouts that values will probably have."""
    strides: dict[Value, tuple[Dim, ...] | None] = {
        value: spec.strides for value, spec in zip(graph.inputs, graph.input_specs, strict=True)
    }
    products = product_strides(graph) if context.target.has_products else {}
    for op in graph.ops:
        if op.is_view and has_rule(op):
            known = strides.get(op.operands[0])
            made = None if known is None else view_strides(op, known)
            if made is None and isinstance(op, Reshape):
                made = contiguous_strides(op.shape)
            strides[op.results[0]] = made
            continue
        for result in op.results:
            if isinstance(result.type, TensorType):
                usual = chosen_strides(op, result.type, strides.get, None)
                strides[result] = products.get(result, usual)
    return strides
