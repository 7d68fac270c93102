"""Type promotion as torch does it, and the casts that make it explicit.

A tensor with dimensions counts more than a 0-dim tensor, and that more than a number: a lower one
changes the result only if it is of a higher category (bool < integer < floating < complex).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lynx.backends.reference.dtypes import dtype_from_torch
from lynx.ir.core import Value
from lynx.ir.errors import CompileError
from lynx.ir.ops.elementwise import category, is_at_most, number_category
from lynx.ir.ops.elementwise_arithmetic import Cast
from lynx.ir.types import DType, ScalarType, TensorType

from .registry import Context

_PROMOTED = frozenset(
    {
        *(DType.BOOL, DType.U8, DType.I8, DType.I16, DType.I32, DType.I64),
        *(DType.F16, DType.BF16, DType.F32, DType.F64, DType.C32, DType.C64, DType.C128),
    }
)
_COMPLEX = {
    DType.F16: DType.C32,
    DType.BF16: DType.C64,
    DType.F32: DType.C64,
    DType.F64: DType.C128,
}
_PART = {DType.C32: DType.F16, DType.C64: DType.F32, DType.C128: DType.F64}


def default_float() -> DType:
    """Return the element type that Python floats and integer divisions get."""
    dtype = dtype_from_torch(torch.get_default_dtype())
    assert dtype is not None
    return dtype


def promote(a: DType, b: DType) -> DType:
    """Return the element type of a result of two tensors with dimensions.

    `CompileError` for the rare types whose promotion torch restricts.
    """
    if a is b:
        return a
    if not {a, b} <= _PROMOTED:
        raise CompileError("no-promotion", f"torch does not promote {a} and {b} in general")
    if category(a) != category(b):
        lower, higher = sorted((a, b), key=lambda dtype: "bifc".index(category(dtype)))
        if category(higher) == "c" and category(lower) == "f":
            return _complex(promote(_PART[higher], lower))
        return higher
    if category(a) == "c":
        return _complex(promote(_PART[a], _PART[b]))
    if category(a) == "f":
        return DType.F32 if a.itemsize == b.itemsize else max(a, b, key=lambda d: d.itemsize)
    return _promote_integers(a, b)


def _complex(dtype: DType) -> DType:
    return _COMPLEX[dtype]


def _promote_integers(a: DType, b: DType) -> DType:
    if DType.U8 in (a, b):
        other = b if a is DType.U8 else a
        return DType.I16 if other is DType.I8 else other
    return max(a, b, key=lambda dtype: dtype.itemsize)


def result_type(operands: Sequence[Any]) -> DType:
    """Return what `torch.result_type` gives for tensors and numbers together."""
    dimensioned: DType | None = None
    scalars: DType | None = None
    numbers: DType | None = None
    for operand in operands:
        if isinstance(operand, Value) and isinstance(operand.type, TensorType):
            dtype = operand.type.dtype
            if operand.type.rank:
                dimensioned = dtype if dimensioned is None else promote(dimensioned, dtype)
            else:
                scalars = dtype if scalars is None else promote(scalars, dtype)
        elif operand is not None:
            dtype = _number_dtype(operand)
            numbers = dtype if numbers is None else promote(numbers, dtype)
    combined = _combine(dimensioned, _combine(scalars, numbers))
    if combined is None:
        raise CompileError("no-operands", "there is nothing to take an element type from")
    return combined


def _number_dtype(operand: Any) -> DType:
    if isinstance(operand, Value):
        assert isinstance(operand.type, ScalarType), operand
        kind = operand.type.kind
        letter = {"bool": "b", "int": "i", "float": "f"}[kind]
    else:
        letter = number_category(operand)
    if letter == "c":
        return _COMPLEX[default_float()]
    return {"b": DType.BOOL, "i": DType.I64, "f": default_float()}[letter]


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    """Combine operands of two ranks; the lower one counts only by its category."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if category(higher) == "c":
        return higher
    if category(higher) == "f":
        return _COMPLEX[higher] if category(lower) == "c" else higher
    if category(higher) == "b" or category(lower) in "fc":
        return promote(higher, lower)
    return higher


def cast(context: Context, value: Value, dtype: DType) -> Value:
    """Convert a tensor unless it has the element type."""
    if value.tensor_type.dtype is dtype:
        return value
    return context.emit(Cast(value, dtype))


def promoted(context: Context, operands: Sequence[Any], dtype: DType) -> tuple[Any, ...]:
    """Return the operands as an elementwise op that computes in `dtype` takes them.

    Tensors are converted; numbers stay, and so do 0-dim tensors beside one with dimensions, which
    torch reads in their own precision.
    """
    tensors = [o for o in operands if isinstance(o, Value) and isinstance(o.type, TensorType)]
    has_dimensions = any(tensor.tensor_type.rank for tensor in tensors)

    def convert(operand: Any) -> Any:
        if not (isinstance(operand, Value) and isinstance(operand.type, TensorType)):
            return operand
        own = category(operand.type.dtype)
        if operand.type.rank == 0 and has_dimensions and is_at_most(own, category(dtype)):
            return operand
        return cast(context, operand, dtype)

    return tuple(convert(operand) for operand in operands)


def to_float(dtype: DType) -> DType:
    """Return the type in which functions such as `exp` compute: integers go to the default one."""
    return default_float() if category(dtype) in "bi" else dtype
