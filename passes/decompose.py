"""Expands composite ops into primitive ones."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, ClassVar

from lynx.ir.core import Graph, Op
from lynx.ir.errors import UsageError

from .base import PassContext, Requirement, Violation, register_pass
from .decompose_activation import ACTIVATION_RULES
from .decompose_linear import LINEAR_RULES
from .decompose_normalization import NORMALIZATION_RULES
from .decompose_softmax import SOFTMAX_RULES
from .requirements import IS_GRAPH
from .rewrite import rewrite

RULES = (*ACTIVATION_RULES, *SOFTMAX_RULES, *NORMALIZATION_RULES, *LINEAR_RULES)

COMPOSITE: tuple[type[Op], ...] = tuple(kind for rule in RULES for kind in rule.kinds)
"""The op classes that have a decomposition."""


@register_pass
@dataclass(frozen=True)
class Decompose:
    """Expand the composite ops that the back end does not support.

    With `only`, those named instead; with `all`, every one. Expanded ops compute what eager
    computes, low precision in `f32`, but not in the same order, so last bits may differ.
    """

    name: ClassVar[str] = "decompose"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    only: tuple[str, ...] = ()
    all: bool = False

    def __post_init__(self) -> None:
        known = sorted(kind.name for kind in COMPOSITE)
        for name in self.only:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
                raise UsageError("bad-option", f"no composite op is called '{name}'{hint}")

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with the chosen ops expanded."""

        def is_chosen(op: Op) -> bool:
            if self.all or self.only:
                return self.all or op.name in self.only
            return not context.supports(type(op))

        return rewrite(module, RULES, context, is_chosen)


def _find_composite(module: Any) -> Violation | None:
    for op in module.ops:
        if isinstance(op, COMPOSITE):
            return Violation(f"found '{op.name}'", op.loc)
    return None


NO_COMPOSITE_OPS = Requirement("no composite ops", _find_composite)
