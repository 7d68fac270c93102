"""Keep together what leaves a program together: outputs that share one memory of their own."""

from __future__ import annotations

import dataclasses
from collections import Counter

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import Dim, contiguous_strides
from lynx.ir.location import UNKNOWN, Location
from lynx.ir.ops.aten import Resource
from lynx.ir.ops.elementwise_arithmetic import Copy
from lynx.ir.ops.layout import Permute, Reshape
from lynx.ir.types import TensorType


def separate_groups(graph: Graph) -> Graph:
    """Give each group of outputs a value of its own, where an input or other outputs have theirs.

    In eager, `y = x.clone(); return y, y[0]` returns two tensors in one new memory. Once the copy
    is dropped, both are views of the input. Copying each would part them, so the value is copied
    once, and the views are made of that copy.
    """
    sizes = Counter(spec.group for spec in graph.output_specs if spec.fresh and spec.group >= 0)
    owners: dict[Value, int] = {}
    copies: dict[int, dict[Value, Value]] = {}
    ops = list(graph.ops)
    outputs = list(graph.outputs)
    for index, (value, spec) in enumerate(zip(graph.outputs, graph.output_specs, strict=True)):
        if value is None or not spec.fresh or not isinstance(value.type, TensorType):
            continue
        key = spec.group if spec.group >= 0 else -2 - index
        root, views = _root_of(value)
        owner = owners.setdefault(root, key)
        if sizes[key] < 2 or not (owner != key or _is_foreign(root)):
            continue
        own = copies.setdefault(key, {})
        if root not in own:
            own[root] = _append(ops, Copy(root, loc=views[0].loc if views else _loc(root)))
        outputs[index] = _replay(ops, own, root, views)
    if len(ops) == len(graph.ops):
        return graph
    return dataclasses.replace(graph, ops=tuple(ops), outputs=tuple(outputs))


def views_of_groups(graph: Graph) -> dict[Op, None]:
    """Return the views by which outputs of one group come to lie in one memory."""
    return {view: None for _, _, views in _members(graph) for view in views}


def layouts_of_groups(graph: Graph) -> dict[Value, tuple[Dim, ...]]:
    """Return the strides that values need, for groups of outputs to be views of them.

    The first output of a group says how, as far as reordered and reshaped rows tell.
    """
    layouts: dict[Value, tuple[Dim, ...]] = {}
    for root, strides, views in _members(graph):
        for view in views:
            if isinstance(view, Permute):
                places = dict(zip(view.dims, strides, strict=True))
                strides = tuple(places[dim] for dim in range(len(strides)))
            elif isinstance(view, Reshape) and strides == contiguous_strides(view.shape):
                strides = contiguous_strides(view.x.shape)
            else:
                break
        else:
            layouts.setdefault(root, strides)
    return layouts


def _members(graph: Graph) -> list[tuple[Value, tuple[Dim, ...], list[Op]]]:
    """Return the outputs of groups: the value that each is a view of, its strides, the views."""
    members: dict[tuple[int, Value], list[tuple[Value, tuple[Dim, ...], list[Op]]]] = {}
    for value, spec in zip(graph.outputs, graph.output_specs, strict=True):
        if value is not None and spec.fresh and spec.group >= 0 and spec.strides is not None:
            root, views = _root_of(value)
            members.setdefault((spec.group, root), []).append((root, spec.strides, views))
    return [entry for found in members.values() if len(found) > 1 for entry in found]


def _is_foreign(root: Value) -> bool:
    return root.op is None or isinstance(root.op, Resource)


def _root_of(value: Value) -> tuple[Value, list[Op]]:
    """Return the value that an output is a view of, and the views on the way, outermost first."""
    views: list[Op] = []
    while value.op is not None and value.op.is_view:
        views.append(value.op)
        value = value.op.operands[0]
    return value, views


def _replay(ops: list[Op], own: dict[Value, Value], root: Value, views: list[Op]) -> Value:
    """Make the views of a root again, of its copy; those made before are shared."""
    source = root
    for view in reversed(views):
        if view.out not in own:
            own[view.out] = _append(ops, view.replace_operands({source: own[source]}))
        source = view.out
    return own[source]


def _append(ops: list[Op], op: Op) -> Value:
    ops.append(op)
    return op.out


def _loc(value: Value) -> Location:
    return UNKNOWN if value.op is None else value.op.loc
