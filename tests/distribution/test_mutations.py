"""A collective that is missing, doubled, or does something else is an error of types."""

from __future__ import annotations

import pytest
import torch

from lynx.backends.reference import evaluate, run_on_mesh
from lynx.ir import Graph, parse_graph, print_graph, verify
from lynx.ir.ops.collective import Collective
from tests.distribution.mutations import Mutation, mutated, mutations, promising, rejection

PROGRAMS = {
    "columns, then rows": """
        graph @g(%x: f64[5 @ dp, 8], %w: f64[8, 12 @ tp], %v: f64[12 @ tp, 8])
            mesh @m(dp = 2, tp = 4) {
          %0 = matmul %x, %w : f64[5 @ dp, 12 @ tp]
          %1 = relu %0 : f64[5 @ dp, 12 @ tp]
          %2 = matmul %1, %v : f64[5 @ dp, 8] + partial(sum: tp)
          %3 = all_reduce %2 {axes = ["tp"]} : f64[5 @ dp, 8]
          %4 = add %3, %x : f64[5 @ dp, 8]
          return %4
        }
    """,
    "linear ops after the sum": """
        graph @g(%x: f64[6, 8 @ tp], %w: f64[8 @ tp, 6]) mesh @m(dp = 2, tp = 2) {
          %0 = matmul %x, %w : f64[6, 6] + partial(sum: tp)
          %1 = all_reduce %0 {axes = ["tp"]} : f64[6, 6] replicated
          %2 = mul %1, 2.0 : f64[6, 6] replicated
          %3 = permute %2 {dims = [1, 0]} : f64[6, 6] replicated
          %4 = sum %3 {dims = [0]} : f64[6] replicated
          return %4
        }
    """,
    "sequences between layers": """
        graph @g(%x: f64[7 @ tp, 8], %w: f64[8, 12 @ tp], %v: f64[12 @ tp, 8])
            mesh @m(dp = 2, tp = 3) {
          %0 = all_gather %x {axes = ["tp"], dim = 0} : f64[7, 8] replicated
          %1 = matmul %0, %w : f64[7, 12 @ tp]
          %2 = matmul %1, %v : f64[7, 8] + partial(sum: tp)
          %3 = reduce_scatter %2 {axes = ["tp"], dim = 0} : f64[7 @ tp, 8]
          %4 = softmax %3 {dim = 1} : f64[7 @ tp, 8]
          return %4
        }
    """,
    "parameters that are gathered, gradients that are scattered": """
        graph @g(%x: f64[8 @ (dp, tp), 6], %w: f64[6 @ (dp, tp), 5]) mesh @m(dp = 2, tp = 2) {
          %0 = all_gather %w {axes = ["dp", "tp"], dim = 0} : f64[6, 5] replicated
          %1 = matmul %x, %0 : f64[8 @ (dp, tp), 5]
          %2 = exp %1 : f64[8 @ (dp, tp), 5]
          %3 = permute %x {dims = [1, 0]} : f64[6, 8 @ (dp, tp)]
          %4 = matmul %3, %2 : f64[6, 5] + partial(sum: dp) + partial(sum: tp)
          %5 = reduce_scatter %4 {axes = ["dp", "tp"], dim = 0} : f64[6 @ (dp, tp), 5]
          %6 = add %w, %5 {alpha = -0.1} : f64[6 @ (dp, tp), 5]
          %7 = sum %2 {dims = [0, 1]} : f64[] + partial(sum: dp) + partial(sum: tp)
          %8 = all_reduce %7 {axes = ["dp", "tp"]} : f64[] replicated
          return %8 mutates (%w: %6)
        }
    """,
    "heads for sequences": """
        graph @g(%x: f64[2 @ dp, 6 @ tp, 8]) mesh @m(dp = 2, tp = 2) {
          %0 = all_to_all %x {axes = ["tp"], source = 1, target = 2} : f64[2 @ dp, 6, 8 @ tp]
          %1 = cumsum %0 {dim = 1} : f64[2 @ dp, 6, 8 @ tp]
          %2 = all_to_all %1 {axes = ["tp"], source = 2, target = 1} : f64[2 @ dp, 6 @ tp, 8]
          %3 = softmax %2 {dim = 2} : f64[2 @ dp, 6 @ tp, 8]
          return %3
        }
    """,
    "a softmax over a cut dimension": """
        graph @g(%x: f64[5 @ dp, 9 @ tp]) mesh @m(dp = 2, tp = 4) {
          %0 = amax %x {dims = [1], keepdim = true} : f64[5 @ dp, 1] + partial(max: tp)
          %1 = all_reduce %0 {axes = ["tp"], reduction = "max"} : f64[5 @ dp, 1]
          %2 = sub %x, %1 : f64[5 @ dp, 9 @ tp]
          %3 = exp %2 : f64[5 @ dp, 9 @ tp]
          %4 = sum %3 {dims = [1], keepdim = true} : f64[5 @ dp, 1] + partial(sum: tp)
          %5 = all_reduce %4 {axes = ["tp"]} : f64[5 @ dp, 1]
          %6 = div %3, %5 : f64[5 @ dp, 9 @ tp]
          %7 = all_gather %6 {axes = ["tp"], dim = 1} : f64[5 @ dp, 9]
          return %7
        }
    """,
    "six heads among four devices": """
        graph @g(%x: f64[3, 5], %w: f64[5, 24 @ tp by 4]) mesh @m(dp = 2, tp = 4) {
          %0 = replicate %x {axes = ["dp", "tp"], sizes = [2, 4]} : f64[3, 5] replicated
          %1 = matmul %0, %w : f64[3, 24 @ tp by 4]
          %2 = reshape %1 {shape = [3, 6, 4]} : f64[3, 6 @ tp, 4]
          %3 = softmax %2 {dim = 2} : f64[3, 6 @ tp, 4]
          %4 = reshape %3 {shape = [3, 24]} : f64[3, 24 @ tp by 4]
          %5 = shard %4 {axes = ["dp"], dim = 0} : f64[3 @ dp, 24 @ tp by 4]
          %6 = all_gather %5 {axes = ["tp"], dim = 1} : f64[3 @ dp, 24]
          return %6
        }
    """,
}


