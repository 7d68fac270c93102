"""Ops that write, or add, at places given by tensors of indices, into a copy of their operand."""

from __future__ import annotations

from lynx.ir.core import Op, Operand, Value
from lynx.ir.dims import is_equal, may_equal
from lynx.ir.space import FactorKind, IndexMap, IterationSpace
from lynx.ir.types import TensorType

from .factors import (
    Factors,
    broadcast_axes,
    broadcast_shapes,
    normal_axis,
    require_index,
    require_rank,
    require_same_dtype,
    require_shape,
)
from .indexing import indexed_shape, indexing_axes

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


class _Scattering(Op):
    """Base of ops that write `src` at the places that `index` gives along an axis.

    The index has the rank of `x`; `src`, unless it is a number, is at least as large. Where several
    elements go to one place, which one stays is not defined, unless they are combined.
    """

    x: Value
    index: Value
    src: Operand
    dim: int

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x, index = self.x.tensor_type, require_index(self, self.index)
        normal_axis(self, self.dim, x.rank)
        if x.rank != index.rank:
            raise self.error("bad-rank", f"has index {index} for {x}")
        if isinstance(self.src, Value):
            require_same_dtype(self, self.x, self.src)
            require_rank(self, self.src, x.rank)
        return x

    def space(self) -> IterationSpace:
        """Run in parallel along the dimensions in which all operands are equally long."""
        factors = Factors()
        axis = normal_axis(self, self.dim, len(self.x.shape))
        source = self.src.shape if isinstance(self.src, Value) else None
        maps: list[list[tuple[str, ...]]] = [[] for _ in self.operands]
        for n, size in enumerate(self.x.shape):
            sizes = (size, self.index.shape[n], *(() if source is None else (source[n],)))
            if n != axis and all(is_equal(size, other) for other in sizes):
                names = [factors.parallel(f"d{n}", size)] * len(sizes)
            else:
                names = [factors.opaque(f"{'vks'[i]}{n}", other) for i, other in enumerate(sizes)]
            for index_map, name in zip(maps, names, strict=True):
                index_map.append(name)
        operands: tuple[IndexMap, ...] = tuple(map(tuple, maps))
        return factors.space(operands, (operands[0],), self._linear())

    def _linear(self) -> tuple[tuple[int, ...], ...]:
        """Return the sets of operands in which the op is linear."""
        return ()


class Scatter(_Scattering, name="scatter"):
    """Replace elements at given places along an axis.

    %y = scatter %x, %index, %src {dim = 1} : f32[4, 8]
    """

    def _linear(self) -> tuple[tuple[int, ...], ...]:
        if isinstance(self.src, Value):
            return ((0, 2),)
        return ((0,),) if self.src == 0 else ()


class ScatterAdd(_Scattering, name="scatter_add"):
    """Add to the elements at given places along an axis.

    %y = scatter_add %x, %index, %src {dim = 1} : f32[4, 8]
    """

    def _linear(self) -> tuple[tuple[int, ...], ...]:
        return ((0, 2),)


class ScatterReduce(_Scattering, name="scatter_reduce"):
    """Combine elements with those at given places along an axis: sum, prod, mean, amax or amin.

        %y = scatter_reduce %x, %index, %src {dim = 1, reduction = "amax"} : f32[4, 8]

    Without `include_self`, places that get an element forget their own.
    """

    reduction: str
    include_self: bool = True

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        if self.reduction not in REDUCTIONS:
            raise self.error("bad-attribute", f"does not know the reduction '{self.reduction}'")
        return super().infer()

    def _linear(self) -> tuple[tuple[int, ...], ...]:
        is_mean = self.reduction == "mean" and self.x.tensor_type.dtype.is_floating
        return ((0, 2),) if self.reduction == "sum" or is_mean else ()


class _Indexing(Op):
    """Base of ops that change whole slices along an axis; the index is a vector or 0-dim."""

    def _check_index(self, x: Value, index: Value, axis: int) -> TensorType:
        require_index(self, index)
        require_rank(self, index, 0, 1)
        normal_axis(self, axis, x.tensor_type.rank)
        return x.tensor_type

    def _check_source(self, x: Value, index: Value, source: Value, axis: int) -> TensorType:
        type_ = self._check_index(x, index, axis)
        require_same_dtype(self, x, source)
        if type_.rank == 0 or index.tensor_type.rank == 0:
            raise self.error("bad-rank", f"has {source.type} for {index.type} of {x.type}")
        axis = normal_axis(self, axis, type_.rank)
        shape = (*type_.shape[:axis], index.shape[0], *type_.shape[axis + 1 :])
        require_shape(self, source, shape, "a source")
        return type_

    def _slices(
        self, x: Value, index: Value, axis: int, linear: tuple[tuple[int, ...], ...]
    ) -> IterationSpace:
        """Run in parallel within slices; the source, if there is one, is the third operand."""
        factors = Factors()
        axis = normal_axis(self, axis, len(x.shape))
        read = [factors.parallel(f"d{n}", size) for n, size in enumerate(x.shape) if n != axis]
        source = list(read)
        places = tuple(factors.opaque("k", size) for size in index.shape)
        if x.shape:
            read.insert(axis, factors.opaque("v", x.shape[axis]))
        source[axis:axis] = places
        operands: tuple[IndexMap, ...] = (tuple(read), places)
        if len(self.operands) > 2:
            operands += (tuple(source) if self.operands[2].shape else (),)
        return factors.space(operands, (tuple(read),), linear)


