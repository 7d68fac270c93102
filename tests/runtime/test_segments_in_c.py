"""Programs with kernels of the C back end give what the reference gives."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.backends.c import compile_segments, has_compiler
from lynx.backends.reference import call_of
from lynx.ir import Builder, Graph, ops
from lynx.runtime import build
from tests.runtime.programs import check_run, compiled, with_border
from tests.runtime.test_segments import (
    MATRIX,
    ROWS,
    double,
    fuse,
    fused_program,
    lookup,
    softmax,
)
from tests.strategies import graphs, inputs_for

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")


@given(graph=graphs(max_ops=25), seed=st.integers(0, 2**16))
@settings(max_examples=25, deadline=None)
def test_random_programs(graph: Graph, seed: int) -> None:
    graph = with_border(graph, random.Random(seed))
    run = build(fused_program(graph), call_of, native=compile_segments)
    assert not run.native.failures
    check_run(graph, run, inputs_for(graph, seed))
    check_run(graph, run, inputs_for(graph, seed + 1))


def test_kernels_products_and_results_in_place() -> None:
    builder = Builder("mixed")
    x = builder.input("x", MATRIX, ROWS)
    value = fuse(builder, (x,), double)
    for _ in range(3):
        value = fuse(builder, (value,), softmax)
        turned = builder.emit(ops.Permute(value, (1, 0)))
        square = builder.emit(ops.Matmul(value, turned))
        value = builder.emit(ops.Matmul(fuse(builder, (square,), softmax), value))
    graph = builder.build((value,))
    run = build(compiled(graph), call_of, native=compile_segments)
    assert len(run.native.segments) == 1
    for seed in range(3):
        check_run(graph, run, inputs_for(graph, seed))


def test_a_check_that_fails_raises_and_the_next_call_works() -> None:
    run = build(compiled(lookup()), call_of, native=compile_segments)
    table = torch.randn(4, 3)
    for index in ([0, 3], [3, 1]):
        with pytest.raises(IndexError):
            run([table, torch.tensor([0, 4])])
        assert torch.equal(run([table, torch.tensor(index)])[0], (table * 2)[index])
