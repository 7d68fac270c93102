"""Recognise repeated layers once: sites of equal structure have one plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from lynx.recognise.nodes import Node

from .plans import Factor, Placed, Plan
from .sites import Site
from .vocabulary import CHEAP, kind_of
from .writes import Writes

LIMIT = 256
"""How many nodes around a site are compared."""


@dataclass
class Known:
    """A site that was looked at: its nodes, and what came of it."""

    nodes: list[Node]
    plan: Plan | None = None
    reasons: list[str] = field(default_factory=list)


class Memory:
    """What came of sites, by structure, and what the graph writes."""

    def __init__(self, writes: Writes) -> None:
        self.writes = writes
        self._known: dict[Any, Known] = {}

    def find(self, key: Any) -> Known | None:
        """Return what is known of a structure."""
        return self._known.get(key)

    def put(self, key: Any, known: Known) -> None:
        """Note what came of a structure."""
        self._known[key] = known


def structure_of(site: Site, is_written: Callable[[Node], bool]) -> tuple[Any, list[Node]]:
    """Return a key that is equal for sites of which the same is made, and nodes in its order."""
    own = {site.scores, *site.path, site.output}
    nodes = [site.output]
    numbers = {site.output: 0}
    for node in nodes:
        if node not in own and (kind_of(node) not in CHEAP or len(nodes) > LIMIT):
            continue
        for operand in node.all_input_nodes:
            if operand not in numbers:
                numbers[operand] = len(nodes)
                nodes.append(operand)
    parts: list[Any] = [site.side, numbers[site.scores]]
    for node in nodes:
        spelled = (kind_of(node), node.op, _target(node)) if node in own or kind_of(node) else ()
        arguments = (_spelled(node.args, numbers), _spelled(dict(node.kwargs), numbers))
        parts.append((spelled, arguments, _described(node), is_written(node)))
    return tuple(parts), nodes


def _target(node: Node) -> Any:
    return node.target if node.op in ("call_function", "call_method") else node.op


def _spelled(item: Any, numbers: Mapping[Node, int]) -> str:
    if isinstance(item, Node):
        return f"%{numbers.get(item, -1)}"
    if isinstance(item, tuple | list):
        return f"({','.join(_spelled(part, numbers) for part in item)})"
    if isinstance(item, dict):
        return f"{{{','.join(f'{k}={_spelled(v, numbers)}' for k, v in item.items())}}}"
    if isinstance(item, slice):
        return f"slice{_spelled((item.start, item.stop, item.step), numbers)}"
    return repr(item)


def _described(node: Node) -> Any:
    value = node.meta.get("example_value")
    if isinstance(value, torch.Tensor):
        layout = (str(tuple(value.shape)), str(value.stride()), value.dtype, str(value.device))
        return (*layout, value.requires_grad, isinstance(value, torch.nn.Parameter))
    if node.op == "get_attr":
        return node.target
    return str(value) if value is not None else ""


def transferred(plan: Plan, before: Sequence[Node], after: Sequence[Node]) -> Plan | None:
    """Return a plan for other nodes in the places of those that it was made for."""
    places = dict(zip(before, after, strict=True))

    def moved(item: Any) -> Any:
        if isinstance(item, Placed):
            return Placed(places[item.node], item.dims)
        if isinstance(item, Factor) and isinstance(item.item, Node):
            return Factor(places[item.item], item.dims)
        return item

    try:
        return dataclasses.replace(
            plan, q=moved(plan.q), k=moved(plan.k), v=moved(plan.v),
            operands=tuple(places[node] for node in plan.operands),
            sink=moved(plan.sink), keep=moved(plan.keep),
            factors=tuple(map(moved, plan.factors)),
            value_factors=tuple(map(moved, plan.value_factors)),
        )  # fmt: skip
    except KeyError:
        return None
