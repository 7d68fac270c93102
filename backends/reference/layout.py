"""What layout ops mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lynx.ir.call import Call
from lynx.ir.ops import constraint, layout, layout_slicing

from .dtypes import torch_dtype
from .registry import aten, means


@means(layout.Reshape)
def reshape(op: layout.Reshape) -> Call:
    """Call `reshape`: a view where the strides allow one, else a copy."""
    return aten("reshape", op.x, op.shape)


@means(constraint.Constrain)
def constrain(op: constraint.Constrain) -> Call:
    """Copy: a constraint changes nothing in a tensor."""
    return aten("clone", op.x)


@means(layout.Permute)
def permute(op: layout.Permute) -> Call:
    """Call `permute`."""
    return aten("permute", op.x, op.dims)


@means(layout.Broadcast)
def broadcast(op: layout.Broadcast) -> Call:
    """Call `expand`."""
    return aten("expand", op.x, op.shape)


@means(layout.Unsqueeze)
def unsqueeze(op: layout.Unsqueeze) -> Call:
    """Call `unsqueeze`."""
    return aten("unsqueeze", op.x, op.dim)


@means(layout.Squeeze)
def squeeze(op: layout.Squeeze) -> Call:
    """Call `squeeze.dims`."""
    return aten("squeeze", op.x, op.dims, overload="dims")


@means(layout.Bitcast)
def bitcast(op: layout.Bitcast) -> Call:
    """Call `view.dtype`."""
    return aten("view", op.x, torch_dtype(op.dtype), overload="dtype")


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Return the elements in row-major order: a view of a contiguous tensor, else a copy."""
    return x.contiguous().view(-1)


def _as_strided(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    flat = _flat(x)
    return flat.as_strided(size, stride, flat.storage_offset() + offset)


@means(layout.AsStrided)
def as_strided(op: layout.AsStrided) -> Call:
    """Call `as_strided` on the row-major elements, wherever they begin in memory."""
    return Call(_as_strided, (op.x, op.size, op.stride, op.offset))


def _as_strided_scatter(
    x: torch.Tensor, source: torch.Tensor, stride: Sequence[int], offset: int
) -> torch.Tensor:
    flat = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _as_strided_scatter_out(x, source, stride, offset, out=flat)


def _as_strided_scatter_out(
    x: torch.Tensor,
    source: torch.Tensor,
    stride: Sequence[int],
    offset: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    flat = out if out.is_contiguous() else torch.empty(out.shape, dtype=x.dtype, device=x.device)
    flat.copy_(x)
    flat.as_strided(source.shape, stride, flat.storage_offset() + offset).copy_(source)
    return flat if flat is out else out.copy_(flat)


@means(layout.AsStridedScatter)
def as_strided_scatter(op: layout.AsStridedScatter) -> Call:
    """Write into a row-major copy."""
    arguments = (op.x, op.source, op.stride, op.offset)
    return Call(_as_strided_scatter, arguments, out=_as_strided_scatter_out)


@means(layout_slicing.Slice)
def slice_(op: layout_slicing.Slice) -> Call:
    """Call `slice.Tensor`."""
    return aten("slice", op.x, op.dim, op.start, op.stop, op.step, overload="Tensor")


@means(layout_slicing.Select)
def select(op: layout_slicing.Select) -> Call:
    """Call `select.int`."""
    return aten("select", op.x, op.dim, op.index, overload="int")


def _slice_scatter_out(
    x: torch.Tensor,
    source: torch.Tensor,
    dim: int,
    start: int,
    stop: int,
    step: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    out.copy_(x)
    torch.ops.aten.slice.Tensor(out, dim, start, stop, step).copy_(source)
    return out


def _slice_scatter(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    return _slice_scatter_out(x, *arguments, out=torch.empty_like(x))


@means(layout_slicing.SliceScatter)
def slice_scatter(op: layout_slicing.SliceScatter) -> Call:
    """Copy `x` and then the part; torch's operator would copy all of the memory that has `x`."""
    arguments = (op.x, op.source, op.dim, op.start, op.stop, op.step)
    return Call(_slice_scatter, arguments, out=_slice_scatter_out)


@means(layout_slicing.Concatenate)
def concatenate(op: layout_slicing.Concatenate) -> Call:
    """Call `cat`."""
    return aten("cat", op.parts, op.dim)


def _pad_out(
    x: torch.Tensor,
    low: Sequence[int],
    high: Sequence[int],
    value: complex,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    out.fill_(value)
    inner = out
    for dim, (before, after) in enumerate(zip(low, high, strict=True)):
        size = x.shape[dim]
        first, last = max(-before, 0), size - max(-after, 0)
        x = x.narrow(dim, min(first, size), max(last - first, 0))
        inner = inner.narrow(dim, min(max(before, 0), inner.shape[dim]), x.shape[dim])
    inner.copy_(x)
    return out


def _pad(x: torch.Tensor, low: Sequence[int], high: Sequence[int], value: complex) -> torch.Tensor:
    sides = [side for pair in zip(reversed(low), reversed(high), strict=True) for side in pair]
    padded: torch.Tensor = torch.ops.aten.constant_pad_nd.default(x, sides, value)
    return padded


@means(layout_slicing.Pad)
def pad(op: layout_slicing.Pad) -> Call:
    """Call `constant_pad_nd`; into given memory, fill and copy."""
    return Call(_pad, (op.x, op.low, op.high, op.value), out=_pad_out)


@means(layout_slicing.Flip)
def flip(op: layout_slicing.Flip) -> Call:
    """Call `flip`."""
    return aten("flip", op.x, op.dims)


@means(layout_slicing.Roll)
def roll(op: layout_slicing.Roll) -> Call:
    """Call `roll`."""
    return aten("roll", op.x, op.shifts, op.dims)


@means(layout_slicing.Diagonal)
def diagonal(op: layout_slicing.Diagonal) -> Call:
    """Call `diagonal`."""
    return aten("diagonal", op.x, op.offset, op.dim1, op.dim2)


@means(layout_slicing.Unfold)
def unfold(op: layout_slicing.Unfold) -> Call:
    """Call `unfold`."""
    return aten("unfold", op.x, op.dim, op.size, op.step)


@means(layout_slicing.LowerTriangle)
def tril(op: layout_slicing.LowerTriangle) -> Call:
    """Call `tril`."""
    return aten("tril", op.x, op.diagonal)


@means(layout_slicing.UpperTriangle)
def triu(op: layout_slicing.UpperTriangle) -> Call:
    """Call `triu`."""
    return aten("triu", op.x, op.diagonal)
