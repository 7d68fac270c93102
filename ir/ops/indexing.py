"""Ops that read at places given by tensors of indices."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, is_equal, may_equal
from lynx.ir.space import FactorKind, IndexMap, IterationSpace
from lynx.ir.types import TensorType

from .factors import (
    Factors,
    broadcast_axes,
    broadcast_shapes,
    normal_axis,
    require_index,
    require_rank,
)


class Embedding(Op, name="embedding"):
    """Look up rows of a table.

    %e = embedding %weight, %indices : f32[2, 16, 64]
    """

    weight: Value
    indices: Value

    def infer(self) -> TensorType:
        """Return the shape of the indices with the length of a row."""
        weight, indices = require_rank(self, self.weight, 2), require_index(self, self.indices)
        return weight.with_shape((*indices.shape, weight.shape[1]))

    def space(self) -> IterationSpace:
        """Need the whole table; run in parallel over indices and along rows."""
        factors = Factors()
        indices = tuple(
            factors.parallel(f"i{n}", size) for n, size in enumerate(self.indices.shape)
        )
        rows = factors.opaque("v", self.weight.shape[0])
        row = factors.parallel("d", self.weight.shape[1])
        return factors.space(((rows, row), indices), ((*indices, row),), ((0,),))


class EmbeddingBackward(Op, name="embedding_backward"):
    """Add up the gradients of each row of a table.

        %g = embedding_backward %grad, %indices {rows = 100} : f32[100, 64]

    The row `padding` gets none; `by_frequency` divides by the number of times a row was looked up.
    """

    grad: Value
    indices: Value
    rows: Dim
    padding: int = -1
    by_frequency: bool = False

    def infer(self) -> TensorType:
        """Return the type of the table."""
        grad, indices = self.grad.tensor_type, require_index(self, self.indices)
        leading = grad.shape[:-1]
        if len(leading) != indices.rank or not all(map(may_equal, leading, indices.shape)):
            raise self.error("shape-mismatch", f"has gradient {grad} for indices {indices}")
        return grad.with_shape((self.rows, grad.shape[-1]))

    def space(self) -> IterationSpace:
        """Sum over the indices."""
        factors = Factors()
        kind = FactorKind.OPAQUE if self.by_frequency else FactorKind.REDUCTION
        shape = self.indices.shape
        indices = tuple(factors.of(kind, f"i{n}", size) for n, size in enumerate(shape))
        rows, row = factors.opaque("v", self.rows), factors.parallel("d", self.grad.shape[-1])
        return factors.space(((*indices, row), indices), ((rows, row),), ((0,),))


class Gather(Op, name="gather"):
    """Read, for each index, the element at that place along an axis and at its own place otherwise.

        %y = gather %x, %index {dim = 1} : f32[4, 2]

    The index has the rank of `x` and the shape of the result; it may be shorter along other axes.
    """

    x: Value
    index: Value
    dim: int

    def infer(self) -> TensorType:
        """Return the shape of the index."""
        x, index = self.x.tensor_type, require_index(self, self.index)
        normal_axis(self, self.dim, x.rank)
        if x.rank != index.rank:
            raise self.error("bad-rank", f"has index {index} for {x}")
        return x.with_shape(index.shape)

    def space(self) -> IterationSpace:
        """Need the whole axis; run in parallel along the index and along equal dimensions."""
        factors = Factors()
        axis = normal_axis(self, self.dim, len(self.x.shape))
        read: list[tuple[str, ...]] = []
        written: list[tuple[str, ...]] = []
        for n, (size, count) in enumerate(zip(self.x.shape, self.index.shape, strict=True)):
            if n != axis and is_equal(size, count):
                read.append(factors.parallel(f"d{n}", size))
                written.append(read[-1])
            else:
                read.append(factors.opaque(f"v{n}", size))
                kind = FactorKind.PARALLEL if n == axis else FactorKind.OPAQUE
                written.append(factors.of(kind, f"d{n}", count))
        places: IndexMap = tuple(written)
        return factors.space((tuple(read), places), (places,), ((0,),))


class IndexSelect(Op, name="index_select"):
    """Read slices along an axis.

        %y = index_select %x, %index {dim = 0} : f32[3, 8]

    The index is a vector, or 0-dim for a single slice.
    """

    x: Value
    index: Value
    dim: int

    def infer(self) -> TensorType:
        """Return the type with the number of indices along the axis."""
        x, index = self.x.tensor_type, require_index(self, self.index)
        require_rank(self, self.index, 0, 1)
        axis = normal_axis(self, self.dim, x.rank)
        if x.rank == 0:
            return x
        return x.with_shape((*x.shape[:axis], index.numel, *x.shape[axis + 1 :]))

    def space(self) -> IterationSpace:
        """Need the whole axis."""
        factors = Factors()
        axis = normal_axis(self, self.dim, len(self.x.shape))
        if not self.x.shape:
            index: IndexMap = tuple(factors.opaque("k", size) for size in self.index.shape)
            return factors.space(((), index), ((),), ((0,),))
        read = [factors.parallel(f"d{n}", size) for n, size in enumerate(self.x.shape) if n != axis]
        written = list(read)
        places = factors.parallel("k", self.index.tensor_type.numel)
        read.insert(axis, factors.opaque("v", self.x.shape[axis]))
        written.insert(axis, places)
        index = (places,) if self.index.shape else ()
        return factors.space((tuple(read), index), (tuple(written),), ((0,),))


class Index(Op, name="index"):
    """Read at places given by tensors that are broadcast together, one for each indexed dimension.

        %y = index %x, [none, %i, %j] : f32[2, 5]

    Dimensions without an index are kept. The broadcast dimensions take the place of the indexed
    ones if these are next to each other, and come first otherwise.
    """

    x: Value
    indices: tuple[Value | None, ...]

    def infer(self) -> TensorType:
        """Return the shape after indexing."""
        x = self.x.tensor_type
        return x.with_shape(indexed_shape(self, x, self.indices))

    def space(self) -> IterationSpace:
        """Need indexed dimensions whole; run in parallel along all others and along the indices."""
        factors = Factors()
        read, places, written = indexing_axes(
            factors, self, self.x.tensor_type, self.indices, FactorKind.PARALLEL
        )
        return factors.space((read, *places), (written,), ((0,),))


class Take(Op, name="take"):
    """Read at places counted over all elements, row by row.

    %y = take %x, %index : f32[3]
    """

    x: Value
    index: Value

    def infer(self) -> TensorType:
        """Return the shape of the index."""
        return self.x.tensor_type.with_shape(require_index(self, self.index).shape)

    def space(self) -> IterationSpace:
        """Need the whole tensor; run in parallel along the index."""
        factors = Factors()
        read = tuple(factors.opaque(f"v{n}", size) for n, size in enumerate(self.x.shape))
        index = tuple(factors.parallel(f"d{n}", size) for n, size in enumerate(self.index.shape))
        return factors.space((read, index), (index,), ((0,),))


def indexed_shape(op: Op, x: TensorType, indices: tuple[Value | None, ...]) -> tuple[Dim, ...]:
    """Return the shape of `x[indices]`; a boolean index, which has no known count, is refused."""
    if len(indices) > x.rank:
        raise op.error("bad-rank", f"has {len(indices)} indices for {x}")
    given = [index for index in indices if index is not None]
    if not given:
        raise op.error("no-index", "has no index")
    broadcast = broadcast_shapes(op, [require_index(op, index).shape for index in given])
    kept = [size for n, size in enumerate(x.shape) if n >= len(indices) or indices[n] is None]
    place = _broadcast_place(indices)
    return (*kept[:place], *broadcast, *kept[place:])


def indexing_axes(
    factors: Factors,
    op: Op,
    x: TensorType,
    indices: tuple[Value | None, ...],
    kind: FactorKind,
) -> tuple[IndexMap, tuple[IndexMap, ...], IndexMap]:
    """Return the axes of `x`, of each given index, and of `x[indices]`.

    `kind` is the kind of the factors that run along the indices.
    """
    given = [index for index in indices if index is not None]
    broadcast = broadcast_shapes(op, [index.shape for index in given])
    along = tuple(factors.of(kind, f"i{n}", size) for n, size in enumerate(broadcast))
    read: list[tuple[str, ...]] = []
    kept: list[tuple[str, ...]] = []
    for n, size in enumerate(x.shape):
        if n < len(indices) and indices[n] is not None:
            read.append(factors.opaque(f"v{n}", size))
        else:
            read.append(factors.parallel(f"d{n}", size))
            kept.append(read[-1])
    places = tuple(broadcast_axes(index.shape, broadcast, along) for index in given)
    place = _broadcast_place(indices)
    return tuple(read), places, (*kept[:place], *along, *kept[place:])


def _broadcast_place(indices: tuple[Value | None, ...]) -> int:
    """Return how many dimensions of the result come before the broadcast ones."""
    indexed = [n for n, index in enumerate(indices) if index is not None]
    is_adjacent = indexed[-1] - indexed[0] + 1 == len(indexed)
    return indexed[0] if is_adjacent else 0
