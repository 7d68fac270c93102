"""Short names for the ops that decompositions are made of, and how they treat low precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lynx.ir.core import Op, Operand, Value
from lynx.ir.dims import Dim
from lynx.ir.ops.elementwise_arithmetic import (
    Add,
    Addcmul,
    Cast,
    Clamp,
    Divide,
    Maximum,
    Minimum,
    Multiply,
    Power,
    Subtract,
    Where,
)
from lynx.ir.ops.elementwise_compare import (
    Equal,
    Greater,
    GreaterEqual,
    IsNan,
    Less,
    LessEqual,
    LogicalAnd,
    NotEqual,
)
from lynx.ir.ops.elementwise_math import (
    Absolute,
    Erf,
    Exp,
    Expm1,
    Log,
    Log1p,
    Negate,
    Round,
    Rsqrt,
    Sqrt,
    Tanh,
    Truncate,
)
from lynx.ir.ops.factory import Full, Iota
from lynx.ir.ops.layout import Reshape, Squeeze, Unsqueeze
from lynx.ir.ops.reduction import Amax, Amin, Mean, Sum
from lynx.ir.types import DType, TensorType

from .rewrite import NoMatch


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

    def __and__(self, other: Number) -> Number:
        return _of(LogicalAnd(self.value, other.value))

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.value.tensor_type.dtype

    def to(self, dtype: DType) -> Value:
        """Return the value converted to an element type."""
        return self.value if self.dtype is dtype else Cast(self.value, dtype).out

    def reshaped(self, shape: tuple[Dim, ...]) -> Number:
        """Return the value with another shape."""
        return self if self.value.shape == shape else _of(Reshape(self.value, shape))

    def unsqueezed(self, dim: int) -> Number:
        """Return the value with one more dimension, of size 1."""
        return _of(Unsqueeze(self.value, dim))

    def squeezed(self, dims: tuple[int, ...]) -> Number:
        """Return the value without dimensions of size 1; without none, the value itself."""
        return _of(Squeeze(self.value, dims)) if dims else self

    def clamped(self, low: float | None, high: float | None) -> Number:
        """Return the value within limits; None is no limit."""
        return _of(Clamp(self.value, low, high))

    def equals(self, other: Term) -> Number:
        """Return where the values are equal."""
        return _of(Equal(self.value, _operand(other)))

    def differs(self, other: Term) -> Number:
        """Return where the values differ."""
        return _of(NotEqual(self.value, _operand(other)))

    def power(self, exponent: float) -> Number:
        """Return a power of the value."""
        return _of(Power(self.value, exponent))


Term: TypeAlias = Number | Dim | float


def wide(value: Value) -> Number:
    """Return a value in the type in which eager computes: `f32` for low precision."""
    dtype = value.tensor_type.dtype
    return _of(Cast(value, DType.F32)) if dtype.is_low_precision else Number(value)


def constant(value: complex, like: Value, shape: tuple[Dim, ...] = ()) -> Number:
    """Return a tensor of one number, with the element type and on the device of another."""
    type_ = like.tensor_type
    return _of(Full(value, shape, type_.dtype, type_.device))


_LARGEST_I32 = 2**31 - 1


def index_dtype(*sizes: Dim) -> DType:
    """Return the type for positions below all of these sizes: half as wide where that is enough."""
    small = all(isinstance(size, int) and size < _LARGEST_I32 for size in sizes)
    return DType.I32 if small else DType.I64


def positions(length: Dim, like: Value, dtype: DType) -> Number:
    """Return `0, 1, .. length - 1` on the device of a value."""
    return _of(Iota(0, 1, length, dtype, like.tensor_type.device))


def zero(dtype: DType) -> float:
    """Return zero as a number that goes with an element type."""
    if dtype is DType.BOOL:
        return False
    return 0 if dtype.is_integer else 0.0


def refuse_empty(*values: Value) -> NoMatch | None:
    """Refuse tensors without elements, which are left to torch."""
    if any(isinstance(value.type, TensorType) and 0 in value.shape for value in values):
        return NoMatch("there is nothing to compute")
    return None


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
is_nan = _function(IsNan)
round_even = _function(Round)
rsqrt = _function(Rsqrt)
sqrt = _function(Sqrt)
tanh = _function(Tanh)
truncate = _function(Truncate)


def square(x: Number) -> Number:
    """Return the value times itself."""
    return x * x


def product_plus(a: Number, b: Number | float, c: Number | float) -> Number:
    """Return `a * b + c`, rounded once: torch's vectorized kernels are compiled to contract."""
    x, factor = (y if isinstance(y, Number) else constant(y, a.value) for y in (c, b))
    return _of(Addcmul(x.value, a.value, factor.value))


def maximum(x: Number, y: Term) -> Number:
    """Return the greater of a value and another or a number."""
    return _of(Maximum(x.value, _operand(y)))


def minimum(x: Number, y: Term) -> Number:
    """Return the smaller of a value and another or a number."""
    return _of(Minimum(x.value, _operand(y)))


def amax(x: Number, dims: tuple[int, ...], *, keepdim: bool = True) -> Number:
    """Return the largest elements along dimensions."""
    return _of(Amax(x.value, dims, keepdim=keepdim))


def amin(x: Number, dims: tuple[int, ...], *, keepdim: bool = True) -> Number:
    """Return the smallest elements along dimensions."""
    return _of(Amin(x.value, dims, keepdim=keepdim))


def mean(x: Number, dims: tuple[int, ...], *, keepdim: bool = True) -> Number:
    """Return averages along dimensions."""
    return _of(Mean(x.value, dims, keepdim=keepdim))


def total(x: Number, dims: tuple[int, ...], *, keepdim: bool = True) -> Number:
    """Return sums along dimensions; along none, the value itself."""
    return _of(Sum(x.value, dims, keepdim=keepdim)) if dims else x
