"""Fusion on GPUs: kernels stay on one device, and numbers on the CPU go with any."""

from __future__ import annotations

from lynx.ir import parse_graph
from lynx.ir.core import Graph
from lynx.ir.ops.fusion import Fused
from lynx.pass_context import pass_context
from lynx.passes import Fuse, Target

GPU = Target(device="cuda", generates_code=True, launches=True)


def fused(text: str) -> Graph:
    graph = parse_graph(text)
    return Fuse().run(graph, pass_context(graph, GPU))


def groups(graph: Graph) -> list[list[str]]:
    return [[part.name for part in op.body.ops] for op in graph.ops if isinstance(op, Fused)]


def test_numbers_on_the_cpu() -> None:
    graph = fused("""
graph @g(%x: f32[4, 3] on cuda:0, %s: f32[]) {
  %0 = full 2.0 {shape = [], dtype = f32} : f32[]
  %1 = mul %x, %s : f32[4, 3] on cuda:0
  %2 = add %1, %0 : f32[4, 3] on cuda:0
  %3 = exp %s : f32[]
  return %2, %3
}
""")
    assert groups(graph) == [["mul", "full", "add"]]
    assert [op.name for op in graph.ops if not isinstance(op, Fused)] == ["exp"]


def test_two_gpus() -> None:
    graph = fused("""
graph @g(%x: f32[4, 3] on cuda:0, %y: f32[4, 3] on cuda:1, %s: f32[]) {
  %0 = mul %x, %s : f32[4, 3] on cuda:0
  %1 = exp %0 : f32[4, 3] on cuda:0
  %2 = mul %y, %s : f32[4, 3] on cuda:1
  %3 = exp %2 : f32[4, 3] on cuda:1
  return %1, %3
}
""")
    assert groups(graph) == [["mul", "exp"], ["mul", "exp"]]
    devices = [{r.tensor_type.device for r in op.results} for op in graph.ops]
    assert devices == [{"cuda:0"}, {"cuda:1"}]


def test_tensors_on_the_cpu_run_through_torch() -> None:
    graph = fused("""
graph @g(%x: f32[4, 3], %y: f32[4, 3] on cuda:0) {
  %0 = exp %x : f32[4, 3]
  %1 = exp %y : f32[4, 3] on cuda:0
  return %0, %1
}
""")
    assert groups(graph) == [["exp"]]
    assert [op.name for op in graph.ops] == ["exp", "fused"]
