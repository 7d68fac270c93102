"""Ops that hold a region next to their operands: text, comparison, merging, and scores' texts."""

from __future__ import annotations

import dataclasses

import pytest

from lynx.ir import Graph, TextError, Value, differences, parse_graph, print_graph, verify
from lynx.ir.core import Op
from lynx.ir.diff import unified
from lynx.ir.dims import symbol
from lynx.ir.errors import CompileError
from lynx.ir.ops.attention import Attention
from lynx.ir.ops.elementwise_arithmetic import Add, Multiply
from lynx.ir.ops.factory import Full
from lynx.ir.ops.fusion import Region
from lynx.ir.printer import format_op
from lynx.ir.score import is_plain, score_region, score_text, symbols_of
from lynx.ir.types import DType, TensorType
from lynx.passes.base import PassContext
from lynx.passes.cse import MergeCommonSubexpressions
from lynx.passes.dce import RemoveDeadCode

TEXT = """graph @g(
    %q: f32[s0, 4, s1, 8],
    %k: f32[s0, 2, s2, 8],
    %v: f32[s0, 2, s2, 6],
    %m: f32[s1, s2]
) symbols (s0 in [1, inf], s1, s2) {
  %0, %1 = attention %q, %k, %v, [%m], none, none {zero_empty = true} with score(%dot: f32[s0, 4, s1, s2], %bias: f32[s1, s2]) {
    %0 = mul %dot, 0.5 : f32[s0, 4, s1, s2]  loc("m.py":3)
    %1 = add %0, %bias : f32[s0, 4, s1, s2]
    yield %1
  } : f32[s0, 4, s1, 6], f32[s0, 4, s1]  loc("m.py":4)
  return %0, %1
}
"""  # noqa: E501 - one op a line


def test_what_is_remembered_of_a_score_is_what_its_text_says() -> None:
    (op,) = parse_graph(TEXT).ops
    assert isinstance(op, Attention)
    assert op.score is not None
    text, sizes = score_text(op.score)
    score_region.cache_clear()
    remembered = score_region(text, sizes)
    elsewhere = parse_graph(text)
    results = tuple(value for value in elsewhere.outputs if value is not None)
    read = Region(elsewhere.inputs, elsewhere.ops, results)
    assert score_text(read) == (text, tuple(symbol(f"s{n}") for n in range(len(sizes))))
    assert score_text(remembered) == (text, sizes)
    assert [inner.loc for inner in remembered.ops] == [inner.loc for inner in read.ops]


def test_text_reads_back() -> None:
    graph = parse_graph(TEXT)
    verify(graph)
    assert print_graph(graph) == TEXT
    (op,) = graph.ops
    assert isinstance(op, Attention)
    assert op.score is not None
    assert list(op.regions) == ["score"]
    assert op.score.ops[0].loc.line == 3
    assert [parameter.name for parameter in op.score.parameters] == ["dot", "bias"]
    assert format_op(op).endswith(
        "attention %q, %k, %v, [%m], none, none {zero_empty = true} with score { 2 ops } : "
        "f32[s0, 4, s1, 6], f32[s0, 4, s1]"
    )


def test_without_a_score_there_is_no_region() -> None:
    q = Value(TensorType(DType.F32, (1, 2, 3, 4)), name="q")
    op = Attention(q, q, q, (), None, None)
    text = print_graph(Graph("g", (q,), (op,), op.results))
    assert "with" not in text
    assert op.regions == {}
    assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.5", "0.25", "op 0 'attention': op 0 'mul': operand 'y': 0.5 / 0.25"),
        ("yield %1", "yield %0", "op 0 'attention': results: [%1] / [%0]"),
        ("add %0", "sub %0", "op 0 'attention': op 1: 'add %0, %input1' / 'sub %0, %input1'"),
        ("zero_empty = true", "zero_empty = false", "attribute 'zero_empty': true / false"),
    ],
)
def test_differences(old: str, new: str, message: str) -> None:
    graph, other = parse_graph(TEXT), parse_graph(TEXT.replace(old, new))
    assert differences(graph, parse_graph(TEXT)) == []
    assert any(message in line for line in differences(graph, other))
    assert new in unified(graph, other) or new == "zero_empty = false"  # which is not written


def test_a_region_more_is_a_difference() -> None:
    graph = parse_graph(TEXT)
    (op,) = graph.ops
    assert isinstance(op, Attention)
    bare = Attention(op.q, op.k, op.v, (), None, None, loc=op.loc)
    found = differences(graph, Graph("g", graph.inputs, (bare,), bare.results))
    assert "op 0 'attention': regions: ['score'] / []" in found


