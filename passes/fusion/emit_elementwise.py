"""What elementwise ops compute, in the scalar functions of kernels."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

from lynx.ir.core import Number, Op, Operand, Value
from lynx.ir.dims import is_equal
from lynx.ir.kernel import KernelBuilder, Scalar
from lynx.ir.kernel_functions import FUNCTIONS
from lynx.ir.ops import elementwise_arithmetic as arithmetic
from lynx.ir.ops import elementwise_compare as compare
from lynx.ir.ops import elementwise_math as mathematics
from lynx.ir.ops.elementwise import Elementwise
from lynx.ir.types import DType, ScalarType, TensorType

from .coordinates import ZERO, Coordinates
from .emit import Emission, Emitter, Want, emits

_UNROUNDED = ("mul", "div")
"""Functions for which torch on CPUs does not round a number, or a 0-dim second operand, to low
precision first; on other devices it rounds neither operand of these, nor of sums."""


def computing_dtype(dtype: DType) -> DType:
    """Return the type in which eager computes: `f32` for low precision."""
    return DType.F32 if dtype.is_low_precision else dtype


def aligned(at: Coordinates, operand: Value) -> Coordinates:
    """Return the coordinates of the operand's element that goes with one of the result."""
    shape = operand.shape
    inner = at[len(at) - len(shape) :]
    ones = (isinstance(dim, int) and dim == 1 for dim in shape)
    return tuple(ZERO if one else c for one, c in zip(ones, inner, strict=True))


def argument(
    emitter: Emitter, want: Want, operand: Operand, dtype: DType, *, exact: bool = False
) -> Generator[Want, Scalar, Scalar]:
    """Return an operand as a scalar in the type in which eager computes with `dtype`.

    With `exact` a number, or a tensor of another type, is not rounded to `dtype` first.
    """
    builder = emitter.builder
    wide = computing_dtype(dtype)
    if not isinstance(operand, Value):
        return number(builder, operand, wide if exact else dtype, wide)
    if isinstance(operand.type, ScalarType):
        expression = operand.type.expr
        assert expression is not None, operand
        return number(builder, expression, wide if exact else dtype, wide)
    scalar = yield Want(operand, aligned(want.at, operand), want.mask)
    if scalar.dtype is not dtype and not exact:
        scalar = builder.convert(scalar, dtype)
    return builder.convert(scalar, wide)


def number(builder: KernelBuilder, value: Number, dtype: DType, wide: DType) -> Scalar:
    """Return a number, rounded to one type, in another."""
    return builder.convert(builder.constant(value, dtype), wide)


def keeps_number(op: Op, field: str) -> bool:
    """Whether torch computes with a number, or a 0-dim tensor of another type, as it is given.

    That is for the functions that torch computes in `f32` if their operands are of low precision;
    `aten/src/ATen/native/cpu/BinaryOpsKernel.cpp` for CPUs.
    """
    return not _is_on_cpu(op) or (op.name.startswith(_UNROUNDED) and field == "y")


def _is_on_cpu(op: Op) -> bool:
    return op.results[0].tensor_type.device.split(":")[0] == "cpu"


def result_dtype(op: Op) -> DType:
    """Return the element type of an op's first result."""
    return op.results[0].tensor_type.dtype


def apply(builder: KernelBuilder, function: str, *arguments: Scalar, dtype: DType) -> Scalar:
    """Apply a function to scalars that are wide already, and round the result to `dtype`."""
    wide = arguments[-1].dtype
    if FUNCTIONS[function].is_predicate:
        return builder.convert(builder.apply(function, *arguments, dtype=DType.BOOL), dtype)
    return builder.convert(builder.apply(function, *arguments, dtype=wide), dtype)


_FUNCTION_OF: dict[type[Op], str] = {
    mathematics.Sgn: "sign",
    compare.BitwiseNot: "not",
    compare.BitwiseAnd: "and",
    compare.BitwiseOr: "or",
    compare.BitwiseXor: "xor",
}


def _same_names() -> dict[type[Op], str]:
    """Return the ops that are called as the function that they apply."""
    special = {"add", "sub", "mul", "pow", "where", "fmod", "remainder", "isinf", "isnan", "round"}
    special |= {"signbit"}
    found = {
        kind: name
        for name, kind in Op.registry.items()
        if name in FUNCTIONS and name not in special and issubclass(kind, Elementwise)
    }
    return found | _FUNCTION_OF


