"""Which positions an index reaches, as far as integers tell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from .dims import Dim
from .kernel import Apply, Constant, Index, Scalar, Term

_MOST_POINTS = 1024
"""How many points are tried one by one, before a proof is given up."""


def reach(index: Index, sizes: Mapping[str, Dim]) -> tuple[int, int] | None:
    """Return the least and the greatest position that an index surely takes over its axes.

    None where a scalar or a symbol decides, or where an axis has no point. The range is exact
    unless an axis of more than 1024 points occurs in several terms; then it may be too small.
    """
    if not _is_known(index, sizes):
        return None
    lowest = highest = int(index.offset)
    for axis, terms in _by_axis(index).items():
        values = [_value(terms, point) for point in _points(terms, int(sizes[axis]))]
        if not values:
            return None
        lowest += min(values)
        highest += max(values)
    return lowest, highest


def is_injective(index: Index, axes: tuple[str, ...], sizes: Mapping[str, Dim]) -> bool | None:
    """Whether different points of these axes have different positions; None if nobody knows.

    Proved by the strides, each larger than all that the smaller ones reach (a mixed radix), or by
    trying all points if they are few.
    """
    if not all(isinstance(sizes[axis], int) for axis in axes) or not _is_known(index, sizes):
        return _is_injective_in_part(index, axes, sizes)
    varying = tuple(axis for axis in axes if int(sizes[axis]) > 1)
    count = 1
    for axis in axes:
        count *= int(sizes[axis])
    if count <= 1:
        return True
    terms = _by_axis(index)
    if not all(axis in terms for axis in varying):
        return False
    if _is_mixed_radix(terms, varying, sizes):
        return True
    if count > _MOST_POINTS:
        return None
    ranges = [range(int(sizes[axis])) for axis in varying]
    seen = {
        sum(_value(terms[axis], point) for axis, point in zip(varying, points, strict=True))
        for points in itertools.product(*ranges)
    }
    return len(seen) == count


def limit_of(scalar: Scalar) -> Dim | None:
    """Return a number that a scalar stays below, itself not negative; None if that is not evident.

    It is where the scalar is an index that is replaced by 0 unless it was found to be in range.
    """
    choice = scalar.instruction
    if not isinstance(choice, Apply) or choice.function != "where":
        return None
    condition, place, other = choice.arguments
    both = condition.instruction
    if _number(other) != 0 or not isinstance(both, Apply) or both.function != "and":
        return None
    limits: dict[str, Dim | None] = {}
    for part in (argument.instruction for argument in both.arguments):
        if isinstance(part, Apply) and part.function in ("ge", "lt") and part.arguments[0] is place:
            limits[part.function] = _number(part.arguments[1])
    return limits.get("lt") if limits.get("ge") == 0 else None


def _number(scalar: Scalar) -> Dim | None:
    constant = scalar.instruction
    if not isinstance(constant, Constant) or isinstance(constant.value, bool | float | complex):
        return None
    return constant.value


def _is_injective_in_part(
    index: Index, axes: tuple[str, ...], sizes: Mapping[str, Dim]
) -> bool | None:
    """Return False if an axis of several points has no part in the index, nor a scalar of it."""
    present = {term.of for term in index.terms if isinstance(term.of, str)}
    for scalar in index.scalars:
        present.update(scalar.axes)
    if any(isinstance(sizes[axis], int) and sizes[axis] == 0 for axis in axes):
        return True
    missing = (sizes[axis] for axis in axes if axis not in present)
    return False if any(isinstance(size, int) and size > 1 for size in missing) else None


def _is_known(index: Index, sizes: Mapping[str, Dim]) -> bool:
    """Whether nothing but integers and axes of known size occurs."""
    if not isinstance(index.offset, int):
        return False
    for term in index.terms:
        if not isinstance(term.of, str) or not isinstance(sizes.get(term.of), int):
            return False
        parts = (term.stride, term.divisor, 1 if term.modulus is None else term.modulus)
        if not all(isinstance(part, int) for part in parts):
            return False
    return True


def _by_axis(index: Index) -> dict[str, list[Term]]:
    found: dict[str, list[Term]] = {}
    for term in index.terms:
        assert isinstance(term.of, str), term
        found.setdefault(term.of, []).append(term)
    return found


def _value(terms: list[Term], point: int) -> int:
    total = 0
    for term in terms:
        part = point // int(term.divisor)
        if term.modulus is not None:
            part %= int(term.modulus)
        total += part * int(term.stride)
    return total


def _points(terms: list[Term], size: int) -> Iterator[int]:
    """Yield the points of an axis among which the extremes are to be looked for."""
    if len(terms) == 1 and terms[0].modulus is None:
        yield from {0: None, size - 1: None} if size else ()
    elif size <= _MOST_POINTS:
        yield from range(size)
    else:
        yield from (0, size - 1)
        for term in terms:
            period = int(term.divisor) * (int(term.modulus) if term.modulus is not None else 1)
            yield from (
                point for point in (period - 1, size // period * period - 1) if 0 <= point < size
            )


def _is_mixed_radix(
    terms: Mapping[str, list[Term]], axes: tuple[str, ...], sizes: Mapping[str, Dim]
) -> bool:
    entries = []
    for axis in axes:
        if len(terms[axis]) != 1 or terms[axis][0].divisor != 1:
            return False
        (term,) = terms[axis]
        size = int(sizes[axis])
        if term.modulus is not None and int(term.modulus) < size:
            return False
        entries.append((abs(int(term.stride)), size))
    reached = 0
    for stride, size in sorted(entries):
        if stride <= reached:
            return False
        reached += stride * (size - 1)
    return True