def program(name: str) -> Graph:
    graph = promising(parse_graph(PROGRAMS[name]))
    verify(graph)
    return graph


def cases() -> list[tuple[str, Mutation, Graph]]:
    graphs = {name: program(name) for name in PROGRAMS}
    return [(name, m, graph) for name, graph in graphs.items() for m in mutations(graph)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_right(name: str) -> None:
    graph = program(name)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(value.shape, dtype=torch.float64, generator=generator)  # type: ignore[arg-type]
        for value in graph.inputs
    ]
    for one, other in zip(run_on_mesh(graph, inputs), evaluate(graph, inputs)[0], strict=True):
        torch.testing.assert_close(one, other)
    verify(parse_graph(print_graph(graph)))


def test_no_mutation_passes() -> None:
    every = cases()
    passed = [f"{name}: {mutation}" for name, mutation, graph in every
              if rejection(graph, mutation) is None]  # fmt: skip
    assert passed == []
    assert len(every) > 100
    print(f"{len(every)} of {len(every)} mutations rejected")


def test_every_collective_of_the_programs_is_mutated() -> None:
    kinds = {type(mutation.op) for _, mutation, _ in cases()}
    names = {kind.name for kind in kinds}
    assert names == {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "shard"}
    assert all(issubclass(kind, Collective) for kind in kinds)


def test_a_program_without_a_change_passes() -> None:
    graph = program("columns, then rows")
    op = next(op for op in graph.ops if isinstance(op, Collective))
    verify(mutated(graph, Mutation(op, "changed")))


def test_without_promises_some_would_pass() -> None:
    graph = parse_graph(PROGRAMS["linear ops after the sum"])
    op = next(op for op in graph.ops if isinstance(op, Collective))
    assert rejection(graph, Mutation(op, "deleted")) is None
    promised = promising(graph)
    error = rejection(promised, Mutation(op, "deleted"))
    assert error is not None
    assert error.code == "output-sharding"
