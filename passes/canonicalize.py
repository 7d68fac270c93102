"""Applies the local simplifications that are never a loss and never change a bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph

from .base import PassContext, Requirement, register_pass
from .canonicalize_elementwise import ELEMENTWISE_RULES
from .canonicalize_indexing import INDEXING_RULES
from .canonicalize_layout import LAYOUT_RULES
from .canonicalize_scatter import SCATTER_RULES
from .canonicalize_slicing import SLICING_RULES
from .requirements import IS_GRAPH
from .rewrite import rewrite

RULES = (*LAYOUT_RULES, *SLICING_RULES, *SCATTER_RULES, *INDEXING_RULES, *ELEMENTWISE_RULES)


@register_pass
@dataclass(frozen=True)
class Canonicalize:
    """Apply the local simplifications that are never a loss and never change a bit of a result.

    NaNs, infinities, signed zeros and wrap-around stay what they are in eager. Correctness of no
    other pass depends on this one having run.
    """

    name: ClassVar[str] = "canonicalize"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the simplified graph."""
        return rewrite(module, RULES, context)
