"""Import rules of normalization operators and their backward operators."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.dims import Dim, is_equal, product
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

from .layout import sized
from .registry import Context, Decline, Imported, imports

Shape = tuple[Dim, ...]
Mask2 = tuple[bool, bool]
Mask3 = tuple[bool, bool, bool]


def _axis(x: Value, normalized_shape: Shape) -> int | Decline:
    """Return the first normalised dimension."""
    axis = len(x.shape) - len(normalized_shape)
    if axis < 0 or not all(map(is_equal, x.shape[axis:], normalized_shape)):
        return Decline("the normalised shape is not seen to be that of the input")
    return axis


@imports("aten.native_layer_norm.default")
@sized
def layer_norm(
    context: Context,
    input: Value,  # noqa: A002 - the operator's name
    normalized_shape: Shape,
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Imported:
    """Keep the operator whole."""
    axis = _axis(input, normalized_shape)
    if isinstance(axis, Decline):
        return axis
    return context.add(LayerNorm(input, weight, bias, axis, eps))


@imports("aten.native_layer_norm_backward.default")
@sized
def layer_norm_backward(
    context: Context,
    grad_out: Value,
    input: Value,  # noqa: A002 - the operator's name
    normalized_shape: Shape,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Mask3,
) -> Imported:
    """Keep the operator whole."""
    axis = _axis(input, normalized_shape)
    if isinstance(axis, Decline):
        return axis
    mask = output_mask
    return context.add(LayerNormBackward(grad_out, input, mean, rstd, weight, bias, axis, mask))


@imports("aten._fused_rms_norm.default")
@sized
def rms_norm(
    context: Context,
    input: Value,  # noqa: A002 - the operator's name
    normalized_shape: Shape,
    weight: Value | None,
    eps: float | None,
) -> Imported:
    """Keep the operator whole."""
    axis = _axis(input, normalized_shape)
    if isinstance(axis, Decline):
        return axis
    return context.add(RmsNorm(input, weight, axis, eps))


@imports("aten._fused_rms_norm_backward.default")
@sized
def rms_norm_backward(
    context: Context,
    grad_out: Value,
    input: Value,  # noqa: A002 - the operator's name
    normalized_shape: Shape,
    rstd: Value,
    weight: Value | None,
    output_mask: Mask2,
) -> Imported:
    """Keep the operator whole."""
    axis = _axis(input, normalized_shape)
    if isinstance(axis, Decline):
        return axis
    return context.add(RmsNormBackward(grad_out, input, rstd, weight, axis, output_mask))


def _fits(x: Value, n: Dim, c: Dim, hxw: Dim) -> bool:
    """Whether the sizes are those of the input."""
    if len(x.shape) < 2:
        return False
    sizes = (x.shape[0], x.shape[1], product(x.shape[2:]))
    return all(map(is_equal, sizes, (n, c, hxw)))


@imports("aten.native_group_norm.default")
@sized
def group_norm(
    context: Context,
    input: Value,  # noqa: A002 - the operator's name
    weight: Value | None,
    bias: Value | None,
    N: Dim,  # noqa: N803 - the operator's names
    C: Dim,  # noqa: N803
    HxW: Dim,  # noqa: N803
    group: int,
    eps: float,
) -> Imported:
    """Keep the operator whole; its sizes are those of the input."""
    if not _fits(input, N, C, HxW):
        return Decline("the input is not seen to have the sizes given")
    return context.add(GroupNorm(input, weight, bias, group, eps))


@imports("aten.native_group_norm_backward.default")
@sized
def group_norm_backward(
    context: Context,
    grad_out: Value,
    input: Value,  # noqa: A002 - the operator's name
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: Dim,  # noqa: N803 - the operator's names
    C: Dim,  # noqa: N803
    HxW: Dim,  # noqa: N803
    group: int,
    output_mask: Mask3,
) -> Imported:
    """Keep the operator whole; its sizes are those of the input."""
    if not _fits(input, N, C, HxW):
        return Decline("the input is not seen to have the sizes given")
    return context.add(GroupNormBackward(grad_out, input, mean, rstd, weight, group, output_mask))


@imports("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    context: Context,
    input: Value,  # noqa: A002 - the operator's name
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> Imported:
    """Outside of training the running statistics come back as they were."""
    running = (running_mean, running_var)
    results = context.add(BatchNorm(input, weight, bias, *running, momentum, eps, training))
    return results if training else (*results, *running)


@imports("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    context: Context,
    input: Value,  # noqa: A002 - the operator's name
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> Imported:
    """Normalise by the running statistics."""
    running = (running_mean, running_var)
    return context.add(BatchNorm(input, weight, bias, *running, momentum, eps, training=False))


@imports("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_statistics(
    context: Context,
    input: Value,  # noqa: A002 - the operator's name
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Imported:
    """Normalise by the statistics of the batch."""
    if not training:
        return Decline("there are no running statistics to normalise by")
    return context.add(BatchNorm(input, weight, bias, None, None, momentum, eps))


@imports("aten.native_batch_norm.default")
def batch_norm(
    context: Context,
    input: Value,  # noqa: A002 - the operator's name
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Imported:
    """Update no running statistics: the operator that does is not functional."""
    if training and running_mean is not None:
        return Decline("running statistics are updated in place")
    running = (running_mean, running_var)
    return context.add(BatchNorm(input, weight, bias, *running, momentum, eps, training))


@imports("aten.native_batch_norm_backward.default")
def batch_norm_backward(
    context: Context,
    grad_out: Value,
    input: Value,  # noqa: A002 - the operator's name
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: Mask3,
) -> Imported:
    """Keep the operator whole."""
    running, saved = (running_mean, running_var), (save_mean, save_invstd)
    return context.add(
        BatchNormBackward(grad_out, input, weight, *running, *saved, eps, train, output_mask)
    )
