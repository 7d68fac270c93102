"""Simplifications of elementwise ops that hold for every bit pattern, NaN and signed zeros too."""

from __future__ import annotations

import math

from lynx.ir.core import Operand, Value
from lynx.ir.ops.elementwise_arithmetic import (
    Add,
    Cast,
    Copy,
    Divide,
    DivideRounded,
    Multiply,
    Subtract,
    Where,
)
from lynx.ir.ops.elementwise_compare import BitwiseNot, LogicalNot
from lynx.ir.ops.elementwise_math import Negate
from lynx.ir.ops.factory import Full
from lynx.ir.ops.layout import Broadcast
from lynx.ir.types import DType

from .rewrite import NoMatch, Rule, rule


def _is_number(operand: Operand | None, wanted: float) -> bool:
    """Whether an operand is the literal number, of whatever kind; -0.0 is another one than 0.0."""
    if not isinstance(operand, bool | int | float) or operand != wanted:
        return False
    return math.copysign(1, operand) == math.copysign(1, wanted)


def _same_type(value: Operand, op_result: Value) -> bool:
    return isinstance(value, Value) and value.type == op_result.type


def _is_complex(value: Value) -> bool:
    return value.tensor_type.dtype.is_complex


@rule
def multiply_by_one(op: Multiply) -> Value | NoMatch:
    """Drop a factor of one, except for complex numbers, whose infinities become NaN.

    mul(x, 1)  ==>  x
    """
    for x, y in ((op.x, op.y), (op.y, op.x)):
        if _is_number(y, 1) and isinstance(x, Value):
            if _is_complex(op.out):
                return NoMatch("complex infinities would change")
            return x if _same_type(x, op.out) else NoMatch("the type changes")
    return NoMatch("no factor is the number one")


@rule
def divide_by_one(op: Divide | DivideRounded) -> Value | NoMatch:
    """Drop a divisor of one, unless the result is rounded.

    div(x, 1)  ==>  x
    """
    if not _is_number(op.y, 1):
        return NoMatch("the divisor is not the number one")
    dtype = op.out.tensor_type.dtype
    if dtype.is_complex or (isinstance(op, DivideRounded) and not dtype.is_integer):
        return NoMatch(f"elements of type {dtype} would change")
    if not isinstance(op.x, Value) or not _same_type(op.x, op.out):
        return NoMatch("the type changes")
    return op.x


@rule
def add_zero(op: Add) -> Value | NoMatch:
    """Drop a term of zero; for floating numbers only -0.0 keeps the signs of zeros.

    add(x, 0)  ==>  x
    """
    if op.alpha != 1:
        return NoMatch(f"alpha is {op.alpha}")
    zero = 0.0 if not op.out.tensor_type.dtype.is_floating else -0.0
    for x, y in ((op.x, op.y), (op.y, op.x)):
        if _is_number(y, zero) and isinstance(x, Value):
            if _is_complex(op.out):
                return NoMatch("complex zeros would change")
            return x if _same_type(x, op.out) else NoMatch("the type changes")
    return NoMatch(f"no term is the number {zero:g}")


@rule
def subtract_zero(op: Subtract) -> Value | NoMatch:
    """Drop the subtraction of zero.

    sub(x, 0)  ==>  x
    """
    if not _is_number(op.y, 0) or op.alpha != 1:
        return NoMatch("it does not subtract the number zero")
    if _is_complex(op.out):
        return NoMatch("complex zeros would change")
    if not isinstance(op.x, Value) or not _same_type(op.x, op.out):
        return NoMatch("the type changes")
    return op.x


@rule
def cancel_negations(op: Negate | BitwiseNot) -> Value | NoMatch:
    """Drop two negations, which keep signs of zeros and the smallest integer.

    neg(neg(x))  ==>  x
    """
    inner = op.x.defined_by(type(op))
    if inner is None:
        return NoMatch("the operand is not negated")
    return inner.x


@rule
def cancel_logical_nots(op: LogicalNot) -> Value | NoMatch:
    """Drop two negations of a truth value.

    logical_not(logical_not(x))  ==>  x, for bool x
    """
    inner = op.x.defined_by(LogicalNot)
    if inner is None:
        return NoMatch("the operand is not negated")
    if inner.x.tensor_type.dtype is not DType.BOOL:
        return NoMatch("the number is reduced to a truth value")
    return inner.x


