"""Rows in pieces: what is largest in each piece of a dimension, and running sums within pieces.

They are how rows that lie on several devices are searched and summed up: each device works on its
own piece, and what is left is combined (blocked scans, Blelloch 1990, section 1.2.1).
"""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, ceil_div, maximum
from lynx.ir.space import Axis, IndexMap, IterationSpace, Window
from lynx.ir.types import DType, TensorType

from .factors import Factors


class _Pieces(Op):
    """Base of ops over pieces of `length` elements of `dim`; the last may be short, or empty."""

    x: Value
    dim: int
    pieces: Dim
    length: Dim

    def _check(self) -> TensorType:
        """Return the type of `x`; raise unless the pieces cover the dimension."""
        x = self.x.tensor_type
        if not 0 <= self.dim < x.rank:
            raise self.error("bad-dim", f"has no dimension {self.dim} in {x}")
        covered, size = self.pieces * self.length, x.shape[self.dim]
        if isinstance(covered, int) and isinstance(size, int) and covered < size:
            raise self.error("bad-attribute", f"covers {covered} of {size} elements")
        return x

    def _axes(self, factors: Factors) -> tuple[IndexMap, Axis]:
        """Add the factors of `x`; return its axes, and that of pieces."""
        piece = factors.parallel("p", self.pieces)
        (inner,) = factors.opaque("k", self.length)
        window = Window(piece[0], inner, self.length, size=self.x.shape[self.dim])
        axes = tuple(
            window if n == self.dim else factors.parallel(f"d{n}", size)
            for n, size in enumerate(self.x.shape)
        )
        return axes, piece

    def local_fields(self, factor: str, start: Dim, size: Dim) -> dict[str, Any]:
        """Leave as many pieces as the part has."""
        return {"pieces": size} if factor == "p" else {}


class TopKPieces(_Pieces, name="topk_pieces"):
    """Return the largest or smallest elements of each piece of a dimension, in order.

        %v = topk_pieces %x {dim = 1, pieces = 2, length = 4, k = 3} : f32[4, 2, 3]

    There are `k` of each piece. A piece with fewer elements is filled up with what comes last in
    the order of its elements, in which NaN is the largest.
    """

    k: int
    largest: bool = True

    def infer(self) -> TensorType:
        """Return the type with pieces, and the elements of a piece, in place of the dimension."""
        x = self._check()
        if x.dtype.is_complex or x.dtype is DType.BOOL:
            raise self.error("bad-dtype", f"cannot order {x}")
        return x.with_shape((*x.shape[: self.dim], self.pieces, self.k, *x.shape[self.dim + 1 :]))

    def space(self) -> IterationSpace:
        """Run over pieces in parallel."""
        factors = Factors()
        read, piece = self._axes(factors)
        found = factors.opaque("n", self.k)
        written = (*read[: self.dim], piece, found, *read[self.dim + 1 :])
        return factors.space((read,), (written,))


class CumulativeSumPieces(_Pieces, name="cumsum_pieces"):
    """Add up the elements of each piece of a dimension: return running and total sums.

        %r, %t = cumsum_pieces %x {dim = 1, pieces = 2, length = 2} : f32[8, 4], f32[8, 2]

    Elements are converted to `dtype` first, if it is given, integers to `i64` otherwise. The total
    of an empty piece is zero.
    """

    dtype: DType | None = None

    def infer(self) -> tuple[TensorType, TensorType]:
        """Return the types of running sums, and of totals with one element for each piece."""
        x = self._check()
        given = x.dtype if x.dtype.is_floating or x.dtype.is_complex else DType.I64
        running = TensorType(self.dtype or given, x.shape, x.device)
        totals = (*x.shape[: self.dim], self.pieces, *x.shape[self.dim + 1 :])
        return running, running.with_shape(totals)

    def space(self) -> IterationSpace:
        """Run over pieces in parallel."""
        factors = Factors()
        read, piece = self._axes(factors)
        totals = (*read[: self.dim], piece, *read[self.dim + 1 :])
        return factors.space((read,), (read, totals))


def length_of(size: Dim, pieces: Dim) -> Dim:
    """Return the length of pieces of a dimension, of which the last ones may be shorter."""
    return maximum(ceil_div(size, pieces), 1)
