"""What normalization ops mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from lynx.ir.call import Call
from lynx.ir.dims import product
from lynx.ir.ops import normalization

from .registry import aten, means
from .strides import contiguous_only


@means(normalization.LayerNorm)
def layer_norm(op: normalization.LayerNorm) -> Call:
    """Call `native_layer_norm`."""
    shape = op.x.shape[op.axis :]
    return aten("native_layer_norm", op.x, shape, op.weight, op.bias, op.eps)


def _layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    *others: Any,
) -> Any:
    """Call the operator, which reads statistics as if they were contiguous."""
    statistics = (mean.contiguous(), rstd.contiguous())
    return torch.ops.aten.native_layer_norm_backward.default(grad, x, shape, *statistics, *others)


@means(normalization.LayerNormBackward)
def layer_norm_backward(op: normalization.LayerNormBackward) -> Call:
    """Call `native_layer_norm_backward`."""
    shape = op.x.shape[op.axis :]
    arguments = (op.grad, op.x, shape, op.mean, op.rstd, op.weight, op.bias, op.mask)
    return Call(_layer_norm_backward, arguments)


@means(normalization.RmsNorm)
def rms_norm(op: normalization.RmsNorm) -> Call:
    """Call `_fused_rms_norm`."""
    return aten("_fused_rms_norm", op.x, op.x.shape[op.axis :], op.weight, op.eps)


def _rms_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Compute what the operator does, which torch has on accelerators only."""
    if x.device.type != "cpu":
        result: tuple[Any, Any] = torch.ops.aten._fused_rms_norm_backward.default(
            grad, x, shape, rstd, weight, mask
        )
        return result
    axis = x.dim() - len(shape)
    inner = tuple(range(axis, x.dim()))
    wide = rstd.dtype
    normal = x.to(wide) * rstd
    scaled = grad.to(wide) if weight is None else grad.to(wide) * weight.to(wide)
    of_x = of_weight = None
    if mask[0]:
        mean = (scaled * normal).mean(inner, keepdim=True)
        of_x = ((scaled - normal * mean) * rstd).to(x.dtype)
    if mask[1] and weight is not None:
        products = grad.to(wide) * normal
        of_weight = products.sum(tuple(range(axis))) if axis else products
        of_weight = of_weight.to(weight.dtype)
    return of_x, of_weight


@means(normalization.RmsNormBackward)
def rms_norm_backward(op: normalization.RmsNormBackward) -> Call:
    """Call `_fused_rms_norm_backward` where torch has it."""
    shape = op.x.shape[op.axis :]
    return Call(_rms_norm_backward, (op.grad, op.x, shape, op.rstd, op.weight, op.mask))


def _memory_format(x: torch.Tensor) -> torch.memory_format:
    """Return the format in which group normalization takes an input that lies like this."""
    for rank, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        regular = x.dim() == rank and x.is_contiguous(memory_format=memory_format)
        if regular and not x.is_contiguous():
            return memory_format
    return torch.contiguous_format


def _contiguous(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.contiguous()


def _group_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *others: Any
) -> Any:
    """Call the operator, which takes regular layouts only."""
    x = x.contiguous(memory_format=_memory_format(x))
    weight, bias = _contiguous(weight), _contiguous(bias)
    return torch.ops.aten.native_group_norm.default(x, weight, bias, *others)


@means(normalization.GroupNorm)
def group_norm(op: normalization.GroupNorm) -> Call:
    """Call `native_group_norm`."""
    batch, channels, *space = op.x.shape
    sizes = (batch, channels, product(space))
    return Call(_group_norm, (op.x, op.weight, op.bias, *sizes, op.groups, op.eps))


def _group_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    batch: int,
    channels: int,
    space: int,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    """Call the operator, which takes regular layouts only.

    Where the channels come last and the gradient of `x` is not wanted, torch 2.13 crashes.
    """
    memory_format = _memory_format(x) if mask[0] else torch.contiguous_format
    grad = grad.contiguous(memory_format=memory_format)
    x = x.contiguous(memory_format=memory_format)
    vectors = (mean.contiguous(), rstd.contiguous(), _contiguous(weight))
    return torch.ops.aten.native_group_norm_backward.default(
        grad, x, *vectors, batch, channels, space, groups, mask
    )


@means(normalization.GroupNormBackward)
def group_norm_backward(op: normalization.GroupNormBackward) -> Call:
    """Call `native_group_norm_backward`."""
    batch, channels, *space = op.x.shape
    sizes = (batch, channels, product(space))
    arguments = (op.grad, op.x, op.mean, op.rstd, op.weight, *sizes, op.groups, op.mask)
    return Call(_group_norm_backward, arguments)


def _batch_norm_out(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
    *,
    out: torch.Tensor,
    save_mean: torch.Tensor,
    save_invstd: torch.Tensor,
    running_mean_out: torch.Tensor,
    running_var_out: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    running_mean_out.copy_(running_mean)
    running_var_out.copy_(running_var)
    torch.ops.aten._native_batch_norm_legit.out(
        x, weight, bias, running_mean_out, running_var_out, training, momentum, eps,
        out=out, save_mean=save_mean, save_invstd=save_invstd,
    )  # fmt: skip
    return out, save_mean, save_invstd, running_mean_out, running_var_out


_BATCH_NORM_RESULTS = ("out", "save_mean", "save_invstd", "running_mean_out", "running_var_out")


@means(normalization.BatchNorm)
def batch_norm(op: normalization.BatchNorm) -> Call:
    """Call the functional form for the running statistics that there are."""
    affine = (op.x, op.weight, op.bias)
    running = (op.running_mean, op.running_var)
    numbers = (op.momentum, op.eps)
    if not op.training:
        call = aten("_native_batch_norm_legit_no_training", *affine, *running, *numbers)
        return contiguous_only(call)
    if op.running_mean is None:
        call = aten("_native_batch_norm_legit", *affine, True, *numbers, overload="no_stats")
        return contiguous_only(call)
    call = aten("_native_batch_norm_legit_functional", *affine, *running, True, *numbers)
    call = dataclasses.replace(call, out=_batch_norm_out, out_names=_BATCH_NORM_RESULTS)
    return contiguous_only(call)


@means(normalization.BatchNormBackward)
def batch_norm_backward(op: normalization.BatchNormBackward) -> Call:
    """Call `native_batch_norm_backward`."""
    saved = (op.mean, op.rstd)
    arguments = (op.grad, op.x, op.weight, op.running_mean, op.running_var, *saved)
    return aten("native_batch_norm_backward", *arguments, op.training, op.eps, op.mask)
