"""Gradients of score functions as regions, against those of torch's autograd for the same ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lynx.backends.reference.score import RowProgram, evaluate_region
from lynx.ir import verify
from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import CompileError
from lynx.ir.ops import activation, indexing, layout, layout_slicing, reduction, scan, softmax
from lynx.ir.ops import elementwise_arithmetic as arithmetic
from lynx.ir.ops import elementwise_math as functions
from lynx.ir.ops.fusion import Region
from lynx.ir.types import DType, TensorType
from lynx.passes.attention import derivative_of, why_no_derivative
from lynx.passes.attention.derivative import _RULES
from lynx.passes.attention.derivative_elementwise import RULES

Make = Callable[..., Op]
SHAPE = (2, 3, 4, 5)


def value(*shape: int, dtype: DType = DType.F64) -> Value:
    return Value(TensorType(dtype, shape))


def unary(kind: Any, *rest: Any) -> tuple[Make, tuple[Value, ...]]:
    return (lambda x: kind(x, *rest)), (value(*SHAPE),)


def pair(kind: Any, shape: tuple[int, ...] = SHAPE) -> tuple[Make, tuple[Value, ...]]:
    return (lambda x, y: kind(x, y)), (value(*SHAPE), value(*shape))


INDEX = value(6, dtype=DType.I64)
GRID = value(2, 2, dtype=DType.I64)

CASES: list[tuple[Make, tuple[Value, ...]]] = [
    pair(arithmetic.Add, (3, 1, 5)),
    ((lambda x, y: arithmetic.Add(x, y, 2.0)), (value(*SHAPE), value(1, 1))),
    pair(arithmetic.Subtract, (4, 1)),
    ((lambda x: arithmetic.Subtract(1.0, x, 3.0)), (value(*SHAPE),)),
    pair(arithmetic.Multiply, (2, 1, 1, 1)),
    pair(arithmetic.Divide),
    ((lambda x: arithmetic.Divide(2.0, x)), (value(*SHAPE),)),
    unary(arithmetic.Power, 3.0),
    unary(arithmetic.Power, 0.5),
    unary(arithmetic.Power, 0.0),
    ((lambda x: arithmetic.Power(2.0, x)), (value(*SHAPE),)),
    pair(arithmetic.Power, (5,)),
    pair(arithmetic.Maximum, (5,)),
    pair(arithmetic.Minimum, (5,)),
    (arithmetic.Where, (value(4, 5, dtype=DType.BOOL), value(*SHAPE), value(5))),
    ((lambda c, x: arithmetic.Where(c, x, -1e4)), (value(4, 5, dtype=DType.BOOL), value(*SHAPE))),
    unary(arithmetic.Clamp, 0.7, 1.2),
    unary(arithmetic.Clamp, None, 1.2),
    ((lambda x, a, b: arithmetic.Addcmul(x, a, b, 0.5)), (value(*SHAPE), value(5), value(4, 1))),
    ((lambda x, a, b: arithmetic.Addcdiv(x, a, b, 0.5)), (value(*SHAPE), value(5), value(4, 1))),
    (arithmetic.Lerp, (value(*SHAPE), value(5), value(4, 1))),
    unary(arithmetic.Cast, DType.F32),
    unary(arithmetic.Copy),
    ((lambda x: arithmetic.DivideRounded(x, 0.3, "floor")), (value(*SHAPE),)),
    *(
        unary(kind)
        for kind in (
            functions.Absolute, functions.Negate, functions.Sign, functions.Floor, functions.Ceil,
            functions.Truncate, functions.Round, functions.Reciprocal, functions.Square,
            functions.Exp, functions.Exp2, functions.Expm1, functions.Log, functions.Log2,
            functions.Log10, functions.Log1p, functions.Sqrt, functions.Rsqrt, functions.Sin,
            functions.Cos, functions.Tanh, functions.Sigmoid, functions.Erf, functions.NanToNum,
            activation.Gelu, activation.Silu, activation.Relu, activation.Softplus,
        )
    ),
    unary(activation.Gelu, "tanh"),
    unary(layout.Reshape, (6, 20)),
    unary(layout.Permute, (2, 0, 3, 1)),
    ((lambda x: layout.Broadcast(x, SHAPE)), (value(3, 1, 5),)),
    unary(layout.Unsqueeze, 2),
    ((lambda x: layout.Squeeze(x, (0, 2))), (value(1, 3, 1, 5),)),
    unary(layout_slicing.Slice, 3, 1, 5, 2),
    unary(layout_slicing.Select, 2, 1),
    (
        (lambda x, y: layout_slicing.Concatenate((x, y), 3)),
        (value(*SHAPE), value(2, 3, 4, 2)),
    ),
    unary(layout_slicing.Pad, 0.5, (0, 0, 1, -1), (0, 0, 2, 3)),
    unary(layout_slicing.Flip, (1, 3)),
    unary(layout_slicing.Roll, (2, -1), (3, 1)),
    unary(layout_slicing.LowerTriangle, 1),
    unary(layout_slicing.UpperTriangle, -1),
    (indexing.Embedding, (value(4, 3), INDEX)),
    (
        (lambda x, i: indexing.Gather(x, i, 1)),
        (value(4, 6), value(4, 2, dtype=DType.I64)),
    ),
    ((lambda x, i: indexing.IndexSelect(x, i, 1)), (value(3, 4), INDEX)),
    ((lambda x, i: indexing.Index(x, (None, i))), (value(3, 4), GRID)),
    (indexing.Take, (value(3, 4), GRID)),
    unary(reduction.Sum, (1, 3)),
    unary(reduction.Sum, (2,), True),
    unary(reduction.Mean, (1, 3)),
    unary(reduction.Amax, (3,), True),
    unary(reduction.Amin, (1, 3)),
    unary(scan.CumulativeSum, 3),
    unary(softmax.Softmax, 3),
    unary(softmax.LogSoftmax, 1),
]  # fmt: skip


def tensor_for(one: Value) -> torch.Tensor:
    type_ = one.tensor_type
    shape = tuple(int(dim) for dim in type_.shape)
    if type_.dtype is DType.BOOL:
        return torch.rand(shape) < 0.5
    if type_.dtype is DType.I64:
        return torch.randint(0, 2, shape)
    # Positive, and with equal elements here and there.
    return (torch.rand(shape, dtype=torch.float64) * 4).round(decimals=1) / 2 + 0.25


def region_of(make: Make, operands: tuple[Value, ...]) -> Region:
    parameters = tuple(Value(one.type, name=f"p{n}") for n, one in enumerate(operands))
    op = make(*parameters)
    return Region(parameters, (op,), op.results[:1])


@pytest.mark.parametrize("number", range(len(CASES)))
def test_rules(number: int) -> None:
    torch.manual_seed(number)
    region = region_of(*CASES[number])
    tensors = [tensor_for(one) for one in region.parameters]
    floating = [n for n, t in enumerate(tensors) if t.is_floating_point()]
    if floating[0] != 0:  # the first parameter is always differentiated
        region = Region((region.parameters[1], region.parameters[0], *region.parameters[2:]),
                        region.ops, region.results)  # fmt: skip
        tensors[0], tensors[1] = tensors[1], tensors[0]
        floating = [n for n, t in enumerate(tensors) if t.is_floating_point()]
    for n in floating:
        tensors[n].requires_grad_()
    derivative = derivative_of(region, tuple(n - 1 for n in floating[1:]))
    check_well_formed(derivative)
    (result,) = evaluate_region(region, tensors)
    gradient = torch.randn(result.shape, dtype=torch.float64).to(result.dtype)
    with torch.no_grad():
        found = evaluate_region(derivative, [*tensors, gradient])
    if not result.requires_grad:
        assert not any(one.any() for one in found)
        return
    sources = [tensors[n] for n in floating]
    expected = torch.autograd.grad(
        result, sources, gradient, allow_unused=True, materialize_grads=True
    )
    for actual, wanted in zip(found, expected, strict=True):
        tolerance = 1e-6 if result.dtype is torch.float32 else 1e-10
        torch.testing.assert_close(
            actual, wanted, rtol=tolerance, atol=tolerance, check_dtype=False
        )


def check_well_formed(region: Region) -> None:
    verify(Graph("derivative", region.parameters, region.ops, region.results))


def test_every_rule_is_tested() -> None:
    tested = {type(region_of(*case).ops[0]) for case in CASES}
    assert tested == set(RULES) | set(_RULES)


def test_values_that_are_used_twice() -> None:
    x, bias = value(2, 3), value(3)
    squared = arithmetic.Multiply(x, x)
    added = arithmetic.Add(squared.out, bias)
    scaled = arithmetic.Multiply(added.out, bias)
    region = Region((x, bias), (squared, added, scaled), (scaled.out,))
    a, b = torch.randn(2, 3).double().requires_grad_(), torch.randn(3).double().requires_grad_()
    found = evaluate_region(derivative_of(region, (0,)), [a, b, torch.ones(2, 3).double()])
    expected = torch.autograd.grad(((a * a + b) * b).sum(), (a, b))
    torch.testing.assert_close(tuple(found), expected)


def test_what_nothing_depends_on_has_a_gradient_of_zero() -> None:
    x, unused = value(2, 3), value(3, dtype=DType.F32)
    region = Region((x, unused), (), (x,))
    grad = torch.randn(2, 3).double()
    found = evaluate_region(derivative_of(region, (0,)), [grad, torch.ones(3), grad])
    assert torch.equal(found[0], grad)
    assert torch.equal(found[1], torch.zeros(3))


def test_low_precision_parameters_get_wide_gradients() -> None:
    x, bias = value(2, 3, dtype=DType.F32), value(3, dtype=DType.BF16)
    wide = arithmetic.Cast(bias, DType.F32)
    added = arithmetic.Add(x, wide.out)
    region = Region((x, bias), (wide, added), (added.out,))
    derivative = derivative_of(region, (0,))
    assert [result.tensor_type.dtype for result in derivative.results] == [DType.F32] * 2


def test_ops_without_a_rule() -> None:
    x = value(2, 3)
    op = functions.LogGamma(x)
    region = Region((x,), (op,), op.results)
    with pytest.raises(CompileError, match="'lgamma' has no gradient"):
        derivative_of(region, ())
    assert why_no_derivative(region, ()) == "'lgamma' has no gradient that is known here"
    # What depends on no source needs no gradient.
    y = value(3)
    other = functions.LogGamma(y)
    added = arithmetic.Add(x, other.out)
    assert not why_no_derivative(Region((x, y), (other, added), added.results), ())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_are_parts_of_the_whole(count: int) -> None:
    """What is cut, what is added up and what stays whole makes the results for all rows."""
    torch.manual_seed(0)
    dot, bias, of_rows = value(2, 3, 6, 5), value(3, 1, 5), value(6, 1)
    added = arithmetic.Add(dot, bias)
    scaled = arithmetic.Multiply(added.out, of_rows)
    region = Region((dot, bias, of_rows), (added, scaled), (scaled.out,))
    derivative = derivative_of(region, (0, 1))
    program = RowProgram(derivative, (0, 3))
    assert program.part is not None
    assert program.results == (2, "sum", 0)
    tensors = [torch.randn(v.shape, dtype=torch.float64) for v in derivative.parameters]
    expected = evaluate_region(derivative, tensors)
    totals = [torch.zeros_like(e) for e in expected]
    for start in range(0, 6, count):
        rows = slice(start, min(start + count, 6))
        given = [t[:, :, rows] if n in (0, 3) else t for n, t in enumerate(tensors)]
        found = program.run(given, rows, {}, all_rows=False)
        for total, part, how in zip(totals, found, program.results, strict=True):
            place = total.narrow(how, rows.start, len(part)) if how == 0 else total
            place = total[:, :, rows] if how == 2 else place
            place += part
    torch.testing.assert_close(totals, expected)


def test_regions_without_rows() -> None:
    dot = value(2, 3, 6, 5)
    flat = layout.Reshape(dot, (6, 30))
    back = layout.Reshape(flat.out, (2, 3, 6, 5))
    assert RowProgram(Region((dot,), (flat, back), back.results), (0,)).part is None
    sorted_rows = scan.CumulativeSum(dot, 2)
    assert RowProgram(Region((dot,), (sorted_rows,), sorted_rows.results), (0,)).part is None
