"""How an index moves with the axes: strides, and which axes lead to addresses of their own."""

from __future__ import annotations

from lynx.ir.dims import Dim, is_equal, remainder
from lynx.ir.kernel import Index, Term


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


def separating_axes(index: Index, sizes: dict[str, Dim]) -> list[str]:
    """Return axes of which different points have different addresses, whatever the others are.

    The terms with smaller strides must stay below the stride of the axis, those with larger ones
    be multiples of its whole extent; what is not evident counts as not so.
    """
    found: list[str] = []
    below: Dim = 1
    pending = [term for term in index.terms if term.stride != 0]
    while pending:
        term = next((t for t in pending if is_equal(t.stride, below)), None)
        if term is None or not isinstance(term.of, str):
            break
        if term.divisor != 1 or term.modulus is not None:
            break
        extent = term.stride * sizes[term.of]
        pending.remove(term)
        if not all(_is_multiple(other, extent) for other in pending):
            break
        found.append(term.of)
        below = extent
    return found


def _is_multiple(term: Term, extent: Dim) -> bool:
    if isinstance(term.stride, int) and isinstance(extent, int):
        return extent != 0 and term.stride % extent == 0
    return is_equal(remainder(term.stride, extent), 0) or is_equal(term.stride, extent)
