"""Scalars of random kernels with what is known of their values and of errors that are allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lynx.ir.kernel import Scalar
from lynx.ir.types import DType

EPSILON = {DType.F32: 2.0**-23, DType.F64: 2.0**-52, DType.BF16: 2.0**-7, DType.F16: 2.0**-10}
TINY = {DType.F32: 2.0**-126, DType.F64: 2.0**-1022, DType.BF16: 2.0**-126, DType.F16: 2.0**-14}
ULPS = 16.0
"""The error of a function of the math library that is allowed, in units of the last place."""


@dataclass(frozen=True)
class Node:
    """A scalar; finite values are at most `bound`, and off by at most `relative * |x| + absolute`.

    `special` says that it may be NaN or infinite.
    """

    scalar: Scalar
    bound: float
    special: bool = False
    relative: float = 0.0
    absolute: float = 0.0

    @property
    def dtype(self) -> DType:
        return self.scalar.dtype

    @property
    def is_exact(self) -> bool:
        """Whether every way of computing it gives the same number."""
        return self.relative == 0 and self.absolute == 0

    @property
    def error(self) -> float:
        """The absolute error."""
        return self.absolute + (self.relative * self.bound if self.relative else 0.0)

    @property
    def is_number(self) -> bool:
        """Whether kernels compute with this type."""
        return self.dtype in (DType.F32, DType.F64) or self.dtype.is_integer


_BOUNDS: dict[str, Callable[[float], float]] = {
    "exp": lambda m: math.exp(min(m, 700)),
    "exp2": lambda m: 2.0 ** min(m, 1000),
    "expm1": lambda m: math.exp(min(m, 700)),
    "sinh": lambda m: math.exp(min(m, 700)),
    "cosh": lambda m: math.exp(min(m, 700)),
    "sqrt": lambda m: math.sqrt(m) + 1,
    "asinh": lambda m: m,
    "acosh": lambda m: m,
    "atanh": lambda m: 40.0,
    **dict.fromkeys(("log", "log2", "log10", "log1p"), lambda m: 1100.0),
    **dict.fromkeys(
        ("sin", "cos", "tanh", "erf", "erfc", "sigmoid", "asin", "acos", "atan"), lambda m: 4.0
    ),
    **dict.fromkeys(("tan", "rsqrt", "reciprocal"), lambda m: math.inf),
}
APPROXIMATE = tuple(_BOUNDS)
MAY_BE_SPECIAL = (
    "sqrt", "rsqrt", "reciprocal", "log", "log2", "log10", "log1p", "asin", "acos", "acosh",
    "atanh", "tan",
)  # fmt: skip
ROUNDING = ("floor", "ceil", "trunc", "round", "sign")
SIMPLE = ("neg", "abs")


def limit(dtype: DType) -> float:
    """Return the bound above which a result of this type may overflow."""
    if dtype is DType.BOOL:
        return 1
    if dtype.is_integer:
        signed = dtype.value.startswith("i")
        return 2.0 ** (8 * dtype.itemsize - signed) - 1
    return {DType.F16: 6e4, DType.F64: 1e300}.get(dtype, 1e37)


def approximate(function: str, x: Node, result: Scalar) -> Node:
    """Return what is known of a function of the math library, of an exact operand."""
    epsilon = EPSILON[result.dtype]
    bound = _BOUNDS[function](x.bound)
    special = x.special or function in MAY_BE_SPECIAL or bound > limit(result.dtype)
    absolute = TINY[result.dtype] + (epsilon if function == "erfc" else 0.0)
    return Node(result, bound, special, ULPS * epsilon, absolute)


def added(x: Node, y: Node, result: Scalar) -> Node:
    """Return what is known of a sum or a difference."""
    bound = x.bound + y.bound
    error = x.error + y.error
    return _floating(result, bound, x.special or y.special, 0.0, error)


def multiplied(x: Node, y: Node, result: Scalar) -> Node:
    """Return what is known of a product."""
    absolute = 0.0
    if not (x.is_exact and y.is_exact):
        absolute = x.absolute * y.bound + y.absolute * x.bound + x.absolute * y.absolute
    relative = x.relative + y.relative + x.relative * y.relative
    special = x.special or y.special
    return _floating(result, x.bound * y.bound, special, relative, absolute)


def _floating(
    result: Scalar, bound: float, special: bool, relative: float, absolute: float
) -> Node:
    """Add the rounding of the result, unless all is exact."""
    if relative or absolute:
        absolute += EPSILON[result.dtype] * bound + TINY[result.dtype]
    special = special or not bound < limit(result.dtype)
    return Node(result, bound, special, relative, absolute)


def rounded(x: Node, result: Scalar) -> Node:
    """Return what is known of a conversion between floating types."""
    special = x.special or not x.bound < limit(result.dtype)
    absolute = x.absolute
    if not x.is_exact:
        absolute += 2 * EPSILON[result.dtype] * x.bound + TINY[result.dtype]
    return Node(result, x.bound, special, x.relative, absolute)


def summed(x: Node, count: int, result: Scalar) -> Node:
    """Return what is known of the sum of so many numbers, in any order."""
    bound = x.bound * max(count, 1)
    absolute = count * x.error + count * EPSILON[result.dtype] * bound + TINY[result.dtype]
    return Node(result, bound, x.special, 0.0, absolute)
