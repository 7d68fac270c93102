"""Attention whose keys lie on several devices: each attends to its own, then pieces are combined.

The largest score and the sum of powers of each piece give those of all keys; outputs are weighted
sums of what the pieces give. Gradients follow from the same two numbers of each row, computed once
more: logarithms of denominators do not tell how many keys share an extreme score. Keys and values
are gathered where that moves fewer bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from lynx.ir.core import Op, Value
from lynx.ir.ops.attention import Attending, Attention, AttentionBackward
from lynx.ir.ops.attention_pieces import AttentionPartBackward, AttentionPieces
from lynx.ir.ops.pieces import length_of
from lynx.ir.sharding import WHOLE, Partial, Split, sharding_of
from lynx.ir.types import DType
from lynx.passes.decompose_build import Number, absolute, amax, choose, exp, log, maximum, total
from lynx.passes.rewrite import NoMatch, Rewritten, Rule

from .propagate import Layouts
from .strategy import Placed, Strategist, space_of

_KEYS = 2
"""The dimension of keys in the operands that hold keys and values."""
_SINK = 3
"""The place of the sink among the gradients that may be wanted."""


class KeyPieces:
    """Finds the attention that runs on pieces of its keys, and how many pieces there are."""

    def __init__(self, layouts: Layouts) -> None:
        self.layouts, self.mesh = layouts, layouts.mesh
        self.strategist = Strategist(layouts.mesh)

    def of(self, op: Op) -> int:
        """Return the number of pieces; 0 where keys are not cut, or are gathered at less cost."""
        if not isinstance(op, Attention | AttentionBackward):
            return 0
        split = self._split(op)
        keys = op.k.shape[_KEYS]
        if split is None or split.unit != 1 or split.groups or not isinstance(keys, int):
            return 0
        pieces = self.mesh.size(*split.axes)
        if pieces < 2:
            return 0
        if isinstance(op, Attention):
            cost = self._forward(op, pieces)
        else:
            cost = self._backward(op, pieces)
        return pieces if cost is not None and cost < self._gathered(op) else 0

    def _split(self, op: Attending) -> Split | None:
        for value in (op.k, op.v):
            sharding = self.layouts.of(value)
            if sharding is not None and sharding.splits[_KEYS].axes:
                return sharding.splits[_KEYS]
        return None

    def _placed(self, values: Sequence[Value]) -> list[Placed | None]:
        return [self.layouts.placed(value) for value in values]

    def _gathered(self, op: Attending) -> float:
        """Return the bytes moved where keys and values are gathered."""
        operands, results = self._placed(op.operands), self._placed(op.results)
        found = self._cost(op, operands, results)
        assert found is not None
        return found[0]

    def _cost(
        self, op: Op, operands: Sequence[Placed | None], results: Sequence[Placed | None]
    ) -> tuple[float, Mapping[str, Split]] | None:
        """Return the bytes that an op moves at least, and how its factors are cut then."""
        space = space_of(op)
        if space is None:
            return None
        splits = self.strategist.choose(space, operands, results, op.structure)
        maps = (*space.operands, *space.results)
        cost = self.strategist.cost(space, splits, (*operands, *results), maps, len(operands))
        return None if cost is None else (cost, splits)

    def _forward(self, op: Attention, pieces: int) -> float | None:
        found = self._pieces(in_pieces(op, pieces))
        if found is None:
            return None
        cost, axes = found
        out, lse = op.results
        return cost + self._combined(axes, out) + 2 * self._combined(axes, lse)

    def _backward(self, op: AttentionBackward, pieces: int) -> float | None:
        first = self._pieces(in_pieces(op, pieces, sums=False))
        made = _part_backward(op, op.lse, op.lse, op.lse)
        places = [place for place, want in enumerate(op.wanted) if want]
        results = [one for one, place in zip(op.results, places, strict=True) if place != _SINK]
        second = self._cost(made, self._placed(made.operands), self._placed(results))
        if first is None or second is None or "k" not in second[1]:
            return None
        return first[0] + second[0] + 2 * self._combined(first[1], op.lse)

    def _pieces(self, op: AttentionPieces) -> tuple[float, tuple[str, ...]] | None:
        """Return what it costs to attend to pieces, and which axes cut those."""
        found = self._cost(op, self._placed(op.operands), [None] * len(op.results))
        return None if found is None or "p" not in found[1] else (found[0], found[1]["p"].axes)

    def _combined(self, axes: tuple[str, ...], like: Value) -> float:
        """Return what it costs to add up the pieces of a result, and to lay it out as decided."""
        wanted = self.layouts.of(like)
        assert wanted is not None
        kept = [WHOLE if set(split.axes).intersection(axes) else split for split in wanted.splits]
        pending = tuple(Partial("sum", axis) for axis in axes)
        itemsize = (DType.F64 if like.tensor_type.dtype is DType.F64 else DType.F32).itemsize
        given = sharding_of(tuple(kept), pending, self.mesh)
        return self.strategist.costs(given, wanted, like.shape, itemsize)


def rules_for(pieces: Mapping[Hashable, int], key: Callable[[Op], Hashable]) -> tuple[Rule, ...]:
    """Return the rules that let attention run on pieces of its keys, as many as `pieces` says."""

    def split_keys(op: Attention) -> Rewritten:
        count = pieces.get(key(op), 0)
        return combine_pieces(op, count) if count else NoMatch("its keys stay together")

    def split_keys_backward(op: AttentionBackward) -> Rewritten:
        count = pieces.get(key(op), 0)
        return differentiate_pieces(op, count) if count else NoMatch("its keys stay together")

    return (
        Rule("split_keys", (Attention,), split_keys),
        Rule("split_keys_backward", (AttentionBackward,), split_keys_backward),
    )


def in_pieces(op: Attending, pieces: int, *, sums: bool = True) -> AttentionPieces:
    """Return attention to pieces of the keys; only what is known of rows without `sums`."""
    scoring = op.scoring()
    length = length_of(op.k.shape[_KEYS], pieces)
    keep, scale = (op.keep, op.attributes["keep_scale"]) if sums else (None, 1.0)
    operands = (op.q, op.k, op.v, op.inputs, None, keep)
    return AttentionPieces(*operands, pieces, length, scoring, scale, sums)


@dataclass(frozen=True)
class Rows:
    """What is known of each row of scores, of the pieces and of all keys with the sink.

    `shift` is what is subtracted from scores before they are powers, `total` the sum of these.
    `factors` bring the powers of pieces to the same shift.
    """

    most: Number
    shift: Number
    total: Number
    factors: Number
    of_sink: Number | None


def rows_of(op: Attending, largest: Value, totals: Value) -> Rows:
    """Return what is known of all keys, given what is known of each piece."""
    most = amax(Number(largest), (0,), keepdim=False)
    sink = None if op.sink is None else Number(Number(op.sink).to(most.dtype))
    most = most if sink is None else maximum(most, sink)
    is_empty = most.equals(-math.inf)
    zero_empty = op.attributes["zero_empty"]
    shift = choose(is_empty, 0.0, most) if zero_empty else most
    factors = exp(Number(largest) - shift)
    all_keys = total(factors * Number(totals), (0,), keepdim=False)
    of_sink = None if sink is None else exp(sink - shift)
    all_keys = all_keys if of_sink is None else all_keys + of_sink
    divisor = choose(is_empty, 1.0, all_keys) if zero_empty else all_keys
    return Rows(most, shift, divisor, factors, of_sink)


def combine_pieces(op: Attention, pieces: int) -> tuple[Value, Value]:
    """Weight what pieces give by their powers, which are brought to the largest score of all.

    attention(q, k, v)  ==>  sum(f * s) / sum(f * t), f = exp(m - amax(m)), (s, m, t) of pieces
    """
    sums, largest, totals = in_pieces(op, pieces).results
    rows = rows_of(op, largest, totals)
    added = total(rows.factors.unsqueezed(4) * Number(sums), (0,), keepdim=False)
    out = (added / rows.total.unsqueezed(3)).to(op.results[0].tensor_type.dtype)
    logarithms = log(rows.total) + rows.most
    return out, choose(absolute(rows.most).equals(math.inf), rows.most, logarithms).value


def differentiate_pieces(op: AttentionBackward, pieces: int) -> Value | tuple[Value, ...]:
    """Give each key its weight among all keys, which takes two numbers of each row.

    attention_backward(q, k, v, g, o)  ==>  attention_part_backward(q, k, v, g, -sum(g * o), m, t)
    """
    largest, totals = in_pieces(op, pieces, sums=False).results
    rows = rows_of(op, largest, totals)
    dtype = rows.most.dtype
    product = Number(Number(op.grad_out).to(dtype)) * Number(Number(op.output).to(dtype))
    of_rows = -total(product, (3,), keepdim=False)
    if op.grad_lse is not None:
        of_rows = of_rows + Number(Number(op.grad_lse).to(dtype))
    made = _part_backward(op, of_rows.value, rows.shift.value, rows.total.value)
    found = list(made.results)
    if op.wanted[_SINK]:
        assert rows.of_sink is not None
        assert op.sink is not None
        of_sink = rows.of_sink / rows.total * of_rows
        found.insert(sum(op.wanted[:_SINK]), _like(of_sink, op.sink))
    return found[0] if len(found) == 1 else tuple(found)


def _part_backward(
    op: AttentionBackward, of_rows: Value, shift: Value, divisor: Value
) -> AttentionPartBackward:
    operands = (op.q, op.k, op.v, op.inputs, None, op.keep, op.grad_out, of_rows, shift, divisor)
    wanted = (*op.wanted[:_SINK], *op.wanted[_SINK + 1 :])
    return AttentionPartBackward(*operands, op.score, op.keep_scale, wanted)


def _like(gradient: Number, source: Value) -> Value:
    """Return the gradient of a value that was broadcast to the shape of another one."""
    full, shape = gradient.value.shape, source.shape
    first = len(full) - len(shape)
    dims = tuple(
        dim for dim in range(len(full)) if dim < first or (shape[dim - first] == 1 != full[dim])
    )
    return (
        Number(total(gradient, dims, keepdim=False).value)
        .reshaped(shape)
        .to(source.tensor_type.dtype)
    )
