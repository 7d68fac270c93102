"""Activation functions; each stays whole until a pass decomposes it."""

from __future__ import annotations

from typing import ClassVar

from lynx.ir.core import Value
from lynx.ir.types import TensorType

from .elementwise import Elementwise, Unary


class Activation(Unary):
    """Base of functions between the layers of a network."""

    accepts: ClassVar[str] = "f"


class Gelu(Activation, name="gelu"):
    """Weight `x` by the normal distribution at `x`; `approximate` is `none` or `tanh`.

    %y = gelu %x {approximate = "tanh"} : f32[4, 8]
    """

    approximate: str = "none"

    def infer(self) -> TensorType:
        """Check the approximation."""
        if self.approximate not in ("none", "tanh"):
            raise self.error("bad-approximation", f"approximates by tanh, not {self.approximate}")
        return super().infer()


class Silu(Activation, name="silu"):
    """Return `x * sigmoid(x)`.

    %y = silu %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"


class Relu(Activation, name="relu"):
    """Return the greater of `x` and 0; NaN stays.

    %y = relu %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "if"


class LeakyRelu(Activation, name="leaky_relu"):
    """Scale negative elements.

    %y = leaky_relu %x {negative_slope = 0.2} : f32[4, 8]
    """

    negative_slope: float = 0.01


class Elu(Activation, name="elu"):
    """Return `scale * x` where positive, else `scale * alpha * (exp(input_scale * x) - 1)`.

    %y = elu %x {alpha = 1.5} : f32[4, 8]
    """

    alpha: float = 1.0
    scale: float = 1.0
    input_scale: float = 1.0


class Softplus(Activation, name="softplus"):
    """Return `log(1 + exp(beta * x)) / beta`, and `x` itself where `beta * x > threshold`.

    %y = softplus %x {beta = 2.0} : f32[4, 8]
    """

    beta: float = 1.0
    threshold: float = 20.0


class Hardtanh(Activation, name="hardtanh"):
    """Limit to the interval from `min` to `max`.

    %y = hardtanh %x {max = 6.0, min = 0.0} : f32[4, 8]
    """

    min: float = -1.0
    max: float = 1.0


class Hardswish(Activation, name="hardswish"):
    """Return `x * min(max(x + 3, 0), 6) / 6`.

    %y = hardswish %x : f32[4, 8]
    """


class Hardsigmoid(Activation, name="hardsigmoid"):
    """Return `min(max(x + 3, 0), 6) / 6`.

    %y = hardsigmoid %x : f32[4, 8]
    """


class Mish(Activation, name="mish"):
    """Return `x * tanh(log(1 + exp(x)))`.

    %y = mish %x : f32[4, 8]
    """


class Threshold(Activation, name="threshold"):
    """Keep elements above `threshold` and replace the others by `value`.

    %y = threshold %x {threshold = 0.1, value = 20.0} : f32[4, 8]
    """

    threshold: float
    value: float


class LogSigmoid(Activation, name="log_sigmoid"):
    """Return `log(sigmoid(x))`, and `exp(-|x|)` for the backward op.

    %y, %buffer = log_sigmoid %x : f32[4, 8], f32[4, 8]
    """

    def infer(self) -> tuple[TensorType, TensorType]:  # type: ignore[override]  # two results
        """Return the type twice."""
        (type_,) = (super().infer(),)
        return type_, type_


class Prelu(Elementwise, name="prelu"):
    """Scale negative elements by a weight that is broadcast against them.

    %y = prelu %x, %weight : f32[4, 8]
    """

    accepts: ClassVar[str] = "f"
    linear: ClassVar[tuple[tuple[str, ...], ...]] = ()
    x: Value
    weight: Value
