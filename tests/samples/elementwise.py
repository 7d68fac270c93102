"""Samples of elementwise ops: every class, broadcasting, numbers, 0-dim and empty operands."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim
from lynx.ir.ops import activation, activation_backward, elementwise_arithmetic
from lynx.ir.ops import elementwise_compare as compare
from lynx.ir.ops import elementwise_math as math
from lynx.ir.ops.elementwise import Binary, Unary
from lynx.ir.types import DType, ScalarType, TensorType
from tests.samples import Sample

F32, F64, BF16, I64, BOOL = DType.F32, DType.F64, DType.BF16, DType.I64, DType.BOOL


def tensor(*shape: Dim, dtype: DType = DType.F32) -> Value:
    """Return a value of this shape."""
    return Value(TensorType(dtype, shape))


def _named(module: object, base: type[Op]) -> list[type[Op]]:
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, base) and kind.name]


def _unary() -> list[Sample]:
    samples = [
        Sample(kind(tensor(3, 1, 5)), positive=(0,))  # type: ignore[call-arg]  # all take one operand
        for kind in _named(math, Unary)
    ]
    samples += [
        Sample(kind(tensor(7, 2)))  # type: ignore[call-arg]
        for kind in (
            *(math.Negate, math.Exp, math.Sigmoid, math.Tanh, math.Erf, math.Floor, math.Sign),
            *(compare.LogicalNot, compare.IsNan, compare.IsInf, compare.SignBit),
        )
    ]
    integers = tensor(4, 3, dtype=I64)
    samples += [
        Sample(math.Round(tensor(5), decimals=1)),
        Sample(math.NanToNum(tensor(5), 1.0, 2.0, None)),
        Sample(math.Absolute(integers)),
        Sample(math.Negate(integers)),
        Sample(math.Square(tensor(6, dtype=BF16))),
        Sample(math.Exp(tensor(dtype=F64))),
        Sample(math.Sqrt(tensor(0, 3)), positive=(0,)),
        Sample(compare.BitwiseNot(integers)),
        Sample(compare.BitwiseNot(tensor(3, dtype=BOOL))),
    ]
    return samples


def _binary() -> list[Sample]:
    floats: list[type[Op]] = [
        kind
        for kind in (*_named(elementwise_arithmetic, Binary), *_named(compare, Binary))
        if not kind.name.startswith(("bitwise", "shift"))
    ]
    samples = [
        Sample(kind(tensor(3, 1, 4), tensor(5, 1)), positive=(0, 1))  # type: ignore[call-arg]
        for kind in floats
    ]
    integers = [kind for kind in _named(compare, Binary) if kind.name.startswith(("bit", "shift"))]
    samples += [
        Sample(kind(tensor(2, 5, dtype=I64), tensor(5, dtype=I64)), bounds={0: (0, 9), 1: (0, 5)})  # type: ignore[call-arg]
        for kind in integers
    ]
    x, n = tensor(3, 5), tensor(4, 2, dtype=I64)
    a = elementwise_arithmetic
    ops: list[Op] = [
        a.Add(x, x),
        a.Add(x, 0.5),
        a.Add(2, x, alpha=3.0),
        a.Add(n, n, alpha=2.0),
        a.Add(x, tensor(dtype=F64)),
        a.Add(tensor(3, dtype=BOOL), tensor(3, dtype=BOOL)),
        a.Subtract(1.0, x),
        a.Subtract(x, tensor(1, 5), alpha=0.5),
        a.Multiply(tensor(4, dtype=BF16), tensor()),
        a.Multiply(x, Value(ScalarType("int"))),
        a.Multiply(3, x),
        a.Divide(1, x),
        a.Divide(x, 3),
        a.DivideRounded(n, 3, rounding="trunc"),
        a.DivideRounded(n, -3),
        a.Remainder(n, 3),
        a.Remainder(7.5, x),
        a.Fmod(x, 1.5),
        a.Fmod(3.0, x),
        a.Power(x, 2),
        a.Power(2, x),
        a.Power(n, 2),
        a.Maximum(x, 0.0),
        a.Minimum(0, n),
        a.Copysign(x, -0.0),
        a.Copysign(1.0, x),
        a.Xlogy(2.0, x),
        a.Xlogy(x, 2.0),
        compare.Less(n, 3),
        compare.Less(0.5, x),
        compare.Equal(x, tensor(dtype=I64)),
        compare.LogicalAnd(n, n),
        compare.BitwiseAnd(n, 6),
        compare.BitwiseOr(5, n),
        compare.BitwiseXor(tensor(3, 1, dtype=BOOL), tensor(2, dtype=BOOL)),
        compare.ShiftLeft(n, 2),
        compare.ShiftRight(n, 1),
    ]
    return [*samples, *(Sample(op) for op in ops)]


def _others() -> list[Sample]:
    a = elementwise_arithmetic
    x, condition = tensor(3, 4), tensor(4, dtype=BOOL)
    ops: list[Op] = [
        a.Where(condition, x, tensor(3, 1)),
        a.Where(condition, x, 0.0),
        a.Where(condition, 1.5, tensor(3, 1, dtype=BF16)),
        a.Where(tensor(dtype=BOOL), tensor(), 2),
        a.Clamp(x, -0.5, 0.5),
        a.Clamp(x, None, 0.25),
        a.Clamp(x, tensor(4), None),
        a.Clamp(x, tensor(3, 1), tensor(4)),
        a.Clamp(tensor(5, dtype=I64), 0, None),
        a.Addcmul(x, tensor(3, 1), tensor(4), value=0.5),
        a.Lerp(x, tensor(3, 4), 0.25),
        a.Lerp(x, tensor(4), tensor(3, 1)),
        a.Cast(x, BF16),
        a.Cast(x, I64),
        a.Cast(x, BOOL),
        a.Cast(x, F64),
        a.Cast(tensor(3, dtype=I64), F32),
        a.Copy(x),
        a.Copy(tensor(2, 3, 2, 2), memory_format="channels_last"),
    ]
    positive = Sample(a.Addcdiv(x, tensor(4), tensor(3, 1), value=2.0), positive=(2,))
    return [*(Sample(op) for op in ops), positive]


def _activations() -> list[Sample]:
    x = tensor(3, 7)
    ops: list[Op] = [
        kind(x)  # type: ignore[call-arg]
        for kind in _named(activation, activation.Activation)
        if kind is not activation.Threshold
    ]
    ops += [
        activation.Gelu(x, approximate="tanh"),
        activation.Gelu(tensor(5, dtype=BF16)),
        activation.Relu(tensor(5, dtype=I64)),
        activation.Threshold(x, 0.1, 20.0),
        activation.Prelu(x, tensor(1, 7)),
        activation.Elu(x, 1.5, 2.0, 0.5),
        activation.Softplus(x, 2.0, 1.0),
        activation.Hardtanh(x, 0.0, 6.0),
    ]
    return [Sample(op) for op in ops]


def _gradients() -> list[Sample]:
    grad, x = tensor(5, 3), tensor(5, 3)
    b = activation_backward
    special = (b.LogSigmoidBackward, b.DropoutBackward)
    ops: list[Op] = [
        kind(grad, x)  # type: ignore[call-arg]
        for kind in _named(b, b.ActivationBackward)
        if kind not in special
    ]
    ops += [
        b.GeluBackward(grad, x, approximate="tanh"),
        b.EluBackward(grad, x, 1.5, 2.0, 0.5),
        b.LeakyReluBackward(grad, x, 0.2),
        b.SoftplusBackward(grad, x, 2.0, 1.0),
        b.HardtanhBackward(grad, x, 0.0, 6.0),
        b.LogSigmoidBackward(grad, x, tensor(5, 3)),
        b.DropoutBackward(grad, tensor(5, 3, dtype=BOOL), 2.0),
        b.DropoutBackward(tensor(41, dtype=BF16), tensor(41, dtype=BOOL), 1.1),
    ]
    return [Sample(op) for op in ops]


SAMPLES = [*_unary(), *_binary(), *_others(), *_activations(), *_gradients()]