@rule
def where_of_same(op: Where) -> Value | NoMatch:
    """Drop a choice between the same.

    where(condition, x, x)  ==>  x
    """
    if not isinstance(op.x, Value) or op.x is not op.y:
        return NoMatch("the two sides differ")
    return op.x if _same_type(op.x, op.out) else NoMatch("the shape changes")


@rule
def where_of_constant(op: Where) -> Value | NoMatch:
    """Take the side that a constant condition always chooses.

    where(full(true), x, y)  ==>  broadcast(x)
    """
    condition = op.condition.defined_by(Full)
    if condition is None or not isinstance(condition.value, bool | int | float | complex):
        return NoMatch("the condition is not constant")
    chosen = op.x if condition.value else op.y
    type_ = op.out.tensor_type
    if not isinstance(chosen, Value):
        return Full(chosen, type_.shape, type_.dtype, type_.device, loc=op.loc).out
    given = chosen.tensor_type
    if given.dtype is not type_.dtype or given.device != type_.device:
        return NoMatch(f"the choice is converted from {given}")
    return Broadcast(chosen, type_.shape, loc=op.loc).out


@rule
def drop_identity_cast(op: Cast) -> Value | NoMatch:
    """Drop a conversion to the same type.

    cast(x, dtype of x)  ==>  x
    """
    return op.x if op.x.type == op.out.type else NoMatch("the type changes")


@rule
def merge_casts(op: Cast) -> Value | NoMatch:
    """Drop a conversion that loses nothing before another.

    cast(cast(x, b), c)  ==>  cast(x, c)
    """
    inner = op.x.defined_by(Cast)
    if inner is None:
        return NoMatch("the operand is not converted")
    before, between, after = inner.x.tensor_type.dtype, inner.dtype, op.dtype
    if not _can_skip(before, between, after):
        return NoMatch(f"{before} to {between} to {after} is not {before} to {after}")
    return Cast(inner.x, after, loc=op.loc).out


def _can_skip(before: DType, between: DType, after: DType) -> bool:
    """Whether converting directly gives the same bits for every element.

    Conversions of floating numbers out of the range of an integer type are undefined in C, so they
    must go the way that they went. Integers that pass through integers keep their lowest bits.
    """
    if any(dtype.is_complex or dtype.value.startswith("f8") for dtype in (before, between, after)):
        return False
    wraps = before.is_integer and between.is_integer and after.is_integer
    if wraps and after.itemsize <= between.itemsize:
        return True
    if not _is_exact(before, between):
        return False
    return before is after or not (between.is_floating and after.is_integer)


_PRECISION = {DType.F16: 11, DType.BF16: 8, DType.F32: 24, DType.F64: 53}
"""The bits of the integers that a type holds exactly."""
_WIDER = {
    DType.F16: (DType.F32, DType.F64),
    DType.BF16: (DType.F32, DType.F64),
    DType.F32: (DType.F64,),
}


def _is_exact(before: DType, after: DType) -> bool:
    """Whether every element of one type is one of the other."""
    if before is after or before is DType.BOOL:
        return True
    if before.is_floating:
        return after in _WIDER.get(before, ())
    unsigned = before.value.startswith("u")
    bits = before.itemsize * 8 - (not unsigned)
    if after.is_floating:
        return bits <= _PRECISION[after]
    if after.value.startswith("u"):
        return unsigned and before.itemsize <= after.itemsize
    return after.is_integer and bits <= after.itemsize * 8 - 1


@rule
def drop_copy(op: Copy) -> Value | NoMatch:
    """Drop a copy, which holds the same values; lowering makes one where other memory is needed.

    copy(x)  ==>  x
    """
    if op.memory_format != "preserve_format":
        return NoMatch(f"it asks for {op.memory_format}")
    return op.x


ELEMENTWISE_RULES: tuple[Rule, ...] = (
    multiply_by_one,
    divide_by_one,
    add_zero,
    subtract_zero,
    cancel_negations,
    cancel_logical_nots,
    where_of_same,
    where_of_constant,
    drop_identity_cast,
    merge_casts,
    drop_copy,
)
