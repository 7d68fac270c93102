"""What elementwise ops mean: the operators that eager would call."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from lynx.ir.call import Call
from lynx.ir.core import Operand, Value
from lynx.ir.ops import activation, elementwise_arithmetic, elementwise_compare, elementwise_math
from lynx.ir.ops import activation_backward as backward
from lynx.ir.ops.elementwise import Binary, Unary
from lynx.ir.types import DType, TensorType

from .dtypes import torch_dtype
from .registry import aten, means
from .strides import contiguous_only

_MATH = tuple(
    kind
    for kind in vars(elementwise_math).values()
    if isinstance(kind, type) and issubclass(kind, Unary) and kind.name
)

_WITH_OWN_RULE = (elementwise_math.Round, elementwise_math.Square, elementwise_math.NanToNum)


def is_tensor(operand: object) -> bool:
    """Whether an operand is a tensor and not a number."""
    return isinstance(operand, Value) and isinstance(operand.type, TensorType)


def exact(number: float, dtype: DType) -> float:
    """Return a coefficient as torch takes it: an integer where it multiplies integers."""
    return int(number) if dtype.is_integer or dtype is DType.BOOL else number


@means(
    *(kind for kind in _MATH if kind not in _WITH_OWN_RULE),
    elementwise_compare.LogicalNot,
    elementwise_compare.BitwiseNot,
    elementwise_compare.IsInf,
    elementwise_compare.SignBit,
    activation.Silu,
    activation.Hardswish,
    activation.Hardsigmoid,
    activation.Mish,
)
def unary(op: Unary) -> Call:
    """Call the operator of the same name."""
    return aten(op.name, op.x)


def _square_out(x: torch.Tensor, *, out: torch.Tensor) -> Any:
    return torch.ops.aten.pow.Tensor_Scalar_out(x, 2, out=out)


@means(elementwise_math.Square)
def square(op: elementwise_math.Square) -> Call:
    """Call `square`, which torch computes as a power."""
    return Call(torch.ops.aten.square.default, (op.x,), out=_square_out)


def _isnan_out(x: torch.Tensor, *, out: torch.Tensor) -> Any:
    return torch.ops.aten.ne.Tensor_out(x, x, out=out)


@means(elementwise_compare.IsNan)
def isnan(op: elementwise_compare.IsNan) -> Call:
    """Call `isnan`, which torch computes by comparing with itself."""
    return Call(torch.ops.aten.isnan.default, (op.x,), out=_isnan_out)


def _relu_out(x: torch.Tensor, *, out: torch.Tensor) -> Any:
    return torch.ops.aten.clamp_min.out(x, 0, out=out)


@means(activation.Relu)
def relu(op: activation.Relu) -> Call:
    """Call `relu`, which torch computes as `clamp_min`."""
    return Call(torch.ops.aten.relu.default, (op.x,), out=_relu_out)


@means(elementwise_math.NanToNum)
def nan_to_num(op: elementwise_math.NanToNum) -> Call:
    """Call `nan_to_num`."""
    return aten("nan_to_num", op.x, op.nan, op.posinf, op.neginf)


@means(elementwise_math.Round)
def round_(op: elementwise_math.Round) -> Call:
    """Call the overload with decimals only where there are some."""
    if op.decimals == 0:
        return aten("round", op.x)
    return aten("round", op.x, overload="decimals", decimals=op.decimals)


@means(elementwise_arithmetic.Add)
def add(op: elementwise_arithmetic.Add) -> Call:
    """Call `add.Tensor`, which takes numbers too; a number comes second."""
    alpha = exact(op.alpha, op.common_dtype())
    if is_tensor(op.x) or op.alpha != 1.0:
        return aten("add", op.x, op.y, overload="Tensor", alpha=alpha)
    return aten("add", op.y, op.x, overload="Tensor")


@means(elementwise_arithmetic.Subtract)
def sub(op: elementwise_arithmetic.Subtract) -> Call:
    """Call `sub.Tensor`, which takes numbers too."""
    alpha = exact(op.alpha, op.common_dtype())
    return aten("sub", op.x, op.y, overload="Tensor", alpha=alpha)


@means(elementwise_arithmetic.Multiply, elementwise_arithmetic.Divide)
def product(op: Binary) -> Call:
    """Call the `Tensor` overload, which takes numbers too."""
    return aten(op.name, op.x, op.y, overload="Tensor")


@means(elementwise_arithmetic.DivideRounded)
def div_rounded(op: elementwise_arithmetic.DivideRounded) -> Call:
    """Call `div` with a rounding mode."""
    return aten("div", op.x, op.y, overload="Tensor_mode", rounding_mode=op.rounding)


@means(elementwise_arithmetic.Power)
def power(op: elementwise_arithmetic.Power) -> Call:
    """Call the overload for the kinds of operands."""
    return aten(
        "pow", op.x, op.y, overload=_by_kinds(op, "Tensor_Tensor", "Tensor_Scalar", "Scalar")
    )


@means(elementwise_arithmetic.Remainder)
def remainder(op: elementwise_arithmetic.Remainder) -> Call:
    """Call the overload for the kinds of operands."""
    return aten(
        "remainder", op.x, op.y, overload=_by_kinds(op, "Tensor", "Scalar", "Scalar_Tensor")
    )


@means(elementwise_arithmetic.Xlogy)
def xlogy(op: elementwise_arithmetic.Xlogy) -> Call:
    """Call the overload for the kinds of operands."""
    overload = _by_kinds(op, "Tensor", "Scalar_Other", "Scalar_Self")
    return aten("xlogy", op.x, op.y, overload=overload)


@means(elementwise_compare.ShiftLeft, elementwise_compare.ShiftRight)
def shift(op: Binary) -> Call:
    """Call the overload for the kinds of operands."""
    name = "__lshift__" if isinstance(op, elementwise_compare.ShiftLeft) else "__rshift__"
    if is_tensor(op.x) and is_tensor(op.y):
        name = f"bitwise_{'left' if name == '__lshift__' else 'right'}_shift"
        return aten(name, op.x, op.y, overload="Tensor")
    if is_tensor(op.x):
        return aten(name, op.x, op.y, overload="Scalar")
    name = f"bitwise_{'left' if name == '__lshift__' else 'right'}_shift"
    return aten(name, op.x, op.y, overload="Scalar_Tensor")


_DEFAULT_OVERLOAD = (
    elementwise_arithmetic.Maximum,
    elementwise_arithmetic.Minimum,
    elementwise_arithmetic.Fmax,
    elementwise_arithmetic.Fmin,
    elementwise_arithmetic.Atan2,
    elementwise_arithmetic.Hypot,
    elementwise_arithmetic.Nextafter,
    elementwise_arithmetic.LogAddExp,
    elementwise_arithmetic.Heaviside,
    elementwise_compare.LogicalAnd,
    elementwise_compare.LogicalOr,
    elementwise_compare.LogicalXor,
)


@means(*_DEFAULT_OVERLOAD)
def of_tensors(op: Binary) -> Call:
    """Call the only overload; it takes tensors, so a number becomes a 0-dim one."""
    dtype = op.common_dtype()
    return aten(op.name, _as_tensor(op.x, dtype), _as_tensor(op.y, dtype))


@means(
    elementwise_arithmetic.Fmod,
    elementwise_arithmetic.Copysign,
    elementwise_compare.BitwiseAnd,
    elementwise_compare.BitwiseOr,
    elementwise_compare.BitwiseXor,
)
def tensor_or_scalar(op: Binary) -> Call:
    """Call `Tensor` or `Scalar`; a number that comes first becomes a 0-dim tensor."""
    if is_tensor(op.y):
        x = _as_tensor(op.x, op.common_dtype())
        return aten(op.name, x, op.y, overload="Tensor")
    return aten(op.name, op.x, op.y, overload="Scalar")


_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@means(
    elementwise_compare.Equal,
    elementwise_compare.NotEqual,
    elementwise_compare.Less,
    elementwise_compare.LessEqual,
    elementwise_compare.Greater,
    elementwise_compare.GreaterEqual,
)
def compare(op: Binary) -> Call:
    """Call `Tensor` or `Scalar`; a number that comes first swaps the sides."""
    if not is_tensor(op.x):
        return aten(_MIRRORED[op.name], op.y, op.x, overload="Scalar")
    return aten(op.name, op.x, op.y, overload="Tensor" if is_tensor(op.y) else "Scalar")


@means(elementwise_arithmetic.Where)
def where(op: elementwise_arithmetic.Where) -> Call:
    """Call the form for tensors, in which a literal number becomes a 0-dim tensor."""
    dtype = op.common_dtype()
    x, y = _as_tensor(op.x, dtype), _as_tensor(op.y, dtype)
    first, second = (is_tensor(side) or isinstance(side, torch.Tensor) for side in (x, y))
    overload = "ScalarSelf" if not first else "self" if second else "ScalarOther"
    return aten("where", op.condition, x, y, overload=overload)


@means(elementwise_arithmetic.Clamp)
def clamp(op: elementwise_arithmetic.Clamp) -> Call:
    """Call the overload for numbers or the one for tensors."""
    overload = "Tensor" if is_tensor(op.min) or is_tensor(op.max) else "default"
    return aten("clamp", op.x, op.min, op.max, overload=overload)


@means(elementwise_arithmetic.Addcmul, elementwise_arithmetic.Addcdiv)
def addc(op: Any) -> Call:
    """Call the operator of the same name."""
    return aten(op.name, op.x, op.a, op.b, value=exact(op.value, op.common_dtype()))


@means(elementwise_arithmetic.Lerp)
def lerp(op: elementwise_arithmetic.Lerp) -> Call:
    """Call the overload for the kind of weight."""
    overload = "Tensor" if is_tensor(op.weight) else "Scalar"
    return aten("lerp", op.x, op.end, op.weight, overload=overload)


def _cast(x: torch.Tensor, dtype: torch.dtype) -> Any:
    return torch.ops.aten._to_copy.default(x, dtype=dtype)


def _cast_out(x: torch.Tensor, dtype: torch.dtype, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(x)


@means(elementwise_arithmetic.Cast)
def cast(op: elementwise_arithmetic.Cast) -> Call:
    """Convert; into given memory this is `copy_`."""
    return Call(_cast, (op.x, torch_dtype(op.dtype)), out=_cast_out)


def _copy(x: torch.Tensor, memory_format: torch.memory_format) -> Any:
    return torch.ops.aten.clone.default(x, memory_format=memory_format)


def _copy_out(
    x: torch.Tensor, memory_format: torch.memory_format, *, out: torch.Tensor
) -> torch.Tensor:
    return out.copy_(x)


@means(elementwise_arithmetic.Copy)
def copy(op: elementwise_arithmetic.Copy) -> Call:
    """Clone; into given memory this is `copy_`, whatever the layout."""
    return Call(_copy, (op.x, getattr(torch, op.memory_format)), out=_copy_out)


@means(activation.Gelu)
def gelu(op: activation.Gelu) -> Call:
    """Call `gelu`."""
    return contiguous_only(aten("gelu", op.x, approximate=op.approximate))


@means(activation.LeakyRelu)
def leaky_relu(op: activation.LeakyRelu) -> Call:
    """Call `leaky_relu`."""
    return aten("leaky_relu", op.x, op.negative_slope)


@means(activation.Elu)
def elu(op: activation.Elu) -> Call:
    """Call `elu`."""
    return aten("elu", op.x, op.alpha, op.scale, op.input_scale)


@means(activation.Softplus)
def softplus(op: activation.Softplus) -> Call:
    """Call `softplus`."""
    return aten("softplus", op.x, op.beta, op.threshold)


@means(activation.Hardtanh)
def hardtanh(op: activation.Hardtanh) -> Call:
    """Call `hardtanh`."""
    return aten("hardtanh", op.x, op.min, op.max)


@means(activation.Threshold)
def threshold(op: activation.Threshold) -> Call:
    """Call `threshold`."""
    return aten("threshold", op.x, op.threshold, op.value)


@means(activation.LogSigmoid)
def log_sigmoid(op: activation.LogSigmoid) -> Call:
    """Call the form that returns the buffer too."""
    return contiguous_only(aten("log_sigmoid_forward", op.x))


@means(activation.Prelu)
def prelu(op: activation.Prelu) -> Call:
    """Call the form for a weight of the operand's rank."""
    return aten("_prelu_kernel", op.x, op.weight)


