"""Random instances of composite ops, of all shapes and attributes, for fuzzing decompositions."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir.core import Op, Value
from lynx.ir.ops import activation, elementwise_arithmetic, elementwise_math, loss, reduction
from lynx.ir.ops import activation_backward as backward
from lynx.ir.ops.layout_slicing import LowerTriangle, UpperTriangle
from lynx.ir.ops.normalization import (
    BatchNorm,
    BatchNormBackward,
    GroupNorm,
    GroupNormBackward,
    LayerNorm,
    LayerNormBackward,
    RmsNorm,
    RmsNormBackward,
)
from lynx.ir.ops.pooling import (
    AdaptiveAveragePool,
    AdaptiveAveragePoolBackward,
    AveragePool,
    AveragePoolBackward,
)
from lynx.ir.ops.random import Dropout
from lynx.ir.ops.softmax import (
    LogSoftmax,
    LogSoftmaxBackward,
    SafeSoftmax,
    Softmax,
    SoftmaxBackward,
)
from lynx.ir.types import DType, TensorType

_SPECIAL = (0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-3, -20.0, 88.0)


@dataclass
class Draw:
    """Makes values with random contents: `inputs` holds the tensor of each."""

    dtype: DType
    random: random.Random
    special: bool = False
    nan: bool = True
    inputs: dict[Value, Any] = field(default_factory=dict)

    def shape(self, low: int = 1, high: int = 4) -> tuple[int, ...]:
        """Return a shape of a rank between two numbers."""
        sizes = (1, 2, 3, 5, 9)
        return tuple(self.random.choice(sizes) for _ in range(self.random.randint(low, high)))

    def value(
        self, shape: tuple[int, ...], *, positive: bool = False, special: bool = True
    ) -> Value:
        """Return a floating value, some of whose elements may be special."""
        generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
        tensor = tensor * self.random.choice((0.1, 1.0, 3.0)) + self.random.choice((0.0, 2.0))
        if positive:
            tensor = tensor.abs() + 0.1
        if self.special and special and tensor.numel():
            flat = tensor.reshape(-1)
            for _ in range(self.random.randint(0, 2)):
                number = self.random.choice(_SPECIAL)
                if self.nan or number == number:
                    flat[self.random.randrange(flat.numel())] = number
        return self.enter(tensor.to(torch_dtype(self.dtype)), self.dtype)

    def share(self, shape: tuple[int, ...]) -> Value:
        """Return a value between 0 and 1."""
        generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        tensor = torch.rand(shape, generator=generator, dtype=torch.float64)
        return self.enter(tensor.to(torch_dtype(self.dtype)), self.dtype)

    def statistics(self, x: Value, split: tuple[int, ...], dims: tuple[int, ...]) -> list[Value]:
        """Return the means and inverse deviations of a value of this shape over dimensions."""
        tensor = self.inputs[x].double().nan_to_num(0.0, 1.0, -1.0).reshape(split)
        variance, mean = torch.var_mean(tensor, dims, correction=0, keepdim=True)
        dtype = torch_dtype(self.dtype)
        return [self.enter(t.to(dtype), self.dtype) for t in (mean, (variance + 1e-5).rsqrt())]

    def reshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Return a value of another shape."""
        return self.enter(self.inputs[value].reshape(shape), self.dtype)

    def enter(self, tensor: torch.Tensor, dtype: DType) -> Value:
        """Return a value for a tensor."""
        value = Value(TensorType(dtype, tuple(tensor.shape)))
        self.inputs[value] = tensor
        return value

    def some_dims(self, rank: int) -> tuple[int, ...]:
        """Return a few dimensions, sorted."""
        return tuple(sorted(self.random.sample(range(rank), self.random.randint(1, rank))))

    def choice(self, *items: Any) -> Any:
        """Return one of the items."""
        return self.random.choice(items)

    def maybe(self, value: Callable[[], Value]) -> Value | None:
        """Return a value or none."""
        return value() if self.random.random() < 0.6 else None

    def targets(self, shape: tuple[int, ...], classes: int, ignore: int) -> Value:
        """Return class numbers, some of them the ignored one."""
        numbers = torch.tensor(
            [self.random.choice((*range(classes), ignore)) for _ in range(_count(shape))]
        )
        return self.enter(numbers.reshape(shape).long(), DType.I64)


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.tensor(shape).prod()) if shape else 1


