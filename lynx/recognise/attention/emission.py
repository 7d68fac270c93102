"""Put the operator for attention into a Dynamo graph, with the views around it."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch
import torch.fx

from lynx.importer.dims import DimReader
from lynx.ir.dims import Dim, FloorDiv, Mod, product, simplify
from lynx.recognise.nodes import Inserter, Node, Refusal, expression, tensor_of, traced

from .axes import Atom, Dims
from .plans import Groups, Placed, Plan
from .tracing import computing_dtype


class Sizes:
    """Nodes for symbolic sizes, as far as they are known before a node."""

    def __init__(self, insert: Inserter) -> None:
        self.insert = insert
        self.reader = DimReader()
        self._made: dict[Dim, Any] = {}
        self._names: dict[str, Node] = {}
        for node in insert.anchor.graph.nodes:
            if node is insert.anchor:
                break
            value = node.meta.get("example_value")
            if isinstance(value, torch.SymInt):
                symbol = expression(value)
                if isinstance(symbol, sympy.Symbol):
                    self._names.setdefault(symbol.name, node)

    def node(self, dim: Dim) -> Any:
        """Return an integer, or a node that computes a size."""
        if isinstance(dim, int):
            return dim
        if dim not in self._made:
            self._made[dim] = self._make(dim)
        return self._made[dim]

    def _make(self, dim: Any) -> Any:
        if dim.is_Integer:
            return int(dim)
        if dim.is_Symbol:
            found = self._names.get(dim.name)
            return self._read(dim.name) if found is None else found
        functions: dict[Any, Any] = {FloorDiv: operator.floordiv, Mod: operator.mod}
        if dim.is_Add or dim.is_Mul:
            combine = operator.add if dim.is_Add else operator.mul
            result, *rest = (self.node(simplify(part)) for part in dim.args)
            for part in rest:
                result = self.insert.call(combine, result, part)
            return result
        if dim.is_Pow and dim.args[1].is_Integer and dim.args[1] > 0:
            base = self.node(simplify(dim.args[0]))
            return self.insert.call(operator.pow, base, int(dim.args[1]))
        if dim.func in functions:
            parts = [self.node(simplify(part)) for part in dim.args]
            return self.insert.call(functions[dim.func], *parts)
        raise Refusal(f"a size of {dim} cannot be computed")

    def _read(self, name: str) -> Node:
        """Ask a tensor for a size that is no value of its own."""
        for node in self.insert.anchor.graph.nodes:
            if node is self.insert.anchor:
                break
            value = tensor_of(node)
            for place, size in enumerate(() if value is None else value.shape):
                if isinstance(size, torch.SymInt) and str(expression(size)) == name:
                    made = self.insert.call("size", node, place)
                    self._names[name] = made
                    return made
        raise Refusal(f"the size {name} is not known before the product")


def arranged(
    insert: Inserter, sizes: Sizes, placed: Placed, groups: Groups, *, complete: bool = True
) -> Node:
    """Return a tensor whose dimensions run along groups of atoms.

    Atoms that it lacks are repeated; without `complete`, groups of which it has none have size 1.
    """
    given = [atom for dim in placed.dims for atom in dim]
    kept = [group if complete or any(a in given for a in group) else () for group in groups]
    wanted = [atom for group in kept for atom in group]
    if not set(given) <= set(wanted):
        raise Refusal("an operand depends on more axes than attention has")
    node = _split(insert, sizes, placed.node, placed.dims)
    present = [atom for atom in wanted if atom in given]
    order = [given.index(atom) for atom in present]
    if order != list(range(len(order))):
        node = insert.call(torch.permute, node, tuple(order))
    if len(present) < len(wanted):
        for place, atom in enumerate(wanted):
            if atom not in given:
                node = insert.call(torch.unsqueeze, node, place)
        shape = [-1 if atom in given else sizes.node(atom.size) for atom in wanted]
        node = insert.call("expand", node, *shape)
    return _merged(insert, sizes, node, kept)


def _split(insert: Inserter, sizes: Sizes, node: Node, dims: Dims) -> Node:
    if any(len(dim) > 1 for dim in dims):
        shape = tuple(sizes.node(atom.size) for dim in dims for atom in dim)
        return insert.call(torch.reshape, node, shape)
    empty = tuple(n for n, dim in enumerate(dims) if not dim)
    return insert.call(torch.squeeze, node, empty) if empty else node


def _merged(insert: Inserter, sizes: Sizes, node: Node, groups: Sequence[tuple[Atom, ...]]) -> Node:
    if any(len(group) > 1 for group in groups):
        shape = tuple(sizes.node(product(atom.size for atom in group)) for group in groups)
        return insert.call(torch.reshape, node, shape)
    for place, group in enumerate(groups):
        if not group:
            node = insert.call(torch.unsqueeze, node, place)
    return node


def substitute(plan: Plan, insert: Inserter, output: Node, noise: Node | None) -> tuple[Node, Node]:
    """Add the operator; return what takes the place of the second product, and the operator.

    `noise` is what a dropout multiplies by.
    """
    sizes = Sizes(insert)
    layout = plan.layout
    dtype = torch.promote_types(traced(output).dtype, _scores_dtype(plan, output))
    shared = (layout.batch, layout.shared)
    placed = (
        (plan.q, (*layout.rows, layout.depth)),
        (plan.k, (*shared, layout.keys, layout.depth)),
        (plan.v, (*shared, layout.keys, layout.values)),
    )
    q, k, v = (arranged(insert, sizes, _cast(insert, p, dtype), groups) for p, groups in placed)
    for factor in plan.value_factors:
        item = arranged(insert, sizes, _cast(insert, factor, dtype), (*shared, layout.keys, ()),
                        complete=False)  # fmt: skip
        v = insert.call(torch.mul, v, item)
    operands = [_operand(insert, node, dtype, traced(plan.q.node).device) for node in plan.operands]
    sink = _sink(plan, insert, sizes, dtype)
    keep = _keep(plan, insert, sizes, noise)
    values = [sizes.node(size) for size in plan.sizes]
    both = insert.call(
        torch.ops.lynx.attention.default, q, k, v, operands, sink, keep, plan.score, values,
        plan.keep_scale, plan.zero_empty,
    )  # fmt: skip
    result = insert.call(operator.getitem, both, 0)
    if plan.hides_nan:
        result = _without_nan(plan, insert, sizes, result, both, v)
    groups = (*layout.rows, layout.values)
    for scale in plan.factors:
        item = scale.item
        if scale.dims is not None:
            rows = (*layout.rows, ())
            item = arranged(insert, sizes, Placed(scale.item, scale.dims), rows, complete=False)
        result = insert.call(torch.mul, result, item)
    result = arranged(insert, sizes, Placed(result, groups), plan.out)
    if traced(result).dtype is not traced(output).dtype:
        result = insert.call("to", result, traced(output).dtype)
    return result, both


def _without_nan(
    plan: Plan, insert: Inserter, sizes: Sizes, result: Node, operation: Node, v: Node
) -> Node:
    """Let rows of NaN be what weights of zero give, which is NaN again next to such values.

    Weights are NaN where the logarithm of their sum is NaN or infinity.
    """
    logarithm = insert.call(torch.unsqueeze, insert.call(operator.getitem, operation, 1), 3)
    is_number = insert.call(torch.lt, logarithm, math.inf)
    nothing = insert.call("sum", insert.call(torch.mul, v, 0), 2, True)
    layout = plan.layout
    if layout.heads != layout.shared:
        groups = product(a.size for a in layout.heads if a not in layout.shared)
        nothing = insert.call(torch.unsqueeze, nothing, 2)
        nothing = insert.call("expand", nothing, -1, -1, sizes.node(groups), -1, -1)
        nothing = insert.call(torch.flatten, nothing, 1, 2)
    return insert.call(torch.where, is_number, result, nothing)


def logarithms(plan: Plan, insert: Inserter, operation: Node) -> Node:
    """Return the logarithms of the sums of exponentials, with the axes of the output."""
    placed = Placed(insert.call(operator.getitem, operation, 1), plan.layout.rows)
    return arranged(insert, Sizes(insert), placed, plan.out[:-1])


def _scores_dtype(plan: Plan, output: Node) -> torch.dtype:
    return plan.dtype or traced(output).dtype


def _cast(insert: Inserter, placed: Placed, dtype: torch.dtype) -> Placed:
    if traced(placed.node).dtype is dtype:
        return placed
    return Placed(insert.call("to", placed.node, dtype), placed.dims)


def _operand(insert: Inserter, node: Node, dtype: torch.dtype, device: torch.device) -> Node:
    """Return a tensor that a score function is given; a number becomes one."""
    if tensor_of(node) is not None:
        return node
    return insert.call(torch.full, (), node, dtype=computing_dtype(dtype), device=device)


def _sink(plan: Plan, insert: Inserter, sizes: Sizes, dtype: torch.dtype) -> Node | None:
    if plan.sink is None:
        return None
    if isinstance(plan.sink, float):
        device = traced(plan.q.node).device
        shape = (1, 1, 1)
        return insert.call(
            torch.full, shape, plan.sink, dtype=computing_dtype(dtype), device=device
        )
    return arranged(insert, sizes, plan.sink, plan.layout.rows, complete=False)


def _keep(plan: Plan, insert: Inserter, sizes: Sizes, noise: Node | None) -> Node | None:
    if plan.keep is None:
        return None
    node = plan.keep.node
    if plan.is_dropout:
        assert noise is not None
        node = insert.call(torch.ne, noise, 0)
    elif plan.keep_inverted:
        node = insert.call(torch.logical_not, node)
    elif traced(node).dtype is not torch.bool:
        node = insert.call(torch.ne, node, 0)
    return arranged(insert, sizes, Placed(node, plan.keep.dims), plan.layout.scores)
