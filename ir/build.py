"""Build graphs from the syntax nodes of a text, checking names, fields and types."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import sympy
from lark import Token

import lynx.ir.ops  # noqa: F401 - registers every op

from .core import Graph, InputSpec, Mutation, Op, OutputSpec, Value
from .dims import Dim, SymbolRange, symbol
from .errors import CompileError, UsageError
from .fields import fields_of
from .location import UNKNOWN, Location
from .ops.aten import Aten
from .ops.fusion import Fused, Region
from .parser_values import (
    Attribute,
    GraphNode,
    InputNode,
    Mistake,
    OpNode,
    OutputNode,
    RegionNode,
    SymbolNode,
    at_text,
    unknown,
)
from .sharding import Mesh, Sharding, parse_sharding
from .types import DType, TensorType, Type, is_same_type

_WRONG_FIELDS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What the inference of an op may raise for fields that no caller but a text would give it."""


class GraphBuilder:
    """Defines values by name and builds ops and graphs that use them.

    `file`, where given, is the place of ops that are written without a location.
    """

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.values: dict[str, Value] = {}

    def graph(self, node: GraphNode, resources: Mapping[str, Any] | None = None) -> Graph:
        """Return the graph of a node; `Mistake` at the first one."""
        inputs = tuple([self.input(item, node.mesh) for item in node.inputs])
        input_specs = tuple([input_spec(item.attributes) for item in node.inputs])
        ops = tuple([self.op(item) for item in node.ops])
        return Graph(
            node.name,
            inputs,
            ops,
            tuple([self.output(item) for item in node.outputs]),
            input_specs,
            tuple([output_spec(item.attributes) for item in node.outputs]),
            tuple([Mutation(self.value(t), self.value(v)) for t, v in node.mutations]),
            tuple([symbol_range(item) for item in node.symbols]),
            dict(resources or {}),
            node.mesh,
        )

    def define(self, name: Token, value: Value) -> None:
        """Give a name to a value."""
        if name in self.values:
            raise Mistake("duplicate-value", f"{name} is defined twice", name)
        self.values[str(name)] = value

    def input(self, node: InputNode, mesh: Mesh | None = None) -> Value:
        """Define and return an input."""
        type_ = node.type.type
        if mesh is not None and isinstance(type_, TensorType) and type_.sharding is not None:
            sharding = dataclasses.replace(type_.sharding, mesh=mesh)
            type_ = dataclasses.replace(type_, sharding=sharding)
        value = Value(type_, name=node.name[1:])
        self.define(node.name, value)
        return value

    def output(self, node: OutputNode) -> Value | None:
        """Return an output."""
        value = self.resolve(node.value)
        if value is None or isinstance(value, Value):
            return value
        at = node.attributes[0].name if node.attributes else None
        raise Mistake("bad-output", f"an output is a value or none, got {node.value}", at)

    def value(self, name: Token) -> Value:
        """Return the value of a name."""
        value = self.values.get(name)
        if value is None:
            known = (key[1:] for key in self.values if not key[1:].isdigit())
            raise unknown("unknown-value", "value", name, known, "%")
        return value

    def resolve(self, item: Any) -> Any:
        """Replace the tokens in an operand by the values that they name."""
        if isinstance(item, Token):
            return self.value(item)
        if isinstance(item, tuple):
            return tuple([self.resolve(part) for part in item])
        return item

    def op(self, node: OpNode) -> Op:
        """Build an op, compare its types with those that are written, and define its results."""
        kind = Op.registry.get(node.name)
        if kind is None:
            raise unknown("unknown-op", "op", node.name, Op.registry)
        if (kind is Aten) != (node.target is not None):
            raise Mistake("syntax-error", "the form is aten @target(arguments)", node.name)
        if node.region is not None:
            given = self._fused(node.region)
        else:
            given = self._aten(node) if kind is Aten else self._operands(kind, node)
            given |= _attributes(kind, node)
            given |= self._regions(kind, node)
        if node.loc is not None:
            loc = node.loc
        else:
            loc = Location(self.file, node.name.line or 0) if self.file else UNKNOWN
        try:
            op = kind(**given, loc=loc)
        except CompileError as error:
            place = f" (from {node.loc})" if node.loc is not None else ""
            raise Mistake(error.code, error.message + place, node.name) from error
        except _WRONG_FIELDS as error:
            message = f"'{node.name}' cannot be built: {error or type(error).__name__}"
            raise Mistake("bad-op", message, node.name) from error
        _check_types(op, node)
        for name, value in zip(node.results, op.results, strict=True):
            self.define(name, value)
        return op

    def _fused(self, node: RegionNode) -> dict[str, Any]:
        inputs = tuple([self.value(given) for _, given in node.parameters])
        return {"inputs": inputs, "body": self._region(node, [value.type for value in inputs])}

    def _regions(self, kind: type[Op], node: OpNode) -> dict[str, Any]:
        given: dict[str, Any] = {}
        known = () if kind is Fused else kind.region_fields
        for region in node.regions:
            name = region.name
            assert name is not None
            if name not in known:
                raise unknown("unknown-attribute", f"region of '{kind.name}'", name, known)
            if name in given:
                raise Mistake("duplicate-attribute", f"region '{name}' is given twice", name)
            given[str(name)] = self._region(region, [type_.type for _, type_ in region.parameters])
        return given

    def _region(self, node: RegionNode, types: list[Type]) -> Region:
        """Build a region, in which only its own values have names."""
        inner = GraphBuilder(self.file)
        names = [name for name, _ in node.parameters]
        parameters = tuple(
            [Value(type_, name=name[1:]) for type_, name in zip(types, names, strict=True)]
        )
        for parameter, name in zip(parameters, names, strict=True):
            inner.define(name, parameter)
        for item in node.ops:
            if item.region is not None or item.regions:
                raise Mistake("bad-region", "a region holds another one", item.name)
        ops = tuple([inner.op(item) for item in node.ops])
        return Region(parameters, ops, tuple([inner.value(name) for name in node.results]))

    def _operands(self, kind: type[Op], node: OpNode) -> dict[str, Any]:
        names = kind.operand_fields
        fields = fields_of(kind)
        missing = names[len(node.operands) :]
        if len(node.operands) > len(names) or any(fields[name].is_required for name in missing):
            wanted = f"operands ({', '.join(names)})" if names else "no operands"
            message = f"'{kind.name}' takes {wanted}, got {len(node.operands)}"
            raise Mistake("operand-count", message, node.name)
        given: dict[str, Any] = {}
        for name, item in zip(names, node.operands, strict=False):
            try:
                given[name] = fields[name].fit(self.resolve(item))
            except ValueError:
                at = item if isinstance(item, Token) else node.name
                message = f"operand '{name}' of '{kind.name}' must be {fields[name].words}"
                raise Mistake("bad-operand", message, at) from None
        return given

    def _aten(self, node: OpNode) -> dict[str, Any]:
        assert node.target is not None
        arguments = [self.resolve(a.value) for a in node.operands if a.name is None]
        keywords = [(str(a.name), self.resolve(a.value)) for a in node.operands if a.name]
        return {
            "target": at_text(node.target),
            "arguments": tuple(arguments),
            "keywords": tuple(keywords),
            "types": tuple([item.type for item in node.types]),
        }


