"""Attention in programs: segments of the C back end give what the reference gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lynx.backends.c import compile_segments, has_compiler
from lynx.backends.reference import call_of, evaluate
from lynx.ir import Builder, DType, Graph, InputSpec, TensorType, Value
from lynx.ir.native import AttentionBackwardCall, AttentionCall, SegmentCompiler
from lynx.ir.ops.attention import Attention, AttentionBackward
from lynx.ir.ops.fusion import Region
from lynx.runtime import Executable, build
from tests.runtime.interpreted import Interpreter
from tests.runtime.programs import compiled, laid_out
from tests.samples.attention import biased, causal, merged, tabled
from tests.strategies import inputs_for

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")

B, H, Q, K, D, E = 2, 4, 5, 7, 3, 6
REGIONS = {"plain": None, "causal": causal(), "biased": biased(H, 1, K), "merged": merged()}


def program(region: Region | None, *, sink: bool = False, turned: bool = False) -> Graph:
    """Return a graph of an attention and all its gradients."""
    builder = Builder("attention")
    # Queries may come with heads inside positions.
    spec = InputSpec((Q * H * D, D, H * D, 1) if turned else None)
    q = builder.input("q", TensorType(DType.F32, (B, H, Q, D)), spec)
    k = builder.input("k", TensorType(DType.F32, (B, 2, K, D)))
    v = builder.input("v", TensorType(DType.F32, (B, 2, K, E)))
    given = () if region is None else region.parameters[1:]
    inputs = tuple(builder.input(f"x{n}", value.type) for n, value in enumerate(given))
    more = builder.input("sink", TensorType(DType.F32, (H, 1))) if sink else None
    grad = builder.input("grad", TensorType(DType.F32, (B, H, Q, E)))
    op = builder.add(Attention(q, k, v, inputs, more, None, region))
    wanted = (True, True, True, sink, *(value.tensor_type.dtype.is_floating for value in inputs))
    back: tuple[Value | None, ...] = (grad, None, *op.results)
    gradients = builder.add(
        AttentionBackward(q, k, v, inputs, more, None, *back, region, wanted=wanted)  # type: ignore[arg-type]
    )
    return builder.build((*op.results, *gradients.results))


def check(graph: Graph, run: Executable, given: list[Any]) -> None:
    """Compare all results with the reference."""
    given = laid_out(graph, given)
    expected, _ = evaluate(graph, list(given))
    for found, wanted in zip(run(list(given)), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("native", [compile_segments, Interpreter()], ids=["c", "interpreted"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("name", REGIONS)
def test_both_ways(name: str, sink: bool, turned: bool, native: SegmentCompiler) -> None:
    graph = program(REGIONS[name], sink=sink, turned=turned)
    run = build(compiled(graph), call_of, native=native)
    assert not run.native.failures
    (placed,) = run.native.segments
    kinds = [type(call) for call in placed.segment.calls]
    assert kinds == [AttentionCall, AttentionBackwardCall]
    for seed in range(2):
        check(graph, run, inputs_for(graph, seed))


@pytest.mark.parametrize("native", [compile_segments, Interpreter()], ids=["c", "interpreted"])
def test_what_a_score_function_checks_is_checked(native: SegmentCompiler) -> None:
    graph = program(tabled())
    run = build(compiled(graph), call_of, native=native)
    assert len(run.native.segments[0].segment.calls) == 2
    given = inputs_for(graph, 0)
    given[4] = torch.randint(0, 9, given[4].shape)
    check(graph, run, given)
    given[4][2, 3] = 9
    with pytest.raises(IndexError):
        run(list(given))
