"""Read kernels from text, with a place for every mistake."""

# ruff: noqa: D102 - the methods of `KernelReader` are documented by the rules of their names

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sympy
from lark import Token, v_args

from .core import Number
from .dims import Dim, floor_div, product, remainder, simplify
from .errors import TextError
from .kernel import (
    COMBINES,
    Apply,
    Buffer,
    Check,
    Constant,
    Convert,
    Index,
    Instruction,
    Kernel,
    KernelAxis,
    Load,
    Position,
    Reduce,
    Scalar,
    Store,
    Term,
)
from .kernel_functions import FUNCTIONS
from .location import UNKNOWN, Location
from .parser import Language
from .parser_values import Mistake, Reader, unknown, unquote
from .types import DType

GRAMMAR = Path(__file__).with_name("kernel.lark")
"""What the text of kernels adds to the grammar of graphs."""

_T = TypeVar("_T")
_DTYPES = {dtype.value: dtype for dtype in DType}


class Summand(NamedTuple):
    """A part of an index: what is divided, reduced, scaled and added; None where it is not."""

    of: Any
    divisor: Any
    modulus: Any
    stride: Any
    sign: int = 1


class BufferNode(NamedTuple):
    """A buffer as it is written."""

    name: Token
    dtype: Token
    extent: Dim
    is_written: bool


class Action(NamedTuple):
    """What an instruction does: the kind, the token of its first word, and the parts by kind."""

    kind: str
    at: Token
    parts: tuple[Any, ...]


class InstructionNode(NamedTuple):
    """An instruction as it is written."""

    results: tuple[Token, ...]
    action: Action
    types: tuple[Token, ...]
    loc: Location | None


class KernelNode(NamedTuple):
    """A whole kernel."""

    at: Token
    name: str
    buffers: tuple[BufferNode, ...]
    axes: tuple[tuple[Token, Dim], ...]
    body: tuple[InstructionNode, ...]


