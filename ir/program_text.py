"""The text of programs: that of graphs, with a placement after each op and the contract below."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lark import Token, v_args

from .build import GraphBuilder
from .core import Graph, Value
from .dims import Dim, contiguous_strides, difference, format_dim, simplify
from .parser import Language
from .parser_values import (
    Attribute,
    GraphNode,
    Mistake,
    OpNode,
    Reader,
    at_text,
    to_integer,
    unknown,
)
from .printer import Printer, format_literal, print_with, quote
from .program import (
    WRITE_KINDS,
    Arena,
    ArenaSize,
    Dynamic,
    Fresh,
    InPlace,
    Placement,
    Program,
    Return,
    Saved,
    Step,
    Target,
    View,
    Write,
    equal_strides,
)
from .types import TensorType

_GRAMMAR = """
program: "program" AT "(" inputs ")" [symbols] [mesh] "{" step* returns border* "}"
step: op "->" [placement ("," placement)*] [frees]
placement: NAME [range | in_brackets] [attributes]
range: "[" expr [":" expr] "]"                            // bytes: [begin : end], or [size]
in_brackets: "(" references ")"
frees: "free" in_brackets
?border: "output" INT ":" handling ("," handling)* -> output_handling
       | "mutation" INT ":" NAME -> mutation_handling
       | "arena" device ":" INT -> arena_size
       | "saved" device ":" INT -> saved_size
