"""Walk over the Lynx graph between the products of attention and find what each value holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lynx.ir.core import Op, Value
from lynx.ir.errors import LynxError
from lynx.recognise.nodes import Refusal

from .facts import Empty, Fact, LogTotal, LogWeight, Raw, Row, Total, Weight
from .tracing import Trace

Rule = Callable[["Walk", Any], Fact]
_RULES: dict[type[Op], Rule] = {}


def fact_rule(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    """Register what op classes make of facts."""

    def register(rule: Rule) -> Rule:
        for kind in kinds:
            _RULES[kind] = rule
        return rule

    return register


class Walk:
    """What is known of the values of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.facts: dict[Value, Fact] = {trace.scores: Raw(trace.scores)}
        for op in trace.graph.ops:
            if any(operand in self.facts for operand in op.operands):
                fact = self._fact(op)
                self.facts.update(dict.fromkeys(op.results, fact))

    def of(self, item: Any) -> Fact | None:
        """Return what is known of an operand that depends on the scores."""
        return self.facts.get(item) if isinstance(item, Value) else None

    def _fact(self, op: Op) -> Fact:
        rule = _RULES.get(type(op))
        if rule is not None:
            return rule(self, op)
        facts = [self.facts[operand] for operand in op.operands if operand in self.facts]
        if op.is_elementwise and all(isinstance(f, Raw) and not f.is_shifted for f in facts):
            return self.rebuilt(op)
        raise refusal(op, facts)

    def rebuilt(self, op: Op) -> Raw:
        """Return what an op makes of scores, without what was subtracted from whole rows."""
        facts = {item: self.facts[item] for item in op.operands if item in self.facts}
        values: dict[Value, Value] = {}
        is_shifted = False
        for item, fact in facts.items():
            if not isinstance(fact, Raw) or fact.sink is not None:
                raise refusal(op, [fact])
            values[item] = fact.value
            is_shifted |= fact.is_shifted
        return Raw(apply(op, values), is_shifted=is_shifted)


def apply(op: Op, values: dict[Value, Value]) -> Value:
    """Return the result of an op over other operands."""
    try:
        return op.replace_operands(values).results[0]
    except LynxError as error:
        raise Refusal(f"'{op.name}' of scores is not understood: {error.message}") from error


def refusal(op: Op, facts: list[Any]) -> Refusal:
    """Return why an op is none that attention does."""
    words = {
        Raw: "scores", Row: "values of whole rows", Weight: "weights", Total: "sums of weights",
        LogTotal: "sums of weights", LogWeight: "logarithms of weights", Empty: "masks of scores",
    }  # fmt: skip
    what = words[type(facts[0])] if facts else "scores"
    return Refusal(f"'{op.name}' of {what} is not what attention does")
