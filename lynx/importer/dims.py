"""From torch's symbolic sizes to Lynx dimensions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch

from lynx.compat import shape_environment, size_source, symbolic_expression, value_range
from lynx.ir.dims import Dim, FloorDiv, Mod, SymbolRange, ceil_div, simplify, symbol

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": FloorDiv,
    "CleanDiv": FloorDiv,
    "CeilDiv": lambda a, b: sympy.sympify(ceil_div(simplify(a), simplify(b))),
    "Mod": Mod,
    "PythonMod": Mod,
    "ModularIndexing": lambda a, b, c: Mod(FloorDiv(a, b), c),
    "Max": sympy.Max,
    "Min": sympy.Min,
    "PowByNatural": sympy.Pow,
    "Identity": lambda a: a,
}


class DimReader:
    """Translates symbolic integers and remembers the symbols they use, with their ranges.

    An expression that dimensions cannot have, such as `trunc(0.7*s0)`, gets a symbol of its own.
    `derived` gives, for each of these, the Python source of its value and the symbols in it.
    """

    def __init__(self) -> None:
        self._symbols: dict[str, SymbolRange] = {}
        self._known: dict[Any, Dim] = {}
        self._names: dict[Any, str] = {}
        self.derived: dict[str, tuple[str, tuple[str, ...]]] = {}

    @property
    def symbols(self) -> tuple[SymbolRange, ...]:
        """The symbols met so far, by name."""
        return tuple(self._symbols[name] for name in sorted(self._symbols))

    @property
    def ranges(self) -> Mapping[str, SymbolRange]:
        """The ranges of the symbols met so far."""
        return self._symbols

    def read(self, size: int | torch.SymInt) -> Dim:
        """Return the dimension."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        expression = symbolic_expression(size)
        dim = self._known.get(expression)
        if dim is None:
            dim = simplify(self._translate(expression, shape_environment(size)))
            self._known[expression] = dim
        return dim

    def _translate(self, expression: sympy.Expr, environment: Any) -> sympy.Expr:
        """Rebuild an expression of torch's sympy functions with Lynx's own."""
        if expression.is_Integer:
            return expression
        if expression.is_Symbol:
            if expression.name not in self._symbols:
                bounds = value_range(environment, expression)
                self._symbols[expression.name] = SymbolRange(expression.name, *bounds)
            return symbol(expression.name)
        function = _function_of(expression)
        if function is None or not all(map(_is_whole, expression.args)):
            return self._derive(expression)
        return function(*(self._translate(part, environment) for part in expression.args))

    def _derive(self, expression: sympy.Expr) -> sympy.Symbol:
        name = self._names.get(expression)
        if name is None:
            name = self._names[expression] = f"d{len(self._names)}"
            self._symbols[name] = SymbolRange(name)
            inner = sorted(free.name for free in expression.free_symbols)
            self.derived[name] = (size_source(expression), tuple(inner))
        return symbol(name)


def _function_of(expression: sympy.Expr) -> Callable[..., Any] | None:
    """Return what makes such an expression of dimensions; None if dimensions have none."""
    if expression.is_Add or expression.is_Mul:
        return expression.func  # type: ignore[no-any-return]
    if expression.is_Pow:
        exponent = expression.args[1]
        return expression.func if exponent.is_Integer and exponent > 0 else None
    return _FUNCTIONS.get(type(expression).__name__)


def _is_whole(expression: sympy.Expr) -> bool:
    """Whether a part of an expression is an integer, as far as can be seen."""
    if _function_of(expression) is not None and not expression.is_Symbol:
        return all(map(_is_whole, expression.args))
    return bool(expression.is_integer)


def evaluate_size(source: str, **values: Any) -> int:
    """Return the value of a derived symbol; what a program calls where it needs one."""
    return int(eval(_code(source), {"math": math, "torch": torch}, values))


@functools.cache
def _code(source: str) -> Any:
    return compile(source, "<size>", "eval")
