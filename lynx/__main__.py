"""The command line, `python -m lynx`: run pipelines on files, run files, list what there is.

python -m lynx opt graph.lynx -p canonicalize,cse,dce
python -m lynx run graph.lynx
python -m lynx simulate graph.lynx --target h100
python -m lynx cache
python -m lynx cache --limit 500
python -m lynx cache --clear
python -m lynx passes
python -m lynx settings
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lynx.backends.reference import call_of, evaluate
from lynx.ir import Graph, LynxError, UsageError
from lynx.ir.core import Value
from lynx.ir.program import Program
from lynx.passes import (
    PASSES,
    Dump,
    Observer,
    Pipeline,
    Timer,
    parse_pipeline,
    print_module,
    read_module,
)
from lynx.runtime import build

from .cache import MEBIBYTE, DiskStore, describe_cache
from .generators import generator_of, multiplied_by, target_of
from .inputs import random_inputs, random_resources
from .pass_context import pass_context
from .settings import describe, read_settings
from .simulation import add_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status, 1 for an error in what was given."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except LynxError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lynx", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    opt = commands.add_parser("opt", help="run a pipeline on a file and print the result")
    opt.add_argument("file")
    opt.add_argument(
        "-p", "--pipeline", help="default: canonicalize,cse,dce, or plan-memory of a program"
    )
    opt.add_argument("--dump", metavar="DIR", help="write one file per pass that changed something")
    opt.add_argument("--time", action="store_true", help="print a table of pass times")
    opt.add_argument("--no-locations", action="store_true", help="leave locations out")
    opt.set_defaults(command=_opt)
    run = commands.add_parser("run", help="run a file, optimized, and compare with the reference")
    run.add_argument("file")
    run.add_argument(
        "-p", "--pipeline", help="default: default; a program runs as it is, without further passes"
    )
    run.add_argument(
        "--inputs",
        metavar="FILE",
        help="a list of tensors, saved by torch.save; random ones do not fit together as what "
        "backward takes from forward does",
    )
    run.add_argument("--resources", metavar="FILE", help="a dict of constants, saved by torch.save")
    run.add_argument("--seed", type=int, default=0, help="for random inputs")
    run.add_argument("--symbols", default="", help="sizes for random inputs, as s0=8,s1=3")
    run.add_argument("--source", action="store_true", help="print the generated Python")
    run.set_defaults(command=_run)
    cache = commands.add_parser("cache", help="show or clear what is kept on disk")
    cache.add_argument("--path", action="store_true", help="print the folder and nothing else")
    cache.add_argument("--clear", action="store_true", help="remove all entries")
    cache.add_argument("--limit", type=int, metavar="MIB", help="remove oldest entries above this")
    cache.set_defaults(command=_cache)
    add_command(commands)
    settings = commands.add_parser("settings", help="list all settings")
    settings.set_defaults(command=lambda _: print(describe()))
    passes = commands.add_parser("passes", help="list all passes")
    passes.set_defaults(command=_passes)
    return parser


def _read(path: str, resources: str | None = None) -> Graph | Program:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError("no-file", f"cannot read {path}: {error.strerror}") from error
    held = torch.load(resources) if resources else None
    return read_module(text, file=path, resources=held)


def _opt(options: argparse.Namespace) -> None:
    module = _read(options.file)
    usual = "plan-memory" if isinstance(module, Program) else "canonicalize,cse,dce"
    pipeline = parse_pipeline(usual if options.pipeline is None else options.pipeline)
    timer = Timer()
    observers: list[Observer] = [timer]
    if options.dump:
        observers.append(Dump(Path(options.dump)))
    graph = _graph_of(module)
    settings = read_settings()
    target = target_of(graph, settings.cpu_kernels)
    result = pipeline.run(module, pass_context(graph, target, settings.machine), observers)
    print(print_module(result, locations=not options.no_locations), end="")
    if options.time:
        print(timer.table(), file=sys.stderr)


def _graph_of(module: Graph | Program) -> Graph:
    return module.graph if isinstance(module, Program) else module


def _run(options: argparse.Namespace) -> None:
    module = _read(options.file, options.resources)
    if options.resources is None:
        module = _with_resources(module, random_resources(_graph_of(module), options.seed))
    graph = _graph_of(module)
    symbols = _symbols(options.symbols)
    inputs = torch.load(options.inputs) if options.inputs else None
    if inputs is None:
        inputs = random_inputs(graph, options.seed, symbols)
    torch.manual_seed(options.seed)
    expected, _ = evaluate(graph, inputs)
    settings = read_settings()
    target = target_of(graph, settings.cpu_kernels)
    context = pass_context(graph, target, settings.machine)
    program = _pipeline_to_run(module, options.pipeline).run(module, context)
    if not isinstance(program, Program):
        message = f"'run' takes a pipeline that lowers to a program, got {options.pipeline!r}"
        raise UsageError("bad-option", message)
    executable = build(
        program,
        call_of,
        resources=program.resources,
        native=generator_of(context.target, settings),
        products=multiplied_by(context.target, settings, program),
    )
    if options.source:
        print(executable.source)
        print(executable.native.source)
    torch.manual_seed(options.seed)
    actual = executable(list(inputs))
    for index, (output, ours, theirs) in enumerate(
        zip(graph.outputs, actual, expected, strict=True)
    ):
        print(f"output {index}: {_summary(output, ours, theirs)}")
    print(executable.memory_report)


def _with_resources(module: Graph | Program, resources: Mapping[str, Any]) -> Graph | Program:
    if isinstance(module, Program):
        graph = dataclasses.replace(module.graph, resources=resources)
        return dataclasses.replace(module, graph=graph)
    return dataclasses.replace(module, resources=resources)


def _pipeline_to_run(module: Graph | Program, text: str | None) -> Pipeline:
    if text is not None:
        return parse_pipeline(text)
    return Pipeline() if isinstance(module, Program) else parse_pipeline("default")


def _summary(output: Value | None, actual: object, expected: object) -> str:
    if not isinstance(actual, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return str(actual)
    type_ = "" if output is None else f"{output.type}, "
    if not actual.numel():
        return f"{type_}without elements"
    ours, theirs = actual.double(), expected.double()
    missing = ours.isnan() & theirs.isnan()
    # Equal infinities have no difference; what is NaN on one side alone is infinitely far off.
    error = (ours - theirs).abs().masked_fill(missing | (ours == theirs), 0.0)
    off = float(error.nan_to_num(nan=math.inf, posinf=math.inf).max())
    count = int(missing.sum())
    note = f"; {count} of {actual.numel()} numbers are NaN in both" if count else ""
    return f"{type_}mean {float(ours.mean()):.6g}, off from the reference by {off:.3g}{note}"


def _symbols(text: str) -> dict[str, int]:
    symbols = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not value.strip().isdigit():
            raise UsageError("bad-symbol", f"expected name=size, got {part!r}")
        symbols[name.strip()] = int(value)
    return symbols


def _cache(options: argparse.Namespace) -> None:
    settings = read_settings()
    if options.path:
        print(settings.cache_folder)
        return
    if options.limit is not None and options.limit < 0:
        raise UsageError("bad-option", f"--limit takes a number of MiB, got {options.limit}")
    try:
        store = DiskStore(settings.cache_folder, settings.cache_size * MEBIBYTE)
    except OSError as error:
        message = f"cannot use the cache in {settings.cache_folder}: {error.strerror or error}"
        raise UsageError("no-file", message) from error
    if options.clear:
        print(f"removed {store.clear()} entries")
    elif options.limit is not None:
        print(f"removed {store.trim(options.limit * MEBIBYTE)} entries")
    print(describe_cache(store))


def _passes(_: argparse.Namespace) -> None:
    width = max(map(len, PASSES))
    for name in sorted(PASSES):
        summary = (PASSES[name].__doc__ or "").splitlines()[0]
        print(f"{name:<{width}}  {summary}")


if __name__ == "__main__":
    sys.exit(main())
