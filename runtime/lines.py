"""The lines of a generated program, its names, and what they refer to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy

from lynx.ir.core import Op, Value
from lynx.ir.dims import free_symbols
from lynx.ir.errors import CompileError
from lynx.ir.ops.aten import Resource
from lynx.ir.program import Program
from lynx.ir.types import ScalarType, TensorType, symbols_told
from lynx.passes.plan_memory import groups_of

from .arena_source import ArenaSource
from .expressions import Constants, Expressions, Names

_WORD = re.compile(r"[^\W\d]\w*")


class Lines:
    """A generated program under construction.

    `locals` names the local variable of each value, `known` holds the symbols that have a value by
    now, `owner` the arena that holds the tensor of a value.
    """

    def __init__(self, program: Program, resources: Mapping[str, Any]) -> None:
        self.program = program
        self.names = Names(_all_symbols(program))
        self.constants = Constants(self.names, resources)
        self.locals: dict[Value, str] = {}
        self.expressions = Expressions(self.constants, self.locals)
        self.known: set[str] = set()
        self.lines: list[str] = []
        self.arenas = [ArenaSource.named(group, self.names) for group in groups_of(program)]
        self.owner: dict[Value, ArenaSource] = {}
        self.last_place = ""
        self.entry = self.names.unique(f"run_{program.name}")
        self._name_values()

    def _name_values(self) -> None:
        for value in self.program.graph.inputs:
            self.locals[value] = self.names.unique(value.name or "input")
        count = 0
        for op in self.program.ops:
            for result in op.results:
                self.locals[result] = self.names.unique(f"v{count}")
                count += 1

    def bind_inputs(self) -> None:
        """Unpack the arguments, and the symbols that they tell."""
        inputs = self.program.graph.inputs
        names = ", ".join(self.locals[value] for value in inputs)
        if inputs:
            self.lines.append(f"({names},) = args")
        self.lines.append("args.clear()")
        for value in inputs:
            self.bind(value)
        for value, spec in zip(inputs, self.program.graph.input_specs, strict=True):
            for index, stride in enumerate(spec.strides or ()):
                for name in _bare((stride,)):
                    self._bind_symbol(name, f"{self.locals[value]}.stride({index})")

    def bind(self, value: Value) -> None:
        """Give the symbols that a value tells their values."""
        if isinstance(value.type, ScalarType):
            for name in symbols_told(value.type):
                self._bind_symbol(name, self.locals[value])
        elif isinstance(value.type, TensorType):
            for index, dim in enumerate(value.type.shape):
                for name in _bare((dim,)):
                    self._bind_symbol(name, f"{self.locals[value]}.shape[{index}]")

    def _bind_symbol(self, name: str, source: str) -> None:
        if name not in self.known:
            self.known.add(name)
            self.lines.append(f"{name} = {source}")

    def require(self, symbols: Iterable[str], op: Op | None) -> None:
        """Raise `CompileError` if a symbol has no value yet."""
        missing = sorted(set(symbols) - self.known)
        if missing:
            message = f"no input or earlier result tells the value of {', '.join(missing)}"
            raise CompileError("unbound-symbol", message, *([op.loc] if op is not None else []))

    def add(self, op: Op, line: str) -> None:
        """Append a line that belongs to an op, below a comment with its place in the model."""
        place = str(op.loc) if op.loc.is_known else ""
        if place and place != self.last_place:
            self.lines.append(f"# {place}".replace("\n", " "))
            self.last_place = place
        self.lines.append(line)

    def use(self, value: Value) -> str:
        """Return the local variable of a value, and let the program take it from its arena."""
        name = self.locals[value]
        arena = self.owner.get(value)
        if arena is not None:
            arena.used[name] = None
        return name

    def make_ready(self, arena: ArenaSource, value: Value, source: str) -> None:
        """Let the arena hold the tensor of a value, so that no call has to make it."""
        arena.lines.append(f"{self.locals[value]} = {source}")
        self.owner[value] = arena

    def helper(self, function: Callable[..., Any]) -> str:
        """Return the name under which the program calls a function of the runtime."""
        return self.constants.name(function, function.__name__)

    def text(self, extra: Iterable[str]) -> str:
        """Return the source of the whole program; `extra` are more local variables to free."""
        functions = [line for arena in self.arenas for line in arena.functions()]
        start = self.lines.index("args.clear()") + 1
        while start < len(self.lines) and self.lines[start].split(" = ")[0] in self.known:
            start += 1
        frees = _frees(self.lines, {*self._freed(), *extra}, start - 1)
        head, rest = self.lines[:start], []
        for index, line in enumerate(self.lines[start:], start):
            rest += [*frees.get(index - 1, ()), line]
        for arena in reversed(self.arenas):
            rest = arena.around(rest)
        lines = [*functions, f"def {self.entry}(args):", *(f"    {line}" for line in head + rest)]
        return "\n".join([*lines, ""])

    def _freed(self) -> list[str]:
        """Return the local variables that hold memory which the program may free."""
        return [
            name
            for value, name in self.locals.items()
            if value not in self.owner
            and not isinstance(value.type, ScalarType)
            and not (value.op is not None and isinstance(value.op, Resource))
        ]


def _frees(lines: list[str], names: set[str], first: int) -> dict[int, list[str]]:
    """Return what to delete after which line: each local variable after the last that mentions it.

    Nothing is deleted before the line `first`, nor right before the end, which frees the rest.
    """
    last: dict[str, int] = {}
    for index, line in enumerate(lines):
        if not line.startswith("#"):
            last.update(dict.fromkeys(names.intersection(_WORD.findall(line)), max(index, first)))
    freed: dict[int, list[str]] = {}
    for name, index in last.items():
        if index < len(lines) - 2:
            freed.setdefault(index, []).append(name)
    return {index: [f"del {', '.join(sorted(found))}"] for index, found in freed.items()}


def _bare(dims: Iterable[Any]) -> list[str]:
    return [dim.name for dim in dims if isinstance(dim, sympy.Symbol)]


def _all_symbols(program: Program) -> list[str]:
    """Return every name that may appear in a dimension of the program."""
    names = {entry.name for entry in program.graph.symbols}
    for value in (*program.graph.inputs, *(r for op in program.ops for r in op.results)):
        if isinstance(value.type, TensorType):
            names.update(free_symbols(value.type.shape))
        else:
            names.update(symbols_told(value.type))
    return sorted(names)
