"""Atoms: the axes that dimensions of several tensors share, found by merging and splitting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lynx.ir.dims import Dim, is_equal

from .sizes import exact_quotient


class Atom:
    """An axis in the making; it may turn out to be another one, or to consist of two."""

    __slots__ = ("parts", "same_as", "size")

    def __init__(self, size: Dim) -> None:
        self.size = size
        self.same_as: Atom | None = None
        self.parts: tuple[Atom, Atom] | None = None


Atoms = tuple[Atom, ...]
"""What a dimension runs along, the fastest last; nothing for a dimension of size 1."""


def fresh(dim: Dim) -> Atoms:
    """Return a new atom for a dimension."""
    return () if isinstance(dim, int) and dim == 1 else (Atom(dim),)


def found(atom: Atom) -> Atom:
    """Return the atom that this one is."""
    while atom.same_as is not None:
        if atom.same_as.same_as is not None:
            atom.same_as = atom.same_as.same_as
        atom = atom.same_as
    return atom


def leaves(atoms: Iterable[Atom]) -> list[Atom]:
    """Return the atoms of which these consist by now."""
    result: list[Atom] = []
    stack = list(atoms)[::-1]
    while stack:
        atom = found(stack.pop())
        if atom.parts is None:
            result.append(atom)
        else:
            stack += reversed(atom.parts)
    return result


def aligned(a: Sequence[Atom], b: Sequence[Atom]) -> list[tuple[Atom, Atom]] | None:
    """Split atoms until both sequences are of equal sizes, and return them pair by pair.

    None if the sizes do not divide one another. Splitting changes no meaning, so it stays done.
    """
    left, right = leaves(a), leaves(b)
    pairs: list[tuple[Atom, Atom]] = []
    while left and right:
        x, y = left.pop(), right.pop()
        if x is y or is_equal(x.size, y.size):
            pairs.append((x, y))
        elif (count := _quotient(x.size, y.size)) is not None:
            left += _split(x, count, y.size)
            right.append(y)
        elif (count := _quotient(y.size, x.size)) is not None:
            right += _split(y, count, x.size)
            left.append(x)
        else:
            return None
    if left or right:
        return None
    # A split of one atom may have changed another pair in which it stands.
    if any(x.parts or y.parts for x, y in pairs):
        return aligned(a, b)
    return pairs[::-1]


def merge(a: Atom, b: Atom) -> None:
    """Let two atoms of one size be the same."""
    a, b = found(a), found(b)
    if a is not b:
        b.same_as = a


def _quotient(whole: Dim, inner: Dim) -> Dim | None:
    """Return how many axes of the inner size make the whole, None if that is not clear."""
    if isinstance(inner, int) and inner in (0, 1):
        return None
    count = exact_quotient(whole, inner)
    return None if isinstance(count, int) and count <= 1 else count


def _split(atom: Atom, count: Dim, inner: Dim) -> tuple[Atom, Atom]:
    atom.parts = (Atom(count), Atom(inner))
    return atom.parts
