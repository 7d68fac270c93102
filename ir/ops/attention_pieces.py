"""Attention to some of the keys at a time, whose results come together as attention to all keys.

It is how attention runs on a mesh whose devices hold some of the keys each: softmax over all keys
follows from the largest score and the sum of powers of each piece (Milakov and Gimelshein 2018,
section 3; split keys of Flash-Decoding, Dao et al. 2023).
"""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Value
from lynx.ir.dims import Dim
from lynx.ir.space import Axis, FactorKind, IterationSpace, Window
from lynx.ir.types import TensorType

from .attention import Indices, Scoring
from .factors import Factors, require_shape
from .fusion import Region


class AttentionPieces(Scoring, name="attention_pieces"):
    """Attend to each piece of the keys: return sums of values, largest scores, and sums of powers.

        %s, %m, %t = attention_pieces %q, %k, %v, [], none, none
            {pieces = 2, length = 2} : f32[2, 1, 2, 4, 8], f32[2, 1, 2, 4], f32[2, 1, 2, 4]

    Operands are those of `attention`, without a sink. A piece has `length` keys; the last ones may
    be short or empty. Powers are of scores less the largest score of the piece, sums of values are
    weighted by them. Where all scores of a piece are negative infinity, both sums are zero. Without
    `sums`, there are no sums of values.
    """

    pieces: Dim
    length: Dim
    score: Region | None = None
    keep_scale: float = 1.0
    sums: bool = True

    def scoring(self) -> Region | None:
        """Return the score function; None where the products are the scores."""
        return self.score

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the results, which have a leading dimension for pieces."""
        self._check()
        if self.sink is not None:
            raise self.error("bad-attribute", "has a sink, which belongs to no piece")
        covered, keys = self.pieces * self.length, self.k.shape[2]
        if isinstance(covered, int) and isinstance(keys, int) and covered < keys:
            raise self.error("bad-attribute", f"covers {covered} of {keys} keys")
        rows = self.lse_type.with_shape((self.pieces, *self.q.shape[:3]))
        values = rows.with_shape((*rows.shape, self.v.shape[3]))
        return ((values,) if self.sums else ()) + (rows, rows)

    def space(self) -> IterationSpace:
        """Run over pieces in parallel, if the score function does."""
        indices = Indices(self, FactorKind.PARALLEL, self._keys)
        (batch, heads, queries, _), depth = indices.q, indices.v[3]
        assert isinstance(indices.keys, Window)
        row: tuple[Axis, ...] = ((indices.keys.position,), batch, heads, queries)
        sums = ((*row, depth),) if self.sums else ()
        return indices.space(indices.operands(), (*sums, row, row))

    def _keys(self, factors: Factors, can_be_cut: bool) -> Axis:
        kind = FactorKind.PARALLEL if can_be_cut else FactorKind.OPAQUE
        (position,) = factors.of(kind, "p", self.pieces)
        (offset,) = factors.opaque("k", self.length)
        return Window(position, offset, self.length, size=self.k.shape[2])

    def local_fields(self, factor: str, start: Dim, size: Dim) -> dict[str, Any]:
        """Return the score function of the part, and how many pieces it has."""
        pieces = {"pieces": size} if factor == "p" else {}
        return {**super().local_fields(factor, start, size), **pieces}

    def _cut(self, factor: str, start: Dim, size: Dim) -> tuple[int, Dim, Dim] | None:
        if factor != "p":
            return super()._cut(factor, start, size)
        return 3, *Window("p", "k", self.length, size=self.k.shape[2]).rows(start, size)


class AttentionPartBackward(Scoring, name="attention_part_backward"):
    """Return gradients of `attention`, given what is known of each query's row of scores.

        %d = attention_part_backward %q, %k, %v, [], none, none, %g, %r, %m, %t
            {wanted = [true, false, false]} : f32[1, 2, 4, 8]

    The weight of a key is the power of its score less `largest`, divided by `total`: both are of
    all keys of attention, of which these may be some. `rows` is what each row adds to gradients of
    weights: the gradient of its logarithm, less the product of the output with `grad_out`. `wanted`
    says which gradients there are: of `q`, `k`, `v`, and of `inputs`.
    """

    grad_out: Value
    rows: Value
    largest: Value
    total: Value
    score: Region | None = None
    keep_scale: float = 1.0
    wanted: tuple[bool, ...] = ()

    def scoring(self) -> Region | None:
        """Return the score function; None where the products are the scores."""
        return self.score

    def infer(self) -> tuple[TensorType, ...]:
        """Return the types of the operands whose gradients are wanted."""
        self._check()
        require_shape(self, self.grad_out, self.out_type.shape, "an incoming gradient")
        for value in (self.rows, self.largest, self.total):
            require_shape(self, value, self.lse_type.shape, "what is known of rows")
        if self.sink is not None or len(self.wanted) != 3 + len(self.inputs):
            raise self.error("bad-attribute", f"has {len(self.wanted)} choices of gradients")
        given = zip((self.q, self.k, self.v, *self.inputs), self.wanted, strict=True)
        types = [value.tensor_type for value, want in given if want]
        if not all(type_.dtype.is_floating for type_ in types):
            raise self.error("bad-attribute", "wants the gradient of what has none")
        return tuple(type_.with_shape(type_.shape) for type_ in types)

    def space(self) -> IterationSpace:
        """Add up what batches, queries and keys give to operands that they share."""
        indices = Indices(self, FactorKind.REDUCTION, self._keys)
        (batch, heads, queries, _), depth = indices.q, indices.v[3]
        row = (batch, heads, queries)
        operands = indices.operands()
        sources = operands[: 3 + len(self.inputs)]
        results = tuple(one for one, want in zip(sources, self.wanted, strict=True) if want)
        return indices.space((*operands, (*row, depth), row, row, row), results)

    def _keys(self, factors: Factors, can_be_cut: bool) -> Axis:
        kind = FactorKind.REDUCTION if can_be_cut else FactorKind.OPAQUE
        return factors.of(kind, "k", self.k.shape[2])

    def _cut(self, factor: str, start: Dim, size: Dim) -> tuple[int, Dim, Dim] | None:
        return (3, start, size) if factor == "k" else super()._cut(factor, start, size)
