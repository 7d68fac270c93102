"""Turn what the grammar recognises into syntax nodes: names and literals, not yet ops."""

# ruff: noqa: D102 - the methods of `Reader` are documented by the rules of their names

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import sympy
from lark import Token, Transformer, v_args

from .core import Foreign
from .dims import Dim, floor_div, maximum, minimum, remainder, simplify, symbol
from .location import Location
from .printer import WORDS
from .sharding import Mesh, Partial, Split, sharding_of
from .types import DType, OpaqueType, ScalarType, TensorType, Type

_DTYPES = {dtype.value: dtype for dtype in DType}
_SCALARS = ("int", "float", "bool")
_T = TypeVar("_T")
_MAX_BITS = 4096
"""The largest integer of a text, far beyond any size: Python refuses to print much larger ones."""
_MAX_EXPONENT = 64


class Mistake(Exception):  # noqa: N818 - it becomes a `TextError` once the text is known
    """A mistake in a text, at a token where that is known."""

    def __init__(self, code: str, message: str, at: Token | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.at = at


def unknown(code: str, what: str, name: Token, known: Iterable[str], prefix: str = "") -> Mistake:
    """Return the mistake of a name that does not exist, with the nearest that does."""
    near = difflib.get_close_matches(name.removeprefix(prefix), list(known), 1)
    hint = f", did you mean '{prefix}{near[0]}'" if near else ""
    return Mistake(code, f"unknown {what} '{name}'{hint}", name)


class TypeNode(NamedTuple):
    """A type and where it is written."""

    type: Type
    at: Token


class Attribute(NamedTuple):
    """One entry in braces."""

    name: Token
    value: Any


class Argument(NamedTuple):
    """One argument of an `aten` op; a reference to a value is its token."""

    name: Token | None
    value: Any


class RegionNode(NamedTuple):
    """A region; the name of a parameter comes with that of an input (`fused`), or with its type."""

    parameters: tuple[tuple[Token, Any], ...]
    ops: tuple[Any, ...]
    results: tuple[Token, ...]
    name: Token | None = None


class OpNode(NamedTuple):
    """A line with an op. References to values in `operands` are their tokens."""

    name: Token
    operands: tuple[Any, ...]
    attributes: tuple[Attribute, ...]
    target: Token | None = None
    results: tuple[Token, ...] = ()
    types: tuple[TypeNode, ...] = ()
    loc: Location | None = None
    region: RegionNode | None = None
    regions: tuple[RegionNode, ...] = ()


class InputNode(NamedTuple):
    """An input of a graph."""

    name: Token
    type: TypeNode
    attributes: tuple[Attribute, ...]


class OutputNode(NamedTuple):
    """An output of a graph: the token of a value, or None."""

    value: Any
    attributes: tuple[Attribute, ...]


class SymbolNode(NamedTuple):
    """A declared symbol; bounds are numbers, None where no range is given."""

    name: Token
    lower: Any
    upper: Any


class GraphNode(NamedTuple):
    """A whole graph."""

    at: Token
    name: str
    inputs: tuple[InputNode, ...]
    symbols: tuple[SymbolNode, ...]
    mesh: Mesh | None
    ops: tuple[OpNode, ...]
    outputs: tuple[OutputNode, ...]
    mutations: tuple[tuple[Token, Token], ...]


class DimNode(NamedTuple):
    """A dimension of a tensor type with the mesh axes that split it."""

    size: Dim
    split: Split


def _present(items: Iterable[_T | None]) -> tuple[_T, ...]:
    return tuple(item for item in items if item is not None)


def unquote(token: Token) -> str:
    """Return the text that a token encloses in quotes."""
    try:
        return str(json.loads(token, strict=False))
    except ValueError as error:
        raise Mistake(
            "syntax-error", f"the text in quotes has a bad escape: {error}", token
        ) from error


def at_text(token: Token) -> str:
    """Return the name in `@name` or `@"name"`."""
    return unquote(token.update(value=token[1:])) if token[1] == '"' else str(token[1:])


def _literal(item: Any) -> Any:
    if not isinstance(item, Token):
        return item
    return WORDS[item] if item in WORDS else symbol(str(item))


def _dim(item: Any, at: Token | None = None) -> Dim:
    """Return what an expression says as a dimension: a bare name is a symbol."""
    if isinstance(item, Token):
        return symbol(str(item))
    if isinstance(item, int):
        return item
    if isinstance(item, sympy.Expr):
        return item
    raise Mistake("bad-dimension", f"expected an integer expression, got {item}", at)


def to_integer(token: Token) -> int:
    """Return the integer that a token spells; a `Mistake` if it has thousands of digits."""
    if len(token) > _MAX_BITS // 4:
        raise Mistake("bad-dimension", f"the integer has {len(token)} digits", token)
    return int(token)


def _result(item: Any) -> Dim:
    """Return the result of arithmetic, which must be an integer that can be printed."""
    dim = simplify(item)
    if isinstance(dim, int):
        if dim.bit_length() > _MAX_BITS:
            raise Mistake("bad-dimension", f"the integer has more than {_MAX_BITS} bits")
    elif dim.is_number:
        raise Mistake("bad-dimension", f"expected an integer, got {dim}")
    return dim


def _power(base: Dim, exponent: Dim) -> Dim:
    if isinstance(exponent, int):
        bits = base.bit_length() if isinstance(base, int) else 1
        limit = _MAX_BITS if isinstance(base, int) else _MAX_EXPONENT
        if abs(exponent) * bits > limit:
            raise Mistake("bad-dimension", f"the exponent {exponent} is too large")
    return _result(sympy.Pow(base, exponent))


def _part(item: Any, at: Token) -> float:
    """Return the real or the imaginary part of a complex number."""
    number = _literal(item)
    if isinstance(number, int | float):
        return number
    raise Mistake("syntax-error", f"a part of a complex number must be a number, got {item}", at)


def _divisor(item: Any) -> Dim:
    divisor = _dim(item)
    if divisor == 0:
        raise Mistake("bad-dimension", "division by zero")
    return divisor


@v_args(inline=True)
class Reader(Transformer[Token, Any]):
    """Turns what the grammar recognises into syntax nodes; has no state.

    A language that extends the grammar subclasses this with a method for each rule of its own.
    """

    @staticmethod
    def dimension(item: Any) -> Dim:
        """Return the dimension that an expression denotes."""
        return _dim(item)

    def module(self, *graphs: GraphNode) -> tuple[GraphNode, ...]:
        return graphs

    def graph(self, name: Token, inputs: Any, *rest: Any) -> GraphNode:
        symbols, mesh, ops, (outputs, mutations) = rest
        return GraphNode(name, at_text(name), inputs, symbols or (), mesh, ops, outputs, mutations)

    def inputs(self, *items: InputNode | None) -> tuple[InputNode, ...]:
        return _present(items)

    def input(self, name: Token, type_: TypeNode, attributes: Any) -> InputNode:
        return InputNode(name, type_, attributes or ())

    def symbols(self, *items: SymbolNode) -> tuple[SymbolNode, ...]:
        return items

    def symbol(self, name: Token, lower: Any, upper: Any) -> SymbolNode:
        return SymbolNode(name, _literal(lower), _literal(upper))

    def mesh(self, name: Token, *axes: tuple[str, int]) -> Mesh:
        return Mesh(at_text(name), axes)

    def axis(self, name: str, size: Token) -> tuple[str, int]:
        return str(name), to_integer(size)

    def ops(self, *ops: OpNode) -> tuple[OpNode, ...]:
        return ops

    def returns(self, *items: Any) -> tuple[tuple[OutputNode, ...], Any]:
        *outputs, mutations = items
        return _present(outputs), mutations or ()

    def output(self, value: Any, attributes: Any) -> OutputNode:
        return OutputNode(value, attributes or ())

    def mutations(self, *items: tuple[Token, Token]) -> tuple[tuple[Token, Token], ...]:
        return items

    def mutation(self, target: Token, value: Token) -> tuple[Token, Token]:
        return target, value

    def op(self, results: Any, call: OpNode, types: Any, loc: Any) -> OpNode:
        return call._replace(results=results or (), types=types or (), loc=loc)

    def results(self, *names: Token) -> tuple[Token, ...]:
        return names

    def generic(self, name: Token, operands: Any, attributes: Any, *regions: Any) -> OpNode:
        return OpNode(name, operands or (), attributes or (), regions=regions)

    def region(self, name: Token, *items: Any) -> RegionNode:
        *parameters, ops, results = items
        return RegionNode(_present(parameters), ops, results or (), name)

    def parameter(self, name: Token, type_: TypeNode) -> tuple[Token, TypeNode]:
        return name, type_

    def operands(self, *items: Any) -> tuple[Any, ...]:
        return items

    def aten(self, keyword: Token, target: Token, *items: Any) -> OpNode:
        *arguments, attributes = items
        return OpNode(keyword, _present(arguments), attributes or (), target)

    def argument(self, name: Token | None, value: Any) -> Argument:
        return Argument(name, value)

    def fused(self, keyword: Token, *items: Any) -> OpNode:
        *bindings, ops, results = items
        region = RegionNode(_present(bindings), ops, results or ())
        return OpNode(keyword, (), (), region=region)

    def binding(self, name: Token, value: Token) -> tuple[Token, Token]:
        return name, value

    def references(self, *names: Token) -> tuple[Token, ...]:
        return names

    def attributes(self, *items: Attribute | None) -> tuple[Attribute, ...]:
        return _present(items)

    def attribute(self, name: Token, value: Any) -> Attribute:
        return Attribute(name, value)

    def flag(self, name: Token) -> Attribute:
        return Attribute(name, True)

    def types(self, *types: TypeNode) -> tuple[TypeNode, ...]:
        return types

    def place(self, file: Token, line: Token, module: Token | None) -> Location:
        place = to_integer(line)
        return Location(unquote(file), place, unquote(module) if module else "")

    def module_place(self, module: Token) -> Location:
        return Location(module=unquote(module))

    def tensor(self, name: Token, *items: Any) -> TypeNode:
        *rest, replicated, device = items
        dtype = _DTYPES.get(name)
        if dtype is None:
            raise unknown("unknown-type", "element type", name, _DTYPES)
        dims = [item for item in rest if isinstance(item, DimNode)]
        partial = tuple(item for item in rest if isinstance(item, Partial))
        sharding = None
        if partial or replicated or any(dim.split.axes for dim in dims):
            sharding = sharding_of(tuple(dim.split for dim in dims), partial, None)
        shape = tuple(dim.size for dim in dims)
        return TypeNode(TensorType(dtype, shape, device or "cpu", sharding), name)

    def scalar(self, name: Token, expr: Any) -> TypeNode:
        if name not in _SCALARS:
            raise unknown("unknown-type", "type", name, _SCALARS)
        return TypeNode(ScalarType(str(name), None if expr is None else _dim(expr, name)), name)

    def opaque(self, token: Token) -> TypeNode:
        kind = token[len("opaque<") : -1]
        if kind.startswith('"'):
            kind = unquote(token.update(value=kind))
        return TypeNode(OpaqueType(kind), token)

    def dim(
        self, size: Any, cuts: tuple[tuple[str, int], ...] | None, unit: Token | None
    ) -> DimNode:
        axes, groups = zip(*cuts, strict=True) if cuts else ((), ())
        split = Split(axes, 1 if unit is None else to_integer(unit), groups)
        return DimNode(_dim(size), split)

    def axes(self, *cuts: tuple[str, int]) -> tuple[tuple[str, int], ...]:
        return cuts

    def cut(self, name: str, groups: Token | None) -> tuple[str, int]:
        return str(name), 1 if groups is None else to_integer(groups)

    def partial(self, reduction: Token, axis: str) -> Partial:
        return Partial(str(reduction), str(axis))

    def device(self, name: Token) -> str:
        return unquote(name) if name.type == "STRING" else str(name)

    def text(self, token: Token) -> str:
        return unquote(token)

    def foreign(self, kind: Token, text: Token) -> Foreign:
        return Foreign(str(kind[1:]), unquote(text))

    def empty(self) -> tuple[()]:
        return ()

    def sequence(self, *items: Any) -> tuple[Any, ...]:
        return items

    def literal(self, item: Any) -> Any:
        return _literal(item)

    def add(self, left: Any, right: Any) -> Dim:
        return _result(_dim(left) + _dim(right))

    def subtract(self, left: Any, right: Any) -> Dim:
        return _result(_dim(left) - _dim(right))

    def multiply(self, left: Any, right: Any) -> Dim:
        return _result(_dim(left) * _dim(right))

    def floor_divide(self, left: Any, right: Any) -> Dim:
        return floor_div(_dim(left), _divisor(right))

    def remainder(self, left: Any, right: Any) -> Dim:
        return remainder(_dim(left), _divisor(right))

    def negate(self, item: Any) -> Any:
        if isinstance(item, Token) and isinstance(WORDS.get(item), float):
            return -WORDS[item]
        return -item if isinstance(item, float) else simplify(-_dim(item))

    def raise_to(self, base: Any, exponent: Any) -> Dim:
        return _power(_dim(base), _dim(exponent))

    def integer(self, token: Token) -> int:
        return to_integer(token)

    def fraction(self, token: Token) -> float:
        return float(token)

    def function(self, name: Token, *arguments: Any) -> Any:
        if name == "complex" and len(arguments) == 2:
            return complex(*(_part(argument, name) for argument in arguments))
        dims = [_dim(argument, name) for argument in arguments]
        if name == "min":
            return minimum(*dims)
        if name == "max":
            return maximum(*dims)
        raise unknown("unknown-function", "function", name, ("min", "max", "complex"))

    def grouped(self, item: Any) -> Any:
        return _dim(item) if isinstance(item, Token) else item
