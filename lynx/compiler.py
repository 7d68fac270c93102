"""From one FX graph to something that runs: import, passes, back end. One screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.fx

from lynx.backends.reference import call_of
from lynx.compat import CONTROL_FLOW_ERRORS, boxed, outside_tracing
from lynx.importer import import_graph
from lynx.ir import Graph
from lynx.ir.errors import CompileError
from lynx.ir.program import Program
from lynx.passes import Diff, Dump, Observer, PassContext, Reproducer, Timer, parse_pipeline
from lynx.runtime import build

from .distribution.constraints import without_constraints
from .distribution.step import DistributedStep
from .generators import generator_of, multiplied_by, target_of, why_none
from .graph_cache import cached_graph
from .pass_context import pass_context
from .progress import Progress
from .records import RECORDS, CompiledGraph, log
from .replay import replayed
from .settings import Settings


def compile_graph(
    module: torch.fx.GraphModule,
    kind: str,
    settings: Settings,
    distribution: DistributedStep | None = None,
) -> Callable[[list[Any]], Any]:
    """Return a boxed function that runs the graph; torch runs it where Lynx cannot.

    `kind` is forward, backward or inference. With `distribution` the graph is that of the whole
    tensors, and the function takes and gives the parts of this process. In strict mode errors are
    raised.
    """
    record = RECORDS.open(kind)
    try:
        with outside_tracing():
            return _compile(module, record, settings, distribution)
    except CONTROL_FLOW_ERRORS:
        raise
    except Exception as error:  # whatever went wrong in here must not stop the user's program
        if settings.strict:
            raise
        record.fallback = f"{type(error).__name__}: {error}"
        RECORDS.warn(f"lynx runs a {kind} graph through torch: {record.fallback}")
        if distribution is not None:
            return boxed(distribution.through_torch(module, run_through_torch(module), record.name))
        return run_through_torch(module)


def _compile(
    module: torch.fx.GraphModule,
    record: CompiledGraph,
    settings: Settings,
    distribution: DistributedStep | None,
) -> Callable[[list[Any]], Any]:
    start = time.perf_counter()
    graph = import_graph(module, record.kind)
    record.imported = graph
    local = None
    if distribution is None:
        graph = without_constraints(graph)
    else:
        context = pass_context(graph)
        explained = RECORDS.is_listened_to or settings.debug >= 2
        local = distribution.localize(graph, module, record.name, context, explained)
        record.remarks = [*record.remarks, *context.remarks]
        graph, record.distributed, record.layout = local.graph, local.typed, local.layout
    record.seconds["import"] = time.perf_counter() - start
    target = target_of(graph, settings.cpu_kernels)
    context = pass_context(graph, target, settings.machine)
    observers = _observers(record, settings)
    program = record.program = _optimized(graph, context, record, settings, observers)
    middle = time.perf_counter()
    record.executable = build(
        program,
        call_of,
        resources=program.resources,
        native=generator_of(target, settings),
        products=multiplied_by(target, settings, program),
    )
    _note_failures(record, settings, why_none(target, settings))
    record.seconds["build"] = time.perf_counter() - middle
    record.seconds["total"] = time.perf_counter() - start
    _report(record, settings, observers)
    if local is not None:
        return boxed(local.wrap(record.executable))
    if settings.cuda_graphs and target.device == "cuda":
        return boxed(replayed(record))
    return boxed(record.executable)


def _optimized(
    graph: Graph,
    context: PassContext,
    record: CompiledGraph,
    settings: Settings,
    observers: Sequence[Observer],
) -> Program:
    """Run the passes, or take what they made of an equal graph from the cache."""
    start = time.perf_counter()
    pipeline = parse_pipeline(settings.pipeline)
    place = cached_graph(graph, pipeline, context.target, settings)
    found = None if place is None else place.find()
    if found is not None:
        record.remarks = [*record.remarks, *found.remarks]
        record.seconds["load"] = time.perf_counter() - start
        return found.program
    program: Program = pipeline.run(graph, context, observers, verify=settings.verify)
    record.remarks = [*record.remarks, *context.remarks]
    record.seconds["passes"] = time.perf_counter() - start
    if place is not None:
        place.put(program, context.remarks)
    return program


def _note_failures(record: CompiledGraph, settings: Settings, why_none: str) -> None:
    """Warn of what runs through torch because something did not work; raise it if `strict`."""
    native = record.executable.native
    record.remarks = [*record.remarks, *native.remarks]
    for failure in native.failures:
        if settings.strict:
            raise CompileError("not-native", failure)
        RECORDS.warn(f"lynx runs a part of a graph through torch: {failure}")
    if why_none:
        RECORDS.warn(why_none)


def run_through_torch(module: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return a boxed function that runs the FX graph as it is."""

    def run(arguments: list[Any]) -> Any:
        values = tuple(arguments)
        arguments.clear()
        return module.forward(*values)

    return boxed(run)


def _observers(record: CompiledGraph, settings: Settings) -> Sequence[Observer]:
    observers: list[Observer] = [Reproducer(Path(settings.reproducers))]
    if settings.debug >= 2:
        observers.append(Timer())
    if settings.debug >= 3:
        observers.append(Diff(sys.stderr))
    if settings.dump_dir:
        observers.append(Dump(Path(settings.dump_dir) / record.name))
    if settings.progress and sys.stderr.isatty():
        observers.append(Progress(record.kind))
    return observers


def _report(record: CompiledGraph, settings: Settings, observers: Sequence[Observer]) -> None:
    """Say what was compiled, on the ladder of `debug`."""
    if settings.debug >= 1:
        count = len(record.imported.ops) if record.imported is not None else 0
        line = f"lynx: {record.name}: {count} ops, {record.seconds['total'] * 1e3:.0f} ms"
        print(line, file=sys.stderr)
    if settings.debug >= 2 and record.layout is not None:
        print(record.layout, file=sys.stderr)
    for observer in observers:
        if isinstance(observer, Timer):
            print(observer.table(), file=sys.stderr)
    if settings.debug >= 4:
        print(record.executable.native.source, record.executable.source, file=sys.stderr)
    log.debug("compiled %s", record.name)
