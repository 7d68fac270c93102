"""From a graph of one device and a few annotations to a program over a mesh, in one call."""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.core import Graph
from lynx.ir.verifier import verify
from lynx.passes.base import PassContext, Remark
from lynx.passes.canonicalize import Canonicalize
from lynx.passes.cse import MergeCommonSubexpressions
from lynx.passes.dce import RemoveDeadCode
from lynx.passes.pipeline import Pipeline

from .annotations import Annotations
from .expand import expand_blocked
from .partition import Partitioned, partition
from .propagate import Layouts, propagate
from .report import summary
from .sums import group_sums

CLEAN = Pipeline((Canonicalize(), MergeCommonSubexpressions(), RemoveDeadCode()))
"""What a graph goes through before it is laid out, and after ops were expanded."""
_MOST_EXPANSIONS = 8


@dataclass(frozen=True)
class Distributed:
    """A program over a mesh: the graph with collectives, and how it was found.

    `prepared` is the graph before collectives, of which `layouts` and `partitioned` speak.
    """

    graph: Graph
    layouts: Layouts
    output_levels: tuple[dict[str, int], ...]
    """The priorities of the axes of each output, as far as propagation set them."""
    prepared: Graph
    partitioned: Partitioned


def distribute(graph: Graph, annotations: Annotations, context: PassContext) -> Distributed:
    """Lay a graph out on a mesh and add collectives; the result is verified.

    `UsageError` for annotations that do not fit, `CompileError` where it is impossible.
    """
    annotations = annotations.normal(graph.inputs, graph.outputs)
    prepared: Graph = CLEAN.run(graph, context)
    layouts = propagate(prepared, annotations)
    for _ in range(_MOST_EXPANSIONS):
        expanded = expand_blocked(prepared, layouts, context)
        if expanded is prepared:
            break
        prepared = CLEAN.run(expanded, context)
        layouts = propagate(prepared, annotations)
    grouped = group_sums(prepared, layouts)
    if grouped is not prepared:
        prepared = RemoveDeadCode().run(grouped, context)
        layouts = propagate(prepared, annotations)
    partitioned = partition(prepared, layouts, annotations)
    placed = RemoveDeadCode().run(partitioned.graph, context)
    verify(placed)
    context.remarks.append(Remark("mesh", f"laid out on {annotations.mesh}: {summary(placed)}"))
    levels = tuple(
        {} if output is None else dict(layouts.priorities_of(output)) for output in prepared.outputs
    )
    return Distributed(placed, layouts, levels, prepared, partitioned)
