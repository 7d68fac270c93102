"""The base of elementwise ops: broadcasting, element types, devices, and the iteration space."""

from __future__ import annotations

from typing import ClassVar

import sympy

from lynx.ir.core import Number, Op, Operand, Value
from lynx.ir.dims import Dim, may_equal
from lynx.ir.space import Factor, IndexMap, IterationSpace, names
from lynx.ir.types import DType, ScalarType, TensorType

_CATEGORIES = "bifc"


def category(dtype: DType) -> str:
    """Return the category of an element type: `b`, `i`, `f` or `c`, in the order of promotion."""
    if dtype is DType.BOOL:
        return "b"
    if dtype.is_integer:
        return "i"
    return "c" if dtype.is_complex else "f"


def number_category(number: Number) -> str:
    """Return the category of a number; a symbolic one is an integer."""
    if isinstance(number, bool):
        return "b"
    if isinstance(number, int | sympy.Expr):
        return "i"
    return "c" if isinstance(number, complex) else "f"


def is_at_most(lower: str, upper: str) -> bool:
    """Whether promotion with a value of category `lower` keeps the category `upper`."""
    return _CATEGORIES.index(lower) <= _CATEGORIES.index(upper)


class Elementwise(Op):
    """Base of ops that compute each element of the result from one element of each operand.

    Operands are broadcast as in torch. Tensor operands have one element type; a 0-dim tensor may
    have another of the same or a lower category and reaches torch as it is. Numbers keep their full
    precision.

    Class attributes: `accepts` lists the categories of element types that the op is defined for
    (`b` bool, `i` integer, `f` floating, `c` complex); `result_dtype` is the element type of the
    result, None for that of the operands; `linear` lists the sets of operand fields in which the op
    is linear jointly.
    """

    is_elementwise: ClassVar[bool] = True
    accepts: ClassVar[str] = _CATEGORIES
    result_dtype: ClassVar[DType | None] = None
    linear: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def infer(self) -> TensorType:
        """Return the broadcast type."""
        dtype = self.common_dtype()
        if category(dtype) not in self.accepts:
            raise self.error("bad-dtype", f"is not defined for elements of type {dtype}")
        return TensorType(self.result_dtype or dtype, self._broadcast(), self._device())

    def common_dtype(self) -> DType:
        """Return the element type in which the op computes, and check that operands agree."""
        return self._agree(tuple(getattr(self, name) for name in self.operand_fields))

    def _agree(self, operands: tuple[Operand | None, ...]) -> DType:
        types = [
            t for o in operands if isinstance(o, Value) and isinstance(t := o.type, TensorType)
        ]
        if not types:
            raise self.error("no-tensor", "has no tensor operand")
        dtype = _leading(types)
        for type_ in types:
            mixes = type_.rank == 0 and is_at_most(category(type_.dtype), category(dtype))
            if type_.dtype is not dtype and not mixes:
                raise self.error("dtype-mismatch", f"mixes operands of {dtype} and {type_.dtype}")
        for operand in operands:
            if operand is None or isinstance(operand, Value):
                continue
            if not is_at_most(number_category(operand), category(dtype)):
                raise self.error("dtype-mismatch", f"mixes {dtype} with the number {operand}")
        return dtype

    def _tensors(self) -> list[TensorType]:
        return [v.type for v in self.operands if isinstance(v.type, TensorType)]

    def _broadcast(self) -> tuple[Dim, ...]:
        shapes = [type_.shape for type_ in self._tensors()]
        rank = max(len(shape) for shape in shapes)
        result: list[Dim] = [1] * rank
        for shape in shapes:
            for index, dim in enumerate(shape, rank - len(shape)):
                merged = _merge(result[index], dim)
                if merged is None:
                    text = " and ".join(str(type_) for type_ in self._tensors())
                    raise self.error("shape-mismatch", f"cannot broadcast {text}")
                result[index] = merged
        return tuple(result)

    def _device(self) -> str:
        """Return the common device; a 0-dim tensor on the CPU goes with any."""
        types = self._tensors()
        fixed = [t.device for t in types if t.rank] or [t.device for t in types]
        chosen = next((device for device in fixed if device != "cpu"), fixed[0])
        for type_ in types:
            if type_.device != chosen and (type_.rank or type_.device != "cpu"):
                raise self.error("device-mismatch", f"mixes {chosen} with {type_.device}")
        return chosen

    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """Return the sets of operand positions in which the op is linear.

        A set counts only where all of its fields are tensors: adding a number is not linear. Truth
        values do not add up.
        """
        if self.common_dtype() is DType.BOOL:
            return ()
        positions = self.positions()
        return tuple(
            tuple(positions[name] for name in fields)
            for fields in self.linear
            if all(name in positions for name in fields)
        )

    def positions(self) -> dict[str, int]:
        """Return the position in `operands` of each field that holds a value."""
        held = [name for name in self.operand_fields if isinstance(getattr(self, name), Value)]
        return {name: index for index, name in enumerate(held)}

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension of the result."""
        shape = self.results[0].shape
        factors = tuple(map(Factor, names("d", len(shape)), shape))
        result: IndexMap = tuple((factor.name,) for factor in factors)
        operands = tuple(self._index_map(operand, shape) for operand in self.operands)
        return IterationSpace(factors, operands, (result,) * len(self.results), self.linear_sets())

    def _index_map(self, operand: Value, shape: tuple[Dim, ...]) -> IndexMap:
        if isinstance(operand.type, ScalarType):
            return ()
        first = len(shape) - len(operand.shape)
        return tuple(
            () if dim == 1 and shape[index] != 1 else (f"d{index}",)
            for index, dim in enumerate(operand.shape, first)
        )


class Unary(Elementwise):
    """Base of elementwise ops on one tensor `x`."""

    x: Value


class Binary(Elementwise):
    """Base of elementwise ops on `x` and `y`, of which one may be a number."""

    x: Operand
    y: Operand


def _leading(types: list[TensorType]) -> DType:
    """Return the element type that a tensor with dimensions has, or the highest 0-dim one."""
    for type_ in types:
        if type_.rank:
            return type_.dtype
    return max(types, key=lambda type_: _CATEGORIES.index(category(type_.dtype))).dtype


def _merge(a: Dim, b: Dim) -> Dim | None:
    """Return the broadcast of two dimensions; an integer wins over a symbol that may equal it."""
    if a == 1:
        return b
    if b == 1 or a == b:
        return a
    if not may_equal(a, b):
        return None
    return b if isinstance(b, int) else a
