"""Random programs whose kernels are made by Triton and run in its interpreter."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lynx.backends.reference import call_of
from lynx.backends.triton import LaunchCompiler
from lynx.ir import DType, Graph
from lynx.ir.native import Launcher
from lynx.runtime import BlockPool, build
from tests.runtime.programs import check_run, with_border
from tests.runtime.test_segments import fused_program
from tests.strategies import graphs, inputs_for


@given(graph=graphs(max_ops=12), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_programs(graph: Graph, seed: int) -> None:
    assume(not any(op.name == "cast" and op.out.tensor_type.dtype is DType.F64 for op in graph.ops))
    graph = with_border(graph, random.Random(seed))
    native = Launcher("cpu", LaunchCompiler(is_interpreted=True, is_strict=True))
    run = build(fused_program(graph), call_of, pool=BlockPool(), native=native)
    assert run.native.failures == []
    check_run(graph, run, inputs_for(graph, seed))
