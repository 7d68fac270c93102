"""Attention to pieces of the keys in plain torch, some rows of the scores at a time."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lynx.ir.call import Call
from lynx.ir.dims import symbol
from lynx.ir.ops.attention_pieces import AttentionPartBackward, AttentionPieces
from lynx.ir.score import symbols_of

from .attention import AttentionForm, RowsOfScores
from .registry import means

_Optional = torch.Tensor | None


@torch.no_grad()
def attend_to_pieces(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: Sequence[torch.Tensor],
    keep: _Optional,
    form: AttentionForm,
    pieces: int,
    length: int,
    symbols: Mapping[str, int],
    *,
    with_sums: bool,
) -> tuple[torch.Tensor, ...]:
    """Return sums of values, if wanted, largest scores and sums of powers, for each piece."""
    work = RowsOfScores(q, k, v, operands, None, keep, form, symbols)
    shape = (pieces, *q.shape[:3])
    largest = q.new_empty(shape, dtype=work.dtype)
    totals, sums = largest.clone(), largest.new_empty((*shape, v.shape[3] if with_sums else 0))
    for rows in work.blocks():
        _, scores = work.scores(rows)
        for piece in range(pieces):
            keys = slice(min(piece * length, work.keys), min((piece + 1) * length, work.keys))
            most, powers = _powers(scores[..., keys])
            largest[piece, :, :, rows] = most
            totals[piece, :, :, rows] = powers.sum(3)
            if with_sums:
                kept = work.kept(powers, rows, keys)
                sums[piece, :, :, rows] = work.times_values(kept, keys)
    return (sums, largest, totals) if with_sums else (largest, totals)


def _powers(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest score of each row, and the powers of scores less the largest one."""
    if not scores.shape[3]:
        return scores.new_full(scores.shape[:3], -math.inf), scores
    largest = scores.amax(3, keepdim=True)
    shift = largest.masked_fill(largest == -math.inf, 0)
    return largest[..., 0], torch.exp(scores - shift)


@torch.no_grad()
def attend_to_part_backward(
    grad_out: torch.Tensor,
    of_rows: torch.Tensor,
    largest: torch.Tensor,
    total: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: Sequence[torch.Tensor],
    keep: _Optional,
    form: AttentionForm,
    wanted: Sequence[bool],
    symbols: Mapping[str, int],
) -> list[torch.Tensor]:
    """Return the gradients that are wanted: of q, k, v and operands, in this order."""
    work = RowsOfScores(q, k, v, operands, None, keep, form, symbols)
    of_q, of_k, of_v, _, *of_operands = work.memory((*wanted[:3], False, *wanted[3:]))
    for rows in work.blocks():
        dot, scores = work.scores(rows)
        weights = torch.exp(scores - largest[:, :, rows, None]) / total[:, :, rows, None]
        incoming = grad_out[:, :, rows].to(work.dtype)
        if of_v is not None:
            work.add_to_keys(work.kept(weights, rows), incoming, of_v)
        of_weights = work.kept(work.by_values(incoming), rows)
        of_scores = of_weights.add_(of_rows[:, :, rows, None]).mul_(weights)
        of_dot = work.of_dot(dot, of_scores, rows, of_operands)
        if of_q is not None:
            of_q[:, :, rows] = work.by_keys(of_dot)
        if of_k is not None:
            work.add_to_keys(of_dot, work.q[:, :, rows].to(work.dtype), of_k)
    return work.finished(of_q, of_k, of_v, None, of_operands)


@means(AttentionPieces)
def attention_pieces(op: AttentionPieces) -> Call:
    """Attend to each piece of the keys."""
    names = () if op.score is None else symbols_of(op.score)
    form = AttentionForm(op.score, op.keep_scale)
    sizes = tuple(symbol(name) for name in names)
    arguments = (op.q, op.k, op.v, op.inputs, op.keep, op.pieces, op.length, sizes)
    return Call(functools.partial(_pieces, form, names, op.sums), arguments, {})


@means(AttentionPartBackward)
def attention_part_backward(op: AttentionPartBackward) -> Call:
    """Differentiate some rows at a time."""
    names = () if op.score is None else symbols_of(op.score)
    form = AttentionForm(op.score, op.keep_scale)
    sizes = tuple(symbol(name) for name in names)
    known = (op.grad_out, op.rows, op.largest, op.total)
    arguments = (*known, op.q, op.k, op.v, op.inputs, op.keep, sizes)
    return Call(functools.partial(_part_backward, form, op.wanted, names), arguments, {})


def _pieces(form: AttentionForm, names: tuple[str, ...], with_sums: bool, *arguments: Any) -> Any:
    q, k, v, inputs, keep, pieces, length, sizes = arguments
    symbols = dict(zip(names, sizes, strict=True))
    return attend_to_pieces(
        q, k, v, inputs, keep, form, pieces, length, symbols, with_sums=with_sums
    )


def _part_backward(
    form: AttentionForm, wanted: tuple[bool, ...], names: tuple[str, ...], *arguments: Any
) -> Any:
    grad_out, rows, largest, total, q, k, v, inputs, keep, sizes = arguments
    symbols = dict(zip(names, sizes, strict=True))
    found = attend_to_part_backward(
        grad_out, rows, largest, total, q, k, v, inputs, keep, form, wanted, symbols
    )
    return found[0] if len(found) == 1 else tuple(found)
