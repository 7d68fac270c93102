"""Canonicalization changes no bit; every rule has an example and a near miss."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynx.ir import Builder, ScalarType, SymbolRange, parse_graph, parse_module, symbol
from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.elementwise_arithmetic import Add, Cast, Divide, Multiply, Subtract, Where
from lynx.ir.ops.factory import Full
from lynx.ir.ops.layout import AsStrided, Permute, Reshape, Squeeze, Unsqueeze
from lynx.ir.ops.layout_slicing import Concatenate, Select, Slice
from lynx.ir.types import DType, TensorType
from lynx.passes import PassContext, parse_pipeline, rewrite
from lynx.passes.canonicalize import RULES
from tests.passes.values import assert_same_values, inputs_of, special

SYMBOLS = {"s0": 3, "s1": 3}
GRAPHS = {
    graph.name: graph
    for path in sorted(Path(__file__).parent.glob("canonicalize*.lynx"))
    for graph in parse_module(path.read_text())
}


def canonical(graph: Graph) -> Graph:
    result = parse_pipeline("canonicalize,cse,dce").run(graph)
    assert isinstance(result, Graph)
    return result


def check(*ops: Op) -> None:
    """Canonicalize a graph over fresh inputs of the ops and compare values."""
    inputs = tuple(dict.fromkeys(v for op in ops for v in op.operands if v.op is None))
    graph = Graph("g", inputs, ops, tuple(result for op in ops for result in op.results))
    for shift in range(0, 20, 3):
        assert_same_values(graph, canonical(graph), inputs_of(graph, shift=shift))


@pytest.mark.parametrize("name", sorted(GRAPHS))
@pytest.mark.parametrize("shift", [0, 5])
def test_the_examples_keep_their_meaning(name: str, shift: int) -> None:
    graph = GRAPHS[name]
    inputs = inputs_of(graph, SYMBOLS, shift)
    assert_same_values(graph, canonical(graph), inputs, SYMBOLS)


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_every_rule_has_an_example_and_a_near_miss(name: str) -> None:
    (rule,) = (rule for rule in RULES if rule.name == name)
    context = PassContext(reasons=True)
    fired = [
        graph.name for graph in GRAPHS.values() if rewrite(graph, [rule], context) is not graph
    ]
    assert fired
    assert context.remarks
    assert all(remark.message and remark.subject == name for remark in context.remarks)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_documented(rule: object) -> None:
    text = inspect.getdoc(rule.function)  # type: ignore[attr-defined]
    assert text
    sentence, equation = text.split("\n\n")
    assert sentence.endswith(".")
    assert "  ==>  " in equation


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_canonical_is_final(name: str) -> None:
    graph = canonical(GRAPHS[name])
    assert canonical(graph) is graph


CUBE = TensorType(DType.F32, (2, 2, 2))
permutations = st.permutations(range(3)).map(tuple)


@given(permutations, permutations)
def test_permutes(p: tuple[int, ...], q: tuple[int, ...]) -> None:
    first = Permute(Value(CUBE), p)
    check(first, Permute(first.out, q))


@given(st.integers(0, 3), st.permutations(range(4)).map(tuple))
def test_permute_of_unsqueeze(dim: int, dims: tuple[int, ...]) -> None:
    first = Unsqueeze(Value(CUBE), dim)
    check(first, Permute(first.out, dims))


@given(st.data())
def test_squeezes(data: st.DataObject) -> None:
    x = Value(TensorType(DType.F32, (1, 2, 1)))
    first = Unsqueeze(x, data.draw(st.integers(0, 3)))
    ones = [dim for dim, size in enumerate(first.out.shape) if size == 1]
    dims = data.draw(st.lists(st.sampled_from(ones), unique=True).map(sorted).map(tuple))
    second = Squeeze(first.out, dims)
    check(first, second, Unsqueeze(second.out, data.draw(st.integers(0, len(second.out.shape)))))


SHAPES = [(12,), (3, 4), (4, 3), (2, 6), (1, 12), (2, 1, 6), (3, 2, 2)]


@given(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=4))
def test_reshapes(shapes: list[tuple[int, ...]]) -> None:
    ops: list[Reshape] = []
    value = Value(TensorType(DType.I16, (3, 4)))
    for shape in shapes:
        ops.append(Reshape(value, shape))
        value = ops[-1].out
    check(*ops)


@given(st.data())
def test_as_strided(data: st.DataObject) -> None:
    size = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    stride = tuple(data.draw(st.integers(0, 3)) for _ in size)
    x = Value(TensorType(DType.F32, (2, 3, 5)))
    check(AsStrided(x, size, stride, data.draw(st.integers(0, 5))))


@st.composite
def cuts(draw: st.DrawFn, x: Value, dim: int) -> Op:
    """Draw a slice along a dimension, or a select if there is something to select."""
    size = x.shape[dim]
    assert isinstance(size, int)
    if size and draw(st.booleans()):
        return Select(x, dim, draw(st.integers(0, size - 1)))
    start = draw(st.integers(0, size))
    return Slice(x, dim, start, draw(st.integers(start, size)), draw(st.integers(1, 4)))


@given(st.data(), st.integers(0, 1), st.integers(0, 1))
def test_cuts_of_slices(data: st.DataObject, first: int, second: int) -> None:
    x = Value(TensorType(DType.F32, (9, 9)))
    start = data.draw(st.integers(0, 9))
    outer = Slice(x, first, start, data.draw(st.integers(start, 9)), data.draw(st.integers(1, 4)))
    check(outer, data.draw(cuts(outer.out, second)))


@given(st.data(), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(0, 1))
def test_cuts_of_concatenations(data: st.DataObject, sizes: list[int], dim: int) -> None:
    shapes = [(size, 2) if dim == 0 else (2, size) for size in sizes]
    parts = tuple(Value(TensorType(DType.F32, shape)) for shape in shapes)
    whole = Concatenate(parts, dim)
    check(whole, data.draw(cuts(whole.out, data.draw(st.integers(0, 1)))))


CASTS = [DType.BOOL, DType.U8, DType.I8, DType.I16, DType.I32, DType.I64]
CASTS += [DType.F16, DType.BF16, DType.F32, DType.F64]


@pytest.mark.parametrize("before", CASTS, ids=str)
def test_casts(before: DType) -> None:
    """All chains of three; values out of the range of an integer are compared as well."""
    x = Value(TensorType(before, (64,)))
    for between, after in itertools.product(CASTS, CASTS):
        first = Cast(x, between)
        second = Cast(first.out, after)
        graph = Graph("g", (x,), (first, second), (second.out,))
        assert_same_values(graph, canonical(graph), [special(before, 64)])


FLOATS = [DType.F16, DType.BF16, DType.F32, DType.F64]
NUMBERS = [0, 0.0, -0.0, 1, 1.0, -1]


@pytest.mark.parametrize("kind", [Add, Subtract, Multiply, Divide])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_neutral_numbers_with_floats(
    kind: type[Add | Subtract | Multiply | Divide], dtype: DType
) -> None:
    x = Value(TensorType(dtype, (64,)))
    for number in NUMBERS:
        check(kind(x, number), kind(number, x))


@pytest.mark.parametrize("alpha", [1, 2, -1])
@pytest.mark.parametrize("kind", [Add, Subtract])
def test_neutral_numbers_with_alpha(kind: type[Add | Subtract], alpha: int) -> None:
    x = Value(TensorType(DType.F32, (64,)))
    n = Value(TensorType(DType.I8, (64,)))
    for number in NUMBERS:
        check(kind(x, number, alpha), kind(number, x, alpha))
    for whole in (0, 1, -1):
        check(kind(n, whole, alpha), kind(whole, n, alpha))


@pytest.mark.parametrize("kind", [Add, Subtract, Multiply])
@pytest.mark.parametrize("dtype", [DType.U8, DType.I8, DType.I64], ids=str)
def test_neutral_numbers_with_integers(kind: type[Add | Subtract | Multiply], dtype: DType) -> None:
    x = Value(TensorType(dtype, (24,)))
    for number in (0, 1, -1):
        check(kind(x, number), kind(number, x))


def test_neutral_numbers_with_complex() -> None:
    x = Value(TensorType(DType.C64, (81,)))
    for number in (0, 0.0, -0.0, 1, 1.0):
        check(Add(x, number), Subtract(x, number), Multiply(x, number), Divide(x, number))


def test_a_condition_that_a_symbol_decides_is_not_constant() -> None:
    builder = Builder("symbolic")
    builder.input("n", ScalarType("int", symbol("s0")))
    x = builder.input("x", TensorType(DType.F32, (3,)))
    condition = builder.emit(Full(symbol("s0"), (3,), DType.BOOL))
    result = builder.emit(Where(condition, x, 2.0))
    graph = canonical(builder.build((result,), symbols=(SymbolRange("s0", 0, None),)))
    assert any(isinstance(op, Where) for op in graph.ops)


def test_look_ups_beyond_the_end_still_raise() -> None:
    graph = parse_graph(
        """graph @f(%w: f32[4, 4]) {
          %0 = iota 2, 1 {length = 3, dtype = i64} : i64[3]
          %1 = embedding %w, %0 : f32[3, 4]
          return %1
        }"""
    )
    assert canonical(graph) is graph
