"""Import rules of convolutions and pooling."""

from __future__ import annotations

from typing import Any, TypeAlias

from lynx.ir.core import Value
from lynx.ir.dims import Dim
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.ops.pooling import (
    AdaptiveAveragePool,
    AdaptiveAveragePoolBackward,
    AveragePool,
    AveragePoolBackward,
    MaxPool,
    MaxPoolBackward,
)

from .registry import Context, Decline, Imported, imports

Sizes: TypeAlias = tuple[Dim, ...]


def _sizes(given: Dim | Sizes, count: int, usual: Dim) -> Sizes:
    """Return one size for each spatial dimension; none where all of them are as usual."""
    sizes = given if isinstance(given, tuple) else (given,)
    if len(sizes) == 1:
        sizes *= count
    return () if all(size == usual for size in sizes) else sizes


def _slide(
    x: Value, stride: Sizes, padding: Sizes, dilation: Sizes, output_padding: Sizes
) -> dict[str, Any]:
    count = x.tensor_type.rank - 2
    return {
        "stride": _sizes(stride, count, 1),
        "padding": _sizes(padding, count, 0),
        "dilation": _sizes(dilation, count, 1),
        "output_padding": _sizes(output_padding, count, 0),
    }


@imports("aten.convolution.default")
def convolution(
    context: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: Dim,
) -> Imported:
    """Convolve."""
    if not isinstance(groups, int):
        return Decline("a symbolic number of groups")
    slide = _slide(x, stride, padding, dilation, output_padding if transposed else ())
    return context.emit(Convolution(x, weight, bias, transposed=transposed, groups=groups, **slide))


@imports("aten.convolution_backward.default")
def convolution_backward(
    context: Context,
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: Dim,
    output_mask: tuple[bool, ...],
) -> Imported:
    """Compute the gradient of the input apart from the others: they cut along other factors."""
    if not isinstance(groups, int):
        return Decline("a symbolic number of groups")
    slide = _slide(x, stride, padding, dilation, output_padding if transposed else ())
    slide |= {"transposed": transposed, "groups": groups}
    of_input, of_weight, of_bias = output_mask
    gradients: list[Value | None] = [None, None, None]
    if of_input:
        gradients[0] = context.emit(ConvolutionBackwardInput(grad, x, weight, **slide))
    if of_weight or of_bias:
        op = ConvolutionBackwardWeight(
            grad, x, weight, of_weight=of_weight, of_bias=of_bias, **slide
        )
        results = iter(context.add(op))
        gradients[1] = next(results) if of_weight else None
        gradients[2] = next(results) if of_bias else None
    return tuple(gradients)


def _pool(
    context: Context, kernel: Any, stride: Any, padding: Any, dilation: Any = 1
) -> dict[str, Any]:
    """Return the attributes of a pooling operator, whose number of dimensions is in its name."""
    count = 3 if "3d" in context.target else 2
    kernel = kernel if isinstance(kernel, tuple) else (kernel,)
    kernel = kernel * count if len(kernel) == 1 else kernel
    stride = stride if isinstance(stride, tuple) else (stride,)
    stride = stride * count if len(stride) == 1 else stride
    windows = {
        "kernel": kernel,
        "stride": () if stride == kernel else stride,
        "padding": _sizes(padding, count, 0),
    }
    steps = _sizes(dilation, count, 1)
    return windows | {"dilation": steps} if "max" in context.target else windows


@imports("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool(
    context: Context,
    x: Value,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Imported:
    """Take maxima and their places."""
    windows = _pool(context, kernel_size, stride, padding, dilation)
    return context.add(MaxPool(x, ceil_mode=ceil_mode, **windows))


@imports(
    "aten.max_pool2d_with_indices_backward.default",
    "aten.max_pool3d_with_indices_backward.default",
)
def max_pool_backward(
    context: Context,
    grad: Value,
    x: Value,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Value,
) -> Imported:
    """Give gradients back to the places."""
    windows = _pool(context, kernel_size, stride, padding, dilation)
    return context.emit(MaxPoolBackward(grad, x, indices, ceil_mode=ceil_mode, **windows))


@imports("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def average_pool(
    context: Context,
    x: Value,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Imported:
    """Average over windows."""
    windows = _pool(context, kernel_size, stride, padding)
    count: dict[str, Any] = {"counts_padding": count_include_pad, "divisor": divisor_override}
    return context.emit(AveragePool(x, ceil_mode=ceil_mode, **windows, **count))


@imports("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def average_pool_backward(
    context: Context,
    grad: Value,
    x: Value,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Imported:
    """Spread gradients over windows."""
    windows = _pool(context, kernel_size, stride, padding)
    count: dict[str, Any] = {"counts_padding": count_include_pad, "divisor": divisor_override}
    return context.emit(AveragePoolBackward(grad, x, ceil_mode=ceil_mode, **windows, **count))


@imports("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def adaptive_average_pool(context: Context, x: Value, output_size: Sizes) -> Imported:
    """Average over a grid."""
    return context.emit(AdaptiveAveragePool(x, output_size))


@imports("aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default")
def adaptive_average_pool_backward(context: Context, grad: Value, x: Value) -> Imported:
    """Spread gradients over a grid."""
    count = 3 if "3d" in context.target else 2
    return context.emit(AdaptiveAveragePoolBackward(grad, x, count))
