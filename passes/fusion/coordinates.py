"""Where in a tensor an element lies, as a function of a kernel's axes: one `Index` a dimension."""

from __future__ import annotations

from collections.abc import Sequence

from lynx.ir.dims import (
    Dim,
    difference,
    floor_div,
    is_equal,
    product,
    remainder,
    simplify,
)
from lynx.ir.kernel import Index, KernelBuilder, Term

from .sizes import exact_quotient

Coordinates = tuple[Index, ...]

ZERO = Index()


def along(axes: Sequence[tuple[str, Dim]]) -> Index:
    """Return the coordinate that runs along several axes, the last of them fastest."""
    terms: list[Term] = []
    stride: Dim = 1
    for name, size in reversed(axes):
        terms.append(Term(name, stride))
        stride = product((stride, size))
    return Index(tuple(reversed(terms)))


def scaled(coordinate: Index, factor: Dim) -> Index:
    """Multiply a coordinate."""
    if isinstance(factor, int) and factor == 1:
        return coordinate
    terms = tuple(
        Term(term.of, product((term.stride, factor)), term.divisor, term.modulus)
        for term in coordinate.terms
    )
    return Index(terms, product((coordinate.offset, factor)))


def shifted(coordinate: Index, distance: Dim) -> Index:
    """Add a number to a coordinate."""
    if isinstance(distance, int) and distance == 0:
        return coordinate
    return Index(coordinate.terms, simplify(coordinate.offset + distance))


def total(coordinates: Sequence[Index]) -> Index:
    """Add coordinates, merging terms of one axis."""
    strides: dict[tuple[object, Dim, Dim | None], tuple[Term, Dim]] = {}
    offset: Dim = 0
    for coordinate in coordinates:
        offset = offset + coordinate.offset
        for term in coordinate.terms:
            key = (term.of, term.divisor, term.modulus)
            held = strides.get(key)
            stride = term.stride if held is None else simplify(held[1] + term.stride)
            strides[key] = (term, stride)
    terms = [
        Term(term.of, stride, term.divisor, term.modulus)
        for term, stride in strides.values()
        if not (isinstance(stride, int) and stride == 0)
    ]
    return Index(tuple(_rejoined(terms)), simplify(offset))


def _rejoined(terms: list[Term]) -> list[Term]:
    """Put together what was taken apart: `x // n * (n * s) + x % n * s` is `x * s`."""
    place = 0
    while place < len(terms):
        low = terms[place]
        high = next((term for term in terms if _continues(low, term)), None)
        if high is None:
            place += 1
            continue
        modulus = None
        if high.modulus is not None and low.modulus is not None:
            modulus = product((high.modulus, low.modulus))
        terms[terms.index(high)] = Term(low.of, low.stride, low.divisor, modulus)
        terms.remove(low)
        place = 0
    return terms


def _continues(low: Term, high: Term) -> bool:
    """Whether a term is the part of a number that lies above another part of it."""
    if low.of is not high.of and low.of != high.of:
        return False
    if low.modulus is None or not is_equal(high.divisor, product((low.divisor, low.modulus))):
        return False
    return is_equal(high.stride, product((low.stride, low.modulus)))


def position_of(coordinates: Coordinates, strides: Sequence[Dim]) -> Index:
    """Return the place in memory of an element, in elements from the first."""
    parts = [scaled(c, stride) for c, stride in zip(coordinates, strides, strict=True)]
    return total(parts)


class Splitter:
    """Takes coordinates apart: `c = high * inner + low` with `0 <= low < inner`."""

    def __init__(self, builder: KernelBuilder) -> None:
        self.builder = builder

    def delinearized(self, flat: Index, sizes: Sequence[Dim]) -> Coordinates:
        """Return the coordinates in a tensor of these sizes of its element number `flat`."""
        found: list[Index] = []
        rest = flat
        for size in reversed(sizes[1:]):
            rest, low = self.split(rest, size)
            found.append(low)
        return (rest, *reversed(found)) if sizes else ()

    def split(self, coordinate: Index, inner: Dim) -> tuple[Index, Index]:
        """Return high and low part."""
        if isinstance(inner, int) and inner == 1:
            return coordinate, ZERO
        if isinstance(inner, int) and inner == 0:
            return ZERO, ZERO  # there is no element at all
        exact = self._by_strides(coordinate, inner) or self._by_term(coordinate, inner)
        if exact is not None:
            return exact
        place = self.builder.position(coordinate)
        return Index((Term(place, 1, inner),)), Index((Term(place, 1, 1, inner),))

    def _by_strides(self, coordinate: Index, inner: Dim) -> tuple[Index, Index] | None:
        """Separate terms whose strides are multiples of `inner` from those that stay below it."""
        high: list[Term] = []
        low: list[Term] = []
        reach: Dim = remainder(coordinate.offset, inner)
        for term in coordinate.terms:
            stride = exact_quotient(term.stride, inner)
            if stride is not None:
                high.append(Term(term.of, stride, term.divisor, term.modulus))
                continue
            last = self._last(term)
            if last is None or (isinstance(term.stride, int) and term.stride < 0):
                return None
            reach = reach + last * term.stride
            low.append(term)
        left = difference(inner, simplify(reach))
        if not isinstance(left, int) or left <= 0:
            return None
        offset = floor_div(coordinate.offset, inner)
        return Index(tuple(high), offset), Index(tuple(low), remainder(coordinate.offset, inner))

    def _by_term(self, coordinate: Index, inner: Dim) -> tuple[Index, Index] | None:
        """Divide the one term of a coordinate."""
        if len(coordinate.terms) != 1:
            return None
        offset = 0 if coordinate.offset == 0 else exact_quotient(coordinate.offset, inner)
        if offset is None:
            return None
        (term,) = coordinate.terms
        count = exact_quotient(inner, term.stride)
        if count is None:
            return None
        outer = None if term.modulus is None else exact_quotient(term.modulus, count)
        if term.modulus is not None and outer is None:
            return None
        divisor = product((term.divisor, count))
        high = Index((Term(term.of, 1, divisor, outer),), offset)
        return high, Index((Term(term.of, term.stride, term.divisor, count),))

    def _last(self, term: Term) -> Dim | None:
        """Return the greatest value of a term before it is multiplied by the stride."""
        if term.modulus is not None:
            return simplify(term.modulus - 1)
        if not isinstance(term.of, str):
            return None
        size = self.builder.axes[term.of].size
        return floor_div(size - 1, term.divisor)
