"""What look-ups in windows of tables mean."""

from __future__ import annotations

import torch

from lynx.ir.call import Call
from lynx.ir.ops.windows import EmbeddingWindow, EmbeddingWindowBackward, GatherWindow

from .registry import means


@means(EmbeddingWindow)
def embedding_window(op: EmbeddingWindow) -> Call:
    """Look up rows that are there; others are zero."""
    return Call(_embedding_window, (op.weight, op.indices, op.start), {})


def _embedding_window(weight: torch.Tensor, indices: torch.Tensor, start: int) -> torch.Tensor:
    inside, place = _inside(indices, start, weight.shape[0])
    if not weight.shape[0]:
        return weight.new_zeros((*indices.shape, weight.shape[1]))
    return torch.where(inside.unsqueeze(-1), weight[place], weight.new_zeros(()))


@means(EmbeddingWindowBackward)
def embedding_window_backward(op: EmbeddingWindowBackward) -> Call:
    """Add up the gradients of rows that are there."""
    return Call(_backward, (op.grad, op.indices, op.rows, op.padding, op.start), {})


def _backward(
    grad: torch.Tensor, indices: torch.Tensor, rows: int, padding: int, start: int
) -> torch.Tensor:
    inside, place = _inside(indices, start, rows)
    if not rows:
        return grad.new_zeros((0, grad.shape[-1]))
    if padding >= 0:
        inside = inside & (indices != padding)
    kept = torch.where(inside.unsqueeze(-1), grad, torch.zeros_like(grad))
    added: torch.Tensor = torch.ops.aten.embedding_dense_backward(kept, place, rows, -1, False)
    return added


@means(GatherWindow)
def gather_window(op: GatherWindow) -> Call:
    """Read elements that are there; others are zero."""
    return Call(_gather_window, (op.x, op.index, op.dim, op.start), {})


def _gather_window(x: torch.Tensor, index: torch.Tensor, dim: int, start: int) -> torch.Tensor:
    size = x.shape[dim] if x.dim() else 1
    inside, place = _inside(index, start, size)
    if not size:
        return x.new_zeros(index.shape)
    read = torch.gather(x, dim, place)
    return torch.where(inside, read, torch.zeros_like(read))


def _inside(indices: torch.Tensor, start: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which indices are inside of a window, and places that are safe to read for all."""
    place = indices.long() - start
    inside = (place >= 0) & (place < size)
    return inside, torch.where(inside, place, torch.zeros_like(place))