def _given(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(item for item in items if item is not None)


def _action(kind: str) -> Callable[..., Action]:
    def action(self: Reader, at: Token, *parts: Any) -> Action:
        return Action(kind, at, parts)

    return action


@v_args(inline=True)
class KernelReader(Reader):
    """Reads the rules that kernels add to graphs."""

    def kernels(self, *items: KernelNode) -> tuple[KernelNode, ...]:
        return items

    def kernel(self, at: Token, name: Any, buffers: Any, axes: Any, *body: Any) -> KernelNode:
        return KernelNode(at, str(name), buffers, axes or (), body)

    def buffers(self, *items: Any) -> tuple[BufferNode, ...]:
        return _given(items)

    def buffer(self, name: Token, dtype: Token, extent: Any, written: Any) -> BufferNode:
        return BufferNode(name, dtype, self.dimension(extent), written is not None)

    def axis_sizes(self, *items: tuple[Token, Dim]) -> tuple[tuple[Token, Dim], ...]:
        return items

    def axis_size(self, name: Token, size: Any) -> tuple[Token, Dim]:
        return name, self.dimension(size)

    def instruction(self, results: Any, action: Action, types: Any, loc: Any) -> InstructionNode:
        return InstructionNode(results or (), action, types or (), loc)

    def element_types(self, *names: Token) -> tuple[Token, ...]:
        return names

    def mask(self, name: Token) -> Token:
        return name

    def index(self, *items: Summand) -> tuple[Summand, ...]:
        return items

    def plus(self, item: Summand) -> Summand:
        return item

    def minus(self, item: Summand) -> Summand:
        return item._replace(sign=-1)

    def summand(self, of: Any, divisor: Any, modulus: Any, stride: Any) -> Summand:
        return Summand(of, divisor, modulus, stride)

    def divisor(self, item: Any) -> Dim:
        return self.dimension(item)

    def modulus(self, item: Any) -> Dim:
        return self.dimension(item)

    def stride(self, item: Any) -> Dim:
        return self.dimension(item)

    apply = _action("apply")
    check = _action("check")
    constant = _action("constant")
    convert = _action("convert")
    load = _action("load")
    position = _action("position")
    reduce = _action("reduce")
    store = _action("store")


@functools.cache
def _language() -> Language:
    return Language(("kernels",), GRAMMAR.read_text(encoding="utf-8"), KernelReader)


def parse_kernels(text: str, *, file: str = "<text>", locate: bool = False) -> list[Kernel]:
    """Read any number of kernels; `TextError` at the first mistake.

    `file` names the text in errors. With `locate`, instructions that are written without a location
    get their place in the text.
    """

    def build(nodes: tuple[KernelNode, ...]) -> list[Kernel]:
        return [_KernelBuilder(node, file if locate else "").build() for node in nodes]

    return _language().read(text, "kernels", build, file)


def parse_kernel(text: str, *, file: str = "<text>", locate: bool = False) -> Kernel:
    """Read exactly one kernel; the arguments are those of `parse_kernels`."""
    kernels = parse_kernels(text, file=file, locate=locate)
    if len(kernels) != 1:
        message = f"expected one kernel, got {len(kernels)}"
        raise TextError("kernel-count", message, text, 1, 1, file=file)
    return kernels[0]


class _KernelBuilder:
    """Defines names, and builds instructions with the domains that follow from their parts."""

    def __init__(self, node: KernelNode, file: str) -> None:
        self.node = node
        self.file = file
        self.axes: dict[str, KernelAxis] = {}
        self.buffers: dict[str, Buffer] = {}
        self.scalars: dict[str, Scalar] = {}

    def build(self) -> Kernel:
        for item in self.node.buffers:
            if item.name in self.buffers:
                raise Mistake("duplicate-value", f"{item.name} is defined twice", item.name)
            dtype = _dtype(item.dtype)
            self.buffers[item.name] = Buffer(item.name[1:], dtype, item.extent, item.is_written)
        for name, size in self.node.axes:
            if name in self.axes:
                raise Mistake("duplicate-value", f"axis '{name}' is defined twice", name)
            self.axes[name] = KernelAxis(str(name), size)
        body = tuple([self.instruction(item) for item in self.node.body])
        axes, buffers = tuple(self.axes.values()), tuple(self.buffers.values())
        return Kernel(self.node.name, axes, buffers, body)

    def instruction(self, node: InstructionNode) -> Instruction:
        """Build an instruction, compare its types with those written, and define its results."""
        at = node.action.at
        place = Location(self.file, at.line or 0) if self.file else UNKNOWN
        loc = node.loc if node.loc is not None else place
        made = _MAKERS[node.action.kind](self, node, loc)
        types = tuple([_dtype(name) for name in node.types])
        wanted = made.result_dtypes()
        if len(node.results) != len(wanted):
            found = f"has {len(wanted)} results, got names for {len(node.results)}"
            raise Mistake("result-count", f"'{at}' {found}", at)
        if types != wanted:
            texts = [", ".join(map(str, part)) or "no type" for part in (wanted, types)]
            message = f"'{at}' gives {texts[0]}, but the text says {texts[1]}"
            raise Mistake("type-mismatch", message, node.types[0] if node.types else at)
        for name, result in zip(node.results, made.results, strict=True):
            if name in self.scalars or name in self.buffers:
                raise Mistake("duplicate-value", f"{name} is defined twice", name)
            self.scalars[str(name)] = result
        return made

    def domain(self, index: Index, *scalars: Scalar | None) -> tuple[str, ...]:
        """Return the axes that an instruction over these parts runs over."""
        wanted = {term.of for term in index.terms if isinstance(term.of, str)}
        for scalar in (*scalars, *index.scalars):
            wanted.update(scalar.axes if scalar is not None else ())
        return tuple([axis for axis in self.axes if axis in wanted])

    def scalar(self, name: Token) -> Scalar:
        return _find(self.scalars, name, "value")

    def optional(self, name: Token | None) -> Scalar | None:
        return None if name is None else self.scalar(name)

    def buffer(self, name: Token) -> Buffer:
        return _find(self.buffers, name, "buffer")

    def result(self, node: InstructionNode) -> DType:
        """Return the type that is written behind an instruction with one result."""
        if len(node.types) != 1:
            message = f"'{node.action.at}' is written without its type"
            raise Mistake("missing-type", message, node.action.at)
        return _dtype(node.types[0])

    def index(self, items: tuple[Summand, ...]) -> Index:
        """Return an index, with everything that depends on no axis and no scalar as its offset."""
        terms: list[Term] = []
        offset: Dim = 0
        for item in items:
            if isinstance(item.of, Token) and (item.of in self.axes or item.of.type == "VALUE"):
                terms.append(self.term(item))
            else:
                offset = offset + item.sign * self.part(item)
        return Index(tuple(terms), simplify(offset))

    def term(self, item: Summand) -> Term:
        of = str(item.of) if item.of in self.axes else self.scalar(item.of)
        stride = 1 if item.stride is None else item.stride
        divisor = 1 if item.divisor is None else item.divisor
        return Term(of, simplify(item.sign * stride), divisor, item.modulus)

    def part(self, item: Summand) -> Dim:
        value = Reader.dimension(item.of)
        if item.divisor is not None:
            value = floor_div(value, item.divisor)
        if item.modulus is not None:
            value = remainder(value, item.modulus)
        return value if item.stride is None else product((value, item.stride))

    def make_constant(self, node: InstructionNode, loc: Location) -> Instruction:
        (value,) = node.action.parts
        return Constant((), _number(value, node.action.at), self.result(node), loc=loc)

    def make_position(self, node: InstructionNode, loc: Location) -> Instruction:
        index = self.index(node.action.parts[0])
        return Position(self.domain(index), index, loc=loc)

    def make_load(self, node: InstructionNode, loc: Location) -> Instruction:
        name, place, mask, other = node.action.parts
        index, condition = self.index(place), self.optional(mask)
        number = 0 if other is None else _number(other, node.action.at)
        domain = self.domain(index, condition)
        return Load(domain, self.buffer(name), index, condition, number, loc=loc)

    def make_apply(self, node: InstructionNode, loc: Location) -> Instruction:
        if node.action.at not in FUNCTIONS:
            raise unknown("unknown-function", "function", node.action.at, FUNCTIONS)
        arguments = tuple([self.scalar(name) for name in node.action.parts])
        domain, dtype = self.domain(Index(), *arguments), self.result(node)
        return Apply(domain, str(node.action.at), arguments, dtype, loc=loc)

    def make_convert(self, node: InstructionNode, loc: Location) -> Instruction:
        x = self.scalar(node.action.parts[0])
        return Convert(x.axes, x, self.result(node), loc=loc)

    def make_reduce(self, node: InstructionNode, loc: Location) -> Instruction:
        combine, *over, name = _given(node.action.parts)
        if combine not in COMBINES:
            raise unknown("unknown-function", "reduction", combine, COMBINES)
        x = self.scalar(name)
        for axis in over:
            if axis not in self.axes:
                raise unknown("unknown-value", "axis", axis, self.axes)
        wanted = {*x.axes, *map(str, over)}
        domain = tuple([axis for axis in self.axes if axis in wanted])
        return Reduce(domain, str(combine), x, tuple(map(str, over)), loc=loc)

    def make_store(self, node: InstructionNode, loc: Location) -> Instruction:
        combine, name, place, value, mask = node.action.parts
        index, scalar, condition = self.index(place), self.scalar(value), self.optional(mask)
        domain = self.domain(index, scalar, condition)
        kind = "set" if combine is None else str(combine)
        return Store(domain, self.buffer(name), index, scalar, condition, kind, loc=loc)

    def make_check(self, node: InstructionNode, loc: Location) -> Instruction:
        name, message = node.action.parts
        condition = self.scalar(name)
        return Check(condition.axes, condition, unquote(message), loc=loc)


_MAKERS: Mapping[str, Callable[[_KernelBuilder, InstructionNode, Location], Instruction]] = {
    kind: getattr(_KernelBuilder, f"make_{kind}")
    for kind in (
        "apply", "check", "constant", "convert", "load", "position", "reduce", "store",
    )
}  # fmt: skip


def _find(known: Mapping[str, _T], name: Token, what: str) -> _T:
    found = known.get(name)
    if found is None:
        near = (key[1:] for key in known if not key[1:].isdigit())
        raise unknown("unknown-value", what, name, near, "%")
    return found


def _dtype(name: Token) -> DType:
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise unknown("unknown-type", "element type", name, _DTYPES)
    return dtype


def _number(item: Any, at: Token) -> Number:
    if isinstance(item, bool | int | float | complex | sympy.Expr):
        return item
    raise Mistake("bad-operand", f"'{at}' takes a number, got {item}", at)
