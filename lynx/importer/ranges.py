"""What can be said of the sign of a symbolic integer from the ranges of its symbols."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from lynx.ir.dims import Dim, FloorDiv, SymbolRange

Ranges = Mapping[str, SymbolRange]


def is_nonnegative(dim: Dim, ranges: Ranges) -> bool:
    """Whether the integer is seen not to be negative."""
    low = lower_bound(dim, ranges)
    return low is not None and low >= 0


def lower_bound(dim: Dim, ranges: Ranges) -> int | None:
    """Return an integer that the expression is seen not to fall below, None if none is seen."""
    if isinstance(dim, int):
        return dim
    total = 0
    for term in sympy.Add.make_args(sympy.expand(dim)):
        low = _least(term, ranges)
        if low is None:
            return None
        total += low
    return total


def _least(term: sympy.Expr, ranges: Ranges) -> int | None:
    """Return the least value of a coefficient times a product of things that are not negative."""
    coefficient, rest = term.as_coeff_Mul()
    if not coefficient.is_Integer:
        return None
    bound = 1
    for factor in sympy.Mul.make_args(rest):
        low, high = _span(factor, ranges)
        if low is None or low < 0 or (coefficient < 0 and high is None):
            return None
        bound *= low if coefficient > 0 or high is None else high
    return int(coefficient) * bound


def _span(factor: sympy.Expr, ranges: Ranges) -> tuple[int | None, int | None]:
    if factor.is_Integer:
        return int(factor), int(factor)
    if factor.is_Symbol and factor.name in ranges:
        known = ranges[factor.name]
        return known.lower, known.upper
    if isinstance(factor, FloorDiv) and factor.args[1].is_Integer and factor.args[1] > 0:
        low = lower_bound(factor.args[0], ranges)
        return None if low is None else low // int(factor.args[1]), None
    return None, None
