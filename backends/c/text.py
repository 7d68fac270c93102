"""C text of types, numbers, dimensions and indices."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable

import sympy

from lynx.ir.core import Number
from lynx.ir.dims import Dim
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Index, Scalar
from lynx.ir.types import DType

MEMORY_TYPES = {
    DType.BOOL: "u8", DType.U8: "u8", DType.U16: "u16", DType.U32: "u32", DType.U64: "u64",
    DType.I8: "i8", DType.I16: "i16", DType.I32: "i32", DType.I64: "i64",
    DType.F16: "u16", DType.BF16: "u16", DType.F32: "f32", DType.F64: "f64",
}  # fmt: skip
"""How an element lies in memory; half precision is handled as its bits."""

UNSIGNED = {
    DType.I8: "u32", DType.I16: "u32", DType.I32: "u32", DType.I64: "u64",
    DType.U8: "u32", DType.U16: "u32", DType.U32: "u32", DType.U64: "u64",
}  # fmt: skip
"""The type in which integer arithmetic wraps around instead of being undefined."""


def memory_type(dtype: DType) -> str:
    """Return the C type of an element in memory."""
    if dtype not in MEMORY_TYPES:
        raise CompileError("kernel-unsupported", f"the C back end has no elements of type {dtype}")
    return MEMORY_TYPES[dtype]


def value_type(dtype: DType) -> str:
    """Return the C type of a scalar that is computed with."""
    return "truth" if dtype is DType.BOOL else memory_type(dtype)


def zero_of(dtype: DType) -> str:
    """Return the number 0."""
    return number(0, dtype)


def number(value: Number, dtype: DType) -> str:
    """Return a literal of a type; floating ones are exact."""
    if dtype is DType.BOOL:
        return "1" if value else "0"
    if dtype in (DType.F32, DType.F64):
        return _floating(float(value), dtype)  # type: ignore[arg-type]
    if dtype in (DType.BF16, DType.F16):
        return f"(u16){_low_precision_bits(float(value), dtype)}"  # type: ignore[arg-type]
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise CompileError("kernel-unsupported", f"{value} is no number of type {dtype}")
    return _integer(int(value), dtype)


def _floating(value: float, dtype: DType) -> str:
    suffix = "f" if dtype is DType.F32 else ""
    if dtype is DType.F32 and math.isfinite(value):
        try:
            (value,) = struct.unpack("f", struct.pack("f", value))
        except OverflowError:
            value = math.copysign(math.inf, value)
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    text = repr(value) if value == int(value) and abs(value) < 1e9 else value.hex()
    text = f"{text}{suffix}"
    return f"({text})" if text.startswith("-") else text


def _low_precision_bits(value: float, dtype: DType) -> int:
    if dtype is DType.F16:
        try:
            return int(struct.unpack("H", struct.pack("e", value))[0])
        except OverflowError:
            return 0xFC00 if value < 0 else 0x7C00
    if math.isnan(value):
        return 0x7FC0
    try:
        bits = int(struct.unpack("I", struct.pack("f", value))[0])
    except OverflowError:
        bits = 0xFF800000 if value < 0 else 0x7F800000
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 & 0xFFFF


def _integer(value: int, dtype: DType) -> str:
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    if str(dtype).startswith("i") and value >> (bits - 1):
        value -= 1 << bits
    if value == -(1 << 63):
        return "(-9223372036854775807LL - 1)"
    suffix = "ULL" if dtype is DType.U64 else "LL" if abs(value) >= 1 << 31 else ""
    text = f"{value}{suffix}"
    return f"({memory_type(dtype)})({text})" if value < 0 else f"({memory_type(dtype)}){text}"


_FUNCTIONS = {
    "FloorDiv": "lynx_floor_div", "Mod": "lynx_floor_mod", "Min": "lynx_min", "Max": "lynx_max",
}  # fmt: skip

SymbolNames = Callable[[str], str]
"""Gives the C variable that holds the value of a symbol."""


def dim(value: Dim, names: SymbolNames) -> str:
    """Return the C expression of a dimension, an `i64`."""
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 31 else f"{value}LL"
    return _expression(value, names)


def _expression(value: sympy.Expr, names: SymbolNames) -> str:
    """Print an expression; recursion is bounded by the depth of a dimension, which is small."""
    if value.is_Integer:
        return dim(int(value), names)
    if value.is_Symbol:
        return names(value.name)
    parts = functools.partial(_expression, names=names)
    function = _FUNCTIONS.get(type(value).__name__)
    if function is not None:
        joined = parts(value.args[0])
        for argument in value.args[1:]:
            joined = f"{function}({joined}, {parts(argument)})"
        return joined
    if value.is_Add or value.is_Mul or value.is_Pow:
        above, below = value.as_numer_denom()
        if below != 1:
            return f"lynx_floor_div({parts(above)}, {parts(below)})"
    if value.is_Add:
        return f"({' + '.join(parts(term) for term in value.as_ordered_terms())})"
    if value.is_Mul:
        return f"({' * '.join(parts(factor) for factor in value.as_ordered_factors())})"
    if value.is_Pow and value.args[1].is_Integer:
        return f"({' * '.join([parts(value.args[0])] * int(value.args[1]))})"
    raise CompileError("kernel-unsupported", f"the C back end cannot compute the dimension {value}")


def product_text(values: list[Dim], names: SymbolNames) -> str:
    """Return the product of dimensions, folding the integers."""
    known = math.prod(value for value in values if isinstance(value, int))
    if known == 0:
        return "0"
    texts = [dim(value, names) for value in values if not isinstance(value, int)]
    if known != 1 or not texts:
        texts.append(dim(known, names))
    return " * ".join(texts)


def term_text(of: str, stride: Dim, divisor: Dim, modulus: Dim | None, names: SymbolNames) -> str:
    """Return `(of / divisor) % modulus * stride`; numbers are not negative here."""
    text = of
    if divisor != 1:
        text = f"({text} / {dim(divisor, names)})"
    if modulus is not None:
        text = f"({text} % {dim(modulus, names)})"
    return text if stride == 1 else f"{text} * {dim(stride, names)}"


def index_text(
    index: Index, axis_name: Callable[[str], str], scalar: Callable[[Scalar], str],
    names: SymbolNames,
) -> str:  # fmt: skip
    """Return the C expression of an index."""
    parts = [
        term_text(
            axis_name(term.of) if isinstance(term.of, str) else f"(i64){scalar(term.of)}",
            term.stride, term.divisor, term.modulus, names,
        )
        for term in index.terms
        if term.stride != 0
    ]  # fmt: skip
    if index.offset != 0 or not parts:
        parts.append(dim(index.offset, names))
    return " + ".join(parts)
