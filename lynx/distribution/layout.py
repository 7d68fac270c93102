"""What `lynx.explain` shows of a distributed model: how values lie and why, and what is sent."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lynx.ir.core import Value
from lynx.ir.errors import UsageError
from lynx.ir.sharding import Mesh, Sharding
from lynx.ir.types import TensorType
from lynx.passes.distribution.distribute import Distributed
from lynx.passes.distribution.explain import (
    Exchange,
    Words,
    described,
    exchanges,
    lies_because,
    place,
)
from lynx.passes.distribution.report import Because, Traffic, traffic_of, traffic_table, why

MOST_ROWS = 16
"""How many lines of one kind are printed of a graph."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=[.,;]|$)|(?<![\w.:])\d+(?=\.)")
"""A number in a name with dots: that of a layer."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one tensor that the user knows lies, and why: `up.weight`, `tp, _`, `as annotated`."""

    name: str
    type: str
    lies: str
    because: str


@dataclass
class GraphLayout:
    """How the values of one graph lie. It keeps the graph, so it is made only if somebody asks.

    `kind` is forward, backward or inference. `inputs` and `outputs` have a name for each input and
    output of the graph, empty for those that users never see; `saved` are the names under which
    forward keeps values for backward, and backward gets them.
    """

    kind: str
    found: Distributed
    inputs: Sequence[str]
    outputs: Sequence[str]
    saved: Mapping[str, Value]
    words: Words = field(default_factory=Words)
    before: GraphLayout | None = None
    """The forward graph, of a backward graph."""

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self.found.layouts.mesh

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What is sent when the graph runs once, by kind of collective and mesh axes."""
        return traffic_of(self.found.graph)

    @property
    def exchanges(self) -> list[Exchange]:
        """All collectives in order, each with its reason and its place in the model."""
        return list(exchanges(self.found, self.words))

    @property
    def rows(self) -> list[Row]:
        """How inputs, parameters and outputs lie."""
        return [*self._input_rows(), *self._output_rows()]

    def _input_rows(self) -> Iterator[Row]:
        graph = self.found.graph
        for name, before, after in zip(
            self.inputs, self.found.prepared.inputs, graph.inputs, strict=True
        ):
            if name and self.kind != "backward":
                yield self._row(name, before, after)

    def _output_rows(self) -> Iterator[Row]:
        prepared, graph = self.found.prepared, self.found.graph
        for name, before, after in zip(self.outputs, prepared.outputs, graph.outputs, strict=True):
            if name and before is not None and after is not None:
                row = self._row(name, before, after)
                is_gradient = name.startswith("gradient of ") and row.because
                yield replace(row, because="as what it belongs to") if is_gradient else row

    def _row(self, name: str, before: Value, after: Value) -> Row:
        type_ = after.type
        if not isinstance(type_, TensorType):
            return Row(name, str(type_), "", "")
        sharding = type_.sharding
        plain = str(before.type)
        if sharding is None or sharding.is_replicated:
            return Row(name, plain, "whole", "")
        return Row(name, plain, sharding.spec, self._because(before, sharding))

    def _because(self, value: Value, sharding: Sharding) -> str:
        return lies_because(self.found, value, sharding, self.words)

    def values(self, name: str) -> list[Value]:
        """Return the values of a name, or of a place such as `model.py:12`."""
        prepared = self.found.prepared
        pairs = itertools.chain(
            zip(self.inputs, prepared.inputs, strict=True),
            zip(self.outputs, prepared.outputs, strict=True),
        )
        found = [value for known, value in pairs if known == name and value is not None]
        if found:
            return found[:1]
        made = [result for op in prepared.ops for result in op.results]
        return [
            value
            for value in made
            if value.op is not None
            and (described(value.op) == name or place(value.op.loc).endswith(f" {name}"))
        ]

    def why(self, value: Value, axis: str) -> Iterator[Because]:
        """Yield why an axis cuts a value, neighbour by neighbour, from backward into forward."""
        last: Because | None = None
        for last in why(self.found.layouts, value, axis):
            yield last
        if last is None or self.before is None or last.value.op is not None:
            return
        kept = self.before.saved.get(last.value.name)
        if kept is not None:
            yield from self.before.why(kept, axis)

    def __str__(self) -> str:
        lines = [f"{self.kind}:"]
        rows = _merged([(row.name, row.type, row.lies, row.because) for row in self.rows])
        lines += [f"  {line}" for line in _cut(_table(rows))]
        lines += [f"  {line}" for line in traffic_table(self.found.graph).splitlines()]
        lines += [f"    {line}" for line in _cut(_counted(map(str, self.exchanges)))]
        return "\n".join(lines)


@dataclass
class DistributionReport:
    """How a distributed model lies on its mesh, why, and what it sends; `str` gives it as text.

    `graphs` has a `GraphLayout` for each graph that was laid out: none where nothing is
    distributed, or where all is gathered.
    """

    graphs: list[GraphLayout] = field(default_factory=list)

    def why(self, value: str | Value, axis: str) -> list[str]:
        """Return why a mesh axis cuts a value: a line for each neighbour, back to an annotation.

        `value` is the name of a parameter (`up.weight`), an input (`inputs.x`), an output
        (`output 0`, `gradient of up.weight`), an op or its place (`matmul at model.py:12`,
        `model.py:12`), or a value of a graph that was laid out. Empty if the axis does not cut it.
        `UsageError` for an axis that the mesh does not have, and a name that nothing has.
        """
        known = False
        for graph in self.graphs:
            if axis not in graph.mesh.names:
                choices = ", ".join(graph.mesh.names)
                message = f"the mesh has no axis '{axis}', it has {choices}"
                raise UsageError("unknown-axis", message)
            for one in [value] if isinstance(value, Value) else graph.values(value):
                known = True
                lines = [_step(step, graph.words) for step in graph.why(one, axis)]
                if lines:
                    return lines
        if not known and not isinstance(value, Value):
            raise UsageError("unknown-value", f"nothing is called '{value}'; {self._choices()}")
        return []

    def _choices(self) -> str:
        names = [row.name for graph in self.graphs for row in graph.rows]
        more = f" and {len(names) - MOST_ROWS} more" if len(names) > MOST_ROWS else ""
        return f"there are {', '.join(names[:MOST_ROWS]) or 'no distributed graphs'}{more}"

    def __str__(self) -> str:
        if not self.graphs:
            return ""
        texts = [f"laid out on {self.graphs[0].mesh}", *map(str, self.graphs)]
        return "\n".join(texts)


def _step(step: Because, words: Words) -> str:
    text = f"{words.name(step.value)} {step.value.type} is cut by '{step.axis}'"
    if step.op is None:
        return f"{text}: annotated"
    return f"{text}: as its neighbour in {described(step.op)}"


def _merged(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return rows with those in one that differ in numbers of their names alone: `layers.*.up`."""
    groups: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for row in rows:
        groups.setdefault(tuple(_NUMBER.sub("*", cell) for cell in row), []).append(row)
    return [
        same[0] if len(same) == 1 else (f"{pattern[0]} ({len(same)})", *same[0][1:-1], pattern[-1])
        for pattern, same in groups.items()
    ]


def _counted(lines: Iterator[str]) -> list[str]:
    """Return lines in order of first use, equal ones once, with how often they are there."""
    counts: dict[str, int] = {}
    for line in lines:
        counts[line] = counts.get(line, 0) + 1
    return [line if count == 1 else f"{count} x {line}" for line, count in counts.items()]


def _cut(lines: Sequence[str]) -> list[str]:
    if len(lines) <= MOST_ROWS:
        return list(lines)
    return [*lines[:MOST_ROWS], f"... and {len(lines) - MOST_ROWS} more"]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