WITHOUT_NAN = ("elu_backward", "hardtanh_backward", "hardswish_backward")
"""Where eager's vectors and the scalars after the last vector do different things with NaN."""

Case = Callable[[Draw], Op]


def _unary(kind: type[Op], **attributes: tuple[Any, ...]) -> Case:
    def make(draw: Draw) -> Op:
        given = {name: draw.choice(*values) for name, values in attributes.items()}
        return kind(draw.value(draw.shape(0)), **given)  # type: ignore[call-arg]

    return make


def _broadcast(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that is broadcast to another."""
    shape = tuple(draw.choice(size, size, 1) for size in shape)
    return shape[draw.random.randint(0, len(shape)) :]


def _elementwise(kind: type[Op], count: int, **attributes: tuple[Any, ...]) -> Case:
    def make(draw: Draw) -> Op:
        given = {name: draw.choice(*values) for name, values in attributes.items()}
        shape = draw.shape()
        rest = (draw.value(_broadcast(draw, shape)) for _ in range(count - 1))
        return kind(draw.value(shape), *rest, **given)  # type: ignore[call-arg]

    return make


def _same(kind: type[Op], count: int, **attributes: tuple[Any, ...]) -> Case:
    def make(draw: Draw) -> Op:
        given = {name: draw.choice(*values) for name, values in attributes.items()}
        shape = draw.shape(0)
        return kind(*(draw.value(shape) for _ in range(count)), **given)  # type: ignore[call-arg]

    return make


def _prelu(draw: Draw) -> Op:
    shape = draw.shape(2)
    weight = tuple(size if axis == 1 else 1 for axis, size in enumerate(shape))
    return activation.Prelu(draw.value(shape), draw.value(weight))


def _dropout(draw: Draw) -> Op:
    return Dropout(draw.value(draw.shape(0)), draw.choice(0.0, 0.1, 0.5, 1.0))


def _dropout_backward(draw: Draw) -> Op:
    shape = draw.shape(0)
    grad = draw.value(shape)
    mask = draw.enter(torch.rand(shape) < 0.5, DType.BOOL)
    return backward.DropoutBackward(grad, mask, draw.choice(1.0, 2.0, 1 / 0.9))


def _triangle(kind: type[Op]) -> Case:
    def make(draw: Draw) -> Op:
        return kind(draw.value(draw.shape(2)), draw.choice(0, 1, -1, 3, -20, 20))  # type: ignore[call-arg]

    return make


def _reduction(kind: type[Op], **attributes: tuple[Any, ...]) -> Case:
    def make(draw: Draw) -> Op:
        given = {name: draw.choice(*values) for name, values in attributes.items()}
        shape = draw.shape(0)
        dims = draw.some_dims(len(shape)) if shape else ()
        return kind(draw.value(shape), dims, draw.choice(True, False), **given)  # type: ignore[call-arg]

    return make


def _whole(kind: type[Op]) -> Case:
    def make(draw: Draw) -> Op:
        shape = draw.shape(0)
        return kind(draw.value(shape), tuple(range(len(shape))))  # type: ignore[call-arg]

    return make


def _along(kind: type[Op], count: int) -> Case:
    def make(draw: Draw) -> Op:
        shape = draw.shape(0)
        dim = draw.random.randrange(len(shape)) if shape else 0
        return kind(*(draw.value(shape) for _ in range(count)), dim)  # type: ignore[call-arg]

    return make


def _pair(kind: type[Op], **attributes: tuple[Any, ...]) -> Case:
    def make(draw: Draw) -> Op:
        given = {name: draw.choice(*values) for name, values in attributes.items()}
        shape, reduction = draw.shape(0), draw.choice(*loss.REDUCTIONS)
        return kind(draw.value(shape), draw.value(shape), reduction, **given)  # type: ignore[call-arg]

    return make


def _pair_backward(kind: type[Op], **attributes: tuple[Any, ...]) -> Case:
    def make(draw: Draw) -> Op:
        given = {name: draw.choice(*values) for name, values in attributes.items()}
        shape, reduction = draw.shape(0), draw.choice(*loss.REDUCTIONS)
        grad = draw.value(shape if reduction == "none" else ())
        return kind(grad, draw.value(shape), draw.value(shape), reduction, **given)  # type: ignore[call-arg]

    return make


def _logits(draw: Draw) -> Op:
    shape = draw.shape()
    weights = (draw.maybe(lambda: draw.value(_broadcast(draw, shape))) for _ in range(2))
    operands = (draw.value(shape), draw.share(shape), *weights)
    return loss.BinaryCrossEntropyLogits(*operands, draw.choice(*loss.REDUCTIONS))


def _cross_entropy_backward(draw: Draw) -> Op:
    shape, reduction = draw.shape(), draw.choice(*loss.REDUCTIONS)
    grad = draw.value(shape if reduction == "none" else ())
    weight = draw.maybe(lambda: draw.value(_broadcast(draw, shape)))
    return loss.BinaryCrossEntropyBackward(
        grad, draw.share(shape), draw.share(shape), weight, reduction
    )


def _nll_operands(draw: Draw) -> tuple[Value, Value, Value | None, int]:
    classes = draw.choice(1, 2, 5, 17)
    batch = draw.choice((), (1,), (7,), (2, 3, 4))
    shape = (*batch[:1], classes, *batch[1:])
    ignore = draw.choice(-100, 0, classes - 1)
    x, target = draw.value(shape), draw.targets(batch, classes, ignore)
    return x, target, draw.maybe(lambda: draw.value((classes,), special=False)), ignore


def _nll(draw: Draw) -> Op:
    x, target, weight, ignore = _nll_operands(draw)
    return loss.NllLoss(x, target, weight, draw.choice(*loss.REDUCTIONS), ignore)


def _nll_backward(draw: Draw) -> Op:
    x, target, weight, ignore = _nll_operands(draw)
    reduction = draw.choice(*loss.REDUCTIONS)
    grad = draw.value(target.shape if reduction == "none" else ())  # type: ignore[arg-type]
    total = draw.value((), positive=True)
    return loss.NllLossBackward(grad, x, target, weight, total, reduction, ignore)


def _batch_norm(draw: Draw) -> Op:
    training = draw.choice(True, False)
    shape = _of_batch(draw)
    channels = shape[1:2]
    affine = (draw.maybe(lambda: draw.value(channels, special=False)) for _ in range(2))
    x = draw.value(shape)
    running = (None, None)
    if not training or draw.choice(True, False):
        running = (
            draw.value(channels, special=False),
            draw.value(channels, positive=True, special=False),
        )  # type: ignore[assignment]
    return BatchNorm(x, *affine, *running, draw.choice(0.1, 1.0, 0.0), 1e-5, training)


def _of_batch(draw: Draw) -> tuple[int, ...]:
    """Return a shape with more than one value a channel: one has no variance."""
    return (draw.choice(2, 3, 8), *draw.shape(1, 3))


def _batch_norm_backward(draw: Draw) -> Op:
    training = draw.choice(True, False)
    shape = _of_batch(draw)
    channels = shape[1:2]
    mask = draw.choice((True, True, True), (True, False, False), (False, True, True))
    weight = draw.maybe(lambda: draw.value(channels, special=False))
    grad, x = draw.value(shape), draw.value(shape)
    running = (
        draw.value(channels, special=False),
        draw.value(channels, positive=True, special=False),
    )
    saved: tuple[Value | None, ...] = (None, None)
    if training:
        others = (0, *range(2, len(shape)))
        saved = tuple(draw.reshaped(v, channels) for v in draw.statistics(x, shape, others))
    return BatchNormBackward(grad, x, weight, *running, *saved, 1e-5, training, mask)


def _layer_norm(draw: Draw) -> Op:
    shape = (*draw.shape(0, 2), draw.choice(2, 5, 17))
    axis = draw.random.randrange(len(shape))
    vectors = (draw.maybe(lambda: draw.value(shape[axis:], special=False)) for _ in range(2))
    return LayerNorm(draw.value(shape), *vectors, axis, 1e-5)


def _layer_norm_backward(draw: Draw) -> Op:
    shape = (*draw.shape(0, 2), draw.choice(2, 5, 17))
    axis = draw.random.randrange(len(shape))
    weight, bias = draw.maybe(lambda: draw.value(shape[axis:], special=False)), None
    mask = (True, False, False)
    if weight is not None:
        bias = draw.value(shape[axis:], special=False)
        mask = draw.choice((True, True, True), (True, True, False), (False, True, True))
    grad, x = draw.value(shape), draw.value(shape)
    mean, rstd = draw.statistics(x, shape, tuple(range(axis, len(shape))))
    return LayerNormBackward(grad, x, mean, rstd, weight, bias, axis, mask)


def _rms_norm(draw: Draw) -> Op:
    shape = (*draw.shape(0, 2), draw.choice(2, 5, 17))
    axis = draw.random.randrange(len(shape))
    weight = draw.maybe(lambda: draw.value(shape[axis:], special=False))
    return RmsNorm(draw.value(shape), weight, axis, 1e-6)


def _rms_norm_backward(draw: Draw) -> Op:
    shape = (*draw.shape(0, 2), draw.choice(2, 5, 17))
    axis = draw.random.randrange(len(shape))
    saved = (*shape[:axis], *(1,) * (len(shape) - axis))
    weight = draw.maybe(lambda: draw.value(shape[axis:], special=False))
    mask = (True, weight is not None)
    grad, x = draw.value(shape), draw.value(shape)
    rstd = draw.value(saved, positive=True, special=False)
    return RmsNormBackward(grad, x, rstd, weight, axis, mask)


def _group_norm(draw: Draw) -> Op:
    groups = draw.choice(1, 2, 3)
    shape = (draw.choice(1, 3), groups * draw.choice(1, 2), draw.choice(2, 5), *draw.shape(0, 1))
    vectors = (draw.maybe(lambda: draw.value(shape[1:2], special=False)) for _ in range(2))
    return GroupNorm(draw.value(shape), *vectors, groups, 1e-5)


def _group_norm_backward(draw: Draw) -> Op:
    groups = draw.choice(1, 2, 3)
    shape = (draw.choice(1, 3), groups * draw.choice(1, 2), draw.choice(2, 5), *draw.shape(0, 1))
    weight = draw.maybe(lambda: draw.value(shape[1:2], special=False))
    mask = (True, weight is not None, weight is not None)
    grad, x = draw.value(shape), draw.value(shape)
    split = (shape[0], groups, -1)
    mean, rstd = (draw.reshaped(v, (shape[0], groups)) for v in draw.statistics(x, split, (2,)))
    return GroupNormBackward(grad, x, mean, rstd, weight, groups, mask)


def _adaptive(draw: Draw) -> Op:
    count = draw.choice(2, 3)
    x = draw.value(draw.shape(count + 1, count + 2))
    return AdaptiveAveragePool(x, (1,) * count)


def _adaptive_backward(draw: Draw) -> Op:
    count = draw.choice(2, 3)
    x = draw.value(draw.shape(count + 1, count + 2))
    leading: tuple[Any, ...] = x.shape[:-count]
    return AdaptiveAveragePoolBackward(draw.value((*leading, *(1,) * count)), x, count)


def _average(draw: Draw) -> Op:
    x = draw.value(draw.shape(3, 4))
    kernel: tuple[Any, ...] = x.shape[-2:]
    return AveragePool(x, kernel, divisor=draw.choice(None, 3))


def _average_backward(draw: Draw) -> Op:
    x = draw.value(draw.shape(3, 4))
    kernel: tuple[Any, ...] = x.shape[-2:]
    grad = draw.value((*x.shape[:-2], 1, 1))  # type: ignore[arg-type]
    return AveragePoolBackward(grad, x, kernel, divisor=draw.choice(None, 3))


_ORDERS = (0.0, 1.0, 2.0, 3.0, 0.5, float("inf"), float("-inf"), -1.0)

CASES: dict[str, Case] = {
    "gelu": _unary(activation.Gelu, approximate=("none", "tanh")),
    "silu": _unary(activation.Silu),
    "relu": _unary(activation.Relu),
    "leaky_relu": _unary(activation.LeakyRelu, negative_slope=(0.01, 0.3)),
    "elu": _unary(activation.Elu, alpha=(1.0, 1.67)),
    "softplus": _unary(activation.Softplus, beta=(1.0, 2.0), threshold=(20.0, 1.0)),
    "hardtanh": _unary(activation.Hardtanh),
    "hardswish": _unary(activation.Hardswish),
    "hardsigmoid": _unary(activation.Hardsigmoid),
    "mish": _unary(activation.Mish),
    "threshold": _unary(activation.Threshold, threshold=(0.0, 0.5), value=(0.0, 3.0)),
    "log_sigmoid": _unary(activation.LogSigmoid),
    "prelu": _prelu,
    "gelu_backward": _same(backward.GeluBackward, 2, approximate=("none", "tanh")),
    "silu_backward": _same(backward.SiluBackward, 2),
    "tanh_backward": _same(backward.TanhBackward, 2),
    "sigmoid_backward": _same(backward.SigmoidBackward, 2),
    "threshold_backward": _same(backward.ThresholdBackward, 2, threshold=(0.0, 0.5)),
    "leaky_relu_backward": _same(backward.LeakyReluBackward, 2, negative_slope=(0.01, 0.3)),
    "elu_backward": _same(backward.EluBackward, 2, alpha=(1.0, 1.67), is_result=(True, False)),
    "softplus_backward": _same(backward.SoftplusBackward, 2, beta=(1.0, 2.0)),
    "hardtanh_backward": _same(backward.HardtanhBackward, 2),
    "hardswish_backward": _same(backward.HardswishBackward, 2),
    "hardsigmoid_backward": _same(backward.HardsigmoidBackward, 2),
    "mish_backward": _same(backward.MishBackward, 2),
    "log_sigmoid_backward": _same(backward.LogSigmoidBackward, 3),
    "dropout": _dropout,
    "dropout_backward": _dropout_backward,
    "square": _unary(elementwise_math.Square),
    "sgn": _unary(elementwise_math.Sgn),
    "frac": _unary(elementwise_math.Fraction),
    "nan_to_num": _unary(
        elementwise_math.NanToNum, nan=(0.0, 3.5), posinf=(None, 7.0), neginf=(None, -7.0)
    ),
    "round": _unary(elementwise_math.Round, decimals=(1, 2, -1)),
    "heaviside": _elementwise(elementwise_arithmetic.Heaviside, 2),
    "xlogy": _elementwise(elementwise_arithmetic.Xlogy, 2),
    "logaddexp": _elementwise(elementwise_arithmetic.LogAddExp, 2),
    "tril": _triangle(LowerTriangle),
    "triu": _triangle(UpperTriangle),
    "var": _reduction(reduction.Variance, correction=(0.0, 1.0, 0.5, 9.0)),
    "std": _reduction(reduction.StandardDeviation, correction=(0.0, 1.0)),
    "var_mean": _reduction(reduction.VarianceAndMean, correction=(0.0, 1.0)),
    "std_mean": _reduction(reduction.DeviationAndMean, correction=(0.0, 1.0)),
    "logsumexp": _reduction(reduction.LogSumExp),
    "vector_norm": _reduction(reduction.VectorNorm, order=_ORDERS),
    "nansum": _reduction(reduction.NanSum),
    "count_nonzero": _reduction(reduction.CountNonzero),
    "max_all": _whole(reduction.MaxOfAll),
    "min_all": _whole(reduction.MinOfAll),
    "softmax": _along(Softmax, 1),
    "safe_softmax": _along(SafeSoftmax, 1),
    "log_softmax": _along(LogSoftmax, 1),
    "softmax_backward": _along(SoftmaxBackward, 2),
    "log_softmax_backward": _along(LogSoftmaxBackward, 2),
    "mse_loss": _pair(loss.MseLoss),
    "smooth_l1_loss": _pair(loss.SmoothL1Loss, beta=(1.0, 0.3, 0.0)),
    "huber_loss": _pair(loss.HuberLoss, delta=(1.0, 0.3)),
    "soft_margin_loss": _pair(loss.SoftMarginLoss),
    "mse_loss_backward": _pair_backward(loss.MseLossBackward),
    "smooth_l1_loss_backward": _pair_backward(loss.SmoothL1LossBackward, beta=(1.0, 0.3, 0.0)),
    "huber_loss_backward": _pair_backward(loss.HuberLossBackward, delta=(1.0, 0.3)),
    "soft_margin_loss_backward": _pair_backward(loss.SoftMarginLossBackward),
    "binary_cross_entropy_logits": _logits,
    "binary_cross_entropy_backward": _cross_entropy_backward,
    "nll_loss": _nll,
    "nll_loss_backward": _nll_backward,
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "rms_norm": _rms_norm,
    "rms_norm_backward": _rms_norm_backward,
    "group_norm": _group_norm,
    "group_norm_backward": _group_norm_backward,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "adaptive_average_pool": _adaptive,
    "adaptive_average_pool_backward": _adaptive_backward,
    "average_pool": _average,
    "average_pool_backward": _average_backward,
}
"""By the name of the op, a function that draws one."""
