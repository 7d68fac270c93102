"""Which constants are folded, and into what; failures stay in the program."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lynx.ir import ops as o
from lynx.ir.core import Builder, Graph
from lynx.ir.location import Location
from lynx.ir.types import DType
from lynx.pass_context import pass_context
from lynx.passes import PassContext, parse_pipeline
from tests.passes.values import assert_same_values, evaluate_dense, same_bits

HERE = Location("model.py", 3)


def fold(graph: Graph, context: PassContext | None = None) -> Graph:
    result = parse_pipeline("fold-constants,dce").run(graph, context or pass_context(graph))
    assert isinstance(result, Graph)
    assert_same_values(graph, result, [])
    return result


def resource(tensor: torch.Tensor, dtype: DType) -> tuple[Builder, o.Resource]:
    builder = Builder("g")
    builder.loc = HERE
    builder.resources["table"] = tensor
    return builder, builder.add(o.Resource("table", dtype, tuple(tensor.shape)))


@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, math.nan, 0.1, 1e-45])
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64], ids=str)
def test_numbers_keep_their_bits(number: float, dtype: DType) -> None:
    builder = Builder("g")
    value = builder.emit(o.Copy(builder.emit(o.Full(number, (2, 3), dtype))))
    (op,) = fold(builder.build((value,))).ops
    assert isinstance(op, o.Full)


def test_zeros_of_both_signs_are_not_uniform() -> None:
    builder, table = resource(torch.tensor([0.0, -0.0]), DType.F32)
    graph = fold(builder.build((builder.emit(o.Negate(table.out)),)))
    (op,) = graph.ops
    assert isinstance(op, o.Resource)
    assert same_bits(graph.resources[op.key], torch.tensor([-0.0, 0.0]))
    assert op.loc == HERE


def test_keys_follow_from_the_contents() -> None:
    builder, table = resource(torch.tensor([1, 2, 3]), DType.I64)
    values = (
        builder.emit(o.Negate(table.out)),
        builder.emit(o.Multiply(table.out, -1)),
        builder.emit(o.Cast(builder.emit(o.Negate(table.out)), DType.I32)),
    )
    graph = fold(builder.build(values))
    keys = [op.key for op in graph.ops if isinstance(op, o.Resource)]
    assert len(keys) == 3
    assert keys[0] == keys[1] != keys[2]
    assert set(graph.resources) == {"table", *keys}
    merged = parse_pipeline("cse").run(graph, pass_context(graph))
    assert len(merged.ops) == 2


def test_results_that_nobody_needs_are_computed_too() -> None:
    builder, table = resource(torch.tensor([3.0, 1.0, 2.0]), DType.F32)
    largest, index = builder.add(o.MaxWithIndex(table.out, (0,))).results
    graph = fold(builder.build((index, largest)))
    assert [op.name for op in graph.ops] == ["full", "full"]
    assert [value.item() for value in evaluate_dense(graph, [])] == [0, 3.0]


def test_an_op_that_fails_is_left_to_the_program() -> None:
    builder, table = resource(torch.tensor([7]), DType.I64)
    builder.emit(o.IndexSelect(builder.emit(o.Negate(table.out)), table.out, 0))
    value = builder.ops[-1].results[0]
    graph = builder.build((value,))
    context = pass_context(graph)
    result = parse_pipeline("fold-constants").run(graph, context)
    assert isinstance(result.ops[-1], o.IndexSelect)
    assert any("fails on its constants" in remark.message for remark in context.remarks)


def test_what_was_folded_is_remarked() -> None:
    builder, table = resource(torch.tensor([7]), DType.I64)
    graph = builder.build((builder.emit(o.Negate(table.out)),))
    context = pass_context(graph)
    fold(graph, context)
    (remark,) = context.remarks
    assert remark.message == "'neg' is computed at compile time"
    assert remark.loc == HERE


def test_nothing_is_folded_without_an_evaluator() -> None:
    builder, table = resource(torch.tensor([7]), DType.I64)
    graph = builder.build((builder.emit(o.Negate(table.out)),))
    assert parse_pipeline("fold-constants").run(graph, PassContext()) is graph


def test_a_text_without_its_resources_is_left_alone() -> None:
    builder, table = resource(torch.tensor([7]), DType.I64)
    half = builder.emit(o.Full(0.5, (2,), DType.F32))
    values = (builder.emit(o.Negate(table.out)), builder.emit(o.Negate(half)))
    builder.resources.clear()
    graph: Any = builder.build(values)
    assert parse_pipeline("fold-constants").run(graph, pass_context(graph)) is graph
