"""The C expression of each scalar function of the kernel IR, for each type that it takes."""

from __future__ import annotations

from lynx.ir.errors import CompileError
from lynx.ir.kernel_functions import FUNCTIONS, category
from lynx.ir.types import DType

from .text import UNSIGNED, memory_type

OWN_F64 = frozenset({"exp", "expm1", "log", "log1p", "tanh", "sigmoid"})
"""What `math` has without branches in `f64`; the library's scalar functions do the rest."""

OWN_F32 = OWN_F64 | {
    "exp2", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "erf", "pow",
}  # fmt: skip
"""The same in `f32`."""

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=",
}  # fmt: skip
_BITWISE = {"and": "&", "or": "|", "xor": "^"}
_BUILTIN = {"abs": "fabs", "round": "rint"}

_FLOATING = {
    "neg": "-{0}",
    "reciprocal": "{one} / {0}",
    "rsqrt": "{one} / __builtin_sqrt{f}({0})",
    "sign": "lynx_sign_{t}({0})",
    "isnan": "{0} != {0}",
    "isinf": "__builtin_fabs{f}({0}) == __builtin_inf{f}()",
    "maximum": "lynx_maximum_{t}({0}, {1})",
    "minimum": "lynx_minimum_{t}({0}, {1})",
    "fmax": "lynx_fmax_{t}({0}, {1})",
    "fmin": "lynx_fmin_{t}({0}, {1})",
    "trunc_div": "__builtin_trunc{f}({0} / {1})",
    "fma": "lynx_fma_{t}({0}, {1}, {2})",
}

_INTEGER = {
    "not": "({t})~{0}",
    "neg": "({t})(0 - ({u}){0})",
    "maximum": "{0} > {1} ? {0} : {1}",
    "minimum": "{0} < {1} ? {0} : {1}",
}
_SIGNED = {
    "abs": "({t})({0} < 0 ? 0 - ({u}){0} : ({u}){0})",
    "sign": "({t})(({0} > 0) - ({0} < 0))",
    "signbit": "{0} < 0",
}
_UNSIGNED = {"abs": "{0}", "sign": "({t})({0} != 0)", "signbit": "0"}


def expression(function: str, dtype: DType, arguments: list[str], constant: float | None) -> str:
    """Return the C expression of a function of scalars of type `dtype`.

    `constant` is the value of the last argument where it is known.
    """
    if function == "where":
        condition, chosen, other = arguments
        return f"{condition} ? {chosen} : {other}"
    if function not in FUNCTIONS:
        raise CompileError("kernel-unsupported", f"the C back end has no function {function}")
    kind = category(dtype)
    if kind not in FUNCTIONS[function].accepts:
        raise CompileError("kernel-unsupported", f"{function} takes no operands of type {dtype}")
    if kind == "b":
        return _of_truth_values(function, arguments)
    if kind == "i":
        return _of_integers(function, dtype, arguments)
    if dtype not in (DType.F32, DType.F64):
        raise CompileError("kernel-unsupported", f"{function} is not computed in {dtype}")
    return _of_floats(function, dtype, arguments, constant)


def _of_truth_values(function: str, arguments: list[str]) -> str:
    if function == "not":
        return f"!{arguments[0]}"
    sign = {**_INFIX, **_BITWISE}[function]
    return f"{arguments[0]} {sign} {arguments[1]}"


def _of_integers(function: str, dtype: DType, arguments: list[str]) -> str:
    names = {"t": memory_type(dtype), "u": UNSIGNED[dtype]}
    table = {**_INTEGER, **(_SIGNED if _is_signed(dtype) else _UNSIGNED)}
    if function in table:
        return table[function].format(*arguments, **names)
    if function in _BITWISE:
        return f"({names['t']})({arguments[0]} {_BITWISE[function]} {arguments[1]})"
    if function in ("add", "sub", "mul"):
        sign = _INFIX[function]
        return f"({names['t']})(({names['u']}){arguments[0]} {sign} ({names['u']}){arguments[1]})"
    if function in _INFIX:
        return f"{arguments[0]} {_INFIX[function]} {arguments[1]}"
    return f"lynx_{function}_{names['t']}({arguments[0]}, {arguments[1]})"


def _is_signed(dtype: DType) -> bool:
    return dtype.value.startswith("i")


