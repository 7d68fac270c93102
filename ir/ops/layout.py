"""Ops that rearrange a whole tensor: reshape, permute, broadcast, and reading through strides."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import sympy

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, FloorDiv, is_equal, may_equal, product, simplify
from lynx.ir.space import Axis, Factor, FactorKind, IterationSpace, names
from lynx.ir.types import DType, TensorType


def parallel_space(
    shape: tuple[Dim, ...], opaque: tuple[int, ...] = (), *, linear: bool = True
) -> IterationSpace:
    """Return the space of a unary op that keeps the shape; the dimensions `opaque` are whole."""
    factors = tuple(
        Factor(name, size, FactorKind.OPAQUE if index in opaque else FactorKind.PARALLEL)
        for index, (name, size) in enumerate(zip(names("d", len(shape)), shape, strict=True))
    )
    axes = tuple((factor.name,) for factor in factors)
    return IterationSpace(factors, (axes,), (axes,), ((0,),) if linear else ())


class Reshape(Op, name="reshape"):
    """Give the elements, in row-major order, another shape.

    %r = reshape %x {shape = [4, 16]} : f32[4, 16]
    """

    is_view: ClassVar[bool] = True
    shape_attributes: ClassVar[tuple[str, ...]] = ("shape",)

    x: Value
    shape: tuple[Dim, ...]

    def infer(self) -> TensorType:
        """Return the type with the new shape."""
        x = self.x.tensor_type
        if not may_equal(x.numel, product(self.shape)):
            raise self.error("shape-mismatch", f"cannot give {x} the shape {list(self.shape)}")
        return x.with_shape(self.shape)

    def space(self) -> IterationSpace:
        """Return compound factors where the shapes have a common refinement."""
        return _Refinement(self.x.shape, self.shape).space()


class Permute(Op, name="permute"):
    """Reorder the dimensions: dimension `i` of the result is dimension `dims[i]` of the operand.

    %r = permute %x {dims = [0, 2, 1]} : f32[4, 16, 8]
    """

    is_view: ClassVar[bool] = True

    x: Value
    dims: tuple[int, ...]

    def infer(self) -> TensorType:
        """Return the type with reordered dimensions."""
        x = self.x.tensor_type
        if sorted(self.dims) != list(range(x.rank)):
            raise self.error("bad-dims", f"cannot permute {x} by {list(self.dims)}")
        return x.with_shape(tuple(x.shape[dim] for dim in self.dims))

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension."""
        space = parallel_space(self.x.shape)
        (operand,) = space.operands
        return dataclasses.replace(space, results=(tuple(operand[dim] for dim in self.dims),))


class Broadcast(Op, name="broadcast"):
    """Repeat dimensions of size 1, and add leading dimensions, without copying.

    %r = broadcast %x {shape = [4, 8, 16]} : f32[4, 8, 16]
    """

    is_view: ClassVar[bool] = True
    shape_attributes: ClassVar[tuple[str, ...]] = ("shape",)

    x: Value
    shape: tuple[Dim, ...]

    def infer(self) -> TensorType:
        """Return the type with the new shape."""
        x = self.x.tensor_type
        first = len(self.shape) - x.rank
        if first < 0 or not all(
            dim == 1 or may_equal(dim, size)
            for dim, size in zip(x.shape, self.shape[first:], strict=True)
        ):
            raise self.error("shape-mismatch", f"cannot broadcast {x} to {list(self.shape)}")
        return x.with_shape(self.shape)

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension of the result."""
        space = parallel_space(self.shape)
        (result,) = space.results
        first = len(self.shape) - len(self.x.shape)
        operand = tuple(
            () if dim == 1 and self.shape[index] != 1 else result[index]
            for index, dim in enumerate(self.x.shape, first)
        )
        return dataclasses.replace(space, operands=(operand,))


class Unsqueeze(Op, name="unsqueeze"):
    """Insert a dimension of size 1 before dimension `dim`.

    %r = unsqueeze %x {dim = 1} : f32[4, 1, 16]
    """

    is_view: ClassVar[bool] = True

    x: Value
    dim: int

    def infer(self) -> TensorType:
        """Return the type with one more dimension."""
        x = self.x.tensor_type
        if not 0 <= self.dim <= x.rank:
            raise self.error("bad-dim", f"cannot insert dimension {self.dim} into {x}")
        return x.with_shape((*x.shape[: self.dim], 1, *x.shape[self.dim :]))

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension of the operand."""
        space = parallel_space(self.x.shape)
        (axes,) = space.operands
        return dataclasses.replace(space, results=((*axes[: self.dim], (), *axes[self.dim :]),))


