"""Users, orders and what is needed, against what a graph plainly says."""

from __future__ import annotations

import random

from hypothesis import given, settings

from lynx.ir import Graph, Value, parse_graph, reachable, topological_order, use_counts, users
from lynx.ir.traversal import dependents, producers, values
from tests.strategies import graphs

GRAPH = parse_graph("""
graph @g(%x: f32[4], %y: f32[4]) {
  %0 = exp %x : f32[4]
  %1 = neg %0 : f32[4]
  %2 = add %0, %0 : f32[4]
  aten @effect(%1) {effect = true}
  %3 = sin %y : f32[4]
  %4, %5 = aten @two(%2, [%x]) : f32[4], f32[4]
  return %5, none, %5 mutates (%y: %2)
}
""")
X, Y = GRAPH.inputs
EXP, NEG, ADD, EFFECT, SIN, TWO = GRAPH.ops


def test_users() -> None:
    assert users(GRAPH) == {
        X: (EXP, TWO), Y: (), EXP.out: (NEG, ADD), NEG.out: (EFFECT,), ADD.out: (TWO,),
        SIN.out: (), TWO.results[0]: (), TWO.results[1]: (),
    } | {Y: (SIN,)}  # fmt: skip
    assert list(users(GRAPH)) == values(GRAPH)


def test_use_counts() -> None:
    counts = use_counts(GRAPH)
    assert [counts[value] for value in values(GRAPH)] == [2, 1, 3, 1, 2, 0, 0, 2]


def test_reachable_keeps_effects() -> None:
    assert reachable(GRAPH) == [EXP, NEG, ADD, EFFECT, TWO]


def test_producers_and_dependents() -> None:
    assert producers([ADD.out]) == [EXP, ADD]
    assert producers([X]) == []
    assert producers([TWO.results[1], NEG.out]) == [EXP, ADD, TWO, NEG]
    assert dependents(GRAPH, [EXP.out]) == [NEG, ADD, EFFECT, TWO]
    assert dependents(GRAPH, [Y]) == [SIN]


def test_topological_order_is_stable() -> None:
    assert topological_order(GRAPH.ops) == list(GRAPH.ops)
    assert topological_order([TWO, EFFECT, SIN]) == [TWO, EFFECT, SIN]
    assert topological_order([NEG, EXP]) == [EXP, NEG]


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_topological_order_of_shuffled_ops(graph: Graph) -> None:
    ops = list(graph.ops)
    random.Random(0).shuffle(ops)
    defined: set[Value] = set(graph.inputs)
    ordered = topological_order(ops)
    assert set(ordered) == set(ops)
    assert len(ordered) == len(ops)
    for op in ordered:
        assert defined.issuperset(op.operands)
        defined.update(op.results)


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_counts_agree_with_users(graph: Graph) -> None:
    by_op, counts = users(graph), use_counts(graph)
    ends = list(graph.uses)
    for value in values(graph):
        uses = sum(op.operands.count(value) for op in by_op[value])
        assert counts[value] == uses + ends.count(value)
    assert set(reachable(graph)) == set(producers(graph.uses))
