"""Look-ups in a window of a larger table: what lies outside of it counts as zero.

They are how look-ups run on a mesh whose devices hold some rows of a table each: the sum over all
windows is the look-up in the whole table.
"""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, is_equal, may_equal
from lynx.ir.space import FactorKind, IndexMap, IterationSpace
from lynx.ir.types import TensorType

from .factors import Factors, normal_axis, require_index, require_rank

_ROWS = "v"


def _moved(start: Dim, factor: str, by: Dim) -> dict[str, Any]:
    """Return the field that says where a part of the rows begins."""
    return {"start": start + by} if factor == _ROWS else {}


class EmbeddingWindow(Op, name="embedding_window"):
    """Look up rows of a table that begins at row `start`; other rows are zero.

    %e = embedding_window %weight, %indices {start = 50} : f32[2, 16, 64]
    """

    weight: Value
    indices: Value
    start: Dim = 0

    def infer(self) -> TensorType:
        """Return the shape of the indices with the length of a row."""
        weight, indices = require_rank(self, self.weight, 2), require_index(self, self.indices)
        return weight.with_shape((*indices.shape, weight.shape[1]))

    def space(self) -> IterationSpace:
        """Sum over the rows of the table; run in parallel over indices and along rows."""
        factors = Factors()
        indices = tuple(
            factors.parallel(f"i{n}", size) for n, size in enumerate(self.indices.shape)
        )
        rows = factors.sum(_ROWS, self.weight.shape[0])
        row = factors.parallel("d", self.weight.shape[1])
        return factors.space(((rows, row), indices), ((*indices, row),), ((0,),))

    def local_fields(self, factor: str, start: Dim, size: Dim) -> dict[str, Any]:
        """Move the window to the rows that are left."""
        return _moved(self.start, factor, start)


class EmbeddingWindowBackward(Op, name="embedding_window_backward"):
    """Add up the gradients of each row of a table that begins at row `start`.

        %g = embedding_window_backward %grad, %indices {rows = 50, start = 50} : f32[50, 64]

    The row `padding` of the whole table gets none, nor do rows outside of this one.
    """

    grad: Value
    indices: Value
    rows: Dim
    padding: int = -1
    start: Dim = 0

    def infer(self) -> TensorType:
        """Return the type of the table."""
        grad, indices = self.grad.tensor_type, require_index(self, self.indices)
        leading = grad.shape[:-1]
        if len(leading) != indices.rank or not all(map(may_equal, leading, indices.shape)):
            raise self.error("shape-mismatch", f"has gradient {grad} for indices {indices}")
        return grad.with_shape((self.rows, grad.shape[-1]))

    def space(self) -> IterationSpace:
        """Sum over the indices; run in parallel over the rows of the table."""
        factors = Factors()
        indices = tuple(factors.sum(f"i{n}", size) for n, size in enumerate(self.indices.shape))
        rows, row = factors.parallel(_ROWS, self.rows), factors.parallel("d", self.grad.shape[-1])
        return factors.space(((*indices, row), indices), ((rows, row),), ((0,),))

    def local_fields(self, factor: str, start: Dim, size: Dim) -> dict[str, Any]:
        """Leave as many rows as the part has."""
        rows = {"rows": size} if factor == _ROWS else {}
        return {**_moved(self.start, factor, start), **rows}


class GatherWindow(Op, name="gather_window"):
    """Read, for each index, the element at that place along an axis, of which only a part is there.

        %y = gather_window %x, %index {dim = 1, start = 4} : f32[4, 2]

    The axis of `x` begins at place `start` of the whole; what lies elsewhere reads as zero.
    """

    x: Value
    index: Value
    dim: int
    start: Dim = 0

    def infer(self) -> TensorType:
        """Return the shape of the index."""
        x, index = self.x.tensor_type, require_index(self, self.index)
        normal_axis(self, self.dim, x.rank)
        if x.rank != index.rank:
            raise self.error("bad-rank", f"has index {index} for {x}")
        return x.with_shape(index.shape)

    def space(self) -> IterationSpace:
        """Sum over the axis; run in parallel along the index and along equal dimensions."""
        factors = Factors()
        axis = normal_axis(self, self.dim, len(self.x.shape))
        read: list[tuple[str, ...]] = []
        written: list[tuple[str, ...]] = []
        for n, (size, count) in enumerate(zip(self.x.shape, self.index.shape, strict=True)):
            if n == axis:
                read.append(factors.sum(_ROWS, size))
                written.append(factors.parallel(f"d{n}", count))
            elif is_equal(size, count):
                read.append(factors.parallel(f"d{n}", size))
                written.append(read[-1])
            else:
                read.append(factors.opaque(f"x{n}", size))
                written.append(factors.of(FactorKind.OPAQUE, f"d{n}", count))
        places: IndexMap = tuple(written)
        return factors.space((tuple(read), places), (places,), ((0,),))

    def local_fields(self, factor: str, start: Dim, size: Dim) -> dict[str, Any]:
        """Move the window to the rows that are left."""
        return _moved(self.start, factor, start)