class Squeeze(Op, name="squeeze"):
    """Remove dimensions, each of size 1.

    %r = squeeze %x {dims = [1]} : f32[4, 16]
    """

    is_view: ClassVar[bool] = True

    x: Value
    dims: tuple[int, ...]

    def infer(self) -> TensorType:
        """Return the type without these dimensions."""
        x = self.x.tensor_type
        if list(self.dims) != sorted(set(self.dims)) or not all(
            0 <= dim < x.rank and may_equal(x.shape[dim], 1) for dim in self.dims
        ):
            raise self.error("bad-dims", f"cannot remove dimensions {list(self.dims)} of {x}")
        return x.with_shape(tuple(s for i, s in enumerate(x.shape) if i not in self.dims))

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension of the result."""
        space = parallel_space(self.results[0].shape)
        axes = iter(space.results[0])
        operand = tuple(() if i in self.dims else next(axes) for i in range(len(self.x.shape)))
        return dataclasses.replace(space, operands=(operand,))


class Bitcast(Op, name="bitcast"):
    """Read the same bytes as elements of another type of the same size.

    %r = bitcast %x {dtype = i32} : i32[4, 16]
    """

    is_view: ClassVar[bool] = True

    x: Value
    dtype: DType

    def infer(self) -> TensorType:
        """Return the type with the other element type."""
        x = self.x.tensor_type
        if x.dtype.itemsize != self.dtype.itemsize:
            raise self.error("bad-dtype", f"cannot read {x.dtype} as {self.dtype}: sizes differ")
        return TensorType(self.dtype, x.shape, x.device)

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension."""
        return parallel_space(self.x.shape, linear=False)


class AsStrided(Op, name="as_strided"):
    """Read elements of the operand's row-major order at `offset + sum(index * stride)`.

        %r = as_strided %x {size = [3, 4], stride = [1, 4], offset = 2} : f32[3, 4]

    The result does not depend on how the operand lies in memory.
    """

    is_view: ClassVar[bool] = True

    x: Value
    size: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    offset: Dim = 0

    def infer(self) -> TensorType:
        """Return the type with the new shape."""
        x = self.x.tensor_type
        _check_reach(self, x, self.size, self.stride, self.offset)
        return x.with_shape(self.size)

    def space(self) -> IterationSpace:
        """Return a space that needs the whole operand."""
        operand = parallel_space(self.x.shape, tuple(range(len(self.x.shape))))
        return dataclasses.replace(operand, results=(((),) * len(self.size),))


class AsStridedScatter(Op, name="as_strided_scatter"):
    """Replace the elements that `as_strided` of the same attributes reads.

    %r = as_strided_scatter %x, %source {stride = [1, 4], offset = 2} : f32[4, 16]
    """

    x: Value
    source: Value
    stride: tuple[Dim, ...]
    offset: Dim = 0

    def infer(self) -> TensorType:
        """Return the type of `x`."""
        x, source = self.x.tensor_type, self.source.tensor_type
        _check_reach(self, x, source.shape, self.stride, self.offset)
        if source.dtype is not x.dtype:
            raise self.error("dtype-mismatch", f"cannot write {source.dtype} into {x.dtype}")
        return x.with_shape(x.shape)

    def space(self) -> IterationSpace:
        """Return a space that needs both operands whole."""
        rank, source_shape = len(self.x.shape), self.source.shape
        factors = (
            *(Factor(f"x{i}", self.x.shape[i], FactorKind.OPAQUE) for i in range(rank)),
            *(Factor(f"y{i}", size, FactorKind.OPAQUE) for i, size in enumerate(source_shape)),
        )
        x_axes = tuple((f"x{i}",) for i in range(rank))
        y_axes = tuple((f"y{i}",) for i in range(len(source_shape)))
        return IterationSpace(factors, (x_axes, y_axes), (x_axes,), ((0, 1),))


def _check_reach(
    op: Op, x: TensorType, size: tuple[Dim, ...], stride: tuple[Dim, ...], offset: Dim
) -> None:
    """Raise if strides do not fit a shape or, where that can be seen, leave the operand."""
    if len(size) != len(stride):
        raise op.error("rank-mismatch", f"has {len(stride)} strides for {len(size)} dimensions")
    if 0 in size:
        return
    last = simplify(
        sum((sympy.sympify((n - 1) * s) for n, s in zip(size, stride, strict=True)), start=offset)
        + sympy.Integer(0)
    )
    if isinstance(last, int) and isinstance(x.numel, int) and last >= x.numel:
        raise op.error("out-of-bounds", f"reads element {last} of {x}")
    if isinstance(offset, int) and offset < 0:
        raise op.error("out-of-bounds", f"starts at element {offset}")


