"""Short names for the ops that decompositions are made of, and how they treat low precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lynx.ir.core import Op, Operand, Value
from lynx.ir.ops.elementwise_arithmetic import (
    Add,
    Cast,
    Clamp,
    Divide,
    Maximum,
    Minimum,
    Multiply,
    Subtract,
    Where,
)
from lynx.ir.ops.elementwise_compare import Greater, GreaterEqual, Less, LessEqual
from lynx.ir.ops.elementwise_math import (
    Absolute,
    Erf,
    Exp,
    Expm1,
    Log,
    Log1p,
    Negate,
    Rsqrt,
    Square,
    Tanh,
)
from lynx.ir.ops.layout import Reshape
from lynx.ir.ops.reduction import Amax, Mean, Sum
from lynx.ir.types import DType


class Number:
    """A value in an expression: `Number(x) * 2 + y` builds the ops for it."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __add__(self, other: Term) -> Number:
        return _of(Add(self.value, _operand(other)))

    def __radd__(self, other: float) -> Number:
        return _of(Add(self.value, other))

    def __sub__(self, other: Term) -> Number:
        return _of(Subtract(self.value, _operand(other)))

    def __rsub__(self, other: float) -> Number:
        return _of(Subtract(other, self.value))

    def __mul__(self, other: Term) -> Number:
        return _of(Multiply(self.value, _operand(other)))

    def __rmul__(self, other: float) -> Number:
        return _of(Multiply(self.value, other))

    def __truediv__(self, other: Term) -> Number:
        return _of(Divide(self.value, _operand(other)))

    def __rtruediv__(self, other: float) -> Number:
        return _of(Divide(other, self.value))

    def __neg__(self) -> Number:
        return _of(Negate(self.value))

    def __gt__(self, other: Term) -> Number:
        return _of(Greater(self.value, _operand(other)))

    def __ge__(self, other: Term) -> Number:
        return _of(GreaterEqual(self.value, _operand(other)))

    def __lt__(self, other: Term) -> Number:
        return _of(Less(self.value, _operand(other)))

    def __le__(self, other: Term) -> Number:
        return _of(LessEqual(self.value, _operand(other)))

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.value.tensor_type.dtype

    def to(self, dtype: DType) -> Value:
        """Return the value converted to an element type."""
        return self.value if self.dtype is dtype else Cast(self.value, dtype).out

    def reshaped(self, shape: tuple[int, ...]) -> Number:
        """Return the value with another shape."""
        return _of(Reshape(self.value, shape))

    def clamped(self, low: float, high: float) -> Number:
        """Return the value within limits."""
        return _of(Clamp(self.value, low, high))


Term: TypeAlias = Number | float


def wide(value: Value) -> Number:
    """Return a value in the type in which eager computes: `f32` for low precision."""
    dtype = value.tensor_type.dtype
    return _of(Cast(value, DType.F32)) if dtype.is_low_precision else Number(value)


def choose(condition: Number, x: Term, y: Term) -> Number:
    """Return `x` where the condition holds, `y` elsewhere."""
    return _of(Where(condition.value, _operand(x), _operand(y)))


def _operand(term: Term) -> Operand:
    return term.value if isinstance(term, Number) else term


def _of(op: Op) -> Number:
    return Number(op.out)


def _function(kind: Callable[[Value], Op]) -> Callable[[Number], Number]:
    return lambda x: _of(kind(x.value))


absolute = _function(Absolute)
erf = _function(Erf)
exp = _function(Exp)
expm1 = _function(Expm1)
log = _function(Log)
log1p = _function(Log1p)
rsqrt = _function(Rsqrt)
square = _function(Square)
tanh = _function(Tanh)


def maximum(x: Number, y: float) -> Number:
    """Return the greater of a value and a number."""
    return _of(Maximum(x.value, y))


def minimum(x: Number, y: float) -> Number:
    """Return the smaller of a value and a number."""
    return _of(Minimum(x.value, y))


def amax(x: Number, dims: tuple[int, ...]) -> Number:
    """Return the largest elements along dimensions, which stay with size 1."""
    return _of(Amax(x.value, dims, keepdim=True))


def mean(x: Number, dims: tuple[int, ...]) -> Number:
    """Return averages along dimensions, which stay with size 1."""
    return _of(Mean(x.value, dims, keepdim=True))


def total(x: Number, dims: tuple[int, ...], *, keepdim: bool = True) -> Number:
    """Return sums along dimensions; along none, the value itself."""
    return _of(Sum(x.value, dims, keepdim=keepdim)) if dims else x
