"""Compare graphs by structure, whatever their values are called."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterator
from typing import Any

from .core import Graph, Op, Value
from .ops.fusion import Region
from .printer import Printer, format_literal, format_range, print_with
from .types import is_same_type


def equal(a: Graph, b: Graph) -> bool:
    """Whether the graphs are the same but for the identity and the names of values."""
    return next(_differences(a, b), None) is None


def differences(a: Graph, b: Graph) -> list[str]:
    """Return what differs, one line a difference, in the order of the text; empty if nothing.

    Values correspond by position. After an op of another kind or a missing one nothing
    corresponds any more, and the rest is not compared. Locations count; of resources the names.
    """
    return list(_differences(a, b))


def _differences(a: Graph, b: Graph) -> Iterator[str]:
    left, right = _Side(a.inputs), _Side(b.inputs)
    yield from _compare("name", a.name, b.name)
    yield from _compare("mesh", a.mesh, b.mesh)
    yield from _compare("symbols", _symbols(a), _symbols(b))
    yield from _compare_inputs(a, b)
    aligned = yield from _compare_bodies("", left, a.ops, right, b.ops)
    if aligned:
        yield from _compare_ends(left, right, a, b)
    if a.resources and b.resources:
        yield from _compare("resources", sorted(a.resources), sorted(b.resources))


def _compare_bodies(
    where: str, left: _Side, a: tuple[Op, ...], right: _Side, b: tuple[Op, ...]
) -> Generator[str, None, bool]:
    """Yield what differs between two lists of ops; return whether values still correspond."""
    for index, (op, other) in enumerate(zip(a, b, strict=False)):
        left.define(op, index)
        right.define(other, index)
        if op.name != other.name or len(op.results) != len(other.results):
            lines = f"{left.line(op)} / {right.line(other)}"
            yield f"{where}op {index}: {lines}, the rest is not compared"
            return False
        yield from _compare_ops(f"{where}op {index} '{op.name}'", left, op, right, other)
    if len(a) == len(b):
        return True
    longer, side = (a, left) if len(a) > len(b) else (b, right)
    first = longer[min(len(a), len(b))]
    which = "first" if longer is a else "second"
    yield f"{where}ops: {len(a)} / {len(b)}, only the {which} has {side.line(first)}"
    return False


class _Side:
    """One of the graphs or regions, with numbers that corresponding values share."""

    def __init__(self, inputs: tuple[Value, ...]) -> None:
        self.numbers: dict[Value, str] = {}
        for index, value in enumerate(inputs):
            self.numbers[value] = f"%input{index}"

    def define(self, op: Op, index: int) -> None:
        """Give numbers to the results of an op."""
        for number, result in enumerate(op.results):
            self.numbers[result] = f"%{index}" if len(op.results) == 1 else f"%{index}.{number}"

    def text(self, item: Any) -> str:
        """Return the text of an operand field; equal texts mean corresponding items."""
        if isinstance(item, Value):
            return self.numbers.get(item, "%undefined")
        if isinstance(item, tuple):
            return f"[{', '.join(map(self.text, item))}]"
        return format_literal(item)

    def line(self, op: Op) -> str:
        """Return the op in words, for a message."""
        operands = ", ".join(self.text(getattr(op, name)) for name in op.operand_fields)
        return f"'{op.name} {operands}'"


def _compare(what: str, a: object, b: object) -> Iterator[str]:
    if a != b:
        yield f"{what}: {a} / {b}"


def _symbols(graph: Graph) -> str:
    return ", ".join(map(format_range, graph.symbols)) or "none"


def _compare_inputs(a: Graph, b: Graph) -> Iterator[str]:
    if len(a.inputs) != len(b.inputs):
        yield f"inputs: {len(a.inputs)} / {len(b.inputs)}"
    rows = zip(a.inputs, a.input_specs, b.inputs, b.input_specs, strict=False)
    for index, (value, spec, other, other_spec) in enumerate(rows):
        where = f"input {index}"
        if not is_same_type(value.type, other.type):
            yield f"{where}: type {value.type} / {other.type}"
        yield from _compare(f"{where}: strides", *_texts(spec.strides, other_spec.strides))
        yield from _compare(f"{where}: offset", *_texts(spec.offset, other_spec.offset))
        yield from _compare(f"{where}: static", spec.is_static, other_spec.is_static)


def _compare_ops(where: str, left: _Side, a: Op, right: _Side, b: Op) -> Iterator[str]:
    for name in a.operand_fields:
        yield from _compare(
            f"{where}: operand '{name}'", left.text(getattr(a, name)), right.text(getattr(b, name))
        )
    yield from _compare(f"{where}: regions", list(a.regions), list(b.regions))
    for name, region in a.regions.items():
        if name in b.regions:
            yield from _compare_regions(f"{where}: ", region, b.regions[name])
    for name in a.attribute_fields:
        texts = _texts(getattr(a, name), getattr(b, name))
        if texts[0] != texts[1] and name != "types":
            yield f"{where}: attribute '{name}': {texts[0]} / {texts[1]}"
    for value, other in zip(a.results, b.results, strict=True):
        if not is_same_type(value.type, other.type):
            yield f"{where}: type {value.type} / {other.type}"
    yield from _compare(f"{where}: location", a.loc, b.loc)


def _compare_regions(where: str, a: Region, b: Region) -> Iterator[str]:
    if a is b:
        return
    left, right = _Side(a.parameters), _Side(b.parameters)
    aligned = yield from _compare_bodies(where, left, a.ops, right, b.ops)
    if aligned:
        yield from _compare(f"{where}results", left.text(a.results), right.text(b.results))


def _compare_ends(left: _Side, right: _Side, a: Graph, b: Graph) -> Iterator[str]:
    if len(a.outputs) != len(b.outputs):
        yield f"outputs: {len(a.outputs)} / {len(b.outputs)}"
    rows = zip(a.outputs, a.output_specs, b.outputs, b.output_specs, strict=False)
    for index, (value, spec, other, other_spec) in enumerate(rows):
        where = f"output {index}"
        yield from _compare(where, left.text(value), right.text(other))
        yield from _compare(f"{where}: strides", *_texts(spec.strides, other_spec.strides))
        yield from _compare(f"{where}: fresh", spec.fresh, other_spec.fresh)
        yield from _compare(f"{where}: saved", spec.saved, other_spec.saved)
        yield from _compare(f"{where}: group", spec.group, other_spec.group)
        yield from _compare(f"{where}: sharding", spec.sharding, other_spec.sharding)
    mutations = [
        ", ".join(f"{side.text(m.target)}: {side.text(m.value)}" for m in graph.mutations)
        for side, graph in ((left, a), (right, b))
    ]
    yield from _compare("mutations", mutations[0] or "none", mutations[1] or "none")


def _texts(a: Any, b: Any) -> tuple[str, str]:
    return format_literal(a), format_literal(b)


def unified(a: Graph, b: Graph, *, context: int = 3) -> str:
    """Return a text diff of two graphs, empty if there is no difference.

    Values that both graphs share have one name in it, and so have the results of ops that do the
    same with such values; unchanged lines stay unchanged.
    """
    printer = _AligningPrinter(locations=False)
    before = print_with(printer, a)
    printer.start_second(a, b)
    after = print_with(printer, b)
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=context
    )
    return "\n".join(lines)


class _AligningPrinter(Printer):
    """Gives a result in the second graph the name of a matching one in the first."""

    def __init__(self, *, locations: bool = True) -> None:
        super().__init__(locations=locations)
        self._first: dict[str, list[tuple[str, ...]]] = {}
        self._is_second = False

    def start_second(self, a: Graph, b: Graph) -> None:
        self._is_second = True
        for value, other in zip(a.inputs, b.inputs, strict=False):
            if value.name == other.name:
                self.names.setdefault(other, self.names[value])
        for matches in self._first.values():
            matches.reverse()

    def op(self, op: Op) -> str:
        call = self.call(op)
        matches = self._first.setdefault(call, [])
        if self._is_second and matches:
            for result, name in zip(op.results, matches.pop(), strict=False):
                self.names.setdefault(result, name)
        line = super().op(op)
        if not self._is_second:
            matches.append(tuple(self.names[result] for result in op.results))
        return line
