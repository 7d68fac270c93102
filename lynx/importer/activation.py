"""Import rules of activation functions and their gradients."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Value
from lynx.ir.ops import activation
from lynx.ir.ops import activation_backward as backward

from .registry import RULES, Context, Decline, Imported, imports

_PLAIN: dict[str, type[Any]] = {
    "silu": activation.Silu,
    "relu": activation.Relu,
    "hardswish": activation.Hardswish,
    "hardsigmoid": activation.Hardsigmoid,
    "mish": activation.Mish,
    "_prelu_kernel": activation.Prelu,
    "silu_backward": backward.SiluBackward,
    "tanh_backward": backward.TanhBackward,
    "sigmoid_backward": backward.SigmoidBackward,
    "hardswish_backward": backward.HardswishBackward,
    "hardsigmoid_backward": backward.HardsigmoidBackward,
    "mish_backward": backward.MishBackward,
}
"""Operators whose arguments are the op's operands."""


def _plain(kind: type[Any]) -> Any:
    def rule(context: Context, *operands: Value) -> Imported:
        return context.emit(kind(*operands))

    return rule


for _name, _kind in _PLAIN.items():
    RULES[f"aten.{_name}.default"] = _plain(_kind)


@imports("aten.gelu.default")
def gelu(context: Context, x: Value, *, approximate: str = "none") -> Imported:
    """Keep the approximation."""
    return context.emit(activation.Gelu(x, approximate=approximate))


@imports("aten.gelu_backward.default")
def gelu_backward(
    context: Context, grad: Value, x: Value, *, approximate: str = "none"
) -> Imported:
    """Keep the approximation."""
    return context.emit(backward.GeluBackward(grad, x, approximate=approximate))


@imports("aten.leaky_relu.default")
def leaky_relu(context: Context, x: Value, negative_slope: Any = 0.01) -> Imported:
    """Keep the slope."""
    return context.emit(activation.LeakyRelu(x, float(negative_slope)))


@imports("aten.leaky_relu_backward.default")
def leaky_relu_backward(
    context: Context, grad: Value, x: Value, negative_slope: Any, self_is_result: bool
) -> Imported:
    """Keep the slope."""
    return context.emit(backward.LeakyReluBackward(grad, x, float(negative_slope), self_is_result))


@imports("aten.elu.default")
def elu(
    context: Context, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1
) -> Imported:
    """Keep the three scales."""
    return context.emit(activation.Elu(x, float(alpha), float(scale), float(input_scale)))


@imports("aten.elu_backward.default")
def elu_backward(
    context: Context,
    grad: Value,
    alpha: Any,
    scale: Any,
    input_scale: Any,
    is_result: bool,
    self_or_result: Value,
) -> Imported:
    """Keep the three scales."""
    scales = (float(alpha), float(scale), float(input_scale))
    return context.emit(backward.EluBackward(grad, self_or_result, *scales, is_result))


@imports("aten.celu.default")
def celu(context: Context, x: Value, alpha: Any = 1.0) -> Imported:
    """Scale the operand of the exponential: torch computes `elu` with the inverse of `alpha`."""
    if alpha == 0:
        return Decline("alpha is zero, which torch refuses")
    return context.emit(activation.Elu(x, float(alpha), 1.0, 1.0 / float(alpha)))


SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


@imports("aten.selu.default")
def selu(context: Context, x: Value) -> Imported:
    """Use `elu` with the two constants of the definition, which torch has in `double`."""
    return context.emit(activation.Elu(x, SELU_ALPHA, SELU_SCALE, 1.0))


@imports("aten.softplus.default")
def softplus(context: Context, x: Value, beta: Any = 1, threshold: Any = 20) -> Imported:
    """Keep both parameters."""
    return context.emit(activation.Softplus(x, float(beta), float(threshold)))


@imports("aten.softplus_backward.default")
def softplus_backward(
    context: Context, grad: Value, x: Value, beta: Any, threshold: Any
) -> Imported:
    """Keep both parameters."""
    return context.emit(backward.SoftplusBackward(grad, x, float(beta), float(threshold)))


@imports("aten.hardtanh.default")
def hardtanh(context: Context, x: Value, min_val: Any = -1, max_val: Any = 1) -> Imported:
    """Keep the limits."""
    return context.emit(activation.Hardtanh(x, float(min_val), float(max_val)))


@imports("aten.relu6.default")
def relu6(context: Context, x: Value) -> Imported:
    """Limit to the interval from 0 to 6."""
    return context.emit(activation.Hardtanh(x, 0.0, 6.0))


@imports("aten.hardtanh_backward.default")
def hardtanh_backward(
    context: Context, grad: Value, x: Value, min_val: Any, max_val: Any
) -> Imported:
    """Keep the limits."""
    return context.emit(backward.HardtanhBackward(grad, x, float(min_val), float(max_val)))


@imports("aten.threshold.default")
def threshold(context: Context, x: Value, threshold: Any, value: Any) -> Imported:
    """Keep the threshold and the replacement."""
    return context.emit(activation.Threshold(x, float(threshold), float(value)))


@imports("aten.threshold_backward.default")
def threshold_backward(context: Context, grad: Value, x: Value, threshold: Any) -> Imported:
    """Keep the threshold."""
    return context.emit(backward.ThresholdBackward(grad, x, float(threshold)))


@imports("aten.log_sigmoid_forward.default")
def log_sigmoid(context: Context, x: Value) -> Imported:
    """Return the buffer that the gradient needs too; only on the CPU is there one."""
    return context.add(activation.LogSigmoid(x))


@imports("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(context: Context, grad: Value, x: Value, buffer: Value) -> Imported:
    """Read the buffer where the forward op filled it."""
    if buffer.shape != x.shape:
        return Decline("the buffer is empty on this device")
    return context.emit(backward.LogSigmoidBackward(grad, x, buffer))


@imports("aten.native_dropout_backward.default")
def dropout_backward(context: Context, grad: Value, mask: Value, scale: Any) -> Imported:
    """Keep the scale."""
    return context.emit(backward.DropoutBackward(grad, mask, float(scale)))