_PLAIN = _same_names()


def _refuse_plain(op: Any) -> str:
    function = FUNCTIONS[_PLAIN[type(op)]]
    dtype = op.common_dtype()
    if isinstance(op, arithmetic.Nextafter) and dtype.is_low_precision:
        return f"is a neighbour among the numbers of {dtype}, which no wider type has"
    kind = "b" if dtype is DType.BOOL else "i" if dtype.is_integer else "f"
    if kind not in function.accepts:
        return f"is not computed for {dtype}"
    return ""


@emits(*_PLAIN, unless=_refuse_plain)
def _plain(emitter: Emitter, op: Any, want: Want) -> Emission:
    """One function of all operands."""
    name = _PLAIN[type(op)]
    dtype = op.common_dtype()
    arguments = []
    for field in op.operand_fields:
        operand = getattr(op, field)
        exact = name in _UNROUNDED and keeps_number(op, field)
        scalar = yield from argument(emitter, want, operand, dtype, exact=exact)
        arguments.append(scalar)
    return (apply(emitter.builder, name, *arguments, dtype=result_dtype(op)),)


@emits(arithmetic.Add, arithmetic.Subtract)
def _sum(emitter: Emitter, op: Any, want: Want) -> Emission:
    """`x + alpha * y`; truth values are joined by or."""
    dtype = op.common_dtype()
    x = yield from argument(emitter, want, op.x, dtype, exact=keeps_number(op, "x"))
    y = yield from argument(emitter, want, op.y, dtype, exact=keeps_number(op, "y"))
    builder = emitter.builder
    if dtype is DType.BOOL:
        if op.alpha == 0:
            return (x,)
        return (builder.apply("or", x, y, dtype=dtype),)
    if op.alpha == 1:
        return (apply(builder, op.name, x, y, dtype=dtype),)
    sign = 1 if isinstance(op, arithmetic.Add) else -1
    value = _as(sign * op.alpha, y.dtype)
    alpha = number(builder, value, y.dtype if keeps_number(op, "alpha") else dtype, y.dtype)
    return (builder.convert(contracted(emitter, alpha, y, x), dtype),)


