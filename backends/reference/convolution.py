"""What convolutions and pooling mean."""

from __future__ import annotations

import dataclasses
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
from lynx.ir.types import DType

from .registry import aten, means
from .strides import contiguous_only
from .torch_internals import convolve_into


@means(Convolution)
def convolution(op: Convolution) -> Call:
    """Call torch's convolution, which has no padding that differs at the two ends."""
    geometry = Geometry.of(op)
    arguments = (op.x, op.weight, op.bias, geometry.stride, geometry.padding)
    rest = (geometry.dilation, op.transposed, geometry.output_padding, op.groups)
    if op.end_padding:
        return Call(_convolve_padded, (*arguments, geometry.end_padding, *rest))
    call = aten("convolution", *arguments, *rest)
    type_, spatial = op.out.tensor_type, op.x.tensor_type.rank - 2
    is_onednn = type_.dtype is DType.F32 and type_.device == "cpu"
    if op.transposed or not is_onednn or spatial > 3:
        return call
    return dataclasses.replace(call, out=_convolve_into)


def _convolve_into(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Convolve into given memory; in the cases that oneDNN does not take, by way of a copy."""
    if convolve_into(out, x, weight, bias, stride, padding, dilation, groups):
        return out
    rest = (stride, padding, dilation, transposed, output_padding, groups)
    return out.copy_(torch.ops.aten.convolution.default(x, weight, bias, *rest))


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
    """Return the gradients that the last argument asks for, in a sequence unless it is one.

    Their layout is that of the operands, which torch leaves open for some shapes.
    """
    grad, x, weight, *rest = arguments
    memory_format = _memory_format(x, weight)
    if arguments[-1][1] and _is_depthwise(weight, rest[-2]):
        # oneDNN computes these three times as fast with the channels innermost.
        grad = grad.contiguous(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
        arguments = (grad, x, weight, *rest)
    gradients = torch.ops.aten.convolution_backward.default(*arguments)
    asked = tuple(
        _laid_out(g, memory_format)
        for g, wanted in zip(gradients, arguments[-1], strict=True)
        if wanted
    )
    return asked if len(asked) > 1 else asked[0]


def _laid_out(tensor: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """Return a tensor with exactly the strides of a memory format, for sizes of 1 too."""
    if memory_format == torch.contiguous_format or tensor.dim() == 1:
        return tensor.contiguous().view(-1).view(tensor.shape)
    inner_last = tensor.movedim(1, -1).contiguous()
    return inner_last.view(-1).view(inner_last.shape).movedim(-1, 1)


def _memory_format(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return channels last if one of the tensors is, and not row-major at the same time."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    for tensor in (x, weight):
        if last and tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous():
            return last
    return torch.contiguous_format


def _is_depthwise(weight: torch.Tensor, groups: int) -> bool:
    """Whether each channel of an image is convolved alone, with a window of some size."""
    is_plane = weight.dim() == 4 and weight.dtype == torch.float32 and weight.device.type == "cpu"
    return is_plane and weight.shape[:2] == (groups, 1) and weight[0, 0].numel() > 9


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
