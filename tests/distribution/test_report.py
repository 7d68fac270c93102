"""What a program over a mesh sends, and why its values lie as they do."""

from __future__ import annotations

from lynx.ir import Mesh, parse_graph
from lynx.ir.sharding import parse_sharding
from lynx.pass_context import pass_context
from lynx.passes.distribution.annotations import Annotation, Annotations
from lynx.passes.distribution.distribute import distribute
from lynx.passes.distribution.report import summary, traffic_of, traffic_table, why

MESH = Mesh("m", (("dp", 2), ("tp", 4)))
TEXT = """
graph @f(%x: f32[8, 16], %up: f32[16, 32], %down: f32[32, 16]) {
  %h = matmul %x, %up : f32[8, 32]
  %a = relu %h : f32[8, 32]
  %y = matmul %a, %down : f32[8, 16]
  return %y
}
"""


def test_traffic_and_reasons() -> None:
    graph = parse_graph(TEXT, file="model.py")
    shardings = ("dp, _", "_, tp", "tp, _")
    given = tuple(Annotation(parse_sharding(one, MESH)) for one in shardings)
    context = pass_context(graph)
    found = distribute(graph, Annotations(MESH, given, (None,)), context)
    (one,) = traffic_of(found.graph)
    # Each device has 4 by 16 numbers to reduce among 4: twice three quarters of 256 bytes.
    assert (one.kind, one.axes, one.count, one.sent) == ("all_reduce", ("tp",), 1, 384.0)
    assert summary(found.graph) == "1 all_reduce over tp send 384 B"
    assert "all_reduce  tp    1      384 B" in traffic_table(found.graph)
    assert any("1 all_reduce over tp" in remark.message for remark in context.remarks)
    relu = next(value for value in found.layouts.shardings if value.op and value.op.name == "relu")
    steps = [str(step) for step in why(found.layouts, relu, "tp")]
    assert steps[0].startswith("relu f32[8, 32] by 'tp': as its neighbour in 'relu'")
    assert steps[-1] == "%up f32[16, 32] by 'tp': annotated"
    assert not list(why(found.layouts, relu, "pp"))
