"""What common-subexpression and dead-code elimination merge, remove, and leave alone."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lynx.ir.core import Builder, Foreign, Graph, Mutation, Value
from lynx.ir.dims import SymbolRange, symbol
from lynx.ir.location import Location
from lynx.ir.ops.aten import Aten, Symbolic
from lynx.ir.types import DType, ScalarType, TensorType, Type
from lynx.passes import PassContext, parse_pipeline

F32 = TensorType(DType.F32, (4,))


def call(target: str, *arguments: Any, type: Type = F32, line: int = 0, **options: Any) -> Aten:  # noqa: A002 - the field's natural name
    loc = Location("model.py", line) if line else Location()
    return Aten(target, arguments, (), (type,), loc=loc, **options)


def run(pipeline: str, graph: Graph) -> Graph:
    result = parse_pipeline(pipeline).run(graph, PassContext())
    assert isinstance(result, Graph)
    return result


def pair(a: Any, b: Any, target: str = "aten.mul.Tensor", **options: Any) -> Graph:
    """Return a graph with two calls on the same input that differ in one argument."""
    builder = Builder("g")
    x = builder.input("x", F32)
    outputs: tuple[Value, ...] = tuple(
        builder.emit(call(target, x, argument, **options)) for argument in (a, b)
    )
    return builder.build(outputs)


@pytest.mark.parametrize(
    "same",
    [1, True, 0.5, -0.0, math.inf, math.nan, 1j, None, "text", DType.F16, (1, (2.0, None))],
    ids=repr,
)
def test_equal_arguments_merge(same: Any) -> None:
    graph = run("cse", pair(same, same))
    assert len(graph.ops) == 1
    assert graph.outputs == (graph.ops[0].out,) * 2


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True), (1, 1.0), (0, False), (True, 1.0), (0.0, -0.0), (math.nan, math.inf),
        (1.0, complex(1)), (complex(0.0, 0.0), complex(0.0, -0.0)), (1, "1"), (None, 0),
        ((1, 2), (1, 2.0)), ((1, (0.0,)), (1, (-0.0,))), ((), None), (DType.F16, DType.BF16),
        (Foreign("dtype", "a"), Foreign("layout", "a")), (2**53, 2**53 + 1),
    ],
    ids=repr,
)  # fmt: skip
def test_different_arguments_do_not_merge(a: Any, b: Any) -> None:
    graph = pair(a, b)
    assert run("cse", graph) is graph


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("aten.rand_like.default", {"random": True}),
        ("aten.add_.Tensor", {"effect": True}),
        ("aten.new_empty.default", {}),
        ("mylib.lookup.default", {}),
        ("aten._local_scalar_dense.default", {"type": ScalarType("float")}),
    ],
)
def test_what_is_no_function_of_its_arguments_does_not_merge(
    target: str, options: dict[str, Any]
) -> None:
    graph = pair(1, 1, target, **options)
    assert run("cse", graph) is graph


def test_merging_goes_through_and_keeps_the_first_location() -> None:
    builder = Builder("g")
    x = builder.input("x", F32)
    first = builder.emit(call("aten.sin.default", x, line=1))
    second = builder.emit(call("aten.sin.default", x, line=2))
    a = builder.emit(call("aten.cos.default", first, line=3))
    b = builder.emit(call("aten.cos.default", second, line=4))
    graph = run("cse", builder.build((a, b), mutations=(Mutation(x, b),)))
    assert [op.loc.line for op in graph.ops] == [1, 3]
    assert graph.outputs == (graph.ops[1].out,) * 2
    assert graph.mutations == (Mutation(x, graph.ops[1].out),)


def test_reasons_do_not_keep_ops_apart() -> None:
    builder = Builder("g")
    x = builder.input("x", F32)
    outputs = tuple(builder.emit(call("aten.sin.default", x, reason=why)) for why in ("a", "b"))
    assert len(run("cse", builder.build(outputs)).ops) == 1


def test_dead_chains_go_and_effects_stay() -> None:
    builder = Builder("g")
    x = builder.input("x", F32)
    used = builder.emit(call("aten.sin.default", x))
    kept = builder.emit(call("aten.cos.default", x))
    builder.emit(call("mylib.print.default", kept, effect=True))
    builder.emit(call("aten.rand_like.default", x, random=True))
    dead = builder.emit(call("aten.exp.default", x))
    builder.emit(call("aten.exp.default", dead))
    stored = builder.emit(call("aten.neg.default", x))
    graph = run("dce", builder.build((used, None), mutations=(Mutation(x, stored),)))
    names = [op.target for op in graph.ops if isinstance(op, Aten)]
    assert names == [
        "aten.sin.default", "aten.cos.default", "mylib.print.default", "aten.rand_like.default",
        "aten.neg.default",
    ]  # fmt: skip
    assert run("dce", graph) is graph


def test_an_op_lives_while_one_of_its_results_does() -> None:
    builder = Builder("g")
    x = builder.input("x", F32)
    op = builder.add(Aten("aten.topk.default", (x, 2), (), (F32, TensorType(DType.I64, (4,)))))
    graph = builder.build((op.results[1],))
    assert run("dce", graph) is graph


def test_unused_inputs_stay() -> None:
    builder = Builder("g")
    builder.input("x", F32)
    builder.add(Symbolic(3))
    graph = run("dce", builder.build(()))
    assert len(graph.inputs) == 1
    assert not graph.ops


def test_who_tells_a_size_stays() -> None:
    size, other = symbol("u0"), symbol("u1")
    told = TensorType(DType.I64, (size, 1))
    builder = Builder("g")
    x = builder.input("x", F32)
    found = builder.emit(call("aten.nonzero.default", x, type=told))
    builder.emit(call("aten.mul.Tensor", found, 2, type=told))  # tells nothing new
    builder.emit(call("aten._local_scalar_dense.default", x, type=ScalarType("int", other)))
    result = builder.emit(call("aten.mul.Tensor", x, 2 * size))
    graph = run("dce", builder.build((result,), symbols=(SymbolRange("u0"), SymbolRange("u1"))))
    assert [op.target for op in graph.ops] == ["aten.nonzero.default", "aten.mul.Tensor"]
