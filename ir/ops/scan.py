"""Scans: each element of the result depends on all earlier ones along a dimension."""

from __future__ import annotations

from typing import Any, ClassVar

from lynx.ir.core import Op, Value
from lynx.ir.space import Factor, FactorKind, IndexMap, IterationSpace
from lynx.ir.types import DType, TensorType


class Scan(Op):
    """Base of scans along `dim`; a 0-dim tensor has a dimension 0 of size 1.

    Class attribute `can_be_linear` says whether the scan of a sum is the sum of the scans, as far
    as elements are not converted to another kind.
    """

    can_be_linear: ClassVar[bool] = False

    x: Value
    dim: int

    def infer(self) -> Any:
        """Return the type of the result."""
        return self.scanned_type(self.result_dtype())

    def result_dtype(self) -> DType:
        """Return the element type of the result."""
        return self.x.tensor_type.dtype

    def scanned_type(self, dtype: DType) -> TensorType:
        """Check the dimension and return the type of a result with these elements."""
        x = self.x.tensor_type
        if not 0 <= self.dim < max(x.rank, 1):
            raise self.error("bad-dim", f"has no dimension {self.dim} in {x}")
        return TensorType(dtype, x.shape, x.device)

    def space(self) -> IterationSpace:
        """Return one scan factor, all others parallel."""
        factors = tuple(
            Factor(f"d{i}", size, FactorKind.SCAN if i == self.dim else FactorKind.PARALLEL)
            for i, size in enumerate(self.x.shape)
        )
        axes: IndexMap = tuple((factor.name,) for factor in factors)
        given, result = self.x.tensor_type.dtype, self.results[0].tensor_type.dtype
        keeps_kind = given is result or (given.is_floating and result.is_floating)
        linear = ((0,),) if self.can_be_linear and keeps_kind else ()
        return IterationSpace(factors, (axes,), (axes,) * len(self.results), linear)


class CumulativeTotal(Scan):
    """Base of scans that may convert the elements first: to `dtype`, or integers to `i64`."""

    dtype: DType | None = None

    def result_dtype(self) -> DType:
        """Return the type given, or the one that torch takes."""
        dtype = self.x.tensor_type.dtype
        return self.dtype or (dtype if dtype.is_floating or dtype.is_complex else DType.I64)


class CumulativeSum(CumulativeTotal, name="cumsum"):
    """Add up the elements along a dimension, in `dtype` if given.

    %r = cumsum %x {dim = 1} : f32[4, 16]
    """

    can_be_linear: ClassVar[bool] = True


class CumulativeProduct(CumulativeTotal, name="cumprod"):
    """Multiply the elements along a dimension, in `dtype` if given.

    %r = cumprod %x {dim = 1} : f32[4, 16]
    """


class CumulativeLogSumExp(Scan, name="logcumsumexp"):
    """Compute the logarithm of the running sum of exponentials, without overflow.

    %r = logcumsumexp %x {dim = 1} : f32[4, 16]
    """

    def infer(self) -> TensorType:
        """Return the type of `x`, whose elements are floating."""
        dtype = self.x.tensor_type.dtype
        if not (dtype.is_floating or dtype.is_complex):
            raise self.error("bad-dtype", f"needs floating elements, got {dtype}")
        return self.scanned_type(dtype)


class _CumulativeExtreme(Scan):
    """Base of the running extremes with their indices."""

    def infer(self) -> tuple[TensorType, TensorType]:
        """Return the types of the values and of the indices."""
        if self.x.tensor_type.dtype.is_complex:
            raise self.error("bad-dtype", f"cannot order {self.x.type}")
        return self.scanned_type(self.x.tensor_type.dtype), self.scanned_type(DType.I64)


class CumulativeMax(_CumulativeExtreme, name="cummax"):
    """Take the largest element so far, and its index.

    %v, %i = cummax %x {dim = 1} : f32[4, 16], i64[4, 16]
    """


class CumulativeMin(_CumulativeExtreme, name="cummin"):
    """Take the smallest element so far, and its index.

    %v, %i = cummin %x {dim = 1} : f32[4, 16], i64[4, 16]
    """
