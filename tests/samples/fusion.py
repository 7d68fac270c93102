"""Samples of fused ops: elementwise, reductions with what feeds and uses them, views, indexing."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.ops import elementwise_arithmetic as arithmetic
from lynx.ir.ops import elementwise_math as math
from lynx.ir.ops import factory, indexing, layout, layout_slicing, reduction
from lynx.ir.ops.fusion import Fused, Region
from lynx.ir.types import DType, TensorType
from tests.samples import Sample


def tensor(*shape: int, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


def fused(parameters: tuple[Value, ...], ops: tuple[Op, ...], *results: Value) -> Fused:
    """Return the op over inputs of the parameters' types."""
    inputs = tuple(Value(parameter.type) for parameter in parameters)
    return Fused(inputs, Region(parameters, ops, results))


def chain(dtype: DType) -> Fused:
    x, y = tensor(4, 8, dtype=dtype), tensor(8, dtype=dtype)
    total = arithmetic.Add(x, y)
    scaled = arithmetic.Multiply(total.out, 0.5)
    power = math.Exp(scaled.out)
    return fused((x, y), (total, scaled, power), power.out, total.out)


def softmax() -> Fused:
    x = tensor(3, 5)
    largest = reduction.Amax(x, (1,), True)
    shifted = arithmetic.Subtract(x, largest.out)
    powers = math.Exp(shifted.out)
    total = reduction.Sum(powers.out, (1,), True)
    result = arithmetic.Divide(powers.out, total.out)
    return fused((x,), (largest, shifted, powers, total, result), result.out)


def views() -> Fused:
    """Yield a parameter, a view of it, and a view that overlaps itself."""
    x = tensor(3, 4)
    swapped = layout.Permute(x, (1, 0))
    first = layout_slicing.Slice(swapped.out, 0, 1, 3, 1)
    wide = layout.Broadcast(x, (2, 3, 4))
    return fused((x,), (swapped, first, wide), x, first.out, wide.out)


def lookup() -> Fused:
    table, index = tensor(6, 4), tensor(3, dtype=DType.I64)
    rows = indexing.IndexSelect(table, index, 0)
    counted = factory.Iota(0, 1, 3, DType.I64)
    moved = arithmetic.Add(index, counted.out)
    return fused((table, index), (rows, counted, moved), rows.out, moved.out)


def identity(x: Value) -> Fused:
    return fused((x,), (), x)


SAMPLES = [
    Sample(chain(DType.F32)),
    Sample(chain(DType.BF16), tolerance=2e-2),
    Sample(softmax()),
    Sample(views()),
    Sample(lookup(), bounds={1: (0, 6)}),
    Sample(identity(tensor(0, 3))),
]
