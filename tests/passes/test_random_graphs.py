"""Every graph pass on random graphs: the same bits, valid graphs, the same text every time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from lynx.ir import differences, parse_graph, print_graph
from lynx.ir import ops as o
from lynx.ir.core import Builder, Graph, Op
from lynx.ir.location import Location
from lynx.ir.program import Program
from lynx.ir.types import DType, TensorType
from lynx.pass_context import pass_context
from lynx.passes import DEFAULT, IS_GRAPH, PASSES, Pipeline, Timer, parse_pipeline
from tests.passes.values import assert_same_values
from tests.strategies import graphs, inputs_for

GRAPH_PASSES = sorted(name for name, kind in PASSES.items() if IS_GRAPH in kind.requires)
EXACT = [name for name in GRAPH_PASSES if name not in ("decompose", "lower")]
GRAPH_PART = Pipeline(tuple(step for step in DEFAULT.passes if step.name in GRAPH_PASSES[:-1]))


def run(pipeline: str | Pipeline, graph: Graph) -> Graph:
    chosen = parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    result = chosen.run(graph, pass_context(graph))
    assert isinstance(result, Graph)
    return result


@pytest.mark.parametrize(
    "name", [*EXACT, "canonicalize,cse,dce,fold-constants,canonicalize,cse,dce"]
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_no_bit_changes(name: str, graph: Graph) -> None:
    inputs = inputs_for(graph)
    result = run(name, graph)
    assert_same_values(graph, result, inputs)
    assert [value.type for value in result.uses] == [value.type for value in graph.uses]
    again = run(name, result)
    assert not differences(again, result), "a second run finds more to do"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_locations_stay_known_and_text_reads_back(graph: Graph) -> None:
    result = run("canonicalize,cse,dce,fold-constants,decompose{all=true}", graph)
    assert all(op.loc.is_known for op in result.ops)
    assert not differences(parse_graph(print_graph(result)), result)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_the_default_pipeline_ends_in_a_program(graph: Graph) -> None:
    assert isinstance(DEFAULT.run(graph, pass_context(graph)), Program)


def chain(length: int) -> Graph:
    """Return ops one after the other, of which some merge, fold, cancel or die."""
    builder = Builder("chain")
    builder.loc = Location("model.py", 1, "blocks.0")
    x = builder.input("x", TensorType(DType.F32, (4, 8)))
    value = x
    while len(builder.ops) < length:
        dead: Op = o.Exp(value)
        half = builder.emit(o.Full(0.5, (8, 4), DType.F32))
        for op in (dead, o.Add(value, x), o.Add(value, x)):
            value = builder.emit(op)
        value = builder.emit(o.Permute(value, (1, 0)))
        value = builder.emit(o.Multiply(value, builder.emit(o.Negate(half))))
        value = builder.emit(o.Permute(value, (1, 0)))
        value = builder.emit(o.Cast(builder.emit(o.Cast(value, DType.F64)), DType.F32))
    return builder.build((value,))


def test_ten_thousand_ops() -> None:
    timer = Timer()
    graph = chain(10_000)
    result = GRAPH_PART.run(graph, pass_context(graph), [timer])
    assert len(result.ops) < 6_000
    assert len(timer.timings) == len(GRAPH_PART.passes)
    assert isinstance(DEFAULT.run(graph, pass_context(graph)), Program)


def test_time_is_linear() -> None:
    def best(length: int) -> float:
        graph = chain(length)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            GRAPH_PART.run(graph, pass_context(graph))
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(8_000) / best(2_000) < 8


SCRIPT = """
from lynx.ir import parse_module, print_graph
from lynx.passes import parse_pipeline
from lynx.pass_context import pass_context
import sys
for path in sys.argv[1:]:
    for graph in parse_module(open(path).read()):
        text = "canonicalize,cse,dce,fold-constants,decompose{all=true},cse,dce"
        print(print_graph(parse_pipeline(text).run(graph, pass_context(graph))))
"""


def test_hash_seeds_do_not_matter() -> None:
    files = sorted(str(path) for path in Path(__file__).parent.glob("canonicalize*.lynx"))
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *files],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0]
    assert outputs[0] == outputs[1]