def contracted(emitter: Emitter, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
    """Return `a * b + c`, rounded once where torch's kernels do so: they are compiled to contract.

    `add` and `sub` with a factor, `addcmul` and `lerp` contract their last product, in `f32` and
    `f64`, for all lengths and strides; `addcdiv` contracts nothing. Of low precision, the products
    of `lerp` are contracted too, and those of the others are exact.
    """
    builder = emitter.builder
    if emitter.contracts and c.dtype.is_floating:
        return builder.apply("fma", a, b, c, dtype=c.dtype)
    product = builder.apply("mul", a, b, dtype=c.dtype)
    return builder.apply("add", c, product, dtype=c.dtype)


def _as(value: float, dtype: DType) -> Number:
    return int(value) if dtype.is_integer else value


@emits(arithmetic.Multiply)
def _product(emitter: Emitter, op: Any, want: Want) -> Emission:
    dtype = op.common_dtype()
    x = yield from argument(emitter, want, op.x, dtype, exact=keeps_number(op, "x"))
    y = yield from argument(emitter, want, op.y, dtype, exact=keeps_number(op, "y"))
    name = "and" if dtype is DType.BOOL else "mul"
    return (apply(emitter.builder, name, x, y, dtype=dtype),)


def _refuse_division(op: Any) -> str:
    if op.common_dtype().is_integer and isinstance(op.y, Value):
        return "may divide integers by zero, which raises in eager"
    return "divides by zero" if not isinstance(op.y, Value) and op.y == 0 else ""


@emits(arithmetic.Remainder, arithmetic.Fmod, unless=_refuse_division)
def _remainder(emitter: Emitter, op: Any, want: Want) -> Emission:
    dtype = op.common_dtype()
    x = yield from argument(emitter, want, op.x, dtype)
    y = yield from argument(emitter, want, op.y, dtype)
    return (apply(emitter.builder, op.name, x, y, dtype=dtype),)


@emits(arithmetic.DivideRounded, unless=_refuse_division)
def _division(emitter: Emitter, op: arithmetic.DivideRounded, want: Want) -> Emission:
    """Torch rounds after each step of dividing low precision, unless the divisor is one number."""
    dtype = op.common_dtype()
    builder = emitter.builder
    x = yield from argument(emitter, want, op.x, dtype, exact=keeps_number(op, "x"))
    y = yield from argument(emitter, want, op.y, dtype, exact=keeps_number(op, "y"))
    is_number = not isinstance(op.y, Value) or all(is_equal(size, 1) for size in op.y.shape)
    if not dtype.is_low_precision or is_number or not _is_on_cpu(op):
        return (apply(builder, f"{op.rounding}_div", x, y, dtype=dtype),)
    steps = _Steps(builder, dtype)
    quotient = steps("div", x, y)
    whole = _floor(steps, x, y, quotient) if op.rounding == "floor" else steps("trunc", quotient)
    return (builder.convert(whole, dtype),)


class _Steps:
    """Applies functions to low precision in `f32`, rounding each result."""

    def __init__(self, builder: KernelBuilder, dtype: DType) -> None:
        self.builder = builder
        self.dtype = dtype

    def __call__(self, function: str, *arguments: Scalar) -> Scalar:
        """Return the rounded result, in `f32` again; predicates give truth values."""
        if FUNCTIONS[function].is_predicate:
            return self.builder.apply(function, *arguments, dtype=DType.BOOL)
        wide = arguments[-1].dtype
        result = self.builder.apply(function, *arguments, dtype=wide)
        return self.builder.convert(self.builder.convert(result, self.dtype), wide)

    def constant(self, value: float) -> Scalar:
        """Return a number in `f32`."""
        return self.builder.constant(value, DType.F32)


def _floor(steps: _Steps, x: Scalar, y: Scalar, quotient: Scalar) -> Scalar:
    """Return the floor of `x / y` in the steps of `div_floor_floating_vec` of torch."""
    builder = steps.builder

    def choose(condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
        return builder.apply("where", condition, a, b, dtype=DType.F32)

    def both(a: Scalar, b: Scalar, how: str = "and") -> Scalar:
        return builder.apply(how, a, b, dtype=DType.BOOL)

    zero, one, infinity = map(steps.constant, (0.0, 1.0, math.inf))
    rest = steps("fmod", x, y)
    overflows = both(
        steps("eq", steps("abs", quotient), infinity), steps("ne", steps("abs", x), infinity)
    )
    found = steps("div", choose(overflows, x, steps("sub", x, rest)), y)
    differ = both(steps("lt", y, zero), steps("lt", rest, zero), "xor")
    found = choose(both(steps("ne", rest, zero), differ), steps("sub", found, one), found)
    whole = steps("floor", found)
    is_above = steps("gt", steps("sub", found, whole), steps.constant(0.5))
    whole = choose(is_above, steps("add", whole, one), whole)
    whole = choose(steps("eq", found, zero), steps("copysign", zero, quotient), whole)
    return choose(steps("eq", y, zero), quotient, whole)


def _refuse_power(op: arithmetic.Power) -> str:
    dtype = op.common_dtype()
    if dtype.is_floating:
        return ""
    exponent = op.y
    if isinstance(exponent, int) and 0 <= exponent <= 4 and dtype is not DType.BOOL:
        return ""
    return f"raises {dtype} to a power"


@emits(arithmetic.Power, unless=_refuse_power)
def _power(emitter: Emitter, op: arithmetic.Power, want: Want) -> Emission:
    """Raise to small exponents by products and roots, as torch does."""
    dtype = op.common_dtype()
    x = yield from argument(emitter, want, op.x, dtype)
    builder = emitter.builder
    if not isinstance(op.y, Value) and isinstance(op.y, int | float):
        if abs(op.y) == 0.5 and dtype is DType.F16 and _is_on_cpu(op):
            x = _of_equal_power(builder, x)
        special = _special_power(builder, x, op.y)
        if special is not None:
            return (builder.convert(special, dtype),)
    y = yield from argument(emitter, want, op.y, dtype)
    return (apply(builder, "pow", x, y, dtype=dtype),)


def _of_equal_power(builder: KernelBuilder, x: Scalar) -> Scalar:
    """Return what has the root that C gives to `x` as a power: 0 for -0, infinity for -infinity.

    Of all types torch raises only `f16` to halves that way, and only on CPUs.
    """
    zero = builder.constant(0, x.dtype)
    is_zero = builder.apply("eq", x, zero, dtype=DType.BOOL)
    is_infinite = builder.apply("isinf", x, dtype=DType.BOOL)
    has_no_sign = builder.apply("or", is_zero, is_infinite, dtype=DType.BOOL)
    return builder.apply(
        "where", has_no_sign, builder.apply("abs", x, dtype=x.dtype), x, dtype=x.dtype
    )


def _special_power(builder: KernelBuilder, x: Scalar, exponent: float) -> Scalar | None:
    wide = x.dtype

    def times(a: Scalar, b: Scalar) -> Scalar:
        return builder.apply("mul", a, b, dtype=wide)

    if exponent == 0:
        return builder.constant(1, wide)
    if exponent == 1:
        return x
    if exponent in (2, 3, 4) and (exponent < 4 or wide.is_integer):
        square = times(x, x)
        return square if exponent == 2 else times(square, x if exponent == 3 else square)
    if exponent == 0.5:
        return builder.apply("sqrt", x, dtype=wide)
    if exponent == -0.5:
        return builder.apply("rsqrt", x, dtype=wide)
    if exponent == -1:
        return builder.apply("reciprocal", x, dtype=wide)
    if exponent == -2:
        return builder.apply("reciprocal", times(x, x), dtype=wide)
    return None


@emits(mathematics.Square)
def _square(emitter: Emitter, op: Any, want: Want) -> Emission:
    dtype = op.common_dtype()
    x = yield from argument(emitter, want, op.x, dtype)
    name = "and" if dtype is DType.BOOL else "mul"
    return (apply(emitter.builder, name, x, x, dtype=dtype),)


@emits(mathematics.Fraction)
def _fraction(emitter: Emitter, op: Any, want: Want) -> Emission:
    dtype = op.common_dtype()
    x = yield from argument(emitter, want, op.x, dtype)
    whole = emitter.builder.apply("trunc", x, dtype=x.dtype)
    return (apply(emitter.builder, "sub", x, whole, dtype=dtype),)


def _refuse_round(op: Any) -> str:
    if op.decimals:
        return "rounds to decimals"
    return "" if op.common_dtype().is_floating else "rounds integers"


@emits(mathematics.Round, unless=_refuse_round)
def _round(emitter: Emitter, op: Any, want: Want) -> Emission:
    dtype = op.common_dtype()
    x = yield from argument(emitter, want, op.x, dtype)
    return (apply(emitter.builder, "round", x, dtype=dtype),)


@emits(compare.IsNan, compare.IsInf, compare.SignBit)
def _predicate(emitter: Emitter, op: Any, want: Want) -> Emission:
    """Integers are never NaN nor infinite."""
    dtype = op.common_dtype()
    x = yield from argument(emitter, want, op.x, dtype)
    builder = emitter.builder
    if not dtype.is_floating and (op.name != "signbit" or dtype is DType.BOOL):
        return (builder.constant(False, DType.BOOL),)
    return (apply(builder, op.name, x, dtype=DType.BOOL),)


@emits(compare.LogicalAnd, compare.LogicalOr, compare.LogicalXor, compare.LogicalNot)
def _logic(emitter: Emitter, op: Any, want: Want) -> Emission:
    builder = emitter.builder
    truths = []
    for field in op.operand_fields:
        x = yield from argument(emitter, want, getattr(op, field), op.common_dtype())
        truths.append(builder.convert(x, DType.BOOL))
    name = op.name.removeprefix("logical_")
    return (apply(builder, name, *truths, dtype=result_dtype(op)),)


@emits(arithmetic.Cast)
def _cast(emitter: Emitter, op: arithmetic.Cast, want: Want) -> Emission:
    x = yield Want(op.x, want.at, want.mask)
    return (emitter.builder.convert(x, op.dtype),)


@emits(arithmetic.Copy)
def _copy(emitter: Emitter, op: arithmetic.Copy, want: Want) -> Emission:
    del emitter
    x = yield Want(op.x, want.at, want.mask)
    return (x,)


@emits(arithmetic.Where)
def _where(emitter: Emitter, op: arithmetic.Where, want: Want) -> Emission:
    dtype = result_dtype(op)
    builder = emitter.builder
    condition = yield Want(op.condition, aligned(want.at, op.condition), want.mask)
    sides = []
    for operand in (op.x, op.y):
        if isinstance(operand, Value) and isinstance(operand.type, TensorType):
            side = yield Want(operand, aligned(want.at, operand), want.mask)
            sides.append(builder.convert(side, dtype))
        else:
            side = yield from argument(emitter, want, operand, dtype)
            sides.append(builder.convert(side, dtype))
    return (builder.apply("where", condition, *sides, dtype=dtype),)


@emits(arithmetic.Clamp)
def _clamp(emitter: Emitter, op: arithmetic.Clamp, want: Want) -> Emission:
    """Keep `x` where it is within the limits, so that its NaN and its signed zeros stay."""
    dtype = op.common_dtype()
    builder = emitter.builder
    x = yield from argument(emitter, want, op.x, dtype)
    for limit, beyond, choose in ((op.min, "lt", "maximum"), (op.max, "gt", "minimum")):
        if limit is None:
            continue
        bound = yield from argument(emitter, want, limit, dtype)
        if isinstance(limit, float) and math.isnan(limit):
            x = bound
        elif isinstance(limit, Value) and dtype is not DType.BOOL:
            x = builder.apply(choose, x, bound, dtype=x.dtype)
        else:
            outside = builder.apply(beyond, x, bound, dtype=DType.BOOL)
            x = builder.apply("where", outside, bound, x, dtype=x.dtype)
    return (builder.convert(x, dtype),)


@emits(arithmetic.Addcmul, arithmetic.Addcdiv)
def _add_scaled(emitter: Emitter, op: Any, want: Want) -> Emission:
    """`x + (value * a) * b` or `x + (value * a) / b`."""
    dtype = op.common_dtype()
    builder = emitter.builder
    terms = []
    for field in ("x", "a", "b"):
        term = yield from argument(emitter, want, getattr(op, field), dtype)
        terms.append(term)
    x, a, b = terms
    if op.value != 1:
        value = builder.constant(_as(op.value, x.dtype), x.dtype)
        a = builder.apply("mul", value, a, dtype=x.dtype)
    if isinstance(op, arithmetic.Addcmul):
        return (builder.convert(contracted(emitter, a, b, x), dtype),)
    return (apply(builder, "add", x, builder.apply("div", a, b, dtype=x.dtype), dtype=dtype),)


@emits(arithmetic.Lerp)
def _lerp(emitter: Emitter, op: arithmetic.Lerp, want: Want) -> Emission:
    """From the nearer end, as torch does (`aten/src/ATen/native/Lerp.h`)."""
    dtype = op.common_dtype()
    builder = emitter.builder
    x = yield from argument(emitter, want, op.x, dtype)
    end = yield from argument(emitter, want, op.end, dtype)
    weight = yield from argument(emitter, want, op.weight, dtype, exact=True)
    wide = x.dtype

    def of(function: str, a: Scalar, b: Scalar) -> Scalar:
        return builder.apply(function, a, b, dtype=wide)

    distance = of("sub", end, x)
    one, half = builder.constant(1, wide), builder.constant(0.5, wide)

    def near() -> Scalar:
        return contracted(emitter, weight, distance, x)

    def far() -> Scalar:
        return contracted(
            emitter, builder.apply("neg", distance, dtype=wide), of("sub", one, weight), end
        )

    if isinstance(op.weight, int | float):
        return (builder.convert(near() if abs(op.weight) < 0.5 else far(), dtype),)
    size = builder.apply("abs", weight, dtype=wide)
    is_near = builder.apply("lt", size, half, dtype=DType.BOOL)
    chosen = builder.apply("where", is_near, near(), far(), dtype=wide)
    return (builder.convert(chosen, dtype),)
