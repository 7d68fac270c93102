"""Elementwise ops that no kernel function computes, in terms of ones that do."""

from __future__ import annotations

from lynx.ir.core import Operand, Value
from lynx.ir.dims import Dim
from lynx.ir.ops.activation import Relu
from lynx.ir.ops.elementwise import Binary
from lynx.ir.ops.elementwise_arithmetic import Heaviside, LogAddExp, Xlogy
from lynx.ir.ops.elementwise_math import Fraction, NanToNum, Round, Sgn, Sign, Square
from lynx.ir.ops.layout_slicing import LowerTriangle, UpperTriangle
from lynx.ir.types import DType, TensorType

from .decompose_build import (
    Number,
    absolute,
    choose,
    constant,
    exp,
    index_dtype,
    is_nan,
    log,
    log1p,
    maximum,
    positions,
    round_even,
    square,
    truncate,
    wide,
    zero,
)
from .rewrite import NoMatch, Rule, rule

_LARGEST = {
    DType.F16: 65504.0,
    DType.BF16: (2 - 2.0**-7) * 2.0**127,
    DType.F32: (2 - 2.0**-23) * 2.0**127,
    DType.F64: (2 - 2.0**-52) * 2.0**1023,
}
"""The greatest finite number of each type."""


@rule
def expand_relu(op: Relu) -> Value:
    """Limit from below, as eager does.

    relu(x)  ==>  clamp(x, 0, none)
    """
    return Number(op.x).clamped(zero(op.x.tensor_type.dtype), None).value


@rule
def expand_square(op: Square) -> Value:
    """Multiply by itself.

    square(x)  ==>  x * x
    """
    return square(Number(op.x)).value


@rule
def expand_sgn(op: Sgn) -> Value | NoMatch:
    """Take the sign, which is the direction of a real number.

    sgn(x)  ==>  sign(x)
    """
    if op.x.tensor_type.dtype.is_complex:
        return NoMatch("complex numbers have directions of other kinds")
    return Sign(op.x).out


@rule
def expand_frac(op: Fraction) -> Value:
    """Take the integer away.

    frac(x)  ==>  x - trunc(x)
    """
    x = Number(op.x)
    return (x - truncate(x)).value


@rule
def expand_nan_to_num(op: NanToNum) -> Value | NoMatch:
    """Replace by selection; integers stay.

    nan_to_num(x)  ==>  where(isnan(x), nan, where(x == inf, posinf, where(x == -inf, neginf, x)))
    """
    dtype = op.x.tensor_type.dtype
    if not dtype.is_floating:
        return op.x
    largest = _LARGEST.get(dtype)
    if largest is None:
        return NoMatch(f"the greatest number of {dtype} is not known")
    high = largest if op.posinf is None else op.posinf
    low = -largest if op.neginf is None else op.neginf
    x, infinity = Number(op.x), float("inf")
    finite = choose(x.equals(infinity), high, choose(x.equals(-infinity), low, x))
    return choose(is_nan(x), op.nan, finite).value


@rule
def expand_round(op: Round) -> Value | NoMatch:
    """Shift the point, round, and shift it back.

    round(x, n)  ==>  round(x * 10**n) / 10**n
    """
    if op.decimals == 0:
        return NoMatch("rounding to an integer is primitive")
    if not op.x.tensor_type.dtype.is_floating:
        return NoMatch("integers are rounded otherwise")
    x, scale = wide(op.x), 10.0 ** abs(op.decimals)
    if op.decimals > 0:
        result = round_even(x * scale) / scale
    else:
        result = round_even(x / scale) * scale
    return result.to(op.x.tensor_type.dtype)


def _as_tensors(op: Binary) -> tuple[Number, Number]:
    """Return both operands as tensors; a number becomes a 0-dim one of the op's element type."""
    return _as_tensor(op, op.x), _as_tensor(op, op.y)


def _as_tensor(op: Binary, operand: Operand) -> Number:
    if isinstance(operand, Value):
        return Number(operand)
    return constant(operand, op.out)


def _has_numbers(op: Binary) -> bool:
    """Whether an operand is a number that only the running program knows."""
    return not all(isinstance(operand.type, TensorType) for operand in op.operands)


@rule
def expand_heaviside(op: Heaviside) -> Value | NoMatch:
    """Convert a comparison, except where the step is.

    heaviside(x, y)  ==>  where(x == 0, y, cast(x > 0))
    """
    if _has_numbers(op):
        return NoMatch("an operand is a number of the running program")
    dtype = op.out.tensor_type.dtype
    x, y = _as_tensors(op)
    step = Number((x > zero(x.dtype)).to(dtype))
    return choose(x.equals(zero(x.dtype)), Number(y.to(dtype)), step).value


@rule
def expand_xlogy(op: Xlogy) -> Value | NoMatch:
    """Multiply by the logarithm unless zero stands before it; eager rounds the logarithm.

    xlogy(x, y)  ==>  where(isnan(y), nan, where(x == 0, 0, x * log(y)))
    """
    if _has_numbers(op):
        return NoMatch("an operand is a number of the running program")
    dtype = op.out.tensor_type.dtype
    x, y = (Number(operand.to(dtype)) for operand in _as_tensors(op))
    product = choose(x.equals(0.0), 0.0, x * log(y))
    return choose(is_nan(y), float("nan"), product).value


@rule
def expand_logaddexp(op: LogAddExp) -> Value | NoMatch:
    """Take the greater out of the logarithm; equal infinities are their own result.

    logaddexp(x, y)  ==>  where(x == y and |x| == inf, x, max(x, y) + log1p(exp(-|x - y|)))
    """
    dtype = op.out.tensor_type.dtype
    if _has_numbers(op) or dtype.is_complex:
        return NoMatch("an operand is complex or a number of the running program")
    x, y = (wide(Number(operand.to(dtype)).value) for operand in _as_tensors(op))
    result = maximum(x, y) + log1p(exp(-absolute(x - y)))
    # The inner choice is of x or NaN: only an infinity that equals y is chosen.
    infinite = absolute(x).equals(float("inf"))
    equal = choose(infinite, x, result)
    return choose(x.equals(y), equal, result).to(dtype)


@rule
def expand_triangle(op: LowerTriangle | UpperTriangle) -> Value:
    """Choose by comparing the column with the row.

    tril(x, k)  ==>  where(column <= row + k, x, 0)
    """
    rows, columns = op.x.shape[-2:]
    dtype = index_dtype(rows, columns, _magnitude(op.diagonal))
    column = positions(columns, op.x, dtype)
    row = positions(rows, op.x, dtype).unsqueezed(1) + op.diagonal
    is_kept = column <= row if isinstance(op, LowerTriangle) else column >= row
    return choose(is_kept, Number(op.x), zero(op.x.tensor_type.dtype)).value


def _magnitude(diagonal: Dim) -> Dim:
    """Return twice the distance from the main diagonal, so that sums with a row stay in range."""
    return 2 * abs(diagonal) if isinstance(diagonal, int) else diagonal


ELEMENTWISE_RULES: tuple[Rule, ...] = (
    expand_relu,
    expand_square,
    expand_sgn,
    expand_frac,
    expand_nan_to_num,
    expand_round,
    expand_heaviside,
    expand_xlogy,
    expand_logaddexp,
    expand_triangle,
)
