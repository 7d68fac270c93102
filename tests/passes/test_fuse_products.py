"""Products with the elementwise kernels around them as one fused op, and what stays apart."""

from __future__ import annotations

import pytest
import torch

from lynx.backends.reference import evaluate
from lynx.ir import parse_graph
from lynx.ir.core import Graph
from lynx.ir.ops.fusion import Fused
from lynx.pass_context import pass_context
from lynx.passes import Pipeline, Target, parse_pipeline
from lynx.passes.fuse_products import FuseProducts
from tests.tools.fused import values_by_kernels

GPU = Target(generates_code=True, launches=True)


def joined(text: str, target: Target = GPU) -> Graph:
    graph = parse_graph(text)
    pipeline = parse_pipeline("decompose,fuse,fuse-products")
    result = pipeline.run(graph, pass_context(graph, target))
    assert isinstance(result, Graph)
    return result


def names(graph: Graph) -> list[str]:
    """Return the names of all ops, those of regions joined by signs."""
    return [
        "+".join(part.name for part in op.body.ops) if isinstance(op, Fused) else op.name
        for op in graph.ops
    ]


LINEAR = """
graph @g(%x: bf16[32, 24], %w: bf16[24, 40], %b: bf16[40], %r: bf16[32, 40]) {
  %0 = addmm %b, %x, %w : bf16[32, 40]
  %1 = relu %0 : bf16[32, 40]
  %2 = add %1, %r : bf16[32, 40]
  return %2
}
"""
WIDENED = """
graph @g(%x: bf16[32, 24], %w: f32[24, 40]) {
  %0 = cast %w {dtype = bf16} : bf16[24, 40]
  %1 = matmul %x, %0 : bf16[32, 40]
  %2 = cast %1 {dtype = f32} : f32[32, 40]
  return %2
}
"""
BATCHED = """
graph @g(%a: f32[3, 17, 20], %b: f32[3, 20, 33], %m: f32[17, 33]) {
  %0 = batch_matmul %a, %b : f32[3, 17, 33]
  %1 = mul %0, 0.5 : f32[3, 17, 33]
  %2 = add %1, %m : f32[3, 17, 33]
  return %2
}
"""
GATED = """
graph @g(%x: f32[32, 24], %v: f32[24, 40], %w: f32[24, 40]) {
  %0 = matmul %x, %v : f32[32, 40]
  %1 = matmul %x, %w : f32[32, 40]
  %2 = sigmoid %0 : f32[32, 40]
  %3 = mul %2, %1 : f32[32, 40]
  return %3
}
"""


def test_what_reads_a_product_is_joined() -> None:
    assert names(joined(LINEAR)) == ["addmm+clamp+add"]
    assert names(joined(BATCHED)) == ["batch_matmul+mul+add"]


def test_what_makes_an_operand_is_joined() -> None:
    assert names(joined(WIDENED)) == ["cast+matmul+cast"]


def test_one_of_two_products_has_the_reader() -> None:
    assert names(joined(GATED)) == ["matmul", "matmul+sigmoid+mul"]


@pytest.mark.parametrize("text", [LINEAR, WIDENED, BATCHED, GATED])
def test_kernels_compute_the_same(text: str) -> None:
    torch.manual_seed(0)
    graph = parse_graph(text)
    types = {"bf16": torch.bfloat16, "f32": torch.float32}
    inputs = [
        torch.randn(value.shape).to(types[str(value.tensor_type.dtype)]) for value in graph.inputs
    ]
    (expected,), _ = evaluate(graph, inputs)
    fused = joined(text)
    assert all(isinstance(op, Fused) for op in fused.ops)
    for actual in (evaluate(fused, inputs)[0][0], values_by_kernels(fused, inputs)[0]):
        error = 1e-2 if expected.dtype is torch.bfloat16 or "bf16" in text else 1e-5
        torch.testing.assert_close(actual, expected, rtol=error, atol=error * 10)


APART = {
    "the product is read twice": (LINEAR.replace("add %1, %r", "add %1, %0"), "addmm+clamp+add"),
    "the product leaves": (BATCHED.replace("return %2", "return %2, %0"), "batch_matmul"),
    "a reduction reads it": (
        BATCHED.replace("%1 = mul %0, 0.5 : f32[3, 17, 33]", "%1 = softmax %0 {axis = 2}")
        .replace("softmax %0 {axis = 2}", "softmax %0 {dim = 2} : f32[3, 17, 33]"),
        "batch_matmul",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["the product leaves", "a reduction reads it"])
def test_what_stays_apart(name: str) -> None:
    text, product = APART[name]
    assert names(joined(text))[0] == product


def test_a_reader_of_the_product_twice_is_one_reader() -> None:
    text, fused = APART["the product is read twice"]
    assert names(joined(text)) == [fused]


def test_an_operand_that_others_read_is_made_once() -> None:
    text = WIDENED.replace("return %2", "return %2, %0")
    assert names(joined(text)) == ["cast", "matmul+cast"]


def test_small_products_and_other_types_are_the_librarys() -> None:
    small = names(joined(GATED.replace("32, 24", "8, 24").replace("32, 40", "8, 40")))
    assert small == ["matmul", "matmul", "sigmoid+mul"]
    wide = joined(GATED)
    assert all(isinstance(op, Fused) for op in wide.ops)
    assert names(joined(GATED.replace("f32", "f64"))) == ["matmul", "matmul", "sigmoid+mul"]


def test_nothing_happens_on_a_cpu() -> None:
    graph = parse_graph(GATED)
    for target in (Target(generates_code=True), Target(launches=True)):
        context = pass_context(graph, target)
        assert Pipeline((FuseProducts(),)).run(graph, context) is graph
