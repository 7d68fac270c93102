"""The command `simulate`: how long a program takes on a mesh of machines, without the machines."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lynx.ir import Graph, UsageError, parse_graph
from lynx.ir.ops.collective import Collective
from lynx.ir.program import Program
from lynx.ir.program_text import parse_program
from lynx.passes import parse_pipeline
from lynx.passes.distribution.assign_buckets import assign_buckets
from lynx.passes.distribution.cost import Costs
from lynx.passes.distribution.gathers_ahead import gather_ahead
from lynx.passes.distribution.localize import localize
from lynx.passes.distribution.machine import MeshTarget, read_target
from lynx.passes.distribution.simulate import simulate

from .pass_context import pass_context


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of the command line."""
    parser = commands.add_parser("simulate", help="tell what a step takes on a mesh of machines")
    parser.add_argument("file", help="a program, or a graph of a mesh or of one device")
    parser.add_argument("--target", default="h100", help="a machine's name, or its file in TOML")
    parser.add_argument("-p", "--pipeline", default="default", help="what a graph goes through")
    parser.add_argument("--device", type=int, default=0, help="whose program of a mesh to take")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for Chrome or Perfetto")
    parser.set_defaults(command=_simulate)


def _simulate(options: argparse.Namespace) -> None:
    target = read_target(options.target)
    module = _module(options, target)
    result = simulate(module, target)
    print(result)
    if options.trace:
        Path(options.trace).write_text(json.dumps(result.trace()), encoding="utf-8")


def _module(options: argparse.Namespace, target: MeshTarget) -> Program | Graph:
    """Return the program in the file, or that of the graph in it."""
    try:
        text = Path(options.file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError("no-file", f"cannot read {options.file}: {error.strerror}") from error
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("//")), "")
    if first.startswith("program"):
        return parse_program(text, file=options.file)
    graph = local_graph(parse_graph(text, file=options.file), options.device, target)
    context = pass_context(graph, machine=options.target)
    module: Program | Graph = parse_pipeline(options.pipeline).run(graph, context)
    return module


def local_graph(graph: Graph, device: int, target: MeshTarget) -> Graph:
    """Return what one device has of a graph over a mesh, or the graph if it is local already.

    Unless the graph says what travels together, it is as large as is good for the machine.
    """
    mesh = graph.mesh
    if mesh is None or not any(op.changes_sharding for op in graph.ops):
        return graph
    if not 0 <= device < mesh.device_count:
        message = f"there is no device {device} among {mesh.device_count}"
        raise UsageError("unknown-device", message)
    if not any(isinstance(op, Collective) and op.bucket >= 0 for op in graph.ops):
        graph = gather_ahead(assign_buckets(graph, Costs(target, mesh)))
    return localize(graph, mesh.coordinates(device))