@means(
    backward.SiluBackward,
    backward.HardswishBackward,
    backward.HardsigmoidBackward,
    backward.MishBackward,
)
def backward_of_operand(op: Any) -> Call:
    """Call the operator of the same name on the gradient and the operand."""
    return aten(op.name, op.grad, op.x)


@means(backward.TanhBackward, backward.SigmoidBackward)
def backward_of_result(op: Any) -> Call:
    """Call the operator of the same name on the gradient and the result."""
    return aten(op.name, op.grad, op.y)


@means(backward.GeluBackward)
def gelu_backward(op: backward.GeluBackward) -> Call:
    """Call `gelu_backward`."""
    return aten("gelu_backward", op.grad, op.x, approximate=op.approximate)


@means(backward.ThresholdBackward)
def threshold_backward(op: backward.ThresholdBackward) -> Call:
    """Call `threshold_backward`."""
    return aten("threshold_backward", op.grad, op.x, exact(op.threshold, op.common_dtype()))


@means(backward.LeakyReluBackward)
def leaky_relu_backward(op: backward.LeakyReluBackward) -> Call:
    """Call `leaky_relu_backward`."""
    return aten("leaky_relu_backward", op.grad, op.x, op.negative_slope, op.is_result)


@means(backward.EluBackward)
def elu_backward(op: backward.EluBackward) -> Call:
    """Call `elu_backward`."""
    return aten("elu_backward", op.grad, op.alpha, op.scale, op.input_scale, op.is_result, op.x)