handling: NAME [in_brackets]
"""

_KINDS: dict[str, type[Placement]] = {
    kind.word: kind for kind in (Arena, Saved, Fresh, InPlace, Target, View, Dynamic)
}


def print_program(program: Program, *, locations: bool = True) -> str:
    """Return the text of a program, with a newline at its end; `parse_program` reads it back."""
    printer = Printer(locations=locations)

    def suffix(index: int) -> str:
        return _step_suffix(printer, program.steps[index])

    lines = print_with(printer, program.graph, suffix).split("\n")
    head = lines[0].replace("graph", "program", 1)
    border = [f"  {line}" for line in _border(printer, program)]
    return "\n".join([head, *lines[1:-2], *border, "}", ""])


def _step_suffix(printer: Printer, step: Step) -> str:
    placements = ", ".join(
        _format_placement(printer, value, placement)
        for value, placement in zip(step.op.results, step.placements, strict=True)
    )
    text = f"  -> {placements}".rstrip()
    return f"{text}  free {_references(printer, step.frees)}" if step.frees else text


def _references(printer: Printer, values: Iterable[Value]) -> str:
    return f"({', '.join(map(printer.operand, values))})"


def _format_placement(printer: Printer, value: Value, placement: Placement) -> str:
    text = placement.word
    if isinstance(placement, Arena | Saved):
        size, offset = placement.size, placement.offset
        end = None if offset is None else simplify(offset + size)
        text += f"[{format_dim(size)}]" if end is None else f"[{offset} : {format_dim(end)}]"
    elif isinstance(placement, InPlace | Target):
        text += _references(printer, () if placement.of is None else (placement.of,))
    elif isinstance(placement, View) and placement.of:
        text += _references(printer, placement.of)
    strides = placement.strides
    if strides is None or (placement.is_written and equal_strides(strides, _usual(value))):
        return text
    return f"{text} {{strides = {format_literal(strides)}}}"


def _usual(value: Value) -> tuple[Dim, ...] | None:
    """Return the strides of what is written, unless the text tells others."""
    return contiguous_strides(value.shape) if isinstance(value.type, TensorType) else None


def _border(printer: Printer, program: Program) -> Iterable[str]:
    for index, place in enumerate(program.returns):
        words = [word for word in ("copy", "restride") if getattr(place, word)]
        if place.unshare:
            words.append(f"unshare{_references(printer, place.unshare)}")
        if words:
            yield f"output {index}: {', '.join(words)}"
    for index, write in enumerate(program.writes):
        if write.kind != "copy":
            yield f"mutation {index}: {write.kind}"
    for arena in program.arenas:
        kind = "saved" if arena.saved else "arena"
        yield f"{kind} {_device(arena.device)}: {arena.size}"


class PlacementNode(NamedTuple):
    """A placement as it is written; `range` holds one or two expressions."""

    word: Token
    range: tuple[Any, ...] | None
    references: tuple[Token, ...]
    attributes: tuple[Attribute, ...]


class StepNode(NamedTuple):
    """An op with its placements and the names that are free after it."""

    op: OpNode
    placements: tuple[PlacementNode, ...]
    frees: tuple[Token, ...]


class BorderNode(NamedTuple):
    """One line below `return`: what it is about, and what it says."""

    kind: str
    key: Token | str
    entries: tuple[Any, ...]


class ProgramNode(NamedTuple):
    """A whole program."""

    graph: GraphNode
    steps: tuple[StepNode, ...]
    border: tuple[BorderNode, ...]


@v_args(inline=True)
class ProgramReader(Reader):
    """Reads the rules that programs add to graphs."""

    def program(self, name: Token, inputs: Any, symbols: Any, mesh: Any, *rest: Any) -> ProgramNode:
        """Collect everything between the braces."""
        steps = tuple(item for item in rest if isinstance(item, StepNode))
        border = tuple(item for item in rest if isinstance(item, BorderNode))
        outputs, mutations = rest[len(steps)]
        ops = tuple(step.op for step in steps)
        graph = GraphNode(name, at_text(name), inputs, symbols or (), mesh, ops, outputs, mutations)
        return ProgramNode(graph, steps, border)

    def step(self, op: OpNode, *items: Any) -> StepNode:
        """Collect an op and what follows the arrow."""
        *placements, frees = items
        return StepNode(op, tuple(p for p in placements if p is not None), frees or ())

    def placement(self, word: Token, where: Any, attributes: Any) -> PlacementNode:
        """Tell a range of bytes from references to values."""
        is_range = isinstance(where, tuple) and not all(isinstance(i, Token) for i in where)
        if is_range:
            return PlacementNode(word, where[1:], (), attributes or ())
        return PlacementNode(word, None, where or (), attributes or ())

    def range(self, first: Any, second: Any) -> tuple[Any, ...]:
        """Mark a range by a leading None."""
        bounds = (first,) if second is None else (first, second)
        return (None, *map(self.dimension, bounds))

    def in_brackets(self, names: tuple[Token, ...]) -> tuple[Token, ...]:
        """Return the names."""
        return names

    def frees(self, names: tuple[Token, ...]) -> tuple[Token, ...]:
        """Return the names."""
        return names

    def handling(self, word: Token, names: Any) -> tuple[Token, tuple[Token, ...]]:
        """Return a word with the values that it is about."""
        return word, names or ()

    def output_handling(self, index: Token, *entries: Any) -> BorderNode:
        """Return how an output leaves."""
        return BorderNode("output", index, entries)

    def mutation_handling(self, index: Token, kind: Token) -> BorderNode:
        """Return how a mutation is done."""
        return BorderNode("mutation", index, (kind,))

    def arena_size(self, device: str, size: Token) -> BorderNode:
        """Return the size of an arena."""
        return BorderNode("arena", device, (to_integer(size),))

    def saved_size(self, device: str, size: Token) -> BorderNode:
        """Return the size of what is kept for backward."""
        return BorderNode("saved", device, (to_integer(size),))


@functools.cache
def _language() -> Language:
    return Language(("program",), _GRAMMAR, ProgramReader)


def parse_program(
    text: str,
    *,
    file: str = "<text>",
    resources: Mapping[str, Any] | None = None,
    locate: bool = False,
) -> Program:
    """Read a program; the arguments are those of `parse_module`."""

    def build(node: ProgramNode) -> Program:
        return _ProgramBuilder(file if locate else "").program(node, resources)

    return _language().read(text, "program", build, file)


class _ProgramBuilder(GraphBuilder):
    def program(self, node: ProgramNode, resources: Mapping[str, Any] | None) -> Program:
        graph = self.graph(node.graph, resources)
        steps = tuple(
            Step(
                op,
                self._placements(op.results, step),
                tuple(self.value(name) for name in step.frees),
            )
            for op, step in zip(graph.ops, node.steps, strict=True)
        )
        returns = {i: self._return(b) for b, i in _entries(node, "output", len(graph.outputs))}
        writes = {i: b.entries[0] for b, i in _entries(node, "mutation", len(graph.mutations))}
        return Program(
            graph,
            steps,
            tuple(returns.get(index, Return()) for index in range(len(graph.outputs))),
            tuple(_write(graph, index, writes.get(index)) for index in range(len(graph.mutations))),
            tuple(
                ArenaSize(str(b.key), b.kind == "saved", b.entries[0])
                for b in node.border
                if b.kind in ("arena", "saved")
            ),
        )

    def _placements(self, results: tuple[Value, ...], step: StepNode) -> tuple[Placement, ...]:
        if len(results) != len(step.placements):
            counts = f"{len(results)} results, got {len(step.placements)} placements"
            raise Mistake("placement-count", f"'{step.op.name}' has {counts}", step.op.name)
        return tuple(
            self._placement(value, node)
            for value, node in zip(results, step.placements, strict=True)
        )

    def _placement(self, value: Value, node: PlacementNode) -> Placement:
        kind = _KINDS.get(node.word)
        if kind is None:
            raise unknown("unknown-placement", "placement", node.word, _KINDS)
        strides = _strides(node)
        if strides is None and kind.is_written:
            strides = _usual(value)
        of = tuple(self.value(name) for name in node.references)
        if kind is Arena or kind is Saved:
            return _in_arena(kind is Saved, node, strides)
        if node.range is not None:
            raise Mistake("bad-placement", f"'{node.word}' takes no range of bytes", node.word)
        if kind is View:
            return View(strides, of)
        if kind is InPlace or kind is Target:
            if len(of) != 1:
                raise Mistake("bad-placement", f"'{node.word}' takes one value", node.word)
            return InPlace(strides, of[0]) if kind is InPlace else Target(strides, of[0])
        if of:
            raise Mistake("bad-placement", f"'{node.word}' takes no value", node.word)
        return kind(strides)

    def _return(self, node: BorderNode) -> Return:
        given: dict[str, Any] = {}
        for word, names in node.entries:
            if word not in ("copy", "restride", "unshare"):
                raise unknown("unknown-handling", "handling", word, ("copy", "restride", "unshare"))
            given[str(word)] = tuple(self.value(name) for name in names) or True
        return Return(**given)


def _entries(node: ProgramNode, kind: str, count: int) -> Iterable[tuple[BorderNode, int]]:
    """Yield the lines about outputs or mutations with their indices."""
    for entry in node.border:
        if entry.kind != kind:
            continue
        assert isinstance(entry.key, Token), entry
        index = to_integer(entry.key)
        if index >= count:
            raise Mistake("bad-index", f"there is no {kind} {index}", entry.key)
        yield entry, index


def _write(graph: Graph, index: int, kind: Token | None) -> Write:
    if kind is not None and kind not in WRITE_KINDS:
        raise unknown("unknown-handling", "handling", kind, WRITE_KINDS)
    return Write(graph.mutations[index], "copy" if kind is None else str(kind))


def _strides(node: PlacementNode) -> tuple[Dim, ...] | None:
    for name, value in node.attributes:
        if name != "strides" or not isinstance(value, tuple):
            raise unknown("unknown-attribute", "attribute of a placement", name, ("strides",))
        return value
    return None


def _in_arena(saved: bool, node: PlacementNode, strides: tuple[Dim, ...] | None) -> Placement:
    kind = Saved if saved else Arena
    if node.range is None:
        raise Mistake("bad-placement", f"expected {node.word}[bytes]", node.word)
    if len(node.range) == 1:
        return kind(strides, node.range[0])
    begin, end = node.range
    if not isinstance(begin, int):
        raise Mistake("bad-placement", "an offset is an integer", node.word)
    return kind(strides, difference(end, begin), begin)


def _device(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*(:\d+)?", name, re.ASCII) else quote(name)
