"""What takes the place of the two products of attention: operands, their axes, and the score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lynx.ir.dims import Dim
from lynx.recognise.nodes import Node, Refusal

from .axes import Atom, Dims

Groups = tuple[tuple[Atom, ...], ...]


@dataclass(frozen=True)
class Placed:
    """A tensor with the atoms of its dimensions."""

    node: Node
    dims: Dims


@dataclass(frozen=True)
class Layout:
    """How the axes of attention are made of atoms: `[batch, heads, queries]`, and the others.

    `shared` are the atoms of heads that keys and values have, the outer ones of `heads`.
    """

    batch: tuple[Atom, ...]
    heads: tuple[Atom, ...]
    shared: tuple[Atom, ...]
    queries: tuple[Atom, ...]
    keys: tuple[Atom, ...]
    depth: tuple[Atom, ...]
    values: tuple[Atom, ...]

    @property
    def rows(self) -> Groups:
        """The groups of what has a row of scores each."""
        return (self.batch, self.heads, self.queries)

    @property
    def scores(self) -> Groups:
        """The groups of scores."""
        return (*self.rows, self.keys)

    def is_of_values(self, dims: Dims) -> bool:
        """Whether something differs no more than values do."""
        axes = {*self.batch, *self.shared, *self.keys}
        return all(atom in axes for dim in dims for atom in dim)


@dataclass(frozen=True)
class Factor:
    """What the output is multiplied by: a number, or a tensor with a number for each row."""

    item: Any
    dims: Dims | None = None


@dataclass(frozen=True)
class Plan:
    """The operands of the operator and what is done to its result.

    `operands` are what the score function is given, as nodes; a dropout is given by its node and
    the atoms of its dimensions. Values are multiplied by `value_factors` before. `out` are the
    atoms of the dimensions of the second product, `dtype` the element type of the first. With
    `hides_nan`, rows of weights that are NaN are zeros.
    """

    q: Placed
    k: Placed
    v: Placed
    layout: Layout
    score: str
    sizes: tuple[Dim, ...]
    operands: tuple[Node, ...]
    out: Dims
    sink: Placed | float | None = None
    keep: Placed | None = None
    keep_scale: float = 1.0
    is_dropout: bool = False
    keep_inverted: bool = False
    zero_empty: bool = False
    hides_nan: bool = False
    factors: tuple[Factor, ...] = ()
    value_factors: tuple[Placed, ...] = ()
    dtype: torch.dtype | None = None

    @property
    def numbers(self) -> tuple[Node, ...]:
        """The operands that are multiplied, and hence no masks that are added."""
        factors = (factor.item for factor in self.factors if isinstance(factor.item, Node))
        placed = (self.q, self.k, self.v, *self.value_factors)
        return (*(item.node for item in placed), *factors)


def layout_of(
    weights: Dims,
    keys: tuple[Atom, ...],
    q: Dims,
    k: Dims,
    v: Dims,
    depth: tuple[Atom, ...],
    values: tuple[Atom, ...],
) -> Layout:
    """Assign atoms to the axes of attention, by which operands depend on them."""
    of_q, of_k, of_v = ({atom for dim in dims for atom in dim} for dims in (q, k, v))
    rows = [atom for dim in weights for atom in dim if atom not in keys]
    if of_q & set(keys):
        raise Refusal("queries depend on the axis of the keys")
    if not set(keys) <= of_k or not set(keys) <= of_v:
        raise Refusal("keys or values do not run along the axis of the softmax")
    both = [atom for atom in rows if atom in of_k or atom in of_v]
    free = [atom for atom in rows if atom not in both]
    if not free and any(atom not in of_v for atom in both):
        raise Refusal("every query has keys of its own")
    query = _query(free, keys)
    groups = tuple(atom for atom in free if atom not in query)
    has_head = len(both) > 1 or (bool(both) and bool(groups))
    shared = tuple(both[-1:]) if has_head else ()
    batch = tuple(both[:-1]) if has_head else tuple(both)
    return Layout(batch, (*shared, *groups), shared, query, keys, depth, values)


def _query(free: Sequence[Atom], keys: Sequence[Atom]) -> tuple[Atom, ...]:
    """Choose among axes that keys do not have that of the queries: others are like heads.

    It is the one that is as long as that of the keys, or whose size is not known, or else the last.
    """
    if not free:
        return ()
    for atom in reversed(free):
        if any(atom.size == key.size for key in keys):
            return (atom,)
    for atom in reversed(free):
        if not isinstance(atom.size, int):
            return (atom,)
    return (free[-1],)