def _of_floats(function: str, dtype: DType, arguments: list[str], constant: float | None) -> str:
    suffix = "f" if dtype is DType.F32 else ""
    if function == "pow" and constant is not None:
        special = _power(constant, arguments[0], suffix)
        if special is not None:
            return special
    if function in _FLOATING:
        names = {"f": suffix, "t": dtype.value, "one": f"1.0{suffix}"}
        return _FLOATING[function].format(*arguments, **names)
    if function in _INFIX:
        return f"{arguments[0]} {_INFIX[function]} {arguments[1]}"
    if function == "signbit":
        bits = dtype.itemsize * 8
        return f"lynx_bits_{dtype}({arguments[0]}) >> {bits - 1} != 0"
    joined = ", ".join(arguments)
    if function in (OWN_F32 if dtype is DType.F32 else OWN_F64):
        return f"lynx_{function}_{dtype}({joined}, one_{dtype})"
    if function in ("remainder", "floor_div"):
        return f"lynx_{function}_{dtype}({joined})"
    return f"__builtin_{_BUILTIN.get(function, function)}{suffix}({joined})"


def _power(exponent: float, x: str, suffix: str) -> str | None:
    """Return what torch computes for a power with one of these exponents."""
    one = f"1.0{suffix}"
    table = {
        0.5: f"__builtin_sqrt{suffix}({x})",
        1.0: x,
        2.0: f"{x} * {x}",
        3.0: f"{x} * {x} * {x}",
        -0.5: f"{one} / __builtin_sqrt{suffix}({x})",
        -1.0: f"{one} / {x}",
        -2.0: f"{one} / ({x} * {x})",
    }
    return table.get(exponent)


COSTS = {
    **dict.fromkeys(("exp", "exp2", "log", "sigmoid", "log2", "log10"), 12),
    **dict.fromkeys(("expm1", "log1p", "tanh", "sinh", "cosh", "erf"), 20),
    **dict.fromkeys(("sin", "cos", "tan", "pow"), 45),
    **dict.fromkeys(("asin", "acos", "atan", "asinh", "acosh", "atanh", "erfc"), 100),
    **dict.fromkeys(("atan2", "hypot", "nextafter"), 100),
    **dict.fromkeys(("div", "sqrt", "reciprocal"), 3),
    **dict.fromkeys(("rsqrt", "floor_div", "trunc_div", "remainder", "fmod"), 8),
}
"""Relative costs of functions per element; 1 for the rest."""


CALLED = frozenset(
    {
        "asin", "acos", "atan", "asinh", "acosh", "atanh", "erfc", "atan2", "hypot", "nextafter",
        "fmod", "remainder", "floor_div",
    }
)  # fmt: skip
"""Functions of floats that only the library has, one element at a time."""


def is_called(function: str, dtype: DType) -> bool:
    """Whether the library computes a function, so that loops with it have no vectors."""
    if not dtype.is_floating:
        return False
    return function in CALLED or (dtype is DType.F64 and function in OWN_F32 - OWN_F64)


def cost(function: str) -> int:
    """Return roughly how many simple operations a function takes."""
    return COSTS.get(function, 1)


_BY_WAY_OF = {
    **dict.fromkeys((DType.I8, DType.I16), "i32"),
    **dict.fromkeys((DType.U8, DType.U16, DType.U32), "i64"),
}
"""From which wider integer torch takes the low bits when it converts a floating number."""


def conversion(x: str, source: DType, target: DType) -> str:
    """Return the C expression that converts a scalar between types as torch does."""
    if source.is_low_precision:
        x, source = f"lynx_from_{source}({x})", DType.F32
    if target.is_low_precision:
        return f"lynx_to_{target}({x if source is DType.F32 else f'(f32){x}'})"
    if target is source:
        return x
    if target is DType.BOOL:
        return f"{x} != 0"
    if source.is_floating and target in _BY_WAY_OF:
        x = f"({_BY_WAY_OF[target]}){x}"
    text = f"({memory_type(target)}){x}"
    if source.is_floating and target in (DType.I32, DType.I64):
        # gcc takes conversion to an integer and back for trunc, which keeps -0, NaN and numbers
        # that no integer has: it must not see that nothing lies between.
        return f"({text} | ((i32)one_{source} ^ 1))"
    return text
