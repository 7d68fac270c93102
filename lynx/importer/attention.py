"""Import rules of attention and its gradients."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Value
from lynx.ir.dims import Dim, is_equal, may_equal
from lynx.ir.ops.attention import Attention, AttentionBackward
from lynx.ir.ops.fusion import Region
from lynx.ir.ops.layout import Reshape
from lynx.ir.score import is_plain, score_region
from lynx.ir.types import TensorType

from .registry import Context, Decline, Imported, imports

Shape = tuple[Dim, ...]


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
    inputs = list(operands) if score is not None else []
    q, k, v, *inputs = _fitted(context, score, q, k, v, *inputs)
    operation = Attention(q, k, v, tuple(inputs), sink, keep, score, keep_scale, zero_empty)
    return _as_traced(context, context.add(operation))


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
    inputs = list(operands) if score is not None else []
    q, k, v, *inputs = _fitted(context, score, q, k, v, *inputs)
    given = (grad_out, grad_lse, output, lse)
    asked = tuple(wanted[: 4 + len(inputs)])
    rest = (*given, score, keep_scale, zero_empty, asked)
    found = context.add(AttentionBackward(q, k, v, tuple(inputs), sink, keep, *rest))
    return _as_traced(context, found)


def _read(
    score: str, sizes: tuple[Any, ...], keep_scale: float, zero_empty: bool
) -> tuple[Region | None, float, bool]:
    region = score_region(score, tuple(sizes)) if score else None
    return None if is_plain(region) else region, float(keep_scale), zero_empty


def _fitted(
    context: Context, score: Region | None, q: Value, k: Value, v: Value, *inputs: Value
) -> list[Value]:
    """Return the operands with the sizes that the score function gives them.

    A size may have another symbol there, where nothing but the function says that both are equal.
    """
    operands = [q, k, v, *inputs]
    if score is None or len(score.parameters) != 1 + len(inputs):
        return operands
    batch, heads, queries, keys = score.parameters[0].shape
    shapes: list[Shape] = [
        (batch, heads, queries, q.shape[3]),
        *((batch, x.shape[1], keys, x.shape[3]) for x in (k, v)),
        *(parameter.shape for parameter in score.parameters[1:]),
    ]
    return [_fit(context, x, shape) for x, shape in zip(operands, shapes, strict=True)]


def _as_traced(context: Context, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return results with the sizes that fake tensors had."""
    fitted: list[Value] = []
    for value, type_ in zip(values, context.types, strict=True):
        assert isinstance(type_, TensorType), type_
        fitted.append(_fit(context, value, type_.shape))
    return tuple(fitted)


def _fit(context: Context, value: Value, shape: Shape) -> Value:
    own = value.shape
    if len(own) != len(shape) or all(map(is_equal, own, shape)):
        return value
    return context.emit(Reshape(value, shape)) if all(map(may_equal, own, shape)) else value
