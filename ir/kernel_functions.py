"""The scalar functions of the kernel IR: their arity, and the types that they take and give."""

from __future__ import annotations

from dataclasses import dataclass

from .types import DType


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A function of scalars of one type.

    `accepts` lists the categories of that type: `b` bool, `i` integer, `f` floating (`f32` and
    `f64` only: lower precision is converted first). The result has the type of the operands, or is
    a truth value with `is_predicate`.
    """

    arity: int
    accepts: str
    is_predicate: bool = False


_FLOAT_UNARY = [
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "sigmoid",
    "floor",
    "ceil",
    "trunc",
    "round",
]
_FLOAT_BINARY = ["div", "pow", "atan2", "hypot", "copysign", "fmax", "fmin", "nextafter"]
_NUMBER_BINARY = [
    "add",
    "sub",
    "mul",
    "floor_div",
    "trunc_div",
    "remainder",
    "fmod",
    "maximum",
    "minimum",
]
_COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]

FUNCTIONS: dict[str, ScalarFunction] = {
    **{name: ScalarFunction(1, "f") for name in _FLOAT_UNARY},
    **{name: ScalarFunction(1, "if") for name in ("neg", "abs", "sign")},
    **{name: ScalarFunction(1, "f", is_predicate=True) for name in ("isnan", "isinf")},
    "signbit": ScalarFunction(1, "if", is_predicate=True),
    "not": ScalarFunction(1, "bi"),
    **{name: ScalarFunction(2, "f") for name in _FLOAT_BINARY},
    **{name: ScalarFunction(2, "if") for name in _NUMBER_BINARY},
    **{name: ScalarFunction(2, "bif", is_predicate=True) for name in _COMPARISONS},
    **{name: ScalarFunction(2, "bi") for name in ("and", "or", "xor")},
    **{name: ScalarFunction(2, "i") for name in ("shift_left", "shift_right")},
    "fma": ScalarFunction(3, "f"),
    "where": ScalarFunction(3, "bif"),
}
"""All functions by name.

They mean what torch's operators of these names do, element by element: `round` to even, `sign(nan)`
is 0, `maximum` and `minimum` give NaN if an operand is NaN while `fmax` and `fmin` give the other,
`remainder` has the sign of the divisor and `fmod` that of the dividend, `floor_div` and `trunc_div`
say how they round, integers wrap around, `not` inverts the truth value or all bits, shifts by at
least the width give what torch gives. `fma` is `a * b + c`, rounded once where the processor can;
it stands where torch's kernels contract, and products and sums elsewhere are rounded twice. The
first operand of `where` is a truth value; the other two have one type, low-precision ones included.
Comparisons take bool too (false is less than true). Division of integers by zero is checked by the
lowering, since torch raises.
"""


def category(dtype: DType) -> str:
    """Return the category of an element type that kernels compute with."""
    if dtype is DType.BOOL:
        return "b"
    return "i" if dtype.is_integer else "f"
