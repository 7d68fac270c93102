"""Attention over merged batches and heads is cut along both, as if they had never been merged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lynx.backends.reference import evaluate
from lynx.ir import Graph, Mesh, parse_graph
from lynx.ir.core import Op
from lynx.ir.ops.attention import Attending
from lynx.ir.printer import print_graph
from lynx.pass_context import pass_context
from lynx.passes.distribution.merged_scores import take_scores_apart, take_scores_apart_backward
from lynx.passes.rewrite import rewrite
from tests.distribution.harness import capture, check, collectives

RULES = (take_scores_apart, take_scores_apart_backward)
HEAD = """
graph @attend(%q: f64[3, 4, 5, 8], %k: f64[3, 4, 7, 8], %v: f64[3, 4, 7, 8], %b: f64[12, 1, 7],
              %m: bool[3, 1, 5, 7]) {
  %o, %l = attention %q, %k, %v, [%b, %m], none, none with score(
      %s: f64[3, 4, 5, 7], %p: f64[12, 1, 7], %n: bool[3, 1, 5, 7]) {
"""
TAIL = """
    yield %e
  } : f64[3, 4, 5, 8], f64[3, 4, 5]
  return %o, %l
}
"""
MERGED = (
    HEAD
    + """
    %0 = reshape %s {shape = [12, 5, 7]} : f64[12, 5, 7]
    %1 = broadcast %p {shape = [12, 5, 7]} : f64[12, 5, 7]
    %2 = add %0, %1 : f64[12, 5, 7]
    %3 = mul %2, 0.5 : f64[12, 5, 7]
    %4 = reshape %3 {shape = [3, 4, 5, 7]} : f64[3, 4, 5, 7]
    %e = where %n, %4, -1.0 : f64[3, 4, 5, 7]
"""
    + TAIL
)
TWICE = (
    HEAD
    + """
    %0 = reshape %s {shape = [12, 5, 7]} : f64[12, 5, 7]
    %2 = add %0, %p : f64[12, 5, 7]
    %4 = reshape %2 {shape = [3, 4, 5, 7]} : f64[3, 4, 5, 7]
    %5 = sum %p {dims = [0, 1]} : f64[7]
    %e = add %4, %5 : f64[3, 4, 5, 7]
"""
    + TAIL
)
MOVED = (
    HEAD
    + """
    %0 = reshape %s {shape = [12, 5, 7]} : f64[12, 5, 7]
    %1 = flip %0 {dims = [0]} : f64[12, 5, 7]
    %e = reshape %1 {shape = [3, 4, 5, 7]} : f64[3, 4, 5, 7]
"""
    + TAIL
)


def apart(text: str) -> tuple[Graph, Graph]:
    graph = parse_graph(text)
    return graph, rewrite(graph, RULES, pass_context(graph))


def attending(graph: Graph) -> Op:
    return next(op for op in graph.ops if isinstance(op, Attending))


def test_scores_are_computed_in_the_shape_of_the_products() -> None:
    _, made = apart(MERGED)
    text = print_graph(made)
    assert "reshape %b {shape = [3, 4, 1, 7]} : f64[3, 4, 1, 7]" in text
    assert "12, 5, 7" not in text
    space = attending(made).space()
    assert space is not None
    kinds = {factor.name: factor.kind.value for factor in space.factors}
    assert (kinds["b"], kinds["g"]) == ("parallel", "parallel")


def test_the_meaning_stays() -> None:
    graph, made = apart(MERGED)
    torch.manual_seed(0)
    shapes = [(3, 4, 5, 8), (3, 4, 7, 8), (3, 4, 7, 8), (12, 1, 7)]
    values = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    values.append(torch.rand(3, 1, 5, 7) < 0.7)
    wanted, found = (evaluate(one, values)[0] for one in (graph, made))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", [TWICE, MOVED])
def test_what_needs_merged_dimensions_stays(text: str) -> None:
    """An input that is also added up over all rows; scores that go from row to row."""
    graph, made = apart(text)
    assert made is graph


class Merged(nn.Module):
    """Attention as products of batches of matrices, with a learned bias of each head."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.bias = nn.Parameter(torch.randn(4, 6, 6))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 6, 4, 4).transpose(1, 2).reshape(-1, 6, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        bias = self.bias.expand(x.shape[0], 4, 6, 6).reshape(-1, 6, 6)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=0.5)
        scores = scores.view(-1, 4, 6, 6).masked_fill(mask[:, None, None], -1e4)
        seen = scores.softmax(-1).view(-1, 6, 6) @ v
        return self.o(seen.view(-1, 4, 6, 4).transpose(1, 2).reshape(-1, 6, 16)).pow(2).mean()


@pytest.mark.parametrize(
    ("plan", "forward", "backward"),
    [
        ({"inputs.*": "tp, ..."}, {"all_reduce tp": 1}, {"all_reduce tp": 5}),
        (
            {"[qkv].weight": "tp, _", "o.weight": "_, tp", "bias": "tp, _, _"},
            {"all_reduce tp": 1}, {},
        ),
    ],
)  # fmt: skip
def test_batch_and_heads_are_cut(
    plan: dict[str, str], forward: dict[str, int], backward: dict[str, int]
) -> None:
    torch.manual_seed(0)
    mask = torch.rand(4, 6) < 0.3
    captured = capture(Merged(), [torch.randn(4, 6, 16), mask])
    assert any(isinstance(op, Attending) for op in captured.forward.graph.ops)
    laid = check(captured, Mesh("mesh", (("tp", 2),)), plan)
    assert laid.backward is not None
    assert collectives(laid.forward.graph) == forward
    assert collectives(laid.backward.graph) == backward
