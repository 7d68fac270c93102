"""Print graphs as text that the parser reads back without loss."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy

from .core import Foreign, Graph, InputSpec, Op, OutputSpec, Value
from .dims import SymbolRange, format_dim
from .location import Location
from .ops.aten import Aten
from .ops.fusion import Fused, Region
from .types import DType

MAX_COLUMNS = 100
"""A header or a `return` that is longer gets one line an entry."""

WORDS: Mapping[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "inf": math.inf,
    "nan": math.nan,
    **{dtype.value: dtype for dtype in DType},
}
"""Names that stand for a literal in the place of a value; all others are symbols."""

_AT_NAME = re.compile(r"[A-Za-z_][\w.:\-]*")
_UNSAFE = re.compile(r"[^\w.]", re.ASCII)
_INVISIBLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def quote(text: str) -> str:
    """Return the text in double quotes, with JSON's escapes for what cannot be seen."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def at_name(name: str) -> str:
    """Return a global name such as `@forward`, quoted where it is no plain name."""
    return f"@{name}" if _AT_NAME.fullmatch(name) and name.isascii() else f"@{quote(name)}"


def format_literal(item: Any) -> str:
    """Return the text of anything that may be an attribute or an operand, except a value.

    Equal texts mean the same literal: `1`, `1.0` and `true` differ, and so do `0.0` and `-0.0`.
    """
    if item is None:
        return "none"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int | DType):
        return str(item)
    if isinstance(item, float):
        return repr(item)
    if isinstance(item, str):
        return quote(item)
    if isinstance(item, tuple | list):
        return f"[{', '.join(map(format_literal, item))}]"
    return _format_rare(item)


def _format_rare(item: Any) -> str:
    if isinstance(item, sympy.Expr):
        text = format_dim(item)
        return f"({text})" if text in WORDS else text
    if isinstance(item, complex):
        return f"complex({item.real!r}, {item.imag!r})"
    if isinstance(item, Foreign):
        return f"#{item.kind}({quote(item.text)})"
    return f"#unprintable({quote(repr(item))})"


def format_location(loc: Location) -> str:
    """Return `loc("model.py":12 "blocks.3")`, or less where less is known."""
    if not (loc.file or loc.line):
        return f"loc({quote(loc.module)})"
    module = f" {quote(loc.module)}" if loc.module else ""
    return f"loc({quote(loc.file)}:{loc.line}{module})"


_DEFAULTS: dict[type[Op], tuple[tuple[str, str | None], ...]] = {}
_HIDDEN: Mapping[type[Op], tuple[str, ...]] = {Aten: ("target", "types")}


def default_texts(kind: type[Op]) -> tuple[tuple[str, str | None], ...]:
    """Return the attributes of an op class with the text of their defaults, None if required."""
    found = _DEFAULTS.get(kind)
    if found is None:
        hidden = _HIDDEN.get(kind, ())
        defaults = {f.name: f.default for f in dataclasses.fields(kind)}
        found = _DEFAULTS[kind] = tuple(
            (name, None if default is dataclasses.MISSING else format_literal(default))
            for name, default in defaults.items()
            if name in kind.attribute_fields and name not in hidden
        )
    return found


