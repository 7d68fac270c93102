"""Gradients of elementwise ops with respect to their operands, of the shape of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lynx.ir.core import Op, Operand, Value
from lynx.ir.ops import activation, activation_backward
from lynx.ir.ops import elementwise_arithmetic as arithmetic
from lynx.ir.ops import elementwise_math as functions
from lynx.ir.ops.elementwise_compare import Equal, Greater, Less, LogicalOr
from lynx.ir.ops.elementwise_compare import GreaterEqual as AtLeast
from lynx.ir.ops.elementwise_compare import LessEqual as AtMost
from lynx.passes.decompose_build import (
    Number,
    choose,
    exp,
    log,
)

Gradients = Mapping[str, Value]
"""Gradients by the name of the field that holds the operand."""

_TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)


def _add(op: Any, g: Number) -> Gradients:
    return {"x": g.value, "y": (g if op.alpha == 1 else g * op.alpha).value}


def _subtract(op: Any, g: Number) -> Gradients:
    return {"x": g.value, "y": (-g if op.alpha == 1 else g * -op.alpha).value}


def _multiply(op: Any, g: Number) -> Gradients:
    return {"x": (g * _term(op.y)).value, "y": (g * _term(op.x)).value}


def _divide(op: Any, g: Number) -> Gradients:
    found = {"x": (g / _term(op.y)).value}
    if isinstance(op.y, Value):
        found["y"] = (-g * Number(op.out) / Number(op.y)).value
    return found


def _power(op: Any, g: Number) -> Gradients:
    """Differentiate as torch does: a power of zero has a gradient of zero."""
    found: dict[str, Value] = {}
    if isinstance(op.x, Value):
        x = Number(op.x)
        if isinstance(op.y, Value):
            y = Number(op.y)
            below = Number(arithmetic.Power(op.x, (y - 1).value).out)
            found["x"] = choose(y.equals(0.0), 0.0, g * y * below).value
        else:
            found["x"] = (g * op.y * x.power(op.y - 1)).value if op.y else (g * 0.0).value
    if isinstance(op.y, Value):
        base = log(Number(op.x)) if isinstance(op.x, Value) else math.log(op.x)
        slope = g * Number(op.out) * base
        if isinstance(op.x, Value):
            is_zero = Number(op.x).equals(0.0) & Number(AtLeast(op.y, 0.0).out)
            slope = choose(is_zero, 0.0, slope)
        found["y"] = slope.value
    return found


def _extreme(op: Any, g: Number) -> Gradients:
    """Give the operand that was taken the gradient, and half of it to each where both are equal."""
    better = Greater if isinstance(op, arithmetic.Maximum) else Less
    half = choose(Number(Equal(op.x, op.y).out), g * 0.5, 0.0)
    of_x = choose(Number(better(op.x, op.y).out), g, half)
    of_y = choose(Number(better(op.y, op.x).out), g, half)
    return {"x": of_x.value, "y": of_y.value}


def _where(op: Any, g: Number) -> Gradients:
    condition = Number(op.condition)
    return {"x": choose(condition, g, 0.0).value, "y": choose(condition, 0.0, g).value}


def _clamp(op: Any, g: Number) -> Gradients:
    for limit, outside in ((op.min, AtLeast), (op.max, AtMost)):
        if limit is not None:
            g = choose(Number(outside(op.x, limit).out), g, 0.0)
    return {"x": g.value}


def _addcmul(op: Any, g: Number) -> Gradients:
    scaled = g if op.value == 1 else g * op.value
    a, b = Number(op.a), Number(op.b)
    return {"x": g.value, "a": (scaled * b).value, "b": (scaled * a).value}


def _addcdiv(op: Any, g: Number) -> Gradients:
    scaled = g if op.value == 1 else g * op.value
    a, b = Number(op.a), Number(op.b)
    return {"x": g.value, "a": (scaled / b).value, "b": (-scaled * a / (b * b)).value}


def _lerp(op: Any, g: Number) -> Gradients:
    weight = _term(op.weight)
    of_weight = g * (Number(op.end) - Number(op.x))
    of_x = g * (1 - weight)
    return {"x": of_x.value, "end": (g * weight).value, "weight": of_weight.value}


def _finite(op: Any, g: Number) -> Gradients:
    """Give no gradient where the number was replaced."""
    x = Number(op.x)
    replaced = LogicalOr(_is_infinite(x), _is_nan(x))
    return {"x": choose(Number(replaced.out), 0.0, g).value}


def _is_infinite(x: Number) -> Value:
    """Return where a value is infinite."""
    return Number(functions.Absolute(x.value).out).equals(math.inf).value


def _is_nan(x: Number) -> Value:
    """Return where a value is not a number."""
    return x.differs(x).value


def _cast(op: Any, g: Number) -> Gradients:
    return {"x": g.value}


def _activation(kind: Callable[..., Op], *names: str) -> Callable[[Any, Number], Gradients]:
    """Return the rule of an activation whose gradient is an op of its own, of the operand."""

    def rule(op: Any, g: Number) -> Gradients:
        attributes = {name: getattr(op, name) for name in names}
        return {"x": kind(g.value, op.x, **attributes).out}

    return rule


def _of_x(slope: Callable[[Number], Number]) -> Callable[[Any, Number], Gradients]:
    """Return the rule of a function whose slope is a function of its operand."""
    return lambda op, g: {"x": (g * slope(Number(op.x))).value}


def _of_y(slope: Callable[[Number], Number]) -> Callable[[Any, Number], Gradients]:
    """Return the rule of a function whose slope is a function of its result."""
    return lambda op, g: {"x": (g * slope(Number(op.out))).value}


def _absolute(op: Any, g: Number) -> Gradients:
    return {"x": (g * Number(functions.Sgn(op.x).out)).value}


def _sine(op: Any, g: Number) -> Gradients:
    return {"x": (g * Number(functions.Cos(op.x).out)).value}


def _cosine(op: Any, g: Number) -> Gradients:
    return {"x": (-g * Number(functions.Sin(op.x).out)).value}


def _hyperbolic(op: Any, g: Number) -> Gradients:
    return {"x": activation_backward.TanhBackward(g.value, op.out).out}


def _logistic(op: Any, g: Number) -> Gradients:
    return {"x": activation_backward.SigmoidBackward(g.value, op.out).out}


def _nothing(op: Any, g: Number) -> Gradients:
    """Differentiate a step function: it has no slope where it has one at all."""
    return {}


RULES: Mapping[type[Op], Callable[[Any, Number], Gradients]] = {
    arithmetic.Add: _add,
    arithmetic.Subtract: _subtract,
    arithmetic.Multiply: _multiply,
    arithmetic.Divide: _divide,
    arithmetic.Power: _power,
    arithmetic.Maximum: _extreme,
    arithmetic.Minimum: _extreme,
    arithmetic.Where: _where,
    arithmetic.Clamp: _clamp,
    arithmetic.Addcmul: _addcmul,
    arithmetic.Addcdiv: _addcdiv,
    arithmetic.Lerp: _lerp,
    arithmetic.Cast: _cast,
    arithmetic.Copy: _cast,
    arithmetic.DivideRounded: _nothing,
    functions.Absolute: _absolute,
    functions.Negate: lambda op, g: {"x": (-g).value},
    functions.Sign: _nothing,
    functions.Floor: _nothing,
    functions.Ceil: _nothing,
    functions.Truncate: _nothing,
    functions.Round: _nothing,
    functions.Reciprocal: _of_y(lambda y: -(y * y)),
    functions.Square: _of_x(lambda x: x * 2.0),
    functions.Exp: _of_y(lambda y: y),
    functions.Exp2: _of_y(lambda y: y * math.log(2)),
    functions.Expm1: _of_y(lambda y: y + 1.0),
    functions.Log: lambda op, g: {"x": (g / Number(op.x)).value},
    functions.Log2: lambda op, g: {"x": (g / (Number(op.x) * math.log(2))).value},
    functions.Log10: lambda op, g: {"x": (g / (Number(op.x) * math.log(10))).value},
    functions.Log1p: lambda op, g: {"x": (g / (Number(op.x) + 1.0)).value},
    functions.Sqrt: lambda op, g: {"x": (g / (Number(op.out) * 2.0)).value},
    functions.Rsqrt: _of_y(lambda y: y * y * y * -0.5),
    functions.Sin: _sine,
    functions.Cos: _cosine,
    functions.Tanh: _hyperbolic,
    functions.Sigmoid: _logistic,
    functions.Erf: _of_x(lambda x: exp(-(x * x)) * _TWO_OVER_SQRT_PI),
    functions.NanToNum: _finite,
    activation.Gelu: _activation(activation_backward.GeluBackward, "approximate"),
    activation.Silu: _activation(activation_backward.SiluBackward),
    activation.Relu: _activation(activation_backward.ThresholdBackward),
    activation.Softplus: _activation(activation_backward.SoftplusBackward, "beta", "threshold"),
}


def _term(operand: Operand) -> Any:
    return Number(operand) if isinstance(operand, Value) else operand
