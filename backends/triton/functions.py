"""How Triton writes each scalar function, conversion and number of the kernel IR."""

from __future__ import annotations

import math

from lynx.ir.errors import CompileError
from lynx.ir.kernel_functions import FUNCTIONS, category
from lynx.ir.types import DType

from .dtypes import triton_type, wrapped

_LIBDEVICE = {
    name: f"libdevice.{name}({{0}})"
    for name in (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "rsqrt"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
        *("asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil", "trunc"),
    )
}
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_INFIX_TEXT = {name: f"{{0}} {sign} {{1}}" for name, sign in _INFIX.items()}

TEMPLATES: dict[str, str | dict[str, str]] = {
    **_LIBDEVICE,
    **{
        name: f"libdevice.{name}({{0}}, {{1}})"
        for name in ("pow", "atan2", "hypot", "copysign", "nextafter")
    },
    **_INFIX_TEXT,
    # Triton orders truth values only as numbers.
    **{
        name: {
            "b": f"{{0}}.to(tl.int32) {_INFIX[name]} {{1}}.to(tl.int32)",
            "*": _INFIX_TEXT[name],
        }
        for name in ("lt", "le", "gt", "ge")
    },
    "sqrt": "square_root({0})",
    "reciprocal": "divide(tl.full({0}.shape, 1.0, {0}.dtype), {0})",
    "sigmoid": "sigmoid({0})",
    "round": "libdevice.rint({0})",
    "neg": "-{0}",
    "abs": {"f": "tl.abs({0})", "i": "tl.where({0} < 0, -{0}, {0})", "u": "{0}"},
    "sign": {
        "f": "sign_float({0})",
        "i": "({0} > 0).to({T}) - ({0} < 0).to({T})",
        "u": "({0} != 0).to({T})",
    },
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "signbit": {"f": "signbit_float({0})", "*": "{0} < 0"},
    "not": {"b": "{0} == 0", "*": "~{0}"},
    "div": "divide({0}, {1})",
    "fmax": "tl.where(({1} != {1}) | ({0} > {1}), {0}, {1})",
    "fmin": "tl.where(({1} != {1}) | ({0} < {1}), {0}, {1})",
    "floor_div": {
        "f": "floor_div_float({0}, {1})",
        "i": "floor_div_integer({0}, {1})",
        "u": "{0} // {1}",
    },
    "trunc_div": {"f": "trunc_div_float({0}, {1})", "*": "{0} // {1}"},
    "remainder": {
        "f": "remainder_float({0}, {1})",
        "i": "remainder_integer({0}, {1})",
        "u": "{0} % {1}",
    },
    "fmod": {"f": "libdevice.fmod({0}, {1})", "*": "{0} % {1}"},
    "maximum": {"f": "maximum({0}, {1})", "*": "tl.maximum({0}, {1})"},
    "minimum": {"f": "minimum({0}, {1})", "*": "tl.minimum({0}, {1})"},
    "shift_left": "shift_left({0}, {1})",
    "shift_right": "shift_right({0}, {1})",
    "fma": "tl.fma({0}, {1}, {2})",
    "where": "tl.where({0}, {1}, {2})",
}
"""The text of each function; by the category of its operands where that matters.

`b`, `i`, `u` (unsigned) and `f` are categories, `*` the others; `{T}` is the type of the operands.
"""


def kind(dtype: DType) -> str:
    """Return the category of a type, in which unsigned integers are one of their own."""
    return "u" if dtype.value.startswith("u") else category(dtype)


def accepts_literals(function: str) -> bool:
    """Whether a number may be written in place of one operand: Triton gives it the other's type."""
    return function in _INFIX


def function_text(function: str, arguments: tuple[str, ...], dtype: DType) -> str:
    """Return the expression of a function of operands of a type (the last ones' for `where`)."""
    template = TEMPLATES.get(function)
    if template is None or function not in FUNCTIONS:
        raise CompileError("unknown-function", f"Triton kernels know no function '{function}'")
    if isinstance(template, dict):
        group = kind(dtype)
        found = (
            template.get(group) or template.get("*") or template.get("i" if group == "u" else "")
        )
        if found is None:
            raise CompileError("unknown-function", f"'{function}' takes no operands of {dtype}")
        template = found
    return template.format(*arguments, T=triton_type(dtype))


def convert_text(x: str, source: DType, target: DType) -> str:
    """Return the expression that converts as torch does: by way of `f32` to low precision."""
    if target is DType.BOOL:
        return f"{x}.to(tl.float32) != 0" if source.is_low_precision else f"{x} != 0"
    to = triton_type(target)
    # Triton rounds to nearest, ties to even; torch converts to half by way of single precision.
    if target.is_low_precision and source is not DType.F32:
        return f"{x}.to(tl.float32).to({to})"
    if source.is_low_precision and target is not DType.F32:
        x = f"{x}.to(tl.float32)"
    # A negative float has no defined unsigned value; torch goes by way of a wide signed integer.
    if source.is_floating and target.value.startswith("u") and target is not DType.U64:
        return f"{x}.to(tl.int64).to({to})"
    return f"{x}.to({to})"


def literal(value: bool | int | float, dtype: DType) -> str:
    """Return a number of a type as Python writes it."""
    if dtype is DType.BOOL:
        return str(bool(value))
    if dtype.is_integer:
        return str(wrapped(int(value), dtype))
    number = float(value)
    return repr(number) if math.isfinite(number) else f'float("{number}")'