def scored(*ops: Op) -> Graph:
    inputs = tuple(dict.fromkeys(operand for op in ops for operand in op.operands))
    return Graph("g", inputs, ops, tuple(op.results[0] for op in ops))


def attention(factor: float, q: Value) -> Attention:
    dot = Value(TensorType(DType.F32, (1, 2, 3, 3)), name="dot")
    scaled = Multiply(dot, factor)
    return Attention(q, q, q, (), None, None, Region((dot,), (scaled,), scaled.results))


def test_equal_scores_merge_and_others_do_not() -> None:
    q = Value(TensorType(DType.F32, (1, 2, 3, 4)), name="q")
    merged = MergeCommonSubexpressions().run(
        scored(attention(0.5, q), attention(0.5, q)), PassContext()
    )
    assert len(merged.ops) == 1
    graph = scored(attention(0.5, q), attention(0.25, q))
    assert MergeCommonSubexpressions().run(graph, PassContext()) is graph


def test_symbols_of_scores_keep_what_tells_them() -> None:
    graph = parse_graph("""
    graph @g(%q: f32[1, 2, 3, 4], %x: f32[8]) symbols (u0) {
      %0 = aten @aten.nonzero.default(%x) : i64[u0, 1]
      %1, %2 = attention %q, %q, %q, [], none, none with score(%dot: f32[1, 2, 3, 3]) {
        %0 = mul %dot, u0 : f32[1, 2, 3, 3]
        yield %0
      } : f32[1, 2, 3, 4], f32[1, 2, 3]
      return %1
    }""")
    verify(graph)
    assert len(RemoveDeadCode().run(graph, PassContext()).ops) == 2


def score(*names: str) -> Region:
    b, r, c = map(symbol, names)
    dot = Value(TensorType(DType.F32, (b, 4, r, c)), name="whatever")
    bias = Value(TensorType(DType.F32, (c,)), name="bias")
    wide = Full(1.0, (2 * r, 1), DType.F32)
    added = Add(dot, bias)
    scaled = Multiply(added.out, r)
    ops = (added, scaled, wide)
    return Region((dot, bias), ops, scaled.results)


def test_texts_of_scores_do_not_depend_on_names() -> None:
    text, sizes = score_text(score("s9", "u1", "s3"))
    other, others = score_text(score("s1", "s2", "s0"))
    assert text == other
    assert list(map(str, sizes)) == ["s9", "u1", "s3"]
    assert list(map(str, others)) == ["s1", "s2", "s0"]
    assert "%dot: f32[s0, 4, s1, s2], %p0: f32[s2]" in text
    assert "2*s1" in text


def test_scores_for_sizes() -> None:
    text, sizes = score_text(score("s9", "u1", "s3"))
    back = score_region(text, sizes)
    assert symbols_of(back) == ("s3", "s9", "u1")
    assert score_text(back) == (text, sizes)
    fixed = score_region(text, (2, 5, 7))
    assert symbols_of(fixed) == ()
    assert fixed.results[0].shape == (2, 4, 5, 7)
    assert fixed.ops[1].operands[0].shape == (2, 4, 5, 7)
    wide = fixed.ops[2]
    assert isinstance(wide, Full)
    assert wide.shape == (10, 1)
    assert score_region(text, (2, 5, 7)) is fixed


def test_plain_scores() -> None:
    assert is_plain(None)
    assert is_plain(score_region("graph @score(%dot: f32[1, 2, 3, 3]) { return %dot }"))
    assert not is_plain(score("s0", "s1", "s2"))
    with pytest.raises(TextError):
        score_region("graph @score(%dot: f32[1, 2, 3, 3]) { return %other }")


def test_operands_that_do_not_belong_together() -> None:
    q = Value(TensorType(DType.F32, (1, 2, 3, 4)), name="q")
    good = attention(0.5, q)
    keep = Value(TensorType(DType.F32, (1, 2, 3, 3)))
    sink = Value(TensorType(DType.F32, (5, 2, 3)))
    flat = Value(TensorType(DType.F32, (2, 3, 4)))
    integers = Value(TensorType(DType.I64, (1, 2, 3, 4)))
    for change, code in (
        ({"keep": keep}, "bad-dtype"),
        ({"sink": sink}, "shape-mismatch"),
        ({"k": flat}, "bad-rank"),
        ({"q": integers, "k": integers, "v": integers}, "bad-dtype"),
        ({"inputs": (q,)}, "region-inputs"),
        ({"inputs": (q,), "score": None}, "region-inputs"),
    ):
        with pytest.raises(CompileError) as caught:
            dataclasses.replace(good, **change)
        assert caught.value.code == code
