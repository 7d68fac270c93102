"""From a graph of one device and a few annotations to a program over a mesh, in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from lynx.ir.core import Graph
from lynx.ir.verifier import verify
from lynx.passes.base import PassContext, Remark
from lynx.passes.canonicalize import Canonicalize
from lynx.passes.cse import MergeCommonSubexpressions
from lynx.passes.dce import RemoveDeadCode
from lynx.passes.pipeline import Pipeline

from .annotations import Annotations
from .discover import with_found_rules
from .expand import expand_blocked
from .halo import SLIDING
from .partition import Partitioned, partition
from .propagate import Layouts, propagate
from .report import summary
from .sums import group_sums

CLEAN = Pipeline((Canonicalize(), MergeCommonSubexpressions(), RemoveDeadCode()))
"""What a graph goes through before it is laid out, and after ops were expanded."""
_MOST_EXPANSIONS = 8
_P = ParamSpec("_P")
_T = TypeVar("_T")


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
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each phase took, all its runs together."""


@dataclass
class _Clock:
    """Adds up the seconds of phases."""

    seconds: dict[str, float] = field(default_factory=dict)

    def time(
        self, phase: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a part of a phase."""
        start = time.perf_counter()
        result = function(*args, **kwargs)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
        return result


def distribute(graph: Graph, annotations: Annotations, context: PassContext) -> Distributed:
    """Lay a graph out on a mesh and add collectives; the result is verified.

    `UsageError` for annotations that do not fit, `CompileError` where it is impossible.
    """
    clock = _Clock()
    annotations = annotations.normal(graph.inputs, graph.outputs)
    prepared: Graph = clock.time("clean", CLEAN.run, graph, context)
    prepared = clock.time("discover", with_found_rules, prepared, context)
    layouts = clock.time("propagate", propagate, prepared, annotations)
    # What windows slide over is known to be cut only when what comes before runs in pieces.
    sliding = sum(isinstance(op, SLIDING) for op in prepared.ops)
    for _ in range(_MOST_EXPANSIONS + sliding):
        expanded = clock.time("expand", expand_blocked, prepared, layouts, context)
        if expanded is prepared:
            break
        prepared = clock.time("clean", CLEAN.run, expanded, context)
        layouts = clock.time("propagate", propagate, prepared, annotations)
    grouped = clock.time("group sums", group_sums, prepared, layouts)
    if grouped is not prepared:
        prepared = clock.time("clean", RemoveDeadCode().run, grouped, context)
        layouts = clock.time("propagate", propagate, prepared, annotations)
    partitioned = clock.time("partition", partition, prepared, layouts, annotations)
    placed = clock.time("clean", RemoveDeadCode().run, partitioned.graph, context)
    clock.time("verify", verify, placed)
    context.remarks.append(Remark("mesh", f"laid out on {annotations.mesh}: {summary(placed)}"))
    levels = tuple(
        {} if output is None else dict(layouts.priorities_of(output)) for output in prepared.outputs
    )
    return Distributed(placed, layouts, levels, prepared, partitioned, clock.seconds)
