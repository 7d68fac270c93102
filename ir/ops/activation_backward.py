"""Gradients of activation functions, as torch's autograd calls for them.

Each takes the gradient of the activation's result and what the forward op kept: its operand `x`, or
its result `y`.
"""

from __future__ import annotations

from typing import ClassVar

from lynx.ir.core import Value
from lynx.ir.types import DType

from .elementwise import Elementwise


class ActivationBackward(Elementwise):
    """Base of gradients; each is linear in the incoming gradient."""

    accepts: ClassVar[str] = "f"
    linear: ClassVar[tuple[tuple[str, ...], ...]] = (("grad",),)
    grad: Value


class GeluBackward(ActivationBackward, name="gelu_backward"):
    """Return the gradient of `gelu`.

    %d = gelu_backward %grad, %x {approximate = "tanh"} : f32[4, 8]
    """

    x: Value
    approximate: str = "none"


class SiluBackward(ActivationBackward, name="silu_backward"):
    """Return the gradient of `silu`.

    %d = silu_backward %grad, %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"
    x: Value


class TanhBackward(ActivationBackward, name="tanh_backward"):
    """Return the gradient of `tanh`, from its result.

    %d = tanh_backward %grad, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"
    y: Value


class SigmoidBackward(ActivationBackward, name="sigmoid_backward"):
    """Return the gradient of `sigmoid`, from its result.

    %d = sigmoid_backward %grad, %y : f32[4, 8]
    """

    accepts: ClassVar[str] = "fc"
    y: Value


class ThresholdBackward(ActivationBackward, name="threshold_backward"):
    """Pass the gradient where `x` exceeds the threshold, 0 elsewhere; also the gradient of `relu`.

    %d = threshold_backward %grad, %x : f32[4, 8]
    """

    accepts: ClassVar[str] = "if"
    x: Value
    threshold: float = 0.0


class LeakyReluBackward(ActivationBackward, name="leaky_relu_backward"):
    """Return the gradient of `leaky_relu`, from its operand or, where so said, its result.

    %d = leaky_relu_backward %grad, %x {negative_slope = 0.2} : f32[4, 8]
    """

    x: Value
    negative_slope: float = 0.01
    is_result: bool = False


class EluBackward(ActivationBackward, name="elu_backward"):
    """Return the gradient of `elu`, from its operand or, where so said, its result.

    %d = elu_backward %grad, %x {alpha = 1.5} : f32[4, 8]
    """

    x: Value
    alpha: float = 1.0
    scale: float = 1.0
    input_scale: float = 1.0
    is_result: bool = False


class SoftplusBackward(ActivationBackward, name="softplus_backward"):
    """Return the gradient of `softplus`.

    %d = softplus_backward %grad, %x {beta = 2.0} : f32[4, 8]
    """

    x: Value
    beta: float = 1.0
    threshold: float = 20.0


class HardtanhBackward(ActivationBackward, name="hardtanh_backward"):
    """Return the gradient of `hardtanh`.

    %d = hardtanh_backward %grad, %x {max = 6.0, min = 0.0} : f32[4, 8]
    """

    x: Value
    min: float = -1.0
    max: float = 1.0


class HardswishBackward(ActivationBackward, name="hardswish_backward"):
    """Return the gradient of `hardswish`.

    %d = hardswish_backward %grad, %x : f32[4, 8]
    """

    x: Value


class HardsigmoidBackward(ActivationBackward, name="hardsigmoid_backward"):
    """Return the gradient of `hardsigmoid`.

    %d = hardsigmoid_backward %grad, %x : f32[4, 8]
    """

    x: Value


class MishBackward(ActivationBackward, name="mish_backward"):
    """Return the gradient of `mish`.

    %d = mish_backward %grad, %x : f32[4, 8]
    """

    x: Value


class LogSigmoidBackward(ActivationBackward, name="log_sigmoid_backward"):
    """Return the gradient of `log_sigmoid`, from its operand and its buffer.

    %d = log_sigmoid_backward %grad, %x, %buffer : f32[4, 8]
    """

    x: Value
    buffer: Value


class DropoutBackward(ActivationBackward, name="dropout_backward"):
    """Return the gradient of `dropout`: `grad * mask * scale`.

    %d = dropout_backward %grad, %mask {scale = 2.0} : f32[4, 8]
    """

    mask: Value
    scale: float

    def common_dtype(self) -> DType:
        """Return the type of the gradient; the mask is of type bool."""
        if self.mask.tensor_type.dtype is not DType.BOOL:
            raise self.error("bad-dtype", f"expects a bool mask, got {self.mask.type}")
        return self._agree((self.grad,))
