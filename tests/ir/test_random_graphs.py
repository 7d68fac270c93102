"""What must hold of every well-typed graph, tried on random ones."""

from __future__ import annotations

from hypothesis import given, settings

from lynx.backends.reference import evaluate
from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir import Graph, differences, equal, parse_graph, print_graph, unified, verify
from tests.strategies import graphs, inputs_for


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_text_reads_back(graph: Graph) -> None:
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert differences(graph, parsed) == []
    assert equal(graph, parsed)
    assert unified(graph, parsed) == ""
    assert print_graph(parsed) == text


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_verifies(graph: Graph) -> None:
    verify(graph)
    verify(graph, known=graph)


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_runs_and_has_the_types_it_says(graph: Graph) -> None:
    outputs, mutated = evaluate(graph, inputs_for(graph))
    targets = [mutation.value for mutation in graph.mutations]
    for value, tensor in zip((*graph.outputs, *targets), (*outputs, *mutated), strict=True):
        assert value is not None
        assert tuple(tensor.shape) == value.shape
        assert tensor.dtype is torch_dtype(value.tensor_type.dtype)
