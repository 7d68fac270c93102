"""How long it takes to lay large models out on large meshes: propagation and partition.

    python -m benchmarks.distribution_scale                   70B: 80 layers, a mesh of 32 by 8
    python -m benchmarks.distribution_scale --size 405B       126 layers, a mesh of 128 by 16 by 8
    python -m benchmarks.distribution_scale --layers 4        quick
    python -m benchmarks.distribution_scale --save FILE       keeps what was traced
    python -m benchmarks.distribution_scale --load FILE       lays that out, and traces nothing

No numbers are computed and no memory is taken for them. The model is traced in a process of its
own, which takes minutes and is not what is measured; this process reads the graphs as text, and
what that took of memory is not counted. Parameters are cut by tensor parallelism and by FSDP.
"""

from __future__ import annotations

import argparse
import collections
import gc
import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.distribution_sizes import SIZES, Traced, read
from benchmarks.memory import HighWater, resident
from lynx.ir import Graph, Mesh, TensorType, print_graph
from lynx.ir.ops import Collective
from lynx.ir.sharding import parse_sharding, replicated
from lynx.passes import PassContext
from lynx.passes.distribution.annotations import Annotation, Annotations
from lynx.passes.distribution.distribute import Distributed, distribute
from lynx.passes.distribution.localize import localize

_CUT_BY_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", "embed")
_T = TypeVar("_T")


def sharding_of(name: str, type_: TensorType, mesh: Mesh) -> Annotation:
    """Return how an input lies: data by `dp`, weights by `tp` as in Megatron, and by `dp`."""
    data = "(rep, dp)" if "rep" in mesh.names else "dp"
    if "weight" not in name:
        is_data = type_.rank == 2
        text = f"{data}, _" if is_data else ", ".join("_" * type_.rank)
        return Annotation(parse_sharding(text, mesh), 0)
    if type_.rank == 1:
        return Annotation(parse_sharding("dp", mesh))
    by_rows = any(part in name for part in _CUT_BY_ROWS)
    return Annotation(parse_sharding("(tp, dp), _" if by_rows else "dp, tp", mesh))


def lay_out(traced: Traced, mesh: Mesh) -> tuple[Distributed, Distributed]:
    """Lay forward out, then backward, whose inputs lie as forward left them."""
    forward, backward = traced.graphs["forward"], traced.graphs["backward"]
    given = tuple(
        sharding_of(name, value.tensor_type, mesh)
        for name, value in zip(traced.names, forward.inputs, strict=True)
    )
    outputs = (replicated(0, mesh), *(None,) * (len(forward.outputs) - 1))
    first = distribute(forward, Annotations(mesh, given, outputs), PassContext())
    kept: list[Annotation | None] = []
    for output, levels in zip(first.graph.outputs[1:], first.output_levels[1:], strict=True):
        lies = output.type if output is not None else None
        if not isinstance(lies, TensorType):
            kept.append(None)
            continue
        sharding = lies.sharding or replicated(lies.rank, mesh)
        kept.append(Annotation(sharding, 1, tuple(sorted(levels.items()))))
    kept.append(Annotation(replicated(0, mesh)))
    wanted = tuple(
        None if output is None else annotation.sharding
        for output, annotation in zip(backward.outputs, given, strict=True)
    )
    return first, distribute(backward, Annotations(mesh, tuple(kept), wanted), PassContext())


def describe(graph: Graph) -> str:
    """Return how often each collective is in a program."""
    counted = collections.Counter(
        f"{op.name} {'+'.join(op.axes)}"
        for op in graph.ops
        if isinstance(op, Collective) and op.needs_communication
    )
    return ", ".join(f"{count} {name}" for name, count in counted.items())


@dataclass
class Table:
    """Prints what steps take, in seconds and in the memory of the process, as they end."""

    total: float = 0.0
    before: int = field(default_factory=resident)

    def step(self, name: str, function: Callable[..., _T], *arguments: object) -> _T:
        """Run a step and print its row."""
        gc.collect()
        mark, start = HighWater(), time.perf_counter()
        result = function(*arguments)
        seconds = time.perf_counter() - start
        self.total += seconds
        memory = f"{_megabytes(resident()):5d} MB after, {_megabytes(mark.peak()):5d} MB at most"
        print(f"{name:<44} {seconds:6.2f} s   {memory}", flush=True)
        return result


def _megabytes(count: int) -> int:
    return count // 2**20


def print_phases(results: Sequence[Distributed]) -> None:
    """Print where the time of the layout went."""
    seconds: collections.Counter[str] = collections.Counter()
    for one in results:
        seconds.update(one.seconds)
    for phase, spent in seconds.items():
        print(f"    {phase:<40} {spent:6.2f} s")


def measure(traced: Traced, mesh: Mesh) -> None:
    """Lay out, localize and print as a compiler does, and tell what that takes."""
    print(f"in memory before: {_megabytes(resident())} MB, graphs of {traced.count} ops included")
    table = Table()
    devices = f"{mesh.device_count} devices"
    first, second = table.step(f"layout on {devices}, verified", lay_out, traced, mesh)
    print_phases((first, second))
    typed = (first.graph, second.graph)
    place: Mapping[str, int] = dict.fromkeys(mesh.names, 0)
    table.step("the program of one device", lambda: [localize(one, place) for one in typed])
    texts = table.step("text to be agreed on", lambda: [print_graph(one) for one in typed])
    table.step("digest", lambda: [hashlib.blake2b(text.encode()).hexdigest() for text in texts])
    print(f"forward:  {describe(first.graph)}")
    print(f"backward: {describe(second.graph)}")


def trace(file: Path, options: argparse.Namespace) -> None:
    """Trace the model in another process, into a file."""
    command = [sys.executable, "-m", "benchmarks.distribution_trace", str(file)]
    for name in ("size", "layers", "batch", "length"):
        command += [f"--{name}", str(getattr(options, name))]
    subprocess.run(command, check=True)


def main(arguments: Sequence[str]) -> None:
    """Trace or read, lay out, and print what that took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="70B")
    parser.add_argument("--layers", type=int, default=0, help="fewer than the model has")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--save", type=Path, metavar="FILE", help="where to keep the graphs")
    parser.add_argument("--load", type=Path, metavar="FILE", help="graphs that were kept")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        file = options.load or options.save or Path(folder) / "graphs.lynx"
        if options.load is None:
            trace(file, options)
        traced = read(file)
    measure(traced, SIZES[options.size].mesh)


if __name__ == "__main__":
    main(sys.argv[1:])
