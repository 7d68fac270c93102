"""Blocks of a dimension: taken apart and put together without communication, and only then."""

from __future__ import annotations

import pytest
import torch

from lynx.backends.reference import evaluate
from lynx.backends.reference.mesh import run_on_mesh
from lynx.ir import Graph, Mesh, parse_graph
from lynx.ir.ops import Collective
from lynx.ir.sharding import parse_sharding
from lynx.pass_context import pass_context
from lynx.passes.distribution.annotations import Annotation, Annotations
from lynx.passes.distribution.distribute import distribute

FUSED = """
graph @fused(%x: f32[5, 4], %w: f32[4, 18]) {
  %y = matmul %x, %w : f32[5, 18]
  %q = slice %y {dim = 1, start = 0, stop = 6} : f32[5, 6]
  %k = slice %y {dim = 1, start = 6, stop = 12} : f32[5, 6]
  %v = slice %y {dim = 1, start = 12, stop = 18} : f32[5, 6]
  %a = mul %q, %k : f32[5, 6]
  %b = add %a, %v : f32[5, 6]
  %e = tanh %b : f32[5, 6]
  %c = concatenate [%e, %a, %b] {dim = 1} : f32[5, 18]
  return %c
}
"""


def distributed(text: str, mesh: Mesh, *shardings: str) -> Graph:
    graph = parse_graph(text)
    given = tuple(Annotation(parse_sharding(one, mesh)) for one in shardings)
    annotations = Annotations(mesh, given, (None,) * len(graph.outputs))
    return distribute(graph, annotations, pass_context(graph)).graph


def sent(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops if isinstance(op, Collective) and op.needs_communication]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_blocks_that_are_cut_alike_need_no_communication(count: int) -> None:
    mesh = Mesh("m", (("tp", count),))
    graph = distributed(FUSED, mesh, "_, _", "_, tp of 3")
    assert sent(graph) == []
    (output,) = graph.outputs
    assert output is not None
    assert str(output.tensor_type.sharding) == "(_, tp of 3)"
    inputs = [torch.randn(5, 4), torch.randn(4, 18)]
    (expected,) = evaluate(parse_graph(FUSED), inputs)[0]
    (actual,) = run_on_mesh(graph, inputs)
    torch.testing.assert_close(actual, expected)


def test_blocks_that_are_cut_across_are_gathered() -> None:
    mesh = Mesh("m", (("tp", 2),))
    graph = distributed(FUSED, mesh, "_, _", "_, tp")
    assert "all_gather" in sent(graph)
    inputs = [torch.randn(5, 4), torch.randn(4, 18)]
    (expected,) = evaluate(parse_graph(FUSED), inputs)[0]
    torch.testing.assert_close(run_on_mesh(graph, inputs)[0], expected)
