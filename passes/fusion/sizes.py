"""Arithmetic of sizes whatever the symbols are: exact division, and estimates."""

from __future__ import annotations

import sympy

from lynx.ir.dims import Dim, simplify
from lynx.ir.types import TensorType, Type


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


def estimated_bytes(type_: Type) -> int:
    """Return about how many bytes a value takes; a symbol counts for 64."""
    if not isinstance(type_, TensorType):
        return 0
    size = type_.nbytes
    return size if isinstance(size, int) else int(size.subs(dict.fromkeys(size.free_symbols, 64)))
