"""Ops that make tensors from nothing but numbers."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from lynx.ir.core import Op, Operand, Value
from lynx.ir.dims import Dim
from lynx.ir.space import Factor, IndexMap, IterationSpace, names
from lynx.ir.types import DType, ScalarType, TensorType


class Factory(Op):
    """Base of ops whose result has the shape, element type and device that they name."""

    shape_attributes: ClassVar[tuple[str, ...]] = ("shape",)

    def _result(self) -> TensorType:
        raise NotImplementedError(type(self).__name__)

    def infer(self) -> TensorType:
        """Check that operands are numbers, and return the declared type."""
        for operand in self.operands:
            if not isinstance(operand.type, ScalarType):
                raise self.error("not-a-number", f"expects numbers, got {operand.type}")
        return self._result()

    def space(self) -> IterationSpace:
        """Return one parallel factor for each dimension."""
        return parallel_space(self)


def parallel_space(op: Op) -> IterationSpace:
    """Return the space of an op whose results are indexed alike; operands are not indexed."""
    shape = op.results[0].shape
    factors = tuple(map(Factor, names("d", len(shape)), shape))
    result: IndexMap = tuple((factor.name,) for factor in factors)
    return IterationSpace(factors, ((),) * len(op.operands), (result,) * len(op.results))


class Full(Factory, name="full"):
    """Fill a tensor with one number.

    %y = full 0.5 {shape = [4, 8], dtype = f32} : f32[4, 8]
    """

    value: Operand
    shape: tuple[Dim, ...]
    dtype: DType
    device: str = "cpu"

    def _result(self) -> TensorType:
        return TensorType(self.dtype, self.shape, self.device)


class Empty(Factory, name="empty"):
    """Make a tensor whose contents nobody may rely on.

    %y = empty {shape = [4, 8], dtype = f32} : f32[4, 8]
    """

    shape: tuple[Dim, ...]
    dtype: DType
    device: str = "cpu"

    def _result(self) -> TensorType:
        return TensorType(self.dtype, self.shape, self.device)


class Iota(Factory, name="iota"):
    """Count from `start` in steps: element `i` is `start + i * step`.

    %y = iota 0, 2 {length = 8, dtype = i64} : i64[8]
    """

    shape_attributes: ClassVar[tuple[str, ...]] = ()

    start: Operand
    step: Operand
    length: Dim
    dtype: DType
    device: str = "cpu"

    def _result(self) -> TensorType:
        return TensorType(self.dtype, (self.length,), self.device)

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Iota:
        """Return the part that counts from the element at `start`."""
        if operands:
            raise self.error("no-local-form", "cannot shift a start that is not a number")
        assert not isinstance(self.start, Value)
        assert not isinstance(self.step, Value)
        first = self.start + start * self.step
        return dataclasses.replace(self, start=first, length=size)
