"""Regions: their text, their verification, and that nothing looks into them unasked."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest

from lynx.ir import (
    CompileError,
    DType,
    Graph,
    InternalError,
    Location,
    SymbolRange,
    TensorType,
    Value,
    parse_graph,
    print_graph,
    symbol,
    verify,
)
from lynx.ir.ops import Add, Exp, Fused, Multiply, Region, Sum
from lynx.ir.printer import format_op
from lynx.passes.base import PassContext
from lynx.passes.cse import MergeCommonSubexpressions
from lynx.passes.dce import RemoveDeadCode
from lynx.passes.observers import Diff, Dump, Reproducer

S0 = symbol("s0")
MATRIX = TensorType(DType.F32, (S0, 8))
PLACE = Location("model.py", 7, "blocks.0")


def region(name: str = "x") -> Region:
    x, y = Value(MATRIX, name=name), Value(MATRIX, name="")
    total = Add(x, y, loc=PLACE)
    scaled = Multiply(total.out, S0)
    power = Exp(scaled.out)
    rows = Sum(power.out, (1,))
    return Region((x, y), (total, scaled, power, rows), (power.out, rows.out))


def graph_of(*ops: Fused) -> Graph:
    inputs = tuple(dict.fromkeys(value for op in ops for value in op.inputs))
    results = tuple(result for op in ops for result in op.results)
    return Graph("g", inputs, ops, results, symbols=(SymbolRange("s0"),))


def inputs(count: int = 2) -> tuple[Value, ...]:
    return tuple(Value(MATRIX, name=name) for name in "abc"[:count])


TEXT = """\
graph @g(%a: f32[s0, 8], %b: f32[s0, 8]) symbols (s0) {
  %0, %1 = fused(%x = %a, %p1 = %b) {
    %0 = add %x, %p1 : f32[s0, 8]  loc("model.py":7 "blocks.0")
    %1 = mul %0, s0 : f32[s0, 8]
    %2 = exp %1 : f32[s0, 8]
    %3 = sum %2 {dims = [1]} : f32[s0]
    yield %2, %3
  } : f32[s0, 8], f32[s0]  loc("model.py":8)
  return %0, %1
}
"""


def test_text() -> None:
    graph = graph_of(Fused(inputs(), region(), loc=Location("model.py", 8)))
    verify(graph)
    assert print_graph(graph) == TEXT
    again = parse_graph(TEXT)
    assert print_graph(again) == TEXT
    inner = again.ops[0]
    assert isinstance(inner, Fused)
    assert inner.body.ops[0].loc == PLACE


def test_text_without_locations() -> None:
    graph = parse_graph(TEXT)
    assert print_graph(graph, locations=False) == re.sub(r"  loc\(.*", "", TEXT)


def test_places_in_the_text() -> None:
    graph = parse_graph(TEXT, file="g.lynx", locate=True)
    fused = graph.ops[0]
    assert isinstance(fused, Fused)
    assert [op.loc.line for op in fused.body.ops] == [7, 4, 5, 6]


def test_messages_name_the_op_on_one_line() -> None:
    assert format_op(Fused(inputs(), region())) == (
        "%0, %1 = fused(%a, %b) { 4 ops } : f32[s0, 8], f32[s0]"
    )


def test_unnamed_and_equal_parameters() -> None:
    x, y, z = (Value(MATRIX, name=name) for name in ("x", "x", "0 z"))
    op = Fused(inputs(3), Region((x, y, z), (), (z, x, y)))
    text = print_graph(graph_of(op))
    assert "fused(%x = %a, %x_1 = %b, %_0_z = %c) {\n    yield %_0_z, %x, %x_1\n  }" in text
    assert print_graph(parse_graph(text)) == text


def test_replacing_operands_leaves_the_region() -> None:
    op = Fused(inputs(), region())
    (a, b), other = op.inputs, Value(MATRIX, name="other")
    replaced = op.replace_operands({a: other, op.body.parameters[1]: a})
    assert replaced.inputs == (other, b)
    assert replaced.body is op.body
    assert dataclasses.replace(op).body is op.body


def test_inputs_must_fit_the_parameters() -> None:
    a, _ = inputs()
    with pytest.raises(CompileError, match="has 1 inputs for 2 parameters") as caught:
        Fused((a,), region())
    assert caught.value.code == "region-inputs"
    narrow = Value(TensorType(DType.F32, (S0, 4)))
    with pytest.raises(CompileError, match=r"passes f32\[s0, 4\] to a parameter of f32\[s0, 8\]"):
        Fused((a, narrow), region())


def broken(change: Region) -> CompileError:
    with pytest.raises(CompileError) as caught:
        verify(graph_of(Fused(inputs(), change, loc=PLACE)))
    return caught.value


def test_a_region_is_verified_like_a_graph() -> None:
    good = region()
    late = dataclasses.replace(good, ops=(*good.ops[1:], good.ops[0]))
    assert broken(late).code == "used-before-definition"
    twice = dataclasses.replace(good, ops=(*good.ops, good.ops[0]))
    assert broken(twice).code == "defined-twice"
    foreign = dataclasses.replace(good, results=(Value(MATRIX), Value(MATRIX)))
    error = broken(foreign)
    assert error.code == "foreign-value"
    assert error.loc == PLACE
    assert "in the region, output 0" in error.message
    same = dataclasses.replace(good, parameters=good.parameters[:1] * 2)
    assert broken(same).code == "defined-twice"
    a, b = inputs()
    leaking = Region(region().parameters, (leak := Add(a, b),), (leak.out,))
    with pytest.raises(CompileError, match="belongs to another graph"):
        verify(graph_of(Fused((a, b), leaking)))


def test_a_region_holds_no_region() -> None:
    x, y = region().parameters
    inner = Fused((x, y), region())
    assert broken(Region((x, y), (inner,), inner.results)).code == "bad-region"


def test_merging_leaves_fused_ops_of_other_regions() -> None:
    given = inputs()
    graph = graph_of(Fused(given, region()), Fused(given, region()))
    assert MergeCommonSubexpressions().run(graph, PassContext()) is graph


def test_fused_ops_are_removed_with_their_last_use() -> None:
    given = inputs()
    used, dead = Fused(given, region()), Fused(given, region())
    graph = dataclasses.replace(
        graph_of(used, dead), outputs=used.results[:1], output_specs=graph_of(used).output_specs[:1]
    )
    assert RemoveDeadCode().run(graph, PassContext()).ops == (used,)


def test_symbols_in_a_region_keep_what_tells_them() -> None:
    text = """
    graph @g(%a: f32[8]) symbols (u0) {
      %0 = aten @aten.f.default(%a) : i64[u0]
      %1 = fused(%x = %a) {
        %0 = mul %x, u0 : f32[8]
        yield %0
      } : f32[8]
      return %1
    }
    """
    graph = parse_graph(text)
    assert RemoveDeadCode().run(graph, PassContext()) is graph


def test_dumps_and_differences_of_passes(tmp_path: Path) -> None:
    graph = parse_graph(TEXT)
    changed = parse_graph(TEXT.replace("exp", "log"))
    dump, stream = Dump(tmp_path), io.StringIO()
    step = RemoveDeadCode()
    for observer in (dump, Diff(stream)):
        observer.before(step, graph)
        observer.after(step, graph, changed, 0.0)
    texts = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert texts == [f"// RUN: verify\n{text}" for text in (TEXT, TEXT.replace("exp", "log"))]
    assert "-    %2 = exp %1 : f32[s0, 8]" in stream.getvalue()


def test_a_reproducer_reads_back(tmp_path: Path) -> None:
    error = InternalError("pass-failed", "it failed")
    Reproducer(tmp_path).failed("dce", parse_graph(TEXT), error)
    assert error.reproducer is not None
    assert print_graph(parse_graph(Path(error.reproducer).read_text())) == TEXT
