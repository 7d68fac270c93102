"""What searches and running sums over pieces of rows mean."""

from __future__ import annotations

import torch

from lynx.ir.call import Call
from lynx.ir.ops.pieces import CumulativeSumPieces, TopKPieces

from .dtypes import torch_dtype
from .registry import means


@means(TopKPieces)
def topk_pieces(op: TopKPieces) -> Call:
    """Search each piece."""
    return Call(_topk, (op.x, op.dim, op.pieces, op.length, op.k, op.largest), {})


def _topk(
    x: torch.Tensor, dim: int, pieces: int, length: int, k: int, largest: bool
) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim : dim + 1] = [pieces, k]
    found = x.new_full(shape, _last(x.dtype, largest=largest))
    for number in range(pieces):
        piece = _piece(x, dim, number, length)
        count = min(k, piece.shape[dim])
        found.select(dim, number).narrow(dim, 0, count).copy_(
            torch.topk(piece, count, dim, largest).values
        )
    return found


def _last(dtype: torch.dtype, *, largest: bool) -> float:
    """Return what no element comes after in the order of elements of a type."""
    if dtype.is_floating_point:
        return -torch.inf if largest else torch.nan
    limits = torch.iinfo(dtype)
    return limits.min if largest else limits.max


@means(CumulativeSumPieces)
def cumsum_pieces(op: CumulativeSumPieces) -> Call:
    """Add up each piece."""
    dtype = torch_dtype(op.results[0].tensor_type.dtype)
    return Call(_cumsum, (op.x, op.dim, op.pieces, op.length, dtype), {})


def _cumsum(
    x: torch.Tensor, dim: int, pieces: int, length: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    running, totals = [], []
    for number in range(pieces):
        piece = torch.cumsum(_piece(x, dim, number, length), dim, dtype=dtype)
        count = piece.shape[dim]
        running.append(piece)
        last = piece.narrow(dim, count - 1, 1) if count else piece.sum(dim, keepdim=True)
        totals.append(last.to(dtype))
    if not pieces:
        shape = [0 if n == dim else size for n, size in enumerate(x.shape)]
        return x.new_empty(x.shape, dtype=dtype), x.new_empty(shape, dtype=dtype)
    return torch.cat(running, dim), torch.cat(totals, dim)


def _piece(x: torch.Tensor, dim: int, number: int, length: int) -> torch.Tensor:
    start = min(number * length, x.shape[dim])
    return x.narrow(dim, start, min(length, x.shape[dim] - start))