def _attributes(kind: type[Op], node: OpNode) -> dict[str, Any]:
    given: dict[str, Any] = {}
    known = fields_of(kind)
    for name, value in node.attributes:
        if name not in kind.attribute_fields:
            raise unknown(
                "unknown-attribute", f"attribute of '{kind.name}'", name, kind.attribute_fields
            )
        if name in given:
            raise Mistake("duplicate-attribute", f"attribute '{name}' is given twice", name)
        try:
            given[str(name)] = known[name].fit(value)
        except ValueError:
            message = f"attribute '{name}' of '{kind.name}' must be {known[name].words}"
            raise Mistake("bad-attribute", message, name) from None
    for attribute in kind.attribute_fields:
        implied = kind is Aten and attribute in ("target", "types")
        if known[attribute].is_required and attribute not in given and not implied:
            message = f"'{kind.name}' needs the attribute '{attribute}' ({known[attribute].words})"
            raise Mistake("missing-attribute", message, node.name)
    return given


def _check_types(op: Op, node: OpNode) -> None:
    wanted = ", ".join(str(value.type) for value in op.results)
    if len(node.results) != len(op.results):
        message = f"'{op.name}' has {len(op.results)} results, got names for {len(node.results)}"
        raise Mistake("result-count", message, node.name)
    if len(node.types) != len(op.results):
        if not node.types:
            message = f"'{op.name}' is written without its type, ': {wanted}'"
            raise Mistake("missing-type", message, node.name)
        message = f"'{op.name}' gives {wanted}, but the text names {len(node.types)} types"
        raise Mistake("type-mismatch", message, node.types[0].at)
    for value, written in zip(op.results, node.types, strict=True):
        if not is_same_type(value.type, written.type):
            message = f"'{op.name}' gives {value.type}, but the text says {written.type}"
            raise Mistake("type-mismatch", message, written.at)


