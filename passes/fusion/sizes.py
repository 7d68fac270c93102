"""Division of sizes that comes out even, whatever the symbols are."""

from __future__ import annotations

import sympy

from lynx.ir.dims import Dim, simplify


def exact_quotient(whole: Dim, part: Dim) -> Dim | None:
    """Return `whole / part` if it is an integer for all values of the symbols, None if not known.

    Unlike rounded division this takes `part` to differ from zero: along an axis without elements
    nothing is computed, so it does not matter what would be.
    """
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part if part != 0 and whole % part == 0 else None
    if isinstance(part, int) and part in (0, 1):
        return whole if part == 1 else None
    ratio = sympy.sympify(whole) / sympy.sympify(part)
    if ratio.has(sympy.Add):
        ratio = sympy.cancel(ratio)
    _, denominator = sympy.fraction(ratio)
    return simplify(ratio) if denominator == 1 else None