class Printer:
    """Gives names to values and prints ops, for everything that has lines of ops.

    Inputs keep their names (made unique), results are numbered as they are printed. A value that
    was not defined prints as `%undefined0`, which the parser refuses.
    """

    def __init__(self, *, locations: bool = True) -> None:
        self.locations = locations
        self.names: dict[Value, str] = {}
        self._taken: dict[str, int] = {}
        self._results = 0
        self._undefined = 0

    def define_input(self, value: Value, unnamed: str = "arg") -> str:
        """Name an input and return its reference; `unnamed` is for one without a name."""
        self.names[value] = self.unique(value.name, unnamed)
        return self.names[value]

    def unique(self, wanted: str, unnamed: str) -> str:
        """Return a reference that is in use for nothing else, as close to a name as can be."""
        name = _UNSAFE.sub("_", wanted) or unnamed
        name = f"_{name}" if not (name[0].isalpha() or name[0] == "_") else name
        unique = name
        while unique in self._taken:
            self._taken[name] += 1
            unique = f"{name}_{self._taken[name]}"
        self._taken[unique] = 0
        return f"%{unique}"

    def define(self, op: Op) -> None:
        """Give numbers to the results of an op; those that have a name keep it."""
        for result in op.results:
            if result not in self.names:
                self.names[result] = f"%{self._results}"
                self._results += 1

    def operand(self, item: Any) -> str:
        """Return the text of an operand: a value, a literal, or a tuple of them."""
        if isinstance(item, Value):
            name = self.names.get(item)
            if name is None:
                name = self.names[item] = f"%undefined{self._undefined}"
                self._undefined += 1
            return name
        if isinstance(item, tuple):
            return f"[{', '.join(map(self.operand, item))}]"
        return format_literal(item)

    def op(self, op: Op) -> str:
        """Define the results of an op and return its line or, with a region, its lines."""
        line = self.call(op)
        self.define(op)
        if op.results:
            results = ", ".join([self.names[result] for result in op.results])
            types = ", ".join([str(result.type) for result in op.results])
            line = f"{results} = {line} : {types}"
        if self.locations and op.loc != _NOWHERE:
            line = f"{line}  {format_location(op.loc)}"
        return line

    def call(self, op: Op) -> str:
        """Return what an op does, without its results and types: `add %x, %y {axis = 1}`."""
        if isinstance(op, Fused):
            return self._fused_call(op)
        call = self._aten_call(op) if isinstance(op, Aten) else self._plain_call(op)
        attributes = self._attributes(op)
        call = f"{call} {{{attributes}}}" if attributes else call
        for name, region in op.regions.items():
            call = f"{call} with {name}{self._region(region)}"
        return call

    def _plain_call(self, op: Op) -> str:
        operands = ", ".join([self.operand(getattr(op, name)) for name in op.operand_fields])
        return f"{op.name} {operands}" if operands else op.name

    def _aten_call(self, op: Aten) -> str:
        arguments = [self.operand(argument) for argument in op.arguments]
        arguments += [f"{name} = {self.operand(item)}" for name, item in op.keywords]
        return f"aten {at_name(op.target)}({', '.join(arguments)})"

    def _fused_call(self, op: Fused) -> str:
        inner = Printer(locations=self.locations)
        names = self.parameters(inner, op.body)
        given = map(self.operand, op.inputs)
        bindings = ", ".join(f"{n} = {v}" for n, v in zip(names, given, strict=True))
        return f"fused({bindings}){self._body(inner, op.body)}"

    def _region(self, region: Region) -> str:
        """Return the text of a region: its parameters with types, its ops, what it yields."""
        inner = Printer(locations=self.locations)
        names = self.parameters(inner, region)
        typed = zip(names, region.parameters, strict=True)
        parameters = ", ".join(f"{name}: {value.type}" for name, value in typed)
        return f"({parameters}){self._body(inner, region)}"

    @staticmethod
    def _body(inner: Printer, region: Region) -> str:
        lines = [" {", *(f"  {indented(inner.op(item))}" for item in region.ops)]
        results = ", ".join(map(inner.operand, region.results))
        return "\n".join([*lines, f"  yield {results}".rstrip(), "}"])

    @staticmethod
    def parameters(inner: Printer, region: Region) -> list[str]:
        """Name the parameters of a region, whose names are a printer's of its own."""
        return [inner.define_input(v, f"p{i}") for i, v in enumerate(region.parameters)]

    def _attributes(self, op: Op) -> str:
        parts: list[str] = []
        for name, default in default_texts(type(op)):
            text = format_literal(getattr(op, name))
            if text != default:
                parts.append(f"{name} = {text}")
        return ", ".join(parts)


_NOWHERE = Location()


def indented(text: str) -> str:
    """Return a text of perhaps several lines, with all but the first further to the right."""
    return text.replace("\n", "\n  ")


def format_op(op: Op) -> str:
    """Return the line of one op outside a graph, for messages; inputs are named, not defined.

    Of a region it gives the number of ops.
    """
    printer = _ShortPrinter(locations=False)
    for operand in op.operands:
        if operand not in printer.names:
            if operand.op is None:
                printer.define_input(operand)
            else:
                printer.define(operand.op)
    return printer.op(op)