def input_spec(attributes: tuple[Attribute, ...]) -> InputSpec:
    """Return the spec of `{strides = [8, 1], offset = 2, static}`."""
    given = _flags(attributes, ("strides", "offset", "static"))
    return InputSpec(given.get("strides"), given.get("offset", 0), given.get("static", False))


def output_spec(attributes: tuple[Attribute, ...]) -> OutputSpec:
    """Return the spec of `{strides = [8, 1], alias, saved, group = 1, sharding = "dp, _"}`."""
    given = _flags(attributes, ("strides", "alias", "saved", "group", "sharding"))
    fresh = not given.get("alias", False)
    saved = given.get("saved", False)
    sharding = given.get("sharding")
    return OutputSpec(given.get("strides"), fresh, saved, given.get("group", -1), sharding)


def _flags(attributes: tuple[Attribute, ...], known: tuple[str, ...]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in attributes:
        if name not in known:
            raise unknown("unknown-attribute", "attribute", name, known)
        if name in given:
            raise Mistake("duplicate-attribute", f"attribute '{name}' is given twice", name)
        given[str(name)] = _flag(name, value)
    return given


_WANTED = {
    "strides": (tuple, "a list of dimensions"),
    "group": (int, "an integer"),
    "sharding": (Sharding, 'a sharding in quotes, such as "dp, _"'),
}


def _flag(name: Token, value: Any) -> Any:
    if name == "strides" and isinstance(value, tuple):
        return tuple([_dim(name, part) for part in value])
    if name == "offset":
        return _dim(name, value)
    if name == "sharding" and isinstance(value, str):
        try:
            return parse_sharding(value)
        except UsageError as error:
            raise Mistake(error.code, error.message, name) from error
    if isinstance(value, bool) if name not in _WANTED else type(value) is _WANTED[name][0]:
        return value
    wanted = _WANTED[name][1] if name in _WANTED else "true or false"
    raise Mistake("bad-attribute", f"attribute '{name}' must be {wanted}", name)


def _dim(name: Token, item: Any) -> Dim:
    if isinstance(item, DType):
        return symbol(item.value)
    if isinstance(item, sympy.Expr) or (isinstance(item, int) and not isinstance(item, bool)):
        return item
    raise Mistake("bad-attribute", f"attribute '{name}' must hold dimensions", name)


def symbol_range(node: SymbolNode) -> SymbolRange:
    """Return the range of `s0 in [2, inf]`."""
    return SymbolRange(
        str(node.name),
        _bound(node.name, node.lower, -math.inf),
        _bound(node.name, node.upper, math.inf),
    )


def _bound(name: Token, value: Any, unbounded: float) -> int | None:
    if value is None or value == unbounded:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    message = f"a bound of '{name}' must be an integer or {unbounded}, got {value}"
    raise Mistake("bad-symbol-range", message, name)