class _Refinement:
    """The common refinement of two shapes of equal row-major content.

    Both shapes are walked from the outside. While the part left of one dimension divides the part
    left of the other, that part is a factor of both. Where neither divides the other, all up to the
    next place at which equally many elements lie before both is opaque.
    """

    def __init__(self, source: tuple[Dim, ...], target: tuple[Dim, ...]) -> None:
        self.shapes = (source, target)
        self.factors: list[Factor] = []
        self.maps: tuple[list[list[str]], list[list[str]]] = (
            [[] for _ in source],
            [[] for _ in target],
        )
        self.position = [0, 0]
        self.left: list[Dim] = [1, 1]
        self._walk()

    def space(self) -> IterationSpace:
        """Return the space of the reshape."""
        operand, result = (tuple(_axis(names) for names in maps) for maps in self.maps)
        return IterationSpace(tuple(self.factors), (operand,), (result,), ((0,),))

    def _walk(self) -> None:
        while self._load():
            if not self._take_common():
                self._skip()

    def _load(self) -> bool:
        """Move past finished dimensions; say whether a shape has something left."""
        for side in (0, 1):
            while self.left[side] == 1 and self.position[side] < len(self.shapes[side]):
                self.left[side] = self.shapes[side][self.position[side]]
                self.position[side] += 1
        return self.left[0] != 1 or self.left[1] != 1

    def _take_common(self) -> bool:
        """Take a common factor off both sides, if there is one."""
        a, b = self.left
        here = ((0, self.position[0] - 1), (1, self.position[1] - 1))
        if is_equal(a, b):
            self._add(FactorKind.PARALLEL, a, here)
            self.left = [1, 1]
            return True
        for side, (whole, part) in enumerate(((a, b), (b, a))):
            rest = quotient(whole, part)
            if part != 1 and rest is not None:
                self._add(FactorKind.PARALLEL, part, here)
                self.left[side], self.left[1 - side] = rest, 1
                return True
        return False

    def _add(self, kind: FactorKind, size: Dim, places: tuple[tuple[int, int], ...]) -> None:
        name = f"d{len(self.factors)}"
        self.factors.append(Factor(name, size, kind))
        for side, place in places:
            self.maps[side][place].append(name)

    def _skip(self) -> None:
        """Go to the next common boundary: one dimension is split in all of the other side's.

        Where both sides have several, they are opaque.
        """
        ends = self._boundary()
        parts = [self._parts(side, end) for side, end in enumerate(ends or self._ends())]
        for side, other in ((0, 1), (1, 0)):
            if ends is not None and len(parts[side]) == 1:
                (whole,) = parts[side]
                for place, size in parts[other]:
                    self._add(FactorKind.PARALLEL, size, ((side, whole[0]), (other, place)))
                return
        for side in (0, 1):
            for place, size in parts[side]:
                self._add(FactorKind.OPAQUE, size, ((side, place),))

    def _parts(self, side: int, end: int) -> list[tuple[int, Dim]]:
        """Pass what is left up to a position; return the dimensions and sizes that are not 1."""
        parts = [(self.position[side] - 1, self.left[side])]
        parts += [(place, self.shapes[side][place]) for place in range(self.position[side], end)]
        self.position[side], self.left[side] = end, 1
        return [(place, size) for place, size in parts if size != 1]

    def _ends(self) -> tuple[int, int]:
        return len(self.shapes[0]), len(self.shapes[1])

    def _boundary(self) -> tuple[int, int] | None:
        """Return the nearest positions with equal products, None if none can be seen."""
        products = []
        for side in (0, 1):
            running = self.left[side]
            reached = [(self.position[side], running)]
            for index in range(self.position[side], len(self.shapes[side])):
                running = product((running, self.shapes[side][index]))
                reached.append((index + 1, running))
            products.append(reached)
        for first, a in products[0]:
            for second, b in products[1]:
                if a != 0 and is_equal(_exact(a), _exact(b)):
                    return first, second
        return None


def _exact(dim: Dim) -> Dim:
    """Take integer divisions as exact, as they are where torch worked out a size of -1."""
    return dim if isinstance(dim, int) else dim.replace(FloorDiv, lambda a, b: a / b)


def _axis(parts: list[str]) -> Axis:
    return tuple(parts)


def quotient(whole: Dim, part: Dim) -> Dim | None:
    """Return `whole / part` if that is an integer for all values of the symbols, else None."""
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part if part != 0 and whole != 0 and whole % part == 0 else None
    if part == 0 or whole == 0:
        return None
    numerator, denominator = sympy.fraction(
        sympy.cancel(sympy.sympify(whole) / sympy.sympify(part))
    )
    return simplify(sympy.expand(numerator)) if denominator == 1 else None
