"""Attention reads keys and values that heads share, where these were repeated for it."""

from __future__ import annotations

import pytest
import torch

from lynx.backends.reference import evaluate
from lynx.ir import parse_graph
from lynx.ir.core import Graph
from lynx.ir.ops.aten import Aten
from lynx.pass_context import pass_context
from lynx.passes import parse_pipeline

TARGET = "aten._scaled_dot_product_flash_attention_for_cpu.default"
REPEATED = """
  %{n} = unsqueeze {x} {{dim = 2}} : f32[2, 3, 1, 16, 8]
  %{m} = broadcast %{n} {{shape = [2, 3, 2, 16, 8]}} : f32[2, 3, 2, 16, 8]
  %{k} = copy %{m} {{memory_format = "contiguous_format"}} : f32[2, 3, 2, 16, 8]
  %{r} = reshape %{k} {{shape = [2, 6, 16, 8]}} : f32[2, 6, 16, 8]
"""
INPUT = "f32[2, 3, 16, 8] {strides = [384, 128, 8, 1]}"
ROWS = "f32[2, 3, 16, 8] {strides = [384, 8, 24, 1]}"


def repeated(x: str, first: int) -> str:
    names = {name: first + place for place, name in enumerate("nmkr")}
    return REPEATED.format(x=x, **names)


def attention(body: str, k: str, v: str, key: str = INPUT, target: str = TARGET) -> Graph:
    strides = "[48, 8, 8, 1], [768, 128, 8, 1], [768, 128, 8, 1]"
    return parse_graph(
        f"""graph @g(%q: f32[2, 6, 1, 8] {{strides = [48, 8, 8, 1]}}, %k: {key}, %v: {INPUT},
            %w: f32[2, 6, 16, 8] {{strides = [768, 128, 8, 1]}}) {{
          {body}
          %20, %21 = aten @{target}(%q, {k}, {v}, scale = 0.5)
            {{operand_strides = [{strides}], strides = [[48, 8, 8, 1], [6, 1, 6]]}}
            : f32[2, 6, 1, 8], f32[2, 6, 1]
          return %20, %21
        }}"""
    )


def shared(graph: Graph) -> Graph:
    result = parse_pipeline("share-heads,dce").run(graph, pass_context(graph))
    assert isinstance(result, Graph)
    return result


def values(graph: Graph) -> list[torch.Tensor]:
    torch.manual_seed(0)
    inputs = [
        torch.randn([int(n) for n in value.shape]).as_strided(
            [int(n) for n in value.shape], [int(n) for n in spec.strides or ()]
        )
        for value, spec in zip(graph.inputs, graph.input_specs, strict=True)
    ]
    found, _ = evaluate(graph, inputs)
    return list(found)


@pytest.mark.parametrize("layout", [INPUT, ROWS])
def test_repeated_heads_are_shared(layout: str) -> None:
    graph = attention(repeated("%k", 0) + repeated("%v", 4), "%3", "%7", key=layout)
    after = shared(graph)
    (op,) = after.ops
    assert isinstance(op, Aten)
    assert op.operands == after.inputs[:3]
    assert op.operand_strides[1:] == tuple(spec.strides for spec in after.input_specs[1:3])
    for found, wanted in zip(values(after), values(graph), strict=True):
        assert torch.equal(found, wanted)


def test_heads_of_a_view_are_shared() -> None:
    """What is repeated has a dimension of size 1 already, which must go."""
    body = """
      %10 = reshape %k {shape = [2, 3, 1, 16, 8]} : f32[2, 3, 1, 16, 8]
      %11 = broadcast %10 {shape = [2, 3, 2, 16, 8]} : f32[2, 3, 2, 16, 8]
      %12 = reshape %11 {shape = [2, 6, 16, 8]} : f32[2, 6, 16, 8]
    """
    graph = attention(body + repeated("%v", 4), "%12", "%7")
    after = shared(graph)
    assert [op.name for op in after.ops] == ["reshape", "squeeze", "aten"]
    for found, wanted in zip(values(after), values(graph), strict=True):
        assert torch.equal(found, wanted)


OTHERWISE = {
    "not repeated": ("", "%w", "%w"),
    "values are not repeated": (repeated("%k", 0), "%3", "%w"),
    "all heads are repeated in turn": (
        """
      %0 = unsqueeze %k {dim = 1} : f32[2, 1, 3, 16, 8]
      %1 = broadcast %0 {shape = [2, 2, 3, 16, 8]} : f32[2, 2, 3, 16, 8]
      %2 = reshape %1 {shape = [2, 6, 16, 8]} : f32[2, 6, 16, 8]
    """,
        "%2",
        "%2",
    ),
}


@pytest.mark.parametrize("key", OTHERWISE)
def test_what_is_repeated_in_another_way_stays(key: str) -> None:
    graph = attention(*OTHERWISE[key])
    context = pass_context(graph)
    assert parse_pipeline("share-heads").run(graph, context) is graph
    assert any(remark.subject == "share-heads" for remark in context.remarks)


def test_rows_of_elements_apart_stay() -> None:
    strided = "f32[2, 3, 16, 8] {strides = [384, 128, 1, 16]}"
    graph = attention(repeated("%k", 0) + repeated("%v", 4), "%3", "%7", key=strided)
    context = pass_context(graph)
    assert parse_pipeline("share-heads").run(graph, context) is graph
    assert "no rows of neighbouring elements" in context.remarks[-1].message


def test_other_attention_stays() -> None:
    other = "aten._scaled_dot_product_efficient_attention.default"
    graph = attention(repeated("%k", 0) + repeated("%v", 4), "%3", "%7", target=other)
    assert parse_pipeline("share-heads").run(graph, pass_context(graph)) is graph
