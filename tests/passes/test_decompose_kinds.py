"""Decompositions of integers and truth values, of empty tensors, and over symbolic sizes."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch

from lynx.backends.reference import evaluate
from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import SymbolRange, symbol
from lynx.ir.ops.activation import Relu
from lynx.ir.ops.elementwise_arithmetic import Heaviside, Xlogy
from lynx.ir.ops.elementwise_math import NanToNum, Sgn, Square
from lynx.ir.ops.layout_slicing import LowerTriangle, UpperTriangle
from lynx.ir.ops.loss import NllLoss, NllLossBackward
from lynx.ir.ops.random import Dropout
from lynx.ir.ops.reduction import CountNonzero, MaxOfAll, NanSum
from lynx.ir.ops.softmax import LogSoftmaxBackward
from lynx.ir.types import DType, TensorType
from tests.passes.decompose_cases import CASES, WITHOUT_NAN, Draw
from tests.passes.decompositions import (
    assert_as_accurate,
    assert_close,
    decomposed,
    graph_of,
    in_double,
    run_graph,
)
from tests.passes.values import assert_same_values, special

INTEGERS = (DType.BOOL, DType.U8, DType.I8, DType.I16, DType.I32, DType.I64)


def matrix(dtype: DType) -> Value:
    return Value(TensorType(dtype, (4, 6)))


def of_integers(dtype: DType) -> list[Op]:
    ops: list[Op] = [
        Sgn(matrix(dtype)),
        NanToNum(matrix(dtype)),
        LowerTriangle(matrix(dtype), 1),
        UpperTriangle(matrix(dtype), -1),
        Heaviside(matrix(dtype), matrix(dtype)),
        Heaviside(matrix(dtype), dtype is DType.BOOL or 1),
        NanSum(matrix(dtype), (1,)),
        CountNonzero(matrix(dtype), (0,)),
        MaxOfAll(matrix(dtype), (0, 1)),
    ]
    return ops if dtype is DType.BOOL else [*ops, Square(matrix(dtype)), Relu(matrix(dtype))]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: DType) -> None:
    for op in of_integers(dtype):
        before = graph_of(op)
        after = decomposed(before)
        assert op not in after.ops
        inputs = [special(dtype, 24, 5 * n).reshape(4, 6) for n in range(len(before.inputs))]
        assert_same_values(before, after, inputs)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_numbers_as_operands(dtype: DType) -> None:
    x = matrix(dtype)
    ops = (
        Heaviside(x, 0.5),
        Heaviside(0.0, x),
        Heaviside(-2.5, x),
        Xlogy(x, 0.3),
        Xlogy(0.0, x),
        Xlogy(1.5, x),
    )
    for op in ops:
        before = graph_of(op)
        after = decomposed(before)
        assert op not in after.ops
        values = special(dtype, 24).reshape(4, 6)
        inputs = {v: values if v.shape else torch.tensor(0.3).double() for v in before.inputs}
        assert_as_accurate(op, inputs, after)


# Torch divides integers by zero, which ends the process.
DIVIDING = ("batch_norm_backward", "adaptive_average_pool", "adaptive_average_pool_backward")


@pytest.mark.parametrize("name", [name for name in CASES if name not in DIVIDING])
def test_empty_tensors(name: str) -> None:
    """What is expanded of nothing gives what eager gives."""
    draw = Draw(DType.F32, random.Random(1))
    op = CASES[name](draw)
    while len(op.operands[0].shape) < 2:
        op = CASES[name](draw)
    size = op.operands[0].shape[0]
    mapping = {}
    for value in dict.fromkeys(op.operands):
        shape = tuple(0 if n == 0 and d == size else d for n, d in enumerate(value.shape))
        tensor = draw.inputs[value].narrow(0, 0, 0) if shape != value.shape else draw.inputs[value]
        mapping[value] = draw.enter(tensor, value.tensor_type.dtype)
    try:
        empty = op.replace_operands(mapping)
        before = graph_of(empty)
        expected = run_graph(before, draw.inputs)
    except Exception as error:  # eager refuses, or the attributes do not fit
        pytest.skip(str(error))
    for mine, eager in zip(run_graph(decomposed(before), draw.inputs), expected, strict=True):
        if eager is not None:
            assert_close(mine, eager, None, same_special=True)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_symbolic_sizes(name: str, dtype: DType) -> None:
    """The first dimension of everything that has as many elements there is a symbol."""
    generator = random.Random(len(name))
    done = 0
    for _ in range(30):
        draw = Draw(dtype, generator, nan=name not in WITHOUT_NAN)
        op = CASES[name](draw)
        symbolic = made_symbolic(op)
        if symbolic is None:
            continue
        new, symbols = symbolic
        before = dataclasses.replace(graph_of(new), symbols=(SymbolRange("s0", 2),))
        after = decomposed(before)
        if after is before:
            continue
        done += 1
        inputs = [draw.inputs[v] for v in dict.fromkeys(op.operands)]
        torch.manual_seed(17)
        outputs, _ = evaluate(after, inputs, symbols)
        torch.manual_seed(17)
        expected, _ = evaluate(before, inputs, symbols)
        exact = in_double(op, draw.inputs) or [None] * len(expected)
        for mine, eager, reference in zip(outputs, expected, exact, strict=True):
            if eager is not None:
                assert_close(mine, eager, reference, same_special=False)
    assert done


def made_symbolic(op: Op) -> tuple[Op, dict[str, int]] | None:
    """Return the op over operands whose first dimension is a symbol, None if that cannot be."""
    shape = next((v.shape for v in op.operands if v.shape), ())
    others = [size for v in op.operands for size in v.shape[1:]]
    if not shape or shape[0] in (0, 1, *others):
        return None
    mapping = {}
    for value in dict.fromkeys(op.operands):
        sizes = tuple(symbol("s0") if size == shape[0] else size for size in value.shape)
        mapping[value] = Value(value.tensor_type.with_shape(sizes))
    try:
        return op.replace_operands(mapping), {"s0": int(shape[0])}
    except Exception:  # an attribute fixes the size
        return None


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(9, 7), (3, 7, 2, 2), (7,)])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_cross_entropy_backward(shape: tuple[int, ...], reduction: str, dtype: DType) -> None:
    """The sum over classes that is not made is what it would have been."""
    draw = Draw(dtype, random.Random(5))
    axis = min(len(shape) - 1, 1)
    batch = (*shape[:axis], *shape[axis + 1 :])
    target = draw.targets(batch, 7, 3)
    grad = draw.value(batch if reduction == "none" else ())
    x, total = draw.value(shape), draw.value((), positive=True)
    first = NllLossBackward(grad, x, target, None, total, reduction, 3)
    second = LogSoftmaxBackward(first.out, x, axis)
    inputs = tuple(dict.fromkeys((*first.operands, x)))
    before = Graph("g", inputs, (first, second), (second.out,))
    after = decomposed(before, "decompose{all=true},dce")
    assert not any(op.name == "sum" for op in after.ops)
    (eager,), (mine,) = (run_graph(graph, draw.inputs) for graph in (before, after))
    assert_close(mine, eager, None)


def test_targets_out_of_range_are_refused() -> None:
    x, target = Value(TensorType(DType.F32, (2, 3))), Value(TensorType(DType.I64, (2,)))
    weight = Value(TensorType(DType.F32, (3,)))
    for op in (NllLoss(x, target, None), NllLoss(x, target, weight)):
        before = graph_of(op)
        values: dict[Value, Any] = {x: torch.randn(2, 3), weight: torch.ones(3)}
        values[target] = torch.tensor([0, 3])
        for graph in (before, decomposed(before)):
            with pytest.raises((IndexError, RuntimeError)):
                run_graph(graph, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dropout_draws_as_eager(dtype: torch.dtype) -> None:
    """Mask, result and the state of the generator are eager's, bit for bit."""
    types = {torch.float32: DType.F32, torch.bfloat16: DType.BF16}
    types |= {torch.float16: DType.F16, torch.float64: DType.F64}
    x = Value(TensorType(types[dtype], (37, 11)))
    before = graph_of(Dropout(x, 0.3))
    values = {x: torch.randn(37, 11).to(dtype)}
    states = []
    results = []
    for graph in (before, decomposed(before)):
        results.append(run_graph(graph, values))
        states.append(torch.get_rng_state())
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(*states)
