"""A fused result takes the place of an operand only if all sweeps have read what it overwrites."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lynx.ir import Builder, DType, TensorType, Value, ops
from lynx.ir.ops.fusion import Fused, Region
from lynx.ir.overwriting import can_overwrite

SQUARE = TensorType(DType.F32, (4, 4))
Body = Callable[[Builder, Value, Value], tuple[Value, ...]]


def allowed(body: Body, *, alone: bool = False) -> bool:
    """Whether result 0 of a region over two parameters may be written over the first operand."""
    parameters = (Value(SQUARE), Value(SQUARE))
    inner = Builder("region")
    results = body(inner, *parameters)
    inputs = (Value(SQUARE), Value(SQUARE))
    op = Fused(inputs, Region(parameters, tuple(inner.ops), results))
    return can_overwrite(op, op.results[0], inputs[0], alone=alone)


def total(b: Builder, x: Value, dim: int, *, keep: bool = True) -> Value:
    return b.emit(ops.Sum(x, (dim,), keep))


def elementwise(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    return (b.emit(ops.Add(b.emit(ops.Exp(x)), y)),)


def several_in_one_sweep(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    power = b.emit(ops.Exp(x))
    return b.emit(ops.Add(power, 1.0)), b.emit(ops.Multiply(power, y)), b.emit(ops.Negate(x))


def softmax(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    shifted = b.emit(ops.Subtract(x, b.emit(ops.Amax(x, (1,), True))))
    power = b.emit(ops.Exp(shifted))
    return (b.emit(ops.Divide(power, total(b, power, 1))),)


def statistics_too(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    """The second result is complete before the first is begun."""
    mean = b.emit(ops.Mean(x, (0, 1), False))
    return b.emit(ops.Subtract(x, mean)), mean, b.emit(ops.Sqrt(mean))


def sum_before(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    """What the first result needs leaves the kernel as well."""
    residual = b.emit(ops.Add(x, y))
    return b.emit(ops.Subtract(residual, total(b, residual, 1))), residual


def back_and_forth(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    turned = b.emit(ops.Exp(b.emit(ops.Permute(x, (1, 0)))))
    return (b.emit(ops.Permute(turned, (1, 0))),)


def squeezed(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    row = b.emit(ops.Unsqueeze(total(b, x, 1, keep=False), 1))
    return (b.emit(ops.Add(x, b.emit(ops.Broadcast(row, (4, 4))))),)


def triangle(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    return (b.emit(ops.LowerTriangle(x)),)


def in_another_shape(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    """Dimensions are merged, split in another way, and merged again."""
    flat = b.emit(ops.Reshape(x, (16,)))
    blocks = b.emit(ops.Exp(b.emit(ops.Reshape(flat, (2, 4, 2)))))
    return (b.emit(ops.Reshape(b.emit(ops.Reshape(blocks, (2, 8))), (4, 4))),)


ALLOWED = [elementwise, in_another_shape, several_in_one_sweep, softmax, statistics_too, sum_before,
           back_and_forth, squeezed, triangle]  # fmt: skip


def turned(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    return (b.emit(ops.Exp(b.emit(ops.Permute(x, (1, 0))))),)


def plus_turned(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    return (b.emit(ops.Add(x, b.emit(ops.Permute(x, (1, 0))))),)


def sum_turned(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    """Row i needs the sums of all rows."""
    sums = b.emit(ops.Permute(total(b, x, 1), (1, 0)))
    return (b.emit(ops.Add(x, sums)),)


def sum_of_the_wrong_axis(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    """The sums of the rows, without their dimension, are added to the columns."""
    return (b.emit(ops.Add(x, total(b, x, 1, keep=False))),)


def reduction_elsewhere(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    """The sums may be formed in a sweep of their own, after the first."""
    return b.emit(ops.Exp(x)), total(b, x, 0)


def two_sweeps(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    """The second result needs a reduction, and so perhaps a sweep after that of the first."""
    return b.emit(ops.Exp(x)), b.emit(ops.Multiply(x, total(b, y, 1)))


def layer_norm_backward(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    """Sums over the rows, of the operand and of the result in another shape, are left."""
    result = b.emit(ops.Subtract(b.emit(ops.Multiply(x, y)), total(b, x, 1)))
    split = b.emit(ops.Reshape(result, (2, 2, 4)))
    return result, b.emit(ops.Sum(split, (0, 1), False)), total(b, b.emit(ops.Multiply(x, y)), 0)


LAST_ONLY = [reduction_elsewhere, two_sweeps, layer_norm_backward]


def sliced(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    part = b.emit(ops.Slice(x, 0, 0, 1))
    return (b.emit(ops.Add(x, part)),)


def joined(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    half = b.emit(ops.Slice(x, 0, 0, 2))
    return (b.emit(ops.Concatenate((half, half), 0)),)


def rolled(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    return (b.emit(ops.Flip(x, (0,))),)


def reshaped(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    flat = b.emit(ops.Reshape(b.emit(ops.Permute(x, (1, 0))), (16,)))
    return (b.emit(ops.Reshape(b.emit(ops.Exp(flat)), (4, 4))),)


def itself(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    return x, b.emit(ops.Exp(x))


def other(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    return b.emit(ops.Exp(y)), b.emit(ops.Exp(x))


def product(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    return (b.emit(ops.Add(x, b.emit(ops.Matmul(x, y)))),)


REFUSED = [turned, plus_turned, sum_turned, sum_of_the_wrong_axis, sliced, joined, rolled, reshaped,
           itself, other, product]  # fmt: skip


@pytest.mark.parametrize("body", ALLOWED, ids=lambda body: body.__name__)
def test_allowed(body: Body) -> None:
    assert allowed(body)


@pytest.mark.parametrize("body", LAST_ONLY, ids=lambda body: body.__name__)
def test_allowed_if_nothing_else_is_overwritten(body: Body) -> None:
    assert not allowed(body)
    assert allowed(body, alone=True)


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_refused(body: Body) -> None:
    assert not allowed(body, alone=True)


def test_an_operand_that_is_read_again_and_again() -> None:
    """A single row is read for each row of the other operand."""
    parameters = (Value(TensorType(DType.F32, (1, 4))), Value(SQUARE))
    inner = Builder("region")
    wide = inner.emit(ops.Multiply(*parameters))
    result = inner.emit(ops.Add(parameters[0], total(inner, wide, 0)))
    inputs = tuple(Value(parameter.type) for parameter in parameters)
    op = Fused(inputs, Region(parameters, tuple(inner.ops), (result,)))
    assert not can_overwrite(op, op.out, inputs[0])


def test_an_operand_that_is_passed_twice() -> None:
    parameters = (Value(SQUARE), Value(SQUARE))
    inner = Builder("region")
    result = inner.emit(ops.Add(*parameters))
    x = Value(SQUARE)
    op = Fused((x, x), Region(parameters, tuple(inner.ops), (result,)))
    assert not can_overwrite(op, op.out, x)
