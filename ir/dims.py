"""Dimensions: integers, or sympy expressions over integer symbols with ranges.

Guards belong to torch: an equality that cannot be decided here is taken for true by the callers
that only check (`may_equal`), since the program was traced under it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import sympy

Dim: TypeAlias = int | sympy.Expr


class FloorDiv(sympy.Function):  # type: ignore[misc]  # sympy has no types
    """Integer division that rounds down, as Python's `//`."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
        """Simplify `x // 1`, integers, sums with multiples of the divisor, and nested divisions."""
        if divisor == 1:
            return dividend
        if dividend.is_Integer and divisor.is_Integer and divisor != 0:
            return sympy.Integer(int(dividend) // int(divisor))
        if dividend == 0:
            return sympy.Integer(0)
        if divisor.is_Integer and divisor != 0:
            return _take_out_multiples(cls, dividend, int(divisor))
        return None


def _take_out_multiples(
    division: type[FloorDiv], dividend: sympy.Expr, divisor: int
) -> sympy.Expr | None:
    """Return `a + b // d` for `(a*d + b) // d`, so that equal sizes look the same; None if a is 0.

    A constant left in `b` lies between 0 and `d`.
    """
    whole: list[sympy.Expr] = []
    rest: list[sympy.Expr] = []
    for term in sympy.Add.make_args(sympy.expand(dividend)):
        coefficient, factor = term.as_coeff_Mul()
        quotient, remainder = (
            divmod(int(coefficient), divisor) if coefficient.is_Integer else (0, coefficient)
        )
        if factor != 1 and remainder != 0:
            quotient, remainder = 0, coefficient
        whole.append(quotient * factor)
        rest.append(remainder * factor)
    taken = sympy.Add(*whole)
    if taken != 0:
        return taken + division(sympy.Add(*rest), sympy.Integer(divisor))
    return _merge_divisions(division, rest, divisor)


def _merge_divisions(
    division: type[FloorDiv], terms: list[sympy.Expr], divisor: int
) -> sympy.Expr | None:
    """Return `(a + c*b) // (b*d)` for `(a // b + c) // d` with integers b, c and positive d."""
    inner = [term for term in terms if isinstance(term, division)]
    constant = sympy.Add(*(term for term in terms if not isinstance(term, division)))
    if divisor < 0 or len(inner) != 1 or not constant.is_Integer:
        return None
    dividend, first = inner[0].args
    if not first.is_Integer:
        return None
    return division(dividend + constant * first, first * divisor)


class Mod(sympy.Function):  # type: ignore[misc]  # sympy has no types
    """Remainder with the sign of the divisor, as Python's `%`."""

    nargs = (2,)
    is_integer = True

    @classmethod
    def eval(cls, dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
        """Simplify `x % 1` and integers."""
        if divisor == 1 or dividend == 0:
            return sympy.Integer(0)
        if dividend.is_Integer and divisor.is_Integer and divisor != 0:
            return sympy.Integer(int(dividend) % int(divisor))
        return None


@dataclass(frozen=True, slots=True)
class SymbolRange:
    """A symbol of a graph, with the closed range of its values; `None` is unbounded."""

    name: str
    lower: int | None = None
    upper: int | None = None


@functools.cache
def symbol(name: str) -> sympy.Symbol:
    """Return the integer symbol of this name. Nothing else is assumed of it."""
    return sympy.Symbol(name, integer=True)


def simplify(expression: sympy.Expr | int) -> Dim:
    """Return an `int` where the expression is one, and the expression otherwise."""
    if isinstance(expression, int):
        return expression
    return int(expression) if expression.is_Integer else expression


def is_static(dims: Iterable[Dim]) -> bool:
    """Whether every dimension is an integer."""
    return all(isinstance(dim, int) for dim in dims)


def difference(a: Dim, b: Dim) -> Dim:
    """Return `a - b`, expanded, so that equal polynomials give 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return 0 if a == b else simplify(sympy.expand(sympy.sympify(a) - sympy.sympify(b)))


def is_equal(a: Dim, b: Dim) -> bool:
    """Whether the dimensions are equal for all values of their symbols, as far as can be seen."""
    return a == b if isinstance(a, int) and isinstance(b, int) else difference(a, b) == 0


def may_equal(a: Dim, b: Dim) -> bool:
    """Whether some value of the symbols makes the dimensions equal, as far as can be seen."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return not isinstance(delta := difference(a, b), int) or delta == 0


def product(dims: Iterable[Dim]) -> Dim:
    """Multiply dimensions; the empty product is 1."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total if isinstance(total, int) else simplify(total)


def floor_div(a: Dim, b: Dim) -> Dim:
    """Return `a // b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return simplify(FloorDiv(sympy.sympify(a), sympy.sympify(b)))


def remainder(a: Dim, b: Dim) -> Dim:
    """Return `a % b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return simplify(Mod(sympy.sympify(a), sympy.sympify(b)))


def minimum(*dims: Dim) -> Dim:
    """Return the smallest of the dimensions."""
    return min(dims) if is_static(dims) else simplify(sympy.Min(*dims))


def maximum(*dims: Dim) -> Dim:
    """Return the largest of the dimensions."""
    return max(dims) if is_static(dims) else simplify(sympy.Max(*dims))


def ceil_div(a: Dim, b: Dim) -> Dim:
    """Return the number of chunks of size `b` that cover `a`."""
    return floor_div(a + b - 1, b)


def free_symbols(dims: Iterable[Dim]) -> list[str]:
    """Return the names of the symbols in the dimensions, sorted."""
    return sorted({s.name for dim in dims if not isinstance(dim, int) for s in dim.free_symbols})


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """Return the dimension for given values of its symbols; `KeyError` names a missing one."""
    if isinstance(dim, int):
        return dim
    result = dim.subs({s: values[s.name] for s in dim.free_symbols})
    return int(result)


def python_source(dim: Dim) -> str:
    """Return a Python expression over the symbols' names; `Min`, `Max` become `min`, `max`."""
    return str(dim) if isinstance(dim, int) else _format_expression(dim)


def format_dim(dim: Dim) -> str:
    """Return the text form, which `parse_dim` in the parser reads back."""
    return python_source(dim)


_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4


@functools.lru_cache(maxsize=65536)
def _format_expression(expression: sympy.Expr) -> str:
    return _format(_evaluated(expression), 0)


def _evaluated(expression: sympy.Expr) -> sympy.Expr:
    """Build the expression anew, so that what reading the text gives prints the same again.

    An expression made with `evaluate=False`, such as `2*(s0 + 1)`, would come back expanded.
    """
    if not expression.args:
        return expression
    return expression.func(*map(_evaluated, expression.args))


def _format(expression: sympy.Expr, level: int) -> str:
    """Print with `+ - * // % **` and calls, with parentheses below the precedence `level`."""
    if expression.is_Integer or expression.is_Symbol:
        text = str(expression)
        return f"({text})" if text.startswith("-") and level > _SUM else text
    if expression.is_Add or expression.is_Mul or expression.is_Pow:
        quotient, divisor = expression.as_numer_denom()
        if divisor != 1:
            # A size is an integer, so this division leaves no remainder.
            expression = FloorDiv(quotient, divisor, evaluate=False)
    if expression.is_Add:
        terms = [_format(term, _SUM) for term in expression.as_ordered_terms()]
        signed = [f"- {term[1:]}" if term.startswith("-") else f"+ {term}" for term in terms[1:]]
        return _enclosed(" ".join([terms[0], *signed]), level > _SUM)
    if expression.is_Mul:
        return _format_product(expression, level)
    if expression.is_Pow or isinstance(expression, FloorDiv | Mod):
        return _format_binary(expression, level)
    name = {"Min": "min", "Max": "max"}.get(type(expression).__name__)
    if name is None:
        raise ValueError(f"dimension with an unknown function: {expression}")
    return f"{name}({', '.join(_format(argument, 0) for argument in expression.args)})"


def _format_binary(expression: sympy.Expr, level: int) -> str:
    left, right = expression.args
    if expression.is_Pow:
        return _enclosed(f"{_format(left, _ATOM)}**{_format(right, _POWER)}", level > _POWER)
    sign = "//" if isinstance(expression, FloorDiv) else "%"
    return _enclosed(f"{_format(left, _PRODUCT)} {sign} {_format(right, _POWER)}", level > _SUM)


def _enclosed(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def _format_product(expression: sympy.Expr, level: int) -> str:
    coefficient, rest = expression.as_coeff_Mul()
    if coefficient.is_Integer and coefficient < 0:
        return _enclosed(f"-{_format(-coefficient * rest, _PRODUCT)}", level > _SUM)
    factors = [_format(factor, _PRODUCT) for factor in expression.as_ordered_factors()]
    return _enclosed("*".join(factors), level > _PRODUCT)


def contiguous_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return row-major strides in elements, as torch does: a size of 0 counts as 1."""
    strides: list[Dim] = []
    running: Dim = 1
    for size in reversed(shape):
        strides.append(running)
        running = running * (max(size, 1) if isinstance(size, int) else size)
    return tuple(simplify(stride) for stride in reversed(strides))


def is_integer_literal(value: float) -> bool:
    """Whether a float is finite and has no fraction."""
    return math.isfinite(value) and value == int(value)