@means(backward.SoftplusBackward)
def softplus_backward(op: backward.SoftplusBackward) -> Call:
    """Call `softplus_backward`."""
    return aten("softplus_backward", op.grad, op.x, op.beta, op.threshold)


@means(backward.HardtanhBackward)
def hardtanh_backward(op: backward.HardtanhBackward) -> Call:
    """Call `hardtanh_backward`."""
    return aten("hardtanh_backward", op.grad, op.x, op.min, op.max)


@means(backward.LogSigmoidBackward)
def log_sigmoid_backward(op: backward.LogSigmoidBackward) -> Call:
    """Call `log_sigmoid_backward`."""
    return aten("log_sigmoid_backward", op.grad, op.x, op.buffer)


def _dropout_backward_out(
    grad: torch.Tensor, mask: torch.Tensor, scale: float, *, out: torch.Tensor
) -> torch.Tensor:
    return torch.mul(grad, mask, out=out).mul_(scale)


@means(backward.DropoutBackward)
def dropout_backward(op: backward.DropoutBackward) -> Call:
    """Call `native_dropout_backward`."""
    function = torch.ops.aten.native_dropout_backward.default
    return Call(function, (op.grad, op.mask, op.scale), out=_dropout_backward_out)


def _by_kinds(op: Binary, tensors: str, number_last: str, number_first: str) -> str:
    if not is_tensor(op.x):
        return number_first
    return tensors if is_tensor(op.y) else number_last


def _as_tensor(operand: Operand, dtype: DType) -> Any:
    """Turn a literal number into a 0-dim tensor of the op's element type."""
    if isinstance(operand, Value | sympy.Expr):
        return operand
    return torch.tensor(operand, dtype=torch_dtype(dtype))
