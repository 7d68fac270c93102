"""Convolutions become channels last in a whole chain, and everything computes the same."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch

from lynx.backends.reference import evaluate
from lynx.ir.core import Builder, Graph, InputSpec, OutputSpec, Value
from lynx.ir.dims import Dim, SymbolRange, contiguous_strides, symbol
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.ops.elementwise_arithmetic import Add
from lynx.ir.ops.elementwise_math import Exp
from lynx.ir.ops.layout import Permute
from lynx.ir.ops.pooling import MaxPool
from lynx.ir.program import Program, View
from lynx.ir.types import DType, TensorType
from lynx.pass_context import pass_context
from lynx.passes import PassContext, Target, parse_pipeline
from lynx.passes.layout_convolutions import Channels
from lynx.passes.layouts import channels_last_strides, is_channels_last

GENERATING = Target(generates_code=True)
PASSES = "layout-convolutions,expand-products"


class Network(Builder):
    """Builds graphs of convolutions."""

    def image(self, *shape: Dim, last: bool = False, dtype: DType = DType.F32) -> Value:
        strides = channels_last_strides(shape) if last else contiguous_strides(shape)
        return self.input(f"x{len(self.inputs)}", TensorType(dtype, shape), InputSpec(strides))

    def filters(self, *shape: int, dtype: DType = DType.F32) -> Value:
        spec = InputSpec(contiguous_strides(shape))
        return self.input(f"w{len(self.inputs)}", TensorType(dtype, shape), spec)


def run(graph: Graph, pipeline: str = PASSES, target: Target = GENERATING) -> Graph:
    result = parse_pipeline(pipeline).run(graph, PassContext(target=target))
    assert isinstance(result, Graph)
    return result


def names(graph: Graph) -> Counter[str]:
    return Counter(op.name for op in graph.ops)


def block(*, last: bool = False) -> Graph:
    """Return a stem, a pool, and a block with a residual connection."""
    network = Network("block")
    x = network.image(2, 3, 16, 16, last=last)
    stem = network.emit(
        Convolution(x, network.filters(16, 3, 3, 3), network.filters(16), padding=(1, 1))
    )
    pooled = network.add(MaxPool(network.emit(Exp(stem)), (2, 2))).results[0]
    narrow = network.emit(Convolution(pooled, network.filters(64, 16, 1, 1), None))
    inner = network.emit(Exp(narrow))
    wide = network.emit(Convolution(inner, network.filters(16, 64, 3, 3), None, padding=(1, 1)))
    again = network.emit(Convolution(wide, network.filters(16, 16, 1, 1), network.filters(16)))
    return network.build((network.emit(Add(again, pooled)),))


def same(before: Graph, after: Graph) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(v.shape, generator=generator).mul(0.1)  # type: ignore[arg-type]
        for v in before.inputs
    ]
    inputs = [
        x.contiguous(memory_format=torch.channels_last) if is_last(v, spec) else x
        for x, v, spec in zip(inputs, before.inputs, before.input_specs, strict=True)
    ]
    expected, got = evaluate(before, inputs)[0], evaluate(after, inputs)[0]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def is_last(value: Value, spec: InputSpec) -> bool:
    return is_channels_last(value.shape, spec.strides)


def test_copies_only_where_a_chain_begins() -> None:
    graph = block()
    after = run(graph, "layout-convolutions")
    # The image, and what the pool gives; the residual sum keeps what it had.
    assert names(after)["copy"] == 2
    same(graph, after)


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_small_convolution_moves_only_with_what_reads_its_rows(by_rows: bool) -> None:
    network = Network("patches")
    x = network.image(2, 3, 16, 16)
    patches = network.emit(
        Convolution(x, network.filters(8, 3, 2, 2), network.filters(8), stride=(2, 2))
    )
    scaled = network.emit(Exp(patches))
    dims = (0, 2, 3, 1) if by_rows else (0, 1, 3, 2)
    graph = network.build((network.emit(Permute(scaled, dims)),))
    after = run(graph, "layout-convolutions")
    assert names(after)["copy"] == int(by_rows)
    same(graph, after)


def test_windows_of_one_element_are_plain_products() -> None:
    graph = block()
    after = run(graph)
    assert names(after)["matmul"] == 2
    assert names(after)["batch_matmul"] == 0
    same(graph, after)
    assert names(run(graph, "expand-products"))["batch_matmul"] == 2


def test_the_program_has_views_where_the_pass_expects_them() -> None:
    """No reshape copies, and convolutions write channels last."""
    graph = block()
    pipeline = parse_pipeline(f"{PASSES},canonicalize,cse,dce,lower")
    context = pass_context(graph)
    context.target = GENERATING
    program = pipeline.run(graph, context)
    assert isinstance(program, Program)
    for step in program.steps:
        (result, *_), (placement, *_) = step.op.results, step.placements
        if step.op.is_view:
            assert isinstance(placement, View)
            assert placement.strides is not None
        if isinstance(step.op, Convolution):
            assert is_channels_last(result.shape, placement.strides)


def test_what_the_user_laid_out_is_seen() -> None:
    graph = block(last=True)
    after = run(graph)
    assert names(after)["copy"] == 1
    channels = Channels(graph)
    assert [channels.are_last(op.results[0]) for op in graph.ops][:3] == [True, True, False]
    same(graph, after)


def test_gradients_of_windows_of_one_element() -> None:
    for last in (False, True):
        network = Network("backward")
        grad, x = network.image(2, 6, 5, 5, last=last), network.image(2, 4, 5, 5, last=last)
        weight = network.filters(6, 4, 1, 1)
        of_input = network.emit(ConvolutionBackwardInput(grad, x, weight))
        others = network.add(ConvolutionBackwardWeight(grad, x, weight, of_bias=True)).results
        graph = network.build((of_input, *others))
        after = run(graph)
        found = names(after)
        assert found["sum"] == 1
        assert found["copy"] == 0
        expected = {"matmul": 2} if last else {"batch_matmul": 1, "convolution_backward_weight": 1}
        assert {name: found[name] for name in expected} == expected
        same(graph, after)


def refusal(graph: Graph) -> str:
    context = PassContext(target=GENERATING)
    assert parse_pipeline("layout-convolutions").run(graph, context) is graph
    return " ".join(remark.message for remark in context.remarks)


def convolved(
    x: tuple[Dim, ...], weight: tuple[int, ...], dtype: DType = DType.F32, groups: int = 1
) -> Graph:
    network = Network("g")
    image, filters = network.image(*x, dtype=dtype), network.filters(*weight, dtype=dtype)
    graph = network.build((network.emit(Convolution(image, filters, None, groups=groups)),))
    return dataclasses.replace(graph, symbols=(SymbolRange("s0", 2),))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (convolved((2, 8, 9, 9), (8, 1, 3, 3), groups=8), "too little work"),
        (convolved((2, 8, 9, 9), (2, 8, 3, 3)), "too little work"),
        (convolved((2, 8, 9), (99, 8, 3)), "expects images"),
        (convolved((2, 8, 1, 1), (99, 8, 1, 1)), "images of one element"),
        (convolved((2, 8, 9, 9), (99, 8, 3, 3), DType.F64), "not one of the library"),
        (convolved((2, 8, symbol("s0"), 9), (99, 8, 3, 3)), "symbolic sizes"),
    ],
)
def test_refusals(graph: Graph, reason: str) -> None:
    assert reason in refusal(graph)


def test_any_batch_size() -> None:
    after = run(convolved((symbol("s0"), 8, 9, 9), (99, 8, 3, 3)), "layout-convolutions")
    assert names(after)["copy"] == 1


def test_graphs_for_training_keep_their_layouts() -> None:
    network = Network("forward")
    x = network.image(2, 3, 16, 16)
    y = network.emit(Convolution(x, network.filters(99, 3, 3, 3), None))
    specs = (OutputSpec(), OutputSpec(saved=True))
    graph = network.build((y, network.emit(Exp(y))), specs)
    assert refusal(graph) == ""
    whole = block()
    assert run(whole, "layout-convolutions", Target()) is whole


def test_a_long_chain() -> None:
    network = Network("chain")
    x = network.image(2, 64, 8, 8)
    for _ in range(3000):
        x = network.emit(Exp(x))
    filters = network.filters(64, 64, 3, 3)
    outputs = [network.emit(Convolution(x, filters, None)) for _ in range(3)]
    graph = network.build(tuple(outputs))
    assert names(run(graph, "layout-convolutions"))["copy"] == 1
