"""A small version of a place in a graph, whose sizes are known and too large to try anything on.

The lengths of queries and keys are replaced by small ones wherever they are written; what is made
of the small version must then have the same score function, but for these numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from lynx.compat import fake_mode_of
from lynx.recognise.nodes import Node, Refusal

from .checking import LARGEST, Computation
from .plans import Plan
from .sites import Site
from .tracing import called

_INTEGER = re.compile(r"(?<![%.\w])\d+(?![.\w])")
_LEAST = 16
"""Sizes up to this stay what they are."""

Lengths = Mapping[int, int]


def lengths_of(plan: Plan) -> list[Lengths]:
    """Return ways to replace sizes by others; `Refusal` if that would not make the scores few.

    The second replaces products of lengths and sizes next to lengths, too.
    """
    groups = plan.layout.scores
    batch, heads, queries, keys = (math.prod(_known(a.size) for a in group) for group in groups)
    found: dict[int, int] = {}
    if queries > _LEAST:
        found[queries] = 12 if queries >= keys else 9
    if keys > _LEAST:
        found[keys] = found[queries] if queries == keys else (9 if queries > keys else 12)
    past = keys - queries
    if past > _LEAST and queries in found:
        found.setdefault(past, found[keys] - found[queries])
    if batch * heads * found.get(queries, queries) * found.get(keys, keys) > LARGEST:
        if batch <= _LEAST:
            raise Refusal("it is too large to be checked")
        found.setdefault(batch, 4)
    if not found:
        raise Refusal("no sizes were found for which it could be checked")
    more = dict(found)
    for length in (queries, keys):
        small = found.get(length, length)
        for number in (batch, heads, batch * heads):
            more.setdefault(length * number, small * found.get(number, number))
        for beside in (-1, 1):
            more.setdefault(length + beside, small + beside)
    return [found, more]


def _known(size: Any) -> int:
    if not isinstance(size, int):
        raise Refusal("no sizes were found for which it could be checked")
    return size


def renamed(text: str, lengths: Lengths) -> str:
    """Return a text with other sizes."""
    return _INTEGER.sub(lambda match: str(lengths.get(int(match[0]), int(match[0]))), text)


def shrunk(site: Site, computation: Computation, lengths: Lengths) -> Site:
    """Return the same place in a graph of its own; `Refusal` if it cannot have other sizes."""
    graph = torch.fx.Graph()
    small: dict[Node, Node] = {}
    mode = fake_mode_of(site.scores.meta["example_value"])
    if mode is None:
        raise Refusal("it was traced without sizes")
    with mode, torch.enable_grad():
        for node in computation.sources:
            small[node] = graph.placeholder(node.name)
            small[node].meta["example_value"] = _source(node, lengths)
        for node in computation.before:
            small[node] = _copied(graph, node, small, lengths)
    graph.output(small[site.output])
    roots = tuple(small[node] for node in site.roots if node in small)
    path = tuple(small[node] for node in site.path)
    return Site(small[site.scores], path, roots, small[site.output], site.side)


def _source(node: Node, lengths: Lengths) -> Any:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return value
    sizes = [_small(size, lengths) for size in value.shape]
    given: Sequence[int] = value.stride()
    order = sorted(range(len(sizes)), key=lambda n: (-given[n], n))
    strides = [0] * len(sizes)
    reach = 1
    for place in reversed(order):
        if given[place] != 0:
            strides[place] = reach
            reach *= max(sizes[place], 1)
    made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


def _small(size: Any, lengths: Lengths) -> int:
    return lengths.get(_known(size), _known(size))


def _copied(
    graph: torch.fx.Graph, node: Node, small: Mapping[Node, Node], lengths: Lengths
) -> Node:
    def shorter(item: Any) -> Any:
        if isinstance(item, bool) or not isinstance(item, int):
            return item
        return lengths.get(item, item)

    arguments: Sequence[Any] = torch.fx.node.map_aggregate(node.args, shorter)
    keywords: Mapping[str, Any] = torch.fx.node.map_aggregate(dict(node.kwargs), shorter)
    args, kwargs = torch.fx.map_arg((arguments, keywords), small.__getitem__)
    made = graph.create_node(node.op, node.target, tuple(args), dict(kwargs))
    values = torch.fx.map_arg((args, kwargs), lambda item: item.meta["example_value"])
    try:
        value = called(made, *values)
    except Exception as error:  # whatever a model does with such sizes
        raise Refusal(f"it cannot be checked: '{node}' needs the sizes that it has") from error
    wanted = node.meta.get("example_value")
    if isinstance(wanted, torch.Tensor):
        sizes = [_small(size, lengths) for size in wanted.shape]
        if not isinstance(value, torch.Tensor) or list(value.shape) != sizes:
            raise Refusal(f"it cannot be checked: '{node}' needs the sizes that it has")
    made.meta["example_value"] = value
    if node.meta.get("lynx_kind"):
        made.meta["lynx_kind"] = node.meta["lynx_kind"]
    return made
