"""`lynx.explain`: what was captured, optimized, left to torch, and how the memory is laid out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lynx.compat import eager_backward_compilation, graph_break_reasons
from lynx.ir.location import UNKNOWN
from lynx.ir.ops.aten import Aten
from lynx.passes import Remark
from lynx.passes.plan_memory import format_count

from .attention_sites import AttentionSite, attention_sites
from .backend import lynx
from .distribution.layout import DistributionReport
from .distribution.parallelize import is_parallelized
from .native_text import describe_native
from .records import RECORDS, CompiledGraph


@dataclass
class Explanation:
    """What Lynx did with a function; `str` gives the table.

    `graphs` are the compiled graphs in order, `breaks` the reasons and places where Dynamo had to
    leave the function.
    """

    graphs: list[CompiledGraph]
    breaks: list[tuple[str, str]] = field(default_factory=list)

    @property
    def fallbacks(self) -> list[tuple[str, str, str]]:
        """Ops that run through torch, as (operator, reason, place in the model), each once."""
        rows: dict[tuple[str, str, str], None] = {}
        for record in self.graphs:
            for op in record.imported.ops if record.imported is not None else ():
                if isinstance(op, Aten):
                    rows[(op.target, op.reason, str(op.loc))] = None
        return list(rows)

    @property
    def remarks(self) -> list[Remark]:
        """What the passes had to say, in order."""
        return [remark for record in self.graphs for remark in record.remarks]

    @property
    def distribution(self) -> DistributionReport:
        """How a distributed model lies on its mesh, why, and what it sends; empty for others."""
        layouts = [record.layout for record in self.graphs if record.layout is not None]
        return DistributionReport(layouts)

    @property
    def attention(self) -> list[AttentionSite]:
        """Each attention: what it is and who computes it, or why it was left as it is."""
        return [site for record in self.graphs for site in attention_sites(record)]

    def __str__(self) -> str:
        breaks = format_count(len(self.breaks), "graph break")
        lines = [f"{format_count(len(self.graphs), 'graph')}, {breaks}"]
        lines += [f"  break: {reason.splitlines()[0]} ({place})" for reason, place in self.breaks]
        for record in self.graphs:
            lines += ["", *_describe(record)]
        if self.distribution.graphs:
            lines += ["", *str(self.distribution).splitlines()]
        if self.attention:
            lines += ["", "attention:", *(f"  {site}" for site in self.attention)]
        if self.fallbacks:
            lines += ["", "left to torch:"]
            lines += [f"  {op:<40} {reason}{_at(place)}" for op, reason, place in self.fallbacks]
        for record in self.graphs:
            if record.remarks:
                lines += ["", f"remarks on {record.name}:"]
                lines += [f"  {r.subject}: {r.message}{_at(str(r.loc))}" for r in record.remarks]
        return "\n".join(lines)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile a function or module on these inputs and say what happened.

    The function runs, as often as Dynamo needs; buffers that it changes are changed, and the random
    generators are put back to where they were. Backward graphs are compiled, not run. A model that
    `lynx.parallelize` made is compiled as it is; all processes of its mesh have to ask.
    """
    compiled = is_parallelized(function)
    with torch.random.fork_rng():
        breaks = [] if compiled else graph_break_reasons(function, *args, **kwargs)
        torch.compiler.reset()
        graphs = RECORDS.listen()
        try:
            with eager_backward_compilation():
                call = function if compiled else torch.compile(function, backend=lynx)
                call(*args, **kwargs)
        finally:
            RECORDS.unlisten(graphs)
    return Explanation(graphs, breaks)


def _at(place: str) -> str:
    return "" if place == str(UNKNOWN) else f" ({place})"


def _describe(record: CompiledGraph) -> list[str]:
    if record.fallback:
        return [f"{record.name}: run by torch, since {record.fallback}"]
    assert record.imported is not None
    before = Counter(op.name for op in record.imported.ops)
    steps = record.program.ops
    lines = [
        f"{record.name}: {format_count(len(record.imported.ops), 'op')} imported, "
        f"{format_count(len(steps), 'op')} run, "
        f"{record.seconds['total'] * 1e3:.0f} ms",
        "  ops by kind: " + ", ".join(f"{name} {n}" for name, n in before.most_common()),
    ]
    lines += [f"  {line}" for line in str(record.executable.memory_report).splitlines()]
    lines += [f"  {line}" for line in describe_native(record.executable.native)]
    return lines
