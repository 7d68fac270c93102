"""Where attention might be: two products with a softmax, or an exponential, between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.fx

from lynx.recognise.nodes import Node, Refusal, tensor_of

from .contractions import is_contraction, is_product
from .vocabulary import (
    CASTS,
    ELEMENTWISE,
    EXPONENTIALS,
    LAYOUT,
    NORMALIZING,
    WALKABLE,
    kind_of,
)

REACH = 96
"""How many nodes may lie between a softmax and a product."""


@dataclass(frozen=True)
class Site:
    """A product of weights and values, with what may be the product of queries and keys.

    `path` are the nodes that depend on the scores and that the weights depend on, in order, the
    last of them the weights; `roots` the other nodes that these read.
    """

    scores: Node
    path: tuple[Node, ...]
    roots: tuple[Node, ...]
    output: Node
    side: int

    @property
    def weights(self) -> Node:
        """The operand of the second product that comes from the softmax."""
        return self.path[-1]


def possible_outputs(graph: torch.fx.Graph) -> Iterator[tuple[Node, int, Node]]:
    """Yield products of which an operand comes from an exponential, with the operand's place.

    Each is found once, with the softmax or exponential that comes first.
    """
    seen: set[tuple[Node, int]] = set()
    for node in list(graph.nodes):
        if kind_of(node) not in EXPONENTIALS or tensor_of(node) is None:
            continue
        for product, side in _products_behind(node):
            if (product, side) not in seen:
                seen.add((product, side))
                yield product, side, node


def _products_behind(start: Node) -> list[tuple[Node, int]]:
    found: list[tuple[Node, int]] = []
    seen = {start}
    stack = [start]
    while stack and len(seen) < REACH:
        node = stack.pop()
        for user in node.users:
            if is_contraction(user):
                if is_product(user):
                    found += [(user, n) for n in _places(user, node)]
            elif user not in seen and kind_of(user) in WALKABLE:
                seen.add(user)
                stack.append(user)
    return found


def leads_to_attention(node: Node) -> bool:
    """Whether all that comes of scores is normalized, and multiplied by values then."""
    seen = {node}
    stack = [node]
    while stack:
        item = stack.pop()
        if kind_of(item) in NORMALIZING:
            if not _products_behind(item):
                return False
            continue
        if kind_of(item) not in LAYOUT | CASTS | ELEMENTWISE or not item.users or len(seen) > REACH:
            return False
        new = [user for user in item.users if user not in seen]
        seen.update(new)
        stack += new
    return True


def _places(product: Node, operand: Node) -> list[int]:
    operands = [n for n in torch_operands(product) if tensor_of(n) is not None]
    if kind_of(product) in ("baddbmm", "addmm"):
        operands = operands[1:]
    return [n for n, item in enumerate(operands[:2]) if item is operand]


def torch_operands(node: Node) -> Sequence[Node]:
    """Return the nodes among the arguments of a call, in order, each as often as it is given."""
    found: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), lambda item: found.append(item))
    return found


def sites_of(output: Node, side: int) -> list[Site]:
    """Return the possible pairs of products that end at this one, nearest scores first."""
    operands = [n for n in torch_operands(output) if tensor_of(n) is not None]
    if kind_of(output) in ("baddbmm", "addmm"):
        operands = operands[1:]
    weights = operands[side]
    inside, products = _closure(weights)
    found: list[Site] = []
    for scores in products:
        path = _dependent(inside, scores)
        if not path or path[-1] is not weights:
            continue
        if not any(kind_of(node) in EXPONENTIALS for node in path):
            continue
        on_path = {scores, *path}
        roots = [n for node in path for n in torch_operands(node) if n not in on_path]
        found.append(Site(scores, tuple(path), tuple(dict.fromkeys(roots)), output, side))
    return found


def _closure(weights: Node) -> tuple[list[Node], list[Node]]:
    """Return what weights are made of, up to products, in order; and the products."""
    inside: dict[Node, None] = {weights: None}
    products: dict[Node, None] = {}
    queue = [weights]
    for node in queue:
        for operand in node.all_input_nodes:
            if operand in inside or operand in products:
                continue
            if is_product(operand) and tensor_of(operand) is not None:
                products[operand] = None
            elif kind_of(operand) in WALKABLE and len(inside) < REACH:
                inside[operand] = None
                queue.append(operand)
    order = {node: n for n, node in enumerate(weights.graph.nodes)}
    return sorted(inside, key=order.__getitem__), sorted(
        products, key=order.__getitem__, reverse=True
    )


def _dependent(inside: Sequence[Node], source: Node) -> list[Node]:
    """Return the nodes that depend on a source, in order."""
    reached = {source}
    for node in inside:
        if any(operand in reached for operand in node.all_input_nodes):
            reached.add(node)
    return [node for node in inside if node in reached]


def is_softmax(nodes: Sequence[Node]) -> bool:
    """Whether nodes are those of a softmax, by its name or by the sum that it needs."""
    return any(kind_of(node) in NORMALIZING | {"sum", "logsumexp"} for node in nodes)


def without_scores(exponential: Node) -> Refusal:
    """Return why a softmax before a product is no attention."""
    return Refusal(f"what '{exponential}' normalizes is no product of queries and keys")
