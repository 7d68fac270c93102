"""The driver that applies local rewrite rules to a graph, operands first, until they settle."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeAlias

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import may_equal
from lynx.ir.errors import InternalError
from lynx.ir.location import Location
from lynx.ir.types import OpaqueType, TensorType, Type, is_same_type

from .base import PassContext, Remark


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Why a rule leaves an op as it is."""

    reason: str


Rewritten: TypeAlias = Value | tuple[Value | None, ...] | NoMatch
"""What a rule returns; None stands for a result of type `opaque<none>`, which nothing can use."""


@dataclass(frozen=True)
class Rule:
    """A named rewrite of ops of certain classes, subclasses included."""

    name: str
    kinds: tuple[type[Op], ...]
    function: Callable[[Any], Rewritten]

    def __call__(self, op: Op) -> Rewritten:
        """Offer the rule one op."""
        return self.function(op)


def rule(function: Callable[[Any], Rewritten]) -> Rule:
    """Make a rule of a function; the annotation of its parameter tells the ops it is offered.

    The function returns what to use instead of the op's result (of its results, as a tuple), built
    of the op's operands, or `NoMatch` with the reason. It may build any ops; those without a
    location get that of the replaced op.
    """
    hints = typing.get_type_hints(function)
    annotation = next(hint for name, hint in hints.items() if name != "return")
    union = typing.get_origin(annotation) in (UnionType, typing.Union)
    kinds = typing.get_args(annotation) if union else (annotation,)
    return Rule(function.__name__, tuple(kinds), function)


def rewrite(
    graph: Graph,
    rules: Iterable[Rule],
    context: PassContext,
    select: Callable[[Op], bool] = lambda op: True,
) -> Graph:
    """Apply rules to every op, and to the ops that they build, until none applies.

    Only ops for which `select` is true are offered. Returns the graph itself if no rule applied.
    Ops that lose their last use stay; `dce` removes them. Raises `InternalError` when a rule
    changes the type of a value, or when the rules do not settle.
    """
    driver = _Driver(tuple(rules), context, select)
    for op in graph.ops:
        driver.place(op)
    return graph.with_ops(tuple(driver.ops), driver.mapping) if driver.changed else graph


_MOST_REWRITES = 1000
_NONE = OpaqueType("none")


class _Driver:
    """Rebuilds one graph: `ops` are final, `mapping` leads from replaced values to final ones."""

    def __init__(
        self, rules: Sequence[Rule], context: PassContext, select: Callable[[Op], bool]
    ) -> None:
        self.rules = rules
        self.context = context
        self.select = select
        self.by_kind: dict[type[Op], tuple[Rule, ...]] = {}
        self.ops: list[Op] = []
        self.placed: set[Op] = set()
        self.mapping: dict[Value, Value] = {}
        self.changed = False

    def place(self, root: Op) -> None:
        """Append an op of the graph, or what becomes of it, after everything that it needs."""
        # Each entry is an op, with the values that replace its results once these are placed.
        stack: list[tuple[Op, tuple[Value | None, ...] | None]] = [(root, None)]
        waiting = {root}
        history: list[str] = []
        while stack:
            op, replacement = stack[-1]
            needed = self._missing(op.operands if replacement is None else replacement)
            if needed is not None:
                if needed in waiting:
                    raise self._unsettled(root, history)
                stack.append((needed, None))
                waiting.add(needed)
                continue
            stack.pop()
            if replacement is not None:
                waiting.discard(op)
                self._map(op, tuple(map(self._final, replacement)))
                continue
            current = self._current(op, root.loc)
            outcome = self._apply(current, history)
            if outcome is not None:
                if len(history) > _MOST_REWRITES:
                    raise self._unsettled(root, history)
                self.changed = True
                stack.append((op, outcome))
                continue
            waiting.discard(op)
            self.ops.append(current)
            self.placed.add(current)
            self._map(op, current.results)

    def _missing(self, values: Sequence[Value | None]) -> Op | None:
        for value in values:
            if value is not None and value.op is not None and value.op not in self.placed:
                return value.op
        return None

    def _current(self, op: Op, loc: Location) -> Op:
        """Return the op over final operands, with a location."""
        op = op.replace_operands(self.mapping)
        if not op.loc.is_known and loc.is_known:
            op = dataclasses.replace(op, loc=loc)
        return op

    def _final(self, value: Value | None) -> Value | None:
        return None if value is None else self.mapping.get(value, value)

    def _map(self, op: Op, values: tuple[Value | None, ...]) -> None:
        self.placed.add(op)
        for old, new in zip(op.results, values, strict=True):
            if new is not None and old is not new:
                self.mapping[old] = new

    def _apply(self, op: Op, history: list[str]) -> tuple[Value | None, ...] | None:
        """Return what the first matching rule gives for the results, None if none matches."""
        kind = type(op)
        if kind not in self.by_kind:
            self.by_kind[kind] = tuple(r for r in self.rules if issubclass(kind, r.kinds))
        if not self.by_kind[kind] or not self.select(op):
            return None
        for candidate in self.by_kind[kind]:
            outcome = candidate(op)
            if isinstance(outcome, NoMatch):
                if self.context.reasons:
                    self.context.remarks.append(Remark(candidate.name, outcome.reason, op.loc))
                continue
            values = outcome if isinstance(outcome, tuple) else (outcome,)
            if not _keeps_types(candidate, op, values):
                continue
            history.append(candidate.name)
            return values
        return None

    def _unsettled(self, root: Op, history: list[str]) -> InternalError:
        last = ", ".join(dict.fromkeys(history[-20:]))
        return InternalError(
            "rules-do-not-settle", f"rules keep rewriting '{root.name}': {last}", root.loc
        )


def _keeps_types(candidate: Rule, op: Op, values: tuple[Value | None, ...]) -> bool:
    """Whether values have the types of the op's results; raise if they surely have others.

    Where only symbolic sizes cannot be seen to be equal, the rule does not apply.
    """
    wanted = [result.type for result in op.results]
    got = [_NONE if value is None else value.type for value in values]
    if len(got) == len(wanted):
        if all(map(is_same_type, wanted, got)):
            return True
        if all(map(_may_be_same_type, wanted, got)):
            return False
    message = (
        f"rule '{candidate.name}' turned '{op.name}' of type {_join(wanted)} into {_join(got)}"
    )
    raise InternalError("rule-changes-type", message, op.loc)


def _may_be_same_type(a: Type, b: Type) -> bool:
    """Whether the types are equal for some values of the symbols."""
    if not (isinstance(a, TensorType) and isinstance(b, TensorType)) or a.rank != b.rank:
        return is_same_type(a, b)
    return a == dataclasses.replace(b, shape=a.shape) and all(map(may_equal, a.shape, b.shape))


def _join(types: Sequence[Type]) -> str:
    return ", ".join(map(str, types))
