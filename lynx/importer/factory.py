"""Import rules of operators that make tensors from numbers."""

from __future__ import annotations

from typing import Any

import sympy

from lynx.ir.core import Value
from lynx.ir.ops.elementwise import category, number_category
from lynx.ir.ops.factory import Empty, Full, Iota
from lynx.ir.ops.layout import Broadcast
from lynx.ir.types import DType

from .promotion import cast
from .registry import Context, Decline, Imported, imports


def unusual(layout: Any, pin_memory: Any) -> Decline | None:
    """Return why a factory needs torch: it asks for another layout or pinned memory."""
    if pin_memory:
        return Decline("asks for pinned memory")
    if layout is not None and layout.text != "strided":
        return Decline(f"asks for the layout {layout.text}")
    return None


def _full(context: Context, value: Any, layout: Any = None, pin_memory: Any = None) -> Imported:
    """Fill what the traced type says with a number, written as one of that type."""
    if reason := unusual(layout, pin_memory):
        return reason
    type_ = context.type
    literal = as_literal(value, type_.dtype)
    if literal is None:
        return Decline(f"the number {value} has another value as {type_.dtype}")
    return context.emit(Full(literal, type_.shape, type_.dtype, type_.device))


def as_literal(value: Any, dtype: DType) -> Any | None:
    """Write a number in the way natural for an element type; None where that changes its value."""
    if isinstance(value, Value | sympy.Expr):
        return value
    wanted = category(dtype)
    if wanted == "b":
        return bool(value)
    if wanted == "i":
        return int(value) if number_category(value) in "bi" else None
    if wanted == "f" and number_category(value) in "bif":
        exact = isinstance(value, float) or abs(value) <= 2**53
        return float(value) if exact else None
    return value


@imports(
    "aten.zeros.default",
    "aten.new_zeros.default",
    "aten.zeros_like.default",
    "aten.zero.default",
)
def zeros(
    context: Context,
    *sizes: Any,
    layout: Any = None,
    pin_memory: Any = None,
    **keywords: Any,
) -> Imported:
    """Fill with zeros; shape, type and device are those traced."""
    return _full(context, 0, layout, pin_memory)


@imports("aten.ones.default", "aten.new_ones.default", "aten.ones_like.default")
def ones(
    context: Context,
    *sizes: Any,
    layout: Any = None,
    pin_memory: Any = None,
    **keywords: Any,
) -> Imported:
    """Fill with ones."""
    return _full(context, 1, layout, pin_memory)


@imports("aten.full.default", "aten.new_full.default", "aten.full_like.default")
def full(
    context: Context,
    like: Any,
    *rest: Any,
    fill_value: Any = None,
    layout: Any = None,
    pin_memory: Any = None,
    **keywords: Any,
) -> Imported:
    """Fill with a number, the last positional argument."""
    return _full(context, rest[-1] if rest else fill_value, layout, pin_memory)


@imports("aten.fill.Scalar")
def fill(context: Context, x: Value, value: Any) -> Imported:
    """Replace every element by a number."""
    return _full(context, value)


@imports("aten.fill.Tensor")
def fill_tensor(context: Context, x: Value, value: Value) -> Imported:
    """Replace every element by that of a 0-dim tensor."""
    if value.tensor_type.device != x.tensor_type.device:
        return Decline("fills with a value on another device")
    return context.emit(Broadcast(cast(context, value, context.type.dtype), context.type.shape))


@imports("aten.scalar_tensor.default")
def scalar_tensor(
    context: Context,
    value: Any,
    *,
    layout: Any = None,
    pin_memory: Any = None,
    **keywords: Any,
) -> Imported:
    """Make a 0-dim tensor."""
    return _full(context, value, layout, pin_memory)


@imports(
    "aten.empty.memory_format",
    "aten.new_empty.default",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.new_empty_strided.default",
    "aten.empty_permuted.default",
)
def empty(
    context: Context,
    *sizes: Any,
    layout: Any = None,
    pin_memory: Any = None,
    **keywords: Any,
) -> Imported:
    """Make a tensor without contents."""
    if reason := unusual(layout, pin_memory):
        return reason
    type_ = context.type
    return context.emit(Empty(type_.shape, type_.dtype, type_.device))


@imports("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(
    context: Context,
    *bounds: Any,
    layout: Any = None,
    pin_memory: Any = None,
    **keywords: Any,
) -> Imported:
    """Count from a start in steps; how far says the traced shape."""
    if reason := unusual(layout, pin_memory):
        return reason
    start, step = (0, 1) if len(bounds) == 1 else (bounds[0], 1)
    step = bounds[2] if len(bounds) == 3 else keywords.get("step", step)
    type_ = context.type
    whole = all(number_category(number) in "bi" for number in (*bounds, step))
    if category(type_.dtype) == "i" and not whole:
        return Decline("counts integers with a fraction")
    if any(isinstance(number, Value) for number in (start, step)):
        return Decline("counts from a number known only at run time")
    if isinstance(start, bool) or isinstance(step, bool):
        start, step = int(start), int(step)
    return context.emit(Iota(start, step, type_.shape[0], type_.dtype, type_.device))
