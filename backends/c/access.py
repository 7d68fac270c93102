"""How an index moves with the axes: strides, and which axes lead to addresses of their own."""

from __future__ import annotations

from lynx.ir.dims import Dim, is_equal, remainder, simplify
from lynx.ir.index_range import limit_of
from lynx.ir.kernel import Index, Scalar, Term


def strides_of(index: Index) -> dict[str, Dim | None]:
    """Return the stride of each axis of an index; None where it moves in another way."""
    strides: dict[str, Dim | None] = {}
    for term in index.terms:
        if isinstance(term.of, str):
            plain = term.divisor == 1 and term.modulus is None
            if not plain or strides.get(term.of, 0) != 0:
                strides[term.of] = None
            else:
                strides[term.of] = term.stride
    return strides


def separating(index: Index, sizes: dict[str, Dim]) -> list[str | Scalar]:
    """Return axes and scalars that lead to different addresses wherever they differ.

    That holds whatever the others are: the terms with smaller strides must stay below the stride,
    those with larger ones be multiples of the whole extent; what is not evident counts as not so.
    The extent of a scalar is its limit, if that is known.
    """
    found: list[str | Scalar] = []
    pending = [term for term in index.terms if term.stride != 0]
    below: Dim = 1
    while pending:
        term = _next_term(pending, below)
        limit = None if term is None else _limit(term, sizes)
        if term is None or limit is None:
            break
        pending.remove(term)
        extent = simplify(term.stride * limit)
        if not all(_is_multiple(other, extent) for other in pending):
            break
        found.append(term.of)
        below = extent
    return found


def _next_term(pending: list[Term], below: Dim) -> Term | None:
    """Return the term whose steps come next above what smaller ones reach."""
    exact = next((term for term in pending if is_equal(term.stride, below)), None)
    if exact is not None or not isinstance(below, int):
        return exact
    known = [term for term in pending if isinstance(term.stride, int) and term.stride > 0]
    if len(known) < len(pending):
        return None
    least = min(known, key=lambda term: int(term.stride))
    return least if int(least.stride) >= below else None


def _limit(term: Term, sizes: dict[str, Dim]) -> Dim | None:
    """Return what the values of a term stay below, before they are multiplied by the stride."""
    if term.divisor != 1 or term.modulus is not None:
        return None
    return sizes[term.of] if isinstance(term.of, str) else limit_of(term.of)


def _is_multiple(term: Term, extent: Dim) -> bool:
    if isinstance(term.stride, int) and isinstance(extent, int):
        return extent != 0 and term.stride % extent == 0
    return is_equal(remainder(term.stride, extent), 0) or is_equal(term.stride, extent)
