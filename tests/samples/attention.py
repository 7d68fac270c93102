"""Samples of attention and its gradients, with score functions of several kinds."""

from __future__ import annotations

import math

from lynx.ir.core import Op, Value
from lynx.ir.ops import elementwise_arithmetic as arithmetic
from lynx.ir.ops import factory, indexing, layout
from lynx.ir.ops.attention import Attention, AttentionBackward
from lynx.ir.ops.attention_pieces import AttentionPartBackward, AttentionPieces
from lynx.ir.ops.elementwise_compare import GreaterEqual
from lynx.ir.ops.elementwise_math import Tanh
from lynx.ir.ops.fusion import Region
from lynx.ir.types import DType, TensorType

from . import Sample
from .linear import tensor

B, H, Q, K, D, E = 2, 4, 5, 7, 3, 6
SHARED = 2


def causal() -> Region:
    """Return scores that are capped, and negative infinity where the key comes later."""
    dot = tensor(B, H, Q, K)
    scaled = arithmetic.Divide(dot, 2.0)
    capped = arithmetic.Multiply(Tanh(scaled.out).out, 2.0)
    rows, keys = factory.Iota(2, 1, Q, DType.I64), factory.Iota(0, 1, K, DType.I64)
    column = layout.Unsqueeze(rows.out, 1)
    seen = GreaterEqual(column.out, keys.out)
    masked = arithmetic.Where(seen.out, capped.out, -math.inf)
    tanh = capped.operands[0].op
    assert tanh is not None
    ops: tuple[Op, ...] = (scaled, tanh, capped, rows, keys, column, seen, masked)
    return Region((dot,), ops, (masked.out,))


def biased(*shape: int) -> Region:
    """Return scores to which a bias is added, in low precision."""
    dot, bias = tensor(B, H, Q, K), tensor(*shape, dtype=DType.BF16)
    wide = arithmetic.Cast(bias, DType.F32)
    added = arithmetic.Add(dot, wide.out)
    return Region((dot, bias), (wide, added), (added.out,))


def tabled() -> Region:
    """Return scores to which entries of a table are added, by the place of the query."""
    dot, table, places = tensor(B, H, Q, K), tensor(9, H), tensor(Q, K, dtype=DType.I64)
    found = indexing.Embedding(table, places)
    turned = layout.Permute(found.out, (2, 0, 1))
    added = arithmetic.Add(dot, turned.out)
    return Region((dot, table, places), (found, turned, added), (added.out,))


def merged() -> Region:
    """Return scores to which a bias is added where batch and heads are one dimension."""
    dot, bias = tensor(B, H, Q, K), tensor(B * H, 1, K)
    flat = layout.Reshape(dot, (B * H, Q, K))
    added = arithmetic.Add(flat.out, bias)
    back = layout.Reshape(added.out, (B, H, Q, K))
    return Region((dot, bias), (flat, added, back), (back.out,))


def operands(
    dtype: DType = DType.F32, shared: int = SHARED, inputs: tuple[Value, ...] = ()
) -> tuple[Value, Value, Value, tuple[Value, ...]]:
    return (
        tensor(B, H, Q, D, dtype=dtype),
        tensor(B, shared, K, D, dtype=dtype),
        tensor(B, shared, K, E, dtype=dtype),
        inputs,
    )


def of_region(region: Region) -> tuple[Value, ...]:
    """Return values of the types of a score function's operands."""
    return tuple(Value(parameter.type) for parameter in region.parameters[1:])


def forward(region: Region | None, dtype: DType = DType.F32, shared: int = SHARED) -> Attention:
    inputs = () if region is None else of_region(region)
    return Attention(*operands(dtype, shared, inputs), None, None, region)


def backward(
    region: Region | None, wanted: tuple[bool, ...], shared: int = SHARED, lse: bool = True
) -> AttentionBackward:
    inputs = () if region is None else of_region(region)
    sink = tensor(H, 1) if wanted[3] else None
    grad = tensor(B, H, Q, E)
    of_lse = Value(TensorType(DType.F32, (B, H, Q))) if lse else None
    given = (grad, of_lse, tensor(B, H, Q, E), tensor(B, H, Q))
    every = operands(shared=shared, inputs=inputs)
    return AttentionBackward(*every, sink, None, *given, region, wanted=wanted)


def in_pieces(
    region: Region | None, pieces: int, length: int, keep: Value | None = None, *, sums: bool = True
) -> AttentionPieces:
    inputs = () if region is None else of_region(region)
    scale = 1.0 if keep is None else 2.0
    given = operands(inputs=inputs)
    return AttentionPieces(*given, None, keep, pieces, length, region, scale, sums)


def of_part(
    region: Region | None, wanted: tuple[bool, ...], keep: Value | None = None
) -> AttentionPartBackward:
    inputs = () if region is None else of_region(region)
    row = (tensor(B, H, Q), tensor(B, H, Q), tensor(B, H, Q))
    given = (*operands(inputs=inputs), None, keep, tensor(B, H, Q, E), *row)
    return AttentionPartBackward(*given, region, wanted=wanted)


KEEP = tensor(B, H, Q, K, dtype=DType.BOOL)
TABLE = {4: (0, 9)}

SAMPLES = [
    Sample(forward(None), tolerance=1e-4),
    Sample(forward(causal()), tolerance=1e-4),
    Sample(forward(biased(H, 1, K), DType.BF16), tolerance=2e-2),
    Sample(forward(biased(Q, 1), shared=1), tolerance=1e-4),
    Sample(forward(tabled()), bounds=TABLE, tolerance=1e-4),
    Sample(forward(merged(), shared=H), tolerance=1e-4),
    Sample(Attention(*operands(), tensor(H, 1), KEEP, None, 2.0, True), tolerance=1e-4),
    Sample(Attention(*operands(DType.F64), None, None), tolerance=1e-10),
    Sample(Attention(tensor(0, 4, 3, 2), tensor(0, 2, 5, 2), tensor(0, 2, 5, 2), (), None, None)),
    Sample(Attention(tensor(1, 2, 3, 2), tensor(1, 2, 0, 2), tensor(1, 2, 0, 2), (), None, None)),
    Sample(backward(None, (True, True, True, True)), tolerance=1e-3),
    Sample(backward(causal(), (True, False, True, False), lse=False), tolerance=1e-3),
    Sample(backward(biased(1, Q, K), (True, True, False, False, True)), tolerance=5e-2),
    Sample(backward(tabled(), (False, True, False, True, True, False)), TABLE, tolerance=1e-3),
    Sample(backward(merged(), (True, True, True, False, True), shared=1), tolerance=1e-3),
    Sample(in_pieces(None, 2, 4), tolerance=1e-4),
    Sample(in_pieces(causal(), 3, 3), tolerance=1e-4),
    Sample(in_pieces(biased(H, 1, K), 4, 2, KEEP), tolerance=2e-2),
    Sample(in_pieces(tabled(), 4, 3, sums=False), bounds={4: (0, 9)}, tolerance=1e-4),
    Sample(of_part(None, (True, True, True), KEEP), positive=(7,), tolerance=1e-3),
    Sample(of_part(causal(), (True, False, True)), positive=(6,), tolerance=1e-3),
    Sample(of_part(biased(1, Q, K), (True, True, False, True)), positive=(7,), tolerance=5e-2),
]