class IndexAdd(_Indexing, name="index_add"):
    """Add `alpha` times the slices of a source to the slices at given places along an axis.

    %y = index_add %x, %index, %source {dim = 0} : f32[4, 8]
    """

    x: Value
    index: Value
    source: Value
    dim: int
    alpha: float = 1

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        return self._check_source(self.x, self.index, self.source, self.dim)

    def space(self) -> IterationSpace:
        """Run in parallel within slices."""
        return self._slices(self.x, self.index, self.dim, ((0, 2),))


class IndexCopy(_Indexing, name="index_copy"):
    """Replace the slices at given places along an axis by those of a source.

    %y = index_copy %x, %index, %source {dim = 0} : f32[4, 8]
    """

    x: Value
    index: Value
    source: Value
    dim: int

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        return self._check_source(self.x, self.index, self.source, self.dim)

    def space(self) -> IterationSpace:
        """Run in parallel within slices."""
        return self._slices(self.x, self.index, self.dim, ((0, 2),))


class IndexFill(_Indexing, name="index_fill"):
    """Set the slices at given places along an axis to a number or 0-dim tensor.

    %y = index_fill %x, %index, 0.5 {dim = 0} : f32[4, 8]
    """

    x: Value
    index: Value
    value: Operand
    dim: int

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        if isinstance(self.value, Value):
            require_rank(self, self.value, 0)
        return self._check_index(self.x, self.index, self.dim)

    def space(self) -> IterationSpace:
        """Run in parallel within slices."""
        linear: tuple[tuple[int, ...], ...] = ()
        if isinstance(self.value, Value):
            linear = ((0, 2),)
        elif self.value == 0:
            linear = ((0,),)
        return self._slices(self.x, self.index, self.dim, linear)


class IndexPut(Op, name="index_put"):
    """Replace the elements that `index` would read by values, which are broadcast; or add to them.

        %y = index_put %x, [%i, none], %values {accumulate = true} : f32[4, 8]

    Where several values go to one place, which one stays is not defined, unless they are added.
    """

    x: Value
    indices: tuple[Value | None, ...]
    values: Value
    accumulate: bool = False

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x, values = self.x.tensor_type, self.values.tensor_type
        require_same_dtype(self, self.x, self.values)
        shape = indexed_shape(self, x, self.indices)
        joint = broadcast_shapes(self, [shape, values.shape])
        if len(joint) != len(shape) or not all(map(may_equal, joint, shape)):
            raise self.error("shape-mismatch", f"cannot broadcast {values} to indexed {x}")
        return x

    def space(self) -> IterationSpace:
        """Run in parallel along dimensions without an index."""
        factors = Factors()
        x = self.x.tensor_type
        read, places, written = indexing_axes(factors, self, x, self.indices, FactorKind.OPAQUE)
        shape = indexed_shape(self, x, self.indices)
        values = broadcast_axes(self.values.shape, shape, written)
        last = len(self.operands) - 1
        return factors.space((read, *places, values), (read,), ((0, last),))


class Put(Op, name="put"):
    """Replace, or add to, elements at places counted over all elements, row by row.

    %y = put %x, %index, %source {accumulate = true} : f32[4, 8]
    """

    x: Value
    index: Value
    source: Value
    accumulate: bool = False

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        require_same_dtype(self, self.x, self.source)
        shape = require_index(self, self.index).shape
        require_shape(self, self.source, shape, "a source")
        return self.x.tensor_type

    def space(self) -> IterationSpace:
        """Need everything at once."""
        factors = Factors()
        x = tuple(factors.opaque(f"v{n}", size) for n, size in enumerate(self.x.shape))
        index = tuple(factors.opaque(f"k{n}", size) for n, size in enumerate(self.index.shape))
        return factors.space((x, index, index), (x,), ((0, 2),))
