"""Import rules of elementwise operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import sympy

from lynx.ir.core import Op, Value
from lynx.ir.ops import elementwise_arithmetic as arithmetic
from lynx.ir.ops import elementwise_compare as compare
from lynx.ir.ops import elementwise_math as math
from lynx.ir.ops.factory import Full
from lynx.ir.ops.layout import Broadcast
from lynx.ir.types import DType, TensorType

from .factory import as_literal
from .promotion import cast, promoted, result_type, to_float
from .registry import RULES, Context, Decline, Imported, dtype_of, imports

_SAME = (
    *(math.Absolute, math.Negate, math.Sign, math.Sgn, math.Floor, math.Ceil, math.Truncate),
    *(math.Fraction, compare.LogicalNot, compare.BitwiseNot, compare.IsNan, compare.IsInf),
    compare.SignBit,
)
"""Unary ops that take every type as it is."""

_TO_FLOAT = tuple(
    kind
    for kind in vars(math).values()
    if inspect.isclass(kind) and issubclass(kind, Op) and kind.name
    if kind not in (*_SAME, math.Round, math.Square, math.NanToNum)
)
"""Unary ops that convert integers to the default floating type first."""


def _unary(kind: type[Any], *, to_floating: bool) -> Callable[..., Imported]:
    def rule(context: Context, x: Value) -> Imported:
        if to_floating:
            x = cast(context, x, to_float(x.tensor_type.dtype))
        return context.emit(kind(x))

    return rule


_kind: type[Any]
for _kind in _SAME:
    RULES[f"aten.{_kind.name}.default"] = _unary(_kind, to_floating=False)
for _kind in _TO_FLOAT:
    RULES[f"aten.{_kind.name}.default"] = _unary(_kind, to_floating=True)


@imports("aten.positive.default")
def identity(context: Context, x: Value) -> Imported:
    """Values have no identity: the result is the operand."""
    return x


@imports("aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.lift.default")
def lift(context: Context, x: Value) -> Imported:
    """Copy a constant."""
    return context.emit(arithmetic.Copy(x))


@imports("aten.square.default")
def square(context: Context, x: Value) -> Imported:
    """Multiply by itself; torch computes `pow(x, 2)`."""
    if x.tensor_type.dtype is DType.BOOL:
        return Decline("the square of truth values is an integer")
    return context.emit(math.Square(x))


@imports("aten.nan_to_num.default")
def nan_to_num(
    context: Context,
    x: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Imported:
    """Replace what is not finite."""
    replacement = 0.0 if nan is None else float(nan)
    return context.emit(math.NanToNum(x, replacement, posinf, neginf))


@imports("aten.round.default", "aten.round.decimals")
def round_(context: Context, x: Value, decimals: int = 0) -> Imported:
    """Round half to even."""
    return context.emit(math.Round(x, decimals=decimals))


_PROMOTING: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "mul": (arithmetic.Multiply, ("Tensor", "Scalar")),
    "remainder": (arithmetic.Remainder, ("Tensor", "Scalar", "Scalar_Tensor")),
    "fmod": (arithmetic.Fmod, ("Tensor", "Scalar")),
    "pow": (arithmetic.Power, ("Tensor_Tensor", "Tensor_Scalar", "Scalar")),
    "maximum": (arithmetic.Maximum, ("default",)),
    "minimum": (arithmetic.Minimum, ("default",)),
    "fmax": (arithmetic.Fmax, ("default",)),
    "fmin": (arithmetic.Fmin, ("default",)),
    "hypot": (arithmetic.Hypot, ("default",)),
    "nextafter": (arithmetic.Nextafter, ("default",)),
    "heaviside": (arithmetic.Heaviside, ("default",)),
    "logaddexp": (arithmetic.LogAddExp, ("default",)),
    "bitwise_and": (compare.BitwiseAnd, ("Tensor", "Scalar", "Scalar_Tensor")),
    "bitwise_or": (compare.BitwiseOr, ("Tensor", "Scalar", "Scalar_Tensor")),
    "bitwise_xor": (compare.BitwiseXor, ("Tensor", "Scalar", "Scalar_Tensor")),
    "bitwise_left_shift": (compare.ShiftLeft, ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    "bitwise_right_shift": (compare.ShiftRight, ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    "__lshift__": (compare.ShiftLeft, ("Tensor", "Scalar")),
    "__rshift__": (compare.ShiftRight, ("Tensor", "Scalar")),
    "eq": (compare.Equal, ("Tensor", "Scalar")),
    "ne": (compare.NotEqual, ("Tensor", "Scalar")),
    "lt": (compare.Less, ("Tensor", "Scalar")),
    "le": (compare.LessEqual, ("Tensor", "Scalar")),
    "gt": (compare.Greater, ("Tensor", "Scalar")),
    "ge": (compare.GreaterEqual, ("Tensor", "Scalar")),
}
_FLOATING: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "atan2": (arithmetic.Atan2, ("default",)),
    "copysign": (arithmetic.Copysign, ("Tensor", "Scalar")),
    "xlogy": (arithmetic.Xlogy, ("Tensor", "Scalar_Self", "Scalar_Other")),
}


def _binary(kind: type[Any], *, to_floating: bool) -> Callable[..., Imported]:
    def rule(context: Context, x: Any, y: Any) -> Imported:
        dtype = result_type((x, y))
        dtype = to_float(dtype) if to_floating else dtype
        return context.emit(kind(*promoted(context, (x, y), dtype)))

    return rule


for _table, _to_floating in ((_PROMOTING, False), (_FLOATING, True)):
    for _name, (_kind, _overloads) in _table.items():
        for _overload in _overloads:
            RULES[f"aten.{_name}.{_overload}"] = _binary(_kind, to_floating=_to_floating)


@imports("aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default")
def logical(context: Context, x: Value, y: Value) -> Imported:
    """Compare with zero first where the types differ: torch looks at each in its own type."""
    kinds = {
        "aten.logical_and.default": compare.LogicalAnd,
        "aten.logical_or.default": compare.LogicalOr,
        "aten.logical_xor.default": compare.LogicalXor,
    }
    if dtype_of(x) is not dtype_of(y):
        x, y = cast(context, x, DType.BOOL), cast(context, y, DType.BOOL)
    return context.emit(kinds[context.target](x, y))


def coefficient(number: Any) -> float | None:
    """Return a coefficient as the float that an attribute holds, None if that is not exact."""
    if isinstance(number, complex | sympy.Expr | Value):
        return None
    return float(number) if abs(number) <= 2**53 or isinstance(number, float) else None


@imports("aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.sub.Scalar")
def add(context: Context, x: Any, y: Any, alpha: Any = 1) -> Imported:
    """Add or subtract a multiple."""
    kind = arithmetic.Add if context.target.startswith("aten.add.") else arithmetic.Subtract
    return _sum(context, kind, x, y, alpha)


@imports("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(context: Context, x: Any, y: Any, alpha: Any = 1) -> Imported:
    """Subtract with the sides swapped."""
    return _sum(context, arithmetic.Subtract, y, x, alpha)


def _sum(context: Context, kind: type[Any], x: Any, y: Any, alpha: Any) -> Imported:
    factor = coefficient(alpha)
    if factor is None:
        return Decline(f"a coefficient {alpha} that is no float")
    dtype = result_type((x, y))
    return context.emit(kind(*promoted(context, (x, y), dtype), alpha=factor))


@imports("aten.div.Tensor", "aten.div.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div(context: Context, x: Any, y: Any, rounding_mode: str | None = None) -> Imported:
    """Divide; without rounding, integers become floating first."""
    dtype = result_type((x, y))
    if rounding_mode is None:
        x, y = promoted(context, (x, y), to_float(dtype))
        return context.emit(arithmetic.Divide(x, y))
    x, y = promoted(context, (x, y), dtype)
    return context.emit(arithmetic.DivideRounded(x, y, rounding=rounding_mode))


@imports("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(context: Context, x: Any, y: Any) -> Imported:
    """Divide and round down."""
    x, y = promoted(context, (x, y), result_type((x, y)))
    return context.emit(arithmetic.DivideRounded(x, y, rounding="floor"))


@imports("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(context: Context, condition: Value, x: Any, y: Any) -> Imported:
    """Choose; of two numbers the first becomes a 0-dim tensor."""
    if condition.tensor_type.dtype is not DType.BOOL:
        return Decline("a condition that is not of type bool")
    dtype = result_type((x, y))
    if not any(isinstance(side, Value) for side in (x, y)):
        device = condition.tensor_type.device
        x = context.emit(Full(x, (), dtype, device))
    x, y = promoted(context, (x, y), dtype)
    return context.emit(arithmetic.Where(condition, x, y))


@imports("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(context: Context, x: Value, mask: Value, value: Any) -> Imported:
    """Choose the value where the mask holds; the result keeps the type of `x`."""
    if mask.tensor_type.dtype is not DType.BOOL:
        return Decline("a mask that is not of type bool")
    if isinstance(value, Value) and isinstance(value.type, TensorType):
        value = cast(context, value, x.tensor_type.dtype)
    elif (literal := as_literal(value, x.tensor_type.dtype)) is not None:
        value = literal
    return context.emit(arithmetic.Where(mask, value, x))


@imports("aten.clamp.default", "aten.clamp.Tensor")
def clamp(context: Context, x: Value, min: Any = None, max: Any = None) -> Imported:  # noqa: A002 - torch's names
    """Limit on both sides."""
    dtype = result_type((x, min, max))
    return context.emit(arithmetic.Clamp(*promoted(context, (x, min, max), dtype)))


@imports("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(context: Context, x: Value, min: Any) -> Imported:  # noqa: A002 - torch's name
    """Limit from below."""
    return clamp(context, x, min, None)


@imports("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(context: Context, x: Value, max: Any) -> Imported:  # noqa: A002 - torch's name
    """Limit from above."""
    return clamp(context, x, None, max)


@imports("aten.addcmul.default", "aten.addcdiv.default")
def addc(context: Context, x: Value, a: Value, b: Value, value: Any = 1) -> Imported:
    """Add a scaled product or quotient."""
    factor = coefficient(value)
    if factor is None:
        return Decline(f"a coefficient {value} that is no float")
    kind: type[Any] = arithmetic.Addcmul if "addcmul" in context.target else arithmetic.Addcdiv
    operands = promoted(context, (x, a, b), result_type((x, a, b)))
    return context.emit(kind(*operands, value=factor))


@imports("aten.lerp.Tensor", "aten.lerp.Scalar")
def lerp(context: Context, x: Value, end: Value, weight: Any) -> Imported:
    """Interpolate; torch wants equal types here."""
    return context.emit(arithmetic.Lerp(x, end, weight))


@imports("aten.clone.default")
def clone(context: Context, x: Value, memory_format: Any = None) -> Imported:
    """Copy."""
    return context.emit(arithmetic.Copy(x, memory_format=_format_name(memory_format)))


@imports("aten.contiguous.default")
def contiguous(context: Context, x: Value, memory_format: Any = None) -> Imported:
    """Copy to a layout; as values are, nothing changes."""
    name = "contiguous_format" if memory_format is None else _format_name(memory_format)
    return context.emit(arithmetic.Copy(x, memory_format=name))


def _format_name(memory_format: Any) -> str:
    return "preserve_format" if memory_format is None else str(memory_format.text)


@imports("aten._to_copy.default")
def to_copy(
    context: Context,
    x: Value,
    *,
    dtype: DType | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Imported:
    """Convert or copy; moves between devices are torch's."""
    if context.type.device != x.tensor_type.device:
        return Decline(f"moves from {x.tensor_type.device} to {context.type.device}")
    if pin_memory or (layout is not None and layout.text != "strided"):
        return Decline("asks for another layout or pinned memory")
    wanted = x.tensor_type.dtype if dtype is None else dtype
    if wanted is not x.tensor_type.dtype:
        return context.emit(arithmetic.Cast(x, wanted))
    return context.emit(arithmetic.Copy(x, memory_format=_format_name(memory_format)))


@imports("aten.copy.default")
def copy(context: Context, target: Value, source: Value, non_blocking: bool = False) -> Imported:
    """Convert the source to what the target is."""
    if target.tensor_type.device != source.tensor_type.device:
        return Decline("moves between devices")
    source = cast(context, source, target.tensor_type.dtype)
    if target.shape != source.shape:
        source = context.emit(Broadcast(source, target.shape))
    return context.emit(arithmetic.Copy(source))
