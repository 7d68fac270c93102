"""Moments, norms and other reductions in terms of sums and extremes."""

from __future__ import annotations

import math

import sympy

from lynx.ir.core import Value
from lynx.ir.dims import Dim, product
from lynx.ir.dims import maximum as greatest
from lynx.ir.ops.reduction import (
    Amax,
    Amin,
    CountNonzero,
    DeviationAndMean,
    LogSumExp,
    MaxOfAll,
    MinOfAll,
    Moment,
    MomentAndMean,
    NanSum,
    StandardDeviation,
    Sum,
    Variance,
    VarianceAndMean,
    VectorNorm,
)
from lynx.ir.types import DType

from .decompose_build import (
    Number,
    absolute,
    amax,
    amin,
    choose,
    exp,
    is_nan,
    log,
    mean,
    refuse_empty,
    sqrt,
    square,
    total,
    wide,
    zero,
)
from .rewrite import NoMatch, Rule, rule

_COMPLEX = NoMatch("complex numbers are reduced otherwise")


def _divisor(op: Moment) -> Dim | float | None:
    """Return what the squares are divided by, which is not negative; None if it is not known."""
    count = product(op.x.shape[dim] for dim in op.dims)
    if isinstance(count, int):
        return max(count - op.correction, 0.0)
    if op.correction != int(op.correction):
        return None
    return greatest(sympy.sympify(count - int(op.correction)), 0)


@rule
def expand_moment(
    op: Variance | StandardDeviation | VarianceAndMean | DeviationAndMean,
) -> Value | tuple[Value, ...] | NoMatch:
    """Average the squares of what is left without the mean: two passes, which cancel nothing.

    var(x)  ==>  sum((x - mean(x)) * (x - mean(x))) / max(n - correction, 0)
    """
    if op.x.tensor_type.dtype.is_complex:
        return _COMPLEX
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    divisor = _divisor(op)
    if divisor is None:
        return NoMatch("a fraction is taken from a symbolic count")
    x = wide(op.x)
    # On CPUs eager adds up in `f64`, and so must we to be as accurate.
    if op.x.tensor_type.dtype is DType.F32 and op.x.tensor_type.device == "cpu":
        x = Number(x.to(DType.F64))
    average = mean(x, op.dims)
    moment = total(square(x - average), op.dims, keepdim=op.keepdim) / divisor
    if isinstance(op, StandardDeviation | DeviationAndMean):
        moment = sqrt(moment)
    result = moment.to(op.results[0].tensor_type.dtype)
    if not isinstance(op, MomentAndMean):
        return result
    shaped = average if op.keepdim else average.squeezed(op.dims)
    return result, shaped.to(op.results[1].tensor_type.dtype)


@rule
def expand_logsumexp(op: LogSumExp) -> Value | NoMatch:
    """Take the largest element out, unless it is infinite; eager rounds each step.

    logsumexp(x)  ==>  log(sum(exp(x - m))) + m, m = where(|amax(x)| == inf, 0, amax(x))
    """
    if op.x.tensor_type.dtype.is_complex:
        return _COMPLEX
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    x = Number(op.x)
    largest = amax(x, op.dims)
    shift = choose(absolute(largest).equals(math.inf), 0.0, largest)
    logarithm = log(total(exp(x - shift), op.dims, keepdim=op.keepdim))
    return (logarithm + (shift if op.keepdim else shift.squeezed(op.dims))).value


@rule
def expand_vector_norm(op: VectorNorm) -> Value | NoMatch:
    """Add up powers of the absolute values, with a shorter form for each common order.

    vector_norm(x)  ==>  sqrt(sum(x * x))
    """
    if op.x.tensor_type.dtype.is_complex or op.result_dtype().is_complex:
        return _COMPLEX
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    dtype = op.result_dtype()
    x = wide(Number(op.x).to(dtype))
    return _norm(op, x).to(dtype)


def _norm(op: VectorNorm, x: Number) -> Number:
    dims, keepdim = op.dims, op.keepdim
    if op.order == 0:
        return total(Number(x.differs(0.0).to(x.dtype)), dims, keepdim=keepdim)
    if all(op.x.shape[dim] == 1 for dim in dims):
        # Of one element eager takes the absolute value, whatever the order.
        return absolute(x) if keepdim else absolute(x).squeezed(dims)
    if op.order == 2:
        return sqrt(total(square(x), dims, keepdim=keepdim))
    if op.order == 1:
        return total(absolute(x), dims, keepdim=keepdim)
    if math.isinf(op.order):
        extreme = amax if op.order > 0 else amin
        return extreme(absolute(x), dims, keepdim=keepdim)
    powers = total(absolute(x).power(op.order), dims, keepdim=keepdim)
    return powers.power(1 / op.order)


@rule
def expand_nansum(op: NanSum) -> Value | NoMatch:
    """Put zeros in the place of NaN; integers have none.

    nansum(x)  ==>  sum(where(isnan(x), 0, x))
    """
    if op.x.tensor_type.dtype.is_complex:
        return _COMPLEX
    x = Number(op.x)
    kept = choose(is_nan(x), 0.0, x) if x.dtype.is_floating else x
    return Sum(kept.value, op.dims, op.keepdim, op.dtype).out


@rule
def expand_count_nonzero(op: CountNonzero) -> Value | NoMatch:
    """Add up truth values.

    count_nonzero(x)  ==>  sum(x != 0)
    """
    dtype = op.x.tensor_type.dtype
    if dtype.is_complex:
        return _COMPLEX
    return Sum(Number(op.x).differs(zero(dtype)).value, op.dims, op.keepdim).out


@rule
def expand_whole_extreme(op: MaxOfAll | MinOfAll) -> Value | NoMatch:
    """Take the extreme along all dimensions; of zeros of both signs it may be another one.

    max_all(x)  ==>  amax(x)
    """
    if (refusal := refuse_empty(op.x)) is not None:
        return refusal
    extreme = Amax if isinstance(op, MaxOfAll) else Amin
    return extreme(op.x, op.dims).out


REDUCTION_RULES: tuple[Rule, ...] = (
    expand_moment,
    expand_logsumexp,
    expand_vector_norm,
    expand_nansum,
    expand_count_nonzero,
    expand_whole_extreme,
)