class _ShortPrinter(Printer):
    """Prints every op on one line."""

    def _fused_call(self, op: Fused) -> str:
        return f"fused({', '.join(map(self.operand, op.inputs))}) {{ {_count(op.body)} }}"

    def _region(self, region: Region) -> str:
        return f" {{ {_count(region)} }}"


def _count(region: Region) -> str:
    return "1 op" if len(region.ops) == 1 else f"{len(region.ops)} ops"


def region_text(region: Region) -> str:
    """Return the text of a region alone, without locations: regions that do the same share one."""
    return Printer(locations=False)._region(region)


def print_graph(graph: Graph, *, locations: bool = True) -> str:
    """Return the text of a graph, with a newline at its end; `parse_graph` reads it back."""
    return print_with(Printer(locations=locations), graph)


def print_with(
    printer: Printer, graph: Graph, suffix: Callable[[int], str] = lambda index: ""
) -> str:
    """Return the text of a graph, under the names that a printer has given or gives now.

    `suffix` gives what to write behind the op of an index.
    """
    lines = [_header(printer, graph)]
    lines += [f"  {indented(printer.op(op))}{suffix(i)}" for i, op in enumerate(graph.ops)]
    lines += [f"  {_return(printer, graph)}", "}", ""]
    return "\n".join(lines)


def print_module(graphs: Iterable[Graph], *, locations: bool = True) -> str:
    """Return the text of several graphs, with an empty line between them."""
    return "\n".join(print_graph(graph, locations=locations) for graph in graphs)


def _header(printer: Printer, graph: Graph) -> str:
    inputs = []
    for value, spec in zip(graph.inputs, graph.input_specs, strict=True):
        name = printer.names.get(value) or printer.define_input(value)
        inputs.append(f"{name}: {value.type}{_input_spec(spec)}")
    end = ")"
    if graph.symbols:
        end += f" symbols ({', '.join(map(format_range, graph.symbols))})"
    if graph.mesh is not None:
        end += f" {graph.mesh}"
    start = f"graph {at_name(graph.name)}("
    line = f"{start}{', '.join(inputs)}{end} {{"
    if len(line) <= MAX_COLUMNS or not inputs:
        return line
    separator = ",\n    "
    return f"{start}\n    {separator.join(inputs)}\n{end} {{"


def _return(printer: Printer, graph: Graph) -> str:
    outputs = [
        f"{printer.operand(value)}{_output_spec(spec)}"
        for value, spec in zip(graph.outputs, graph.output_specs, strict=True)
    ]
    mutations = [
        f"{printer.operand(m.target)}: {printer.operand(m.value)}" for m in graph.mutations
    ]
    end = f" mutates ({', '.join(mutations)})" if mutations else ""
    line = f"return {', '.join(outputs)}".rstrip() + end
    if len(line) <= MAX_COLUMNS - 2:
        return line
    separator = ",\n      "
    end = f"\n    mutates (\n      {separator.join(mutations)})" if mutations else ""
    return f"return\n      {separator.join(outputs)}".rstrip() + end


def _input_spec(spec: InputSpec) -> str:
    parts = [f"strides = {format_literal(spec.strides)}"] if spec.strides is not None else []
    parts += [f"offset = {text}"] if (text := format_literal(spec.offset)) != "0" else []
    parts += ["static"] if spec.is_static else []
    return f" {{{', '.join(parts)}}}" if parts else ""


def _output_spec(spec: OutputSpec) -> str:
    parts = [f"strides = {format_literal(spec.strides)}"] if spec.strides is not None else []
    parts += [] if spec.fresh else ["alias"]
    parts += ["saved"] if spec.saved else []
    parts += [f"group = {spec.group}"] if spec.group != -1 else []
    parts += [f'sharding = "{spec.sharding.spec}"'] if spec.sharding is not None else []
    return f" {{{', '.join(parts)}}}" if parts else ""


def format_range(entry: SymbolRange) -> str:
    """Return `s0 in [2, inf]`, or the name alone where nothing is known."""
    if entry.lower is None and entry.upper is None:
        return entry.name
    lower = "-inf" if entry.lower is None else str(entry.lower)
    upper = "inf" if entry.upper is None else str(entry.upper)
    return f"{entry.name} in [{lower}, {upper}]"
