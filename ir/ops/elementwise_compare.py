"""Comparisons, predicates, and operations on truth values and bits."""

from __future__ import annotations

from typing import ClassVar

from lynx.ir.types import DType

from .elementwise import Binary, Unary


class Comparison(Binary):
    """Base of ops that compare two operands; the result is bool."""

    result_dtype: ClassVar[DType | None] = DType.BOOL
    accepts: ClassVar[str] = "bif"


class Equal(Comparison, name="eq"):
    """Tell where the operands are equal; NaN equals nothing.

    %z = eq %x, 0 : bool[4, 8]
    """

    accepts: ClassVar[str] = "bifc"


class NotEqual(Comparison, name="ne"):
    """Tell where the operands differ; NaN differs from everything.

    %z = ne %x, %y : bool[4, 8]
    """

    accepts: ClassVar[str] = "bifc"


class Less(Comparison, name="lt"):
    """Tell where `x` is less than `y`.

    %z = lt %x, %y : bool[4, 8]
    """


class LessEqual(Comparison, name="le"):
    """Tell where `x` is at most `y`.

    %z = le %x, %y : bool[4, 8]
    """


class Greater(Comparison, name="gt"):
    """Tell where `x` is greater than `y`.

    %z = gt %x, %y : bool[4, 8]
    """


class GreaterEqual(Comparison, name="ge"):
    """Tell where `x` is at least `y`.

    %z = ge %x, %y : bool[4, 8]
    """


class LogicalAnd(Binary, name="logical_and"):
    """Tell where both operands differ from zero.

    %z = logical_and %x, %y : bool[4, 8]
    """

    result_dtype: ClassVar[DType | None] = DType.BOOL


class LogicalOr(Binary, name="logical_or"):
    """Tell where at least one operand differs from zero.

    %z = logical_or %x, %y : bool[4, 8]
    """

    result_dtype: ClassVar[DType | None] = DType.BOOL


class LogicalXor(Binary, name="logical_xor"):
    """Tell where exactly one operand differs from zero.

    %z = logical_xor %x, %y : bool[4, 8]
    """

    result_dtype: ClassVar[DType | None] = DType.BOOL


class LogicalNot(Unary, name="logical_not"):
    """Tell where the operand is zero.

    %y = logical_not %x : bool[4, 8]
    """

    result_dtype: ClassVar[DType | None] = DType.BOOL


class BitwiseAnd(Binary, name="bitwise_and"):
    """Combine bits by and.

    %z = bitwise_and %x, 7 : i64[4, 8]
    """

    accepts: ClassVar[str] = "bi"


class BitwiseOr(Binary, name="bitwise_or"):
    """Combine bits by or.

    %z = bitwise_or %x, %y : bool[4, 8]
    """

    accepts: ClassVar[str] = "bi"


class BitwiseXor(Binary, name="bitwise_xor"):
    """Combine bits by exclusive or.

    %z = bitwise_xor %x, %y : i64[4, 8]
    """

    accepts: ClassVar[str] = "bi"


class BitwiseNot(Unary, name="bitwise_not"):
    """Invert each bit; for bool, the truth value.

    %y = bitwise_not %x : bool[4, 8]
    """

    accepts: ClassVar[str] = "bi"


class ShiftLeft(Binary, name="shift_left"):
    """Shift the bits of `x` left by `y`.

    %z = shift_left %x, 2 : i64[4, 8]
    """

    accepts: ClassVar[str] = "i"


class ShiftRight(Binary, name="shift_right"):
    """Shift the bits of `x` right by `y`, keeping the sign.

    %z = shift_right %x, %y : i64[4, 8]
    """

    accepts: ClassVar[str] = "i"


class IsNan(Unary, name="isnan"):
    """Tell where the operand is not a number.

    %y = isnan %x : bool[4, 8]
    """

    result_dtype: ClassVar[DType | None] = DType.BOOL


class IsInf(Unary, name="isinf"):
    """Tell where the operand is an infinity of either sign.

    %y = isinf %x : bool[4, 8]
    """

    result_dtype: ClassVar[DType | None] = DType.BOOL


class SignBit(Unary, name="signbit"):
    """Tell where the sign bit is set, which it is for -0.0.

    %y = signbit %x : bool[4, 8]
    """

    accepts: ClassVar[str] = "bif"
    result_dtype: ClassVar[DType | None] = DType.BOOL
