"""Time the passes, the printer and the parser on a graph of many ops.

python benchmarks/scale.py --ops 10000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from lynx.ir import Graph, Location, TensorType, differences, parse_graph, print_graph
from lynx.ir.core import Builder, InputSpec, Value
from lynx.ir.ops.activation import Gelu
from lynx.ir.ops.elementwise_arithmetic import Add, Multiply
from lynx.ir.ops.elementwise_math import Exp
from lynx.ir.ops.layout import Permute, Reshape
from lynx.ir.ops.linear import Matmul
from lynx.ir.ops.reduction import Sum
from lynx.ir.types import DType
from lynx.pass_context import pass_context
from lynx.passes import Timer, parse_pipeline

_T = TypeVar("_T")


def layered_graph(ops: int) -> Graph:
    """Return a graph of about this many ops: layers of products, sums, activations and views."""
    builder = Builder("layered")
    type_ = TensorType(DType.F32, (64, 64))
    x: Value = builder.input("x", type_, InputSpec((64, 1)))
    weights = [builder.input(f"w{index}", type_, InputSpec((64, 1))) for index in range(8)]
    while len(builder.ops) < ops:
        layer = len(builder.ops) // 10
        builder.loc = Location("model.py", layer % 200 + 1, f"layers.{layer}")
        product = builder.emit(Matmul(x, weights[layer % 8]))
        hidden = builder.emit(Gelu(builder.emit(Add(product, x))))
        turned = builder.emit(Permute(hidden, (1, 0)))
        scaled = builder.emit(Multiply(turned, 0.5))
        flat = builder.emit(Reshape(scaled, (4096,)))
        back = builder.emit(Reshape(builder.emit(Exp(flat)), (64, 64)))
        total = builder.emit(Sum(back, (0,), True))
        x = builder.emit(Add(back, total))
    return builder.build((x,))


def timed(label: str, function: Callable[[], _T]) -> _T:
    """Run a function and print its seconds."""
    start = time.perf_counter()
    result = function()
    print(f"{label:<40} {time.perf_counter() - start:7.2f} s", flush=True)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", type=int, default=10_000)
    parser.add_argument("--passes", action="store_true", help="print the time of each pass")
    options = parser.parse_args(arguments)
    graph = timed(f"build {options.ops} ops", lambda: layered_graph(options.ops))
    timer = Timer()
    pipeline, context = parse_pipeline("default"), pass_context(graph)
    timed("default pipeline, verified", lambda: pipeline.run(graph, context, [timer]))
    text = timed("print", lambda: print_graph(graph))
    again = timed("parse", lambda: parse_graph(text))
    assert timed("compare", lambda: differences(graph, again)) == []
    if options.passes:
        print(timer)


if __name__ == "__main__":
    main()
