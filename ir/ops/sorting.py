"""Ops that order the elements along an axis, or find places in an order."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim
from lynx.ir.space import IndexMap, IterationSpace
from lynx.ir.types import DType, TensorType

from .factors import Factors, normal_axis, require_same_dtype, require_shape


class Sort(Op, name="sort"):
    """Order the elements along an axis; return them and the places they came from.

        %v, %i = sort %x {dim = 1} : f32[4, 8], i64[4, 8]

    A `stable` sort keeps the order of equal elements. NaN counts as the largest.
    """

    x: Value
    dim: int
    descending: bool = False
    stable: bool = False

    def infer(self) -> tuple[TensorType, TensorType]:
        """Return the types of the values and of the places."""
        x = self.x.tensor_type
        normal_axis(self, self.dim, x.rank)
        return x, x.with_dtype(DType.I64)

    def space(self) -> IterationSpace:
        """Need the axis whole."""
        factors = Factors()
        read, _ = _along(factors, self, self.x, self.dim)
        return factors.space((read,), (read, read))


class TopK(Op, name="topk"):
    """Return the `k` largest or smallest elements along an axis, and the places they came from.

    %v, %i = topk %x {k = 2, dim = 1} : f32[4, 2], i64[4, 2]
    """

    x: Value
    k: Dim
    dim: int
    largest: bool = True
    ordered: bool = True

    def infer(self) -> tuple[TensorType, TensorType]:
        """Return the types of the values and of the places."""
        x = self.x.tensor_type
        axis = normal_axis(self, self.dim, x.rank)
        shape = (*x.shape[:axis], self.k, *x.shape[axis + 1 :]) if x.rank else ()
        values = x.with_shape(shape)
        return values, values.with_dtype(DType.I64)

    def space(self) -> IterationSpace:
        """Need the axis whole."""
        factors = Factors()
        read, axis = _along(factors, self, self.x, self.dim)
        if not read:
            return factors.space(((),), ((), ()))
        written: IndexMap = (*read[:axis], factors.opaque("k", self.k), *read[axis + 1 :])
        return factors.space((read,), (written, written))


class _Choice(Op):
    """Base of ops that choose one element along an axis and return it and its place."""

    x: Value
    dim: int
    keepdim: bool = False

    def infer(self) -> tuple[TensorType, TensorType]:
        """Return the types of the element and of its place."""
        x = self.x.tensor_type
        axis = normal_axis(self, self.dim, x.rank)
        kept: tuple[Dim, ...] = (1,) if self.keepdim and x.rank else ()
        values = x.with_shape((*x.shape[:axis], *kept, *x.shape[axis + 1 :]))
        return values, values.with_dtype(DType.I64)

    def space(self) -> IterationSpace:
        """Need the axis whole."""
        factors = Factors()
        read, axis = _along(factors, self, self.x, self.dim)
        kept: IndexMap = ((),) if self.keepdim and read else ()
        written: IndexMap = (*read[:axis], *kept, *read[axis + 1 :])
        return factors.space((read,), (written, written))


class Median(_Choice, name="median"):
    """Return the lower median along an axis, and its place.

        %v, %i = median %x {dim = 1} : f32[4], i64[4]

    NaN is the median if there is one, unless `ignores_nan`.
    """

    ignores_nan: bool = False


class Mode(_Choice, name="mode"):
    """Return the most frequent element along an axis, and one of its places.

    %v, %i = mode %x {dim = 1} : f32[4], i64[4]
    """


class KthValue(_Choice, name="kth_value"):
    """Return the `k`-th smallest element along an axis, counted from 1, and its place.

    %v, %i = kth_value %x {dim = 1, k = 2} : f32[4], i64[4]
    """

    k: Dim = 1


class SearchSorted(Op, name="search_sorted"):
    """Find the place at which each value would be inserted in a sorted row.

        %i = search_sorted %rows, %values : i64[4, 3]

    There is one row for all values, or one for each of their leading dimensions. `right` puts a
    value behind equal ones; `narrow` counts in i32.
    """

    rows: Value
    values: Value
    right: bool = False
    narrow: bool = False

    def infer(self) -> TensorType:
        """Return the shape of the values."""
        rows, values = self.rows.tensor_type, self.values.tensor_type
        require_same_dtype(self, self.rows, self.values)
        if rows.rank < 1:
            raise self.error("bad-rank", f"expects rows, got {rows}")
        if rows.rank > 1:
            require_shape(self, self.values, (*rows.shape[:-1], *values.shape[-1:]), "values")
        return values.with_dtype(DType.I32 if self.narrow else DType.I64)

    def space(self) -> IterationSpace:
        """Need rows whole."""
        factors = Factors()
        values = tuple(factors.parallel(f"d{n}", size) for n, size in enumerate(self.values.shape))
        row = factors.opaque("v", self.rows.shape[-1])
        leading = values[:-1] if len(self.rows.shape) > 1 else ()
        return factors.space(((*leading, row), values), (values,))


class Histogram(Op, name="histogram"):
    """Count the elements in each of `bins` parts of a range; others are left out.

        %n = histogram %x {bins = 10, low = 0.0, high = 1.0} : f32[10]

    An empty range stands for that of the elements.
    """

    x: Value
    bins: int = 100
    low: float = 0
    high: float = 0

    def infer(self) -> TensorType:
        """Return a vector of counts, in the element type."""
        return self.x.tensor_type.with_shape((self.bins,))

    def space(self) -> IterationSpace:
        """Add up the counts of parts if the range is given."""
        factors = Factors()
        add = factors.opaque if self.low == self.high else factors.sum
        read = tuple(add(f"d{n}", size) for n, size in enumerate(self.x.shape))
        return factors.space((read,), ((factors.opaque("v", self.bins),),))


def _along(factors: Factors, op: Op, x: Value, axis: int) -> tuple[IndexMap, int]:
    """Return the axes of a tensor of which one is needed whole, and which one that is."""
    axis = normal_axis(op, axis, len(x.shape))
    read = tuple(
        factors.opaque(f"d{n}", size) if n == axis else factors.parallel(f"d{n}", size)
        for n, size in enumerate(x.shape)
    )
    return read, axis
