"""From torch's symbolic sizes to Lynx dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch

from lynx.compat import shape_environment, symbolic_expression, value_range
from lynx.ir.dims import Dim, FloorDiv, Mod, SymbolRange, ceil_div, simplify, symbol
from lynx.ir.errors import CompileError

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
    """Translates symbolic integers and remembers the symbols they use, with their ranges."""

    def __init__(self) -> None:
        self._symbols: dict[str, SymbolRange] = {}
        self._known: dict[Any, Dim] = {}

    @property
    def symbols(self) -> tuple[SymbolRange, ...]:
        """The symbols met so far, by name."""
        return tuple(self._symbols[name] for name in sorted(self._symbols))

    @property
    def ranges(self) -> Mapping[str, SymbolRange]:
        """The ranges of the symbols met so far."""
        return self._symbols

    def read(self, size: int | torch.SymInt) -> Dim:
        """Return the dimension; `CompileError` if it uses a function that Lynx does not know."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        expression = symbolic_expression(size)
        dim = self._known.get(expression)
        if dim is None:
            for free in sorted(expression.free_symbols, key=str):
                if free.name not in self._symbols:
                    bounds = value_range(shape_environment(size), free)
                    self._symbols[free.name] = SymbolRange(free.name, *bounds)
            dim = simplify(translate(expression))
            self._known[expression] = dim
        return dim


def translate(expression: sympy.Expr) -> sympy.Expr:
    """Rebuild an expression of torch's sympy functions with Lynx's own."""
    if expression.is_Integer:
        return expression
    if expression.is_Symbol:
        return symbol(expression.name)
    arguments = [translate(argument) for argument in expression.args]
    if expression.is_Add or expression.is_Mul:
        return expression.func(*arguments)
    if expression.is_Pow and arguments[1].is_Integer and arguments[1] > 0:
        return expression.func(*arguments)
    function = _FUNCTIONS.get(type(expression).__name__)
    if function is None:
        raise CompileError("unknown-size-function", f"a size uses {expression}")
    return function(*arguments)
