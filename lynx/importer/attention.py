"""Import rules of attention and its gradients."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Value
from lynx.ir.ops.attention import Attention, AttentionBackward
from lynx.ir.ops.fusion import Region
from lynx.ir.score import is_plain, score_region

from .registry import Context, Decline, Imported, imports


@imports("lynx.attention.default")
def attention(
    context: Context,
    q: Value,
    k: Value,
    v: Value,
    operands: tuple[Value, ...],
    sink: Value | None,
    keep: Value | None,
    *form: Any,
) -> Imported:
    """Attend with the score function that the text describes."""
    score, keep_scale, zero_empty = _read(*form)
    inputs = operands if score is not None else ()
    operation = Attention(q, k, v, inputs, sink, keep, score, keep_scale, zero_empty)
    return context.add(operation)


@imports("lynx.attention_backward.default")
def attention_backward(
    context: Context,
    grad_out: Value,
    grad_lse: Value | None,
    q: Value,
    k: Value,
    v: Value,
    operands: tuple[Value, ...],
    sink: Value | None,
    keep: Value | None,
    output: Value,
    lse: Value,
    *form: Any,
) -> Imported:
    """Compute the gradients that are wanted."""
    *described, wanted = form
    score, keep_scale, zero_empty = _read(*described)
    if score is None and any(wanted[4:]):
        return Decline("gradients of operands that no score function takes")
    inputs = operands if score is not None else ()
    given = (grad_out, grad_lse, output, lse)
    asked = tuple(wanted[: 4 + len(inputs)])
    return context.add(
        AttentionBackward(q, k, v, inputs, sink, keep, *given, score, keep_scale, zero_empty, asked)
    )


def _read(
    score: str, sizes: tuple[Any, ...], keep_scale: float, zero_empty: bool
) -> tuple[Region | None, float, bool]:
    region = score_region(score, tuple(sizes)) if score else None
    return None if is_plain(region) else region, float(keep_scale), zero_empty
