"""Ops that take parts of tensors, put parts together, and move elements along a dimension."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import ClassVar

import sympy

from lynx.ir.core import Op, Operand, Value
from lynx.ir.dims import Dim, ceil_div, floor_div, is_static, may_equal, simplify
from lynx.ir.space import Axis, Factor, FactorKind, IterationSpace, Window
from lynx.ir.types import TensorType

from .layout import parallel_space


def _check_dim(op: Op, dim: int, rank: int) -> None:
    if not 0 <= dim < rank:
        raise op.error("bad-dim", f"has no dimension {dim}, the rank is {rank}")


def _check_bounds(op: Op, start: Dim, stop: Dim, step: Dim, size: Dim) -> None:
    """Raise if bounds are seen to leave the dimension."""
    bad = isinstance(step, int) and step < 1
    order = [0, start, stop, size]
    for low, high in itertools.pairwise(order):
        gap = simplify(sympy.sympify(high) - sympy.sympify(low))
        bad |= isinstance(gap, int) and gap < 0
    if bad:
        raise op.error("bad-bounds", f"takes {start}:{stop}:{step} of a dimension of size {size}")


def _replaced(shape: tuple[Dim, ...], dim: int, size: Dim) -> tuple[Dim, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _chosen(shape: tuple[Dim, ...], dims: tuple[int, ...]) -> IterationSpace:
    """Return the space of an op that reads `dims` by indices of its own, the others in parallel."""
    space = parallel_space(shape, dims)
    (axes,) = space.operands
    result = tuple(() if index in dims else axis for index, axis in enumerate(axes))
    return dataclasses.replace(space, results=(result,))


class Slice(Op, name="slice"):
    """Take every `step`-th index of `start <= index < stop` in dimension `dim`.

        %r = slice %x {dim = 1, start = 2, stop = 8, step = 3} : f32[4, 2]

    The bounds lie within the dimension: `0 <= start <= stop <= size`.
    """

    is_view: ClassVar[bool] = True

    x: Value
    dim: int
    start: Dim
    stop: Dim
    step: Dim = 1

    def infer(self) -> TensorType:
        """Return the type of the part."""
        x = self.x.tensor_type
        _check_dim(self, self.dim, x.rank)
        _check_bounds(self, self.start, self.stop, self.step, x.shape[self.dim])
        length = ceil_div(simplify(sympy.sympify(self.stop - self.start)), self.step)
        return x.with_shape(_replaced(x.shape, self.dim, length))

    def space(self) -> IterationSpace:
        """Return parallel factors for all dimensions but the one that is cut."""
        return _chosen(self.x.shape, (self.dim,))


class Select(Op, name="select"):
    """Take one index of dimension `dim`, which disappears.

    %r = select %x {dim = 1, index = 3} : f32[4]
    """

    is_view: ClassVar[bool] = True

    x: Value
    dim: int
    index: Dim

    def infer(self) -> TensorType:
        """Return the type without the dimension."""
        x = self.x.tensor_type
        _check_dim(self, self.dim, x.rank)
        _check_bounds(self, self.index, self.index + 1, 1, x.shape[self.dim])
        return x.with_shape((*x.shape[: self.dim], *x.shape[self.dim + 1 :]))

    def space(self) -> IterationSpace:
        """Return parallel factors for the dimensions that stay."""
        space = _chosen(self.x.shape, (self.dim,))
        (result,) = space.results
        return dataclasses.replace(space, results=((*result[: self.dim], *result[self.dim + 1 :]),))


class SliceScatter(Op, name="slice_scatter"):
    """Replace the part of `x` that `slice` of the same attributes takes by `source`.

        %r = slice_scatter %x, %source {dim = 1, start = 2, stop = 8, step = 3} : f32[4, 16]

    `in_place` says that the result will probably take the place of `x`, so that only the part has
    to be written.
    """

    x: Value
    source: Value
    dim: int
    start: Dim
    stop: Dim
    step: Dim = 1
    in_place: bool = False

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x, source = self.x.tensor_type, self.source.tensor_type
        _check_dim(self, self.dim, x.rank)
        _check_bounds(self, self.start, self.stop, self.step, x.shape[self.dim])
        length = ceil_div(simplify(sympy.sympify(self.stop - self.start)), self.step)
        wanted = _replaced(x.shape, self.dim, length)
        if len(wanted) != source.rank or not all(map(may_equal, wanted, source.shape)):
            raise self.error("shape-mismatch", f"expects {x.with_shape(wanted)}, got {source}")
        if source.dtype is not x.dtype:
            raise self.error("dtype-mismatch", f"cannot write {source.dtype} into {x.dtype}")
        return x.with_shape(x.shape)

    def space(self) -> IterationSpace:
        """Return parallel factors for all dimensions but the one that is cut."""
        space = parallel_space(self.x.shape, (self.dim,))
        (axes,) = space.operands
        source = tuple(() if index == self.dim else axis for index, axis in enumerate(axes))
        return dataclasses.replace(space, operands=(axes, source), linear=((0, 1),))


class Concatenate(Op, name="concatenate"):
    """Put tensors one after the other along dimension `dim`.

    %r = concatenate [%x, %y] {dim = 0} : f32[8, 16]
    """

    parts: tuple[Value, ...]
    dim: int

    @functools.cached_property
    def static_ends(self) -> list[int] | None:
        """The index at which each part ends, None if a size is symbolic."""
        sizes = [part.shape[self.dim] for part in self.parts]
        return list(itertools.accumulate(sizes)) if is_static(sizes) else None

    def infer(self) -> TensorType:
        """Return the type of the whole."""
        if not self.parts:
            raise self.error("no-operands", "needs at least one tensor")
        first = self.parts[0].tensor_type
        _check_dim(self, self.dim, first.rank)
        total: Dim = 0
        shape = list(first.shape)
        for part in self.parts:
            type_ = part.tensor_type
            if type_.dtype is not first.dtype or type_.rank != first.rank:
                raise self.error("type-mismatch", f"mixes {first} and {type_}")
            for index, size in enumerate(type_.shape):
                if index != self.dim and not may_equal(size, shape[index]):
                    raise self.error("shape-mismatch", f"mixes {first} and {type_}")
                shape[index] = size if isinstance(size, int) else shape[index]
            total = total + type_.shape[self.dim]
        shape[self.dim] = simplify(sympy.sympify(total))
        return first.with_shape(tuple(shape))

    def space(self) -> IterationSpace:
        """Return parallel factors for all other dimensions."""
        shape = self.results[0].shape
        factors = [Factor(f"d{index}", size) for index, size in enumerate(shape)]
        axes: list[Axis] = [(factor.name,) for factor in factors]
        whole = [
            Factor(f"c{index}", part.shape[self.dim], FactorKind.OPAQUE)
            for index, part in enumerate(self.parts)
        ]
        operands = tuple(
            (*axes[: self.dim], (factor.name,), *axes[self.dim + 1 :]) for factor in whole
        )
        del factors[self.dim]
        axes[self.dim] = ()
        linear = (tuple(range(len(self.parts))),)
        return IterationSpace((*factors, *whole), operands, (tuple(axes),), linear)


class Pad(Op, name="pad"):
    """Add `low[i]` elements before and `high[i]` after dimension `i`; negative ones are cut off.

    %r = pad %x, 0.5 {low = [0, 1], high = [0, -2]} : f32[4, 15]
    """

    x: Value
    value: Operand
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]

    def infer(self) -> TensorType:
        """Return the type of the padded tensor."""
        x = self.x.tensor_type
        if isinstance(self.value, Value):
            raise self.error("not-a-number", f"pads with a number, got {self.value.type}")
        if len(self.low) != x.rank or len(self.high) != x.rank:
            raise self.error("rank-mismatch", f"needs {x.rank} pads on each side of {x}")
        shape = tuple(
            simplify(sympy.sympify(size + low + high))
            for size, low, high in zip(x.shape, self.low, self.high, strict=True)
        )
        if any(isinstance(size, int) and size < 0 for size in shape):
            raise self.error("negative-size", f"cuts {x} to {list(shape)}")
        return x.with_shape(shape)

    def space(self) -> IterationSpace:
        """Return parallel factors for the dimensions that stay as they are."""
        pads = zip(self.low, self.high, strict=True)
        changed = tuple(index for index, sides in enumerate(pads) if sides != (0, 0))
        space = _chosen(self.x.shape, changed)
        return dataclasses.replace(space, linear=((0,),) if self.value == 0 else ())


class Flip(Op, name="flip"):
    """Reverse the order along dimensions.

    %r = flip %x {dims = [1]} : f32[4, 16]
    """

    x: Value
    dims: tuple[int, ...]

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x = self.x.tensor_type
        if len(set(self.dims)) != len(self.dims):
            raise self.error("bad-dims", f"names a dimension twice: {list(self.dims)}")
        for dim in self.dims:
            _check_dim(self, dim, x.rank)
        return x.with_shape(x.shape)

    def space(self) -> IterationSpace:
        """Return a space in which the reversed dimensions are whole."""
        return parallel_space(self.x.shape, self.dims)


class Roll(Op, name="roll"):
    """Move the elements along dimensions; those that leave at the end come back at the start.

    %r = roll %x {shifts = [2], dims = [1]} : f32[4, 16]
    """

    x: Value
    shifts: tuple[Dim, ...]
    dims: tuple[int, ...]

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x = self.x.tensor_type
        if len(self.shifts) != len(self.dims) or not self.dims:
            raise self.error("bad-dims", f"shifts {list(self.dims)} by {list(self.shifts)}")
        for dim in self.dims:
            _check_dim(self, dim, x.rank)
        return x.with_shape(x.shape)

    def space(self) -> IterationSpace:
        """Return a space in which the moved dimensions are whole."""
        return parallel_space(self.x.shape, self.dims)


class Diagonal(Op, name="diagonal"):
    """Take the elements `x[.., i, .., i + offset, ..]`; they become the last dimension.

    %r = diagonal %x {offset = 1, dim1 = 0, dim2 = 1} : f32[4]
    """

    is_view: ClassVar[bool] = True

    x: Value
    offset: int = 0
    dim1: int = 0
    dim2: int = 1

    def infer(self) -> TensorType:
        """Return the type of the diagonals."""
        x = self.x.tensor_type
        _check_dim(self, self.dim1, x.rank)
        _check_dim(self, self.dim2, x.rank)
        if self.dim1 == self.dim2:
            raise self.error("bad-dims", f"needs two dimensions, got {self.dim1} twice")
        rows, columns = x.shape[self.dim1], x.shape[self.dim2]
        if self.offset >= 0:
            columns = columns - self.offset
        else:
            rows = rows + self.offset
        length = simplify(sympy.Max(0, sympy.Min(rows, columns)))
        rest = (s for i, s in enumerate(x.shape) if i not in (self.dim1, self.dim2))
        return x.with_shape((*rest, length))

    def space(self) -> IterationSpace:
        """Return parallel factors for the other dimensions."""
        space = _chosen(self.x.shape, (self.dim1, self.dim2))
        (result,) = space.results
        rest = (a for i, a in enumerate(result) if i not in (self.dim1, self.dim2))
        return dataclasses.replace(space, results=((*rest, ()),))


class Unfold(Op, name="unfold"):
    """Take windows of `size` elements, `step` apart, along `dim`; they become the last dimension.

    %r = unfold %x {dim = 1, size = 4, step = 3} : f32[4, 5, 4]
    """

    is_view: ClassVar[bool] = True

    x: Value
    dim: int
    size: int
    step: int

    def infer(self) -> TensorType:
        """Return the type of the windows."""
        x = self.x.tensor_type
        _check_dim(self, self.dim, x.rank)
        extent = x.shape[self.dim]
        if self.step < 1 or self.size < 0 or (isinstance(extent, int) and self.size > extent):
            raise self.error("bad-window", f"size {self.size}, step {self.step} on {x}")
        count = floor_div(simplify(sympy.sympify(extent - self.size)), self.step)
        return x.with_shape((*_replaced(x.shape, self.dim, count + 1), self.size))

    def space(self) -> IterationSpace:
        """Return a window that slides along the dimension."""
        shape = self.results[0].shape
        factors = tuple(
            Factor(f"d{index}", size, FactorKind.PARALLEL) for index, size in enumerate(shape[:-1])
        )
        within = Factor("w", self.size, FactorKind.OPAQUE)
        axes: list[Axis] = [(factor.name,) for factor in factors]
        operand = list(axes)
        operand[self.dim] = Window(f"d{self.dim}", "w", self.step)
        return IterationSpace((*factors, within), (tuple(operand),), ((*axes, ("w",)),), ((0,),))


class _Triangle(Op):
    """Base of the ops that keep one side of a diagonal of matrices and set the rest to zero."""

    x: Value
    diagonal: Dim = 0

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x = self.x.tensor_type
        if x.rank < 2:
            raise self.error("bad-rank", f"needs matrices, got {x}")
        return x.with_shape(x.shape)

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension."""
        return parallel_space(self.x.shape)

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Op:
        """Shift the diagonal by the rows or columns that lie before the part."""
        shift = {f"d{len(self.x.shape) - 2}": start, f"d{len(self.x.shape) - 1}": -start}
        (x,) = operands
        diagonal = simplify(sympy.sympify(self.diagonal + shift.get(factor, 0)))
        return dataclasses.replace(self, x=x, diagonal=diagonal)


class LowerTriangle(_Triangle, name="tril"):
    """Keep the elements of matrices with `column - row <= diagonal`, and set the others to zero.

    %r = tril %x {diagonal = -1} : f32[4, 16]
    """


class UpperTriangle(_Triangle, name="triu"):
    """Keep the elements of matrices with `column - row >= diagonal`, and set the others to zero.

    %r = triu %x {diagonal = 1} : f32[4, 16]
    """
