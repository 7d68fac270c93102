"""What convolutions and pooling mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lynx.ir.call import Call
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
    Geometry,
)
from lynx.ir.ops.pooling import (
    AdaptiveAveragePool,
    AdaptiveAveragePoolBackward,
    AveragePool,
    AveragePoolBackward,
    MaxPool,
    MaxPoolBackward,
)

from .registry import aten, means
from .strides import contiguous_only


@means(Convolution)
def convolution(op: Convolution) -> Call:
    """Call torch's convolution, which has no padding that differs at the two ends."""
    geometry = Geometry.of(op)
    arguments = (op.x, op.weight, op.bias, geometry.stride, geometry.padding)
    rest = (geometry.dilation, op.transposed, geometry.output_padding, op.groups)
    if not op.end_padding:
        return aten("convolution", *arguments, *rest)
    return Call(_convolve_padded, (*arguments, geometry.end_padding, *rest))


def _convolve_padded(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    end_padding: Sequence[int],
    *rest: Any,
) -> torch.Tensor:
    """Pad, then convolve."""
    margins = [
        margin
        for pair in zip(reversed(padding), reversed(end_padding), strict=True)
        for margin in pair
    ]
    padded = torch.ops.aten.constant_pad_nd.default(x, margins)
    none = [0] * len(padding)
    result: torch.Tensor = torch.ops.aten.convolution.default(
        padded, weight, bias, stride, none, *rest
    )
    return result


def _backward_arguments(
    op: ConvolutionBackwardInput | ConvolutionBackwardWeight,
) -> tuple[Any, ...]:
    geometry = Geometry.of(op)
    return (
        op.grad,
        op.x,
        op.weight,
        (geometry.output_channels,),
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        op.transposed,
        geometry.output_padding,
        op.groups,
    )


@means(ConvolutionBackwardInput)
def convolution_backward_input(op: ConvolutionBackwardInput) -> Call:
    """Ask torch for the first gradient alone."""
    return Call(_convolution_backward, (*_backward_arguments(op), (True, False, False)))


@means(ConvolutionBackwardWeight)
def convolution_backward_weight(op: ConvolutionBackwardWeight) -> Call:
    """Ask torch for the other gradients."""
    wanted = (False, op.of_weight, op.of_bias)
    return Call(_convolution_backward, (*_backward_arguments(op), wanted))


def _convolution_backward(*arguments: Any) -> Any:
    """Return the gradients that the last argument asks for, in a sequence unless it is one."""
    gradients = torch.ops.aten.convolution_backward.default(*arguments)
    asked = tuple(g for g, wanted in zip(gradients, arguments[-1], strict=True) if wanted)
    return asked if len(asked) > 1 else asked[0]


def _windows(op: MaxPool | MaxPoolBackward | AveragePool | AveragePoolBackward) -> tuple[Any, ...]:
    """Return kernel, stride and padding, spelled out."""
    return op.kernel, op.stride or op.kernel, op.padding or (0,) * len(op.kernel)


@means(MaxPool)
def max_pool(op: MaxPool) -> Call:
    """Call the operator for two or three dimensions."""
    dilation = op.dilation or (1,) * len(op.kernel)
    name = f"max_pool{len(op.kernel)}d_with_indices"
    return contiguous_only(aten(name, op.x, *_windows(op), dilation, op.ceil_mode))


@means(MaxPoolBackward)
def max_pool_backward(op: MaxPoolBackward) -> Call:
    """Call the operator for two or three dimensions."""
    dilation = op.dilation or (1,) * len(op.kernel)
    name = f"max_pool{len(op.kernel)}d_with_indices_backward"
    return contiguous_only(
        aten(name, op.grad, op.x, *_windows(op), dilation, op.ceil_mode, op.places)
    )


@means(AveragePool)
def average_pool(op: AveragePool) -> Call:
    """Call the operator for two or three dimensions."""
    name = f"avg_pool{len(op.kernel)}d"
    return contiguous_only(
        aten(name, op.x, *_windows(op), op.ceil_mode, op.counts_padding, op.divisor)
    )


@means(AveragePoolBackward)
def average_pool_backward(op: AveragePoolBackward) -> Call:
    """Call the operator for two or three dimensions."""
    name = f"avg_pool{len(op.kernel)}d_backward"
    windows = _windows(op)
    return contiguous_only(
        aten(name, op.grad, op.x, *windows, op.ceil_mode, op.counts_padding, op.divisor)
    )


@means(AdaptiveAveragePool)
def adaptive_average_pool(op: AdaptiveAveragePool) -> Call:
    """Call the operator for two or three dimensions."""
    return aten(f"_adaptive_avg_pool{len(op.size)}d", op.x, op.size)


@means(AdaptiveAveragePoolBackward)
def adaptive_average_pool_backward(op: AdaptiveAveragePoolBackward) -> Call:
    """Call the operator for two or three dimensions."""
    return aten(f"_adaptive_avg_pool{op.count}d_backward", op.grad, op.x)
