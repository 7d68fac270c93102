"""Reductions: one result element from all elements along some dimensions."""

from __future__ import annotations

from typing import Any, ClassVar

from lynx.ir.core import Op, Value
from lynx.ir.space import Axis, Factor, FactorKind, IndexMap, IterationSpace
from lynx.ir.types import DType, TensorType

_REAL = {DType.C32: DType.F16, DType.C64: DType.F32, DType.C128: DType.F64}


def real_dtype(dtype: DType) -> DType:
    """Return the type of the real part of an element."""
    return _REAL.get(dtype, dtype)


def _sum_dtype(dtype: DType) -> DType:
    """Return the type in which torch adds and multiplies unless told otherwise."""
    return dtype if dtype.is_floating or dtype.is_complex else DType.I64


class Reduction(Op):
    """Base of reductions over `dims` (sorted, not negative; none only for a 0-dim operand).

    With `keepdim` the reduced dimensions stay with size 1. Class attribute `combine` names the
    operation that combines results over parts of the reduced dimensions, empty if there is none.
    """

    combine: ClassVar[str] = ""

    x: Value
    dims: tuple[int, ...]
    keepdim: bool = False

    def infer(self) -> Any:
        """Return the type of the result."""
        return self.reduced_type(self.result_dtype())

    def result_dtype(self) -> DType:
        """Return the element type of the result."""
        return self.x.tensor_type.dtype

    def is_linear(self) -> bool:
        """Whether the reduction of a sum is the sum of the reductions."""
        return False

    def reduced_type(self, dtype: DType) -> TensorType:
        """Check the dimensions and return the type of a result with these elements."""
        x = self.x.tensor_type
        rank = x.rank
        sorted_dims = list(self.dims) == sorted(set(self.dims))
        if not sorted_dims or not all(0 <= dim < rank for dim in self.dims):
            raise self.error("bad-dims", f"cannot reduce dimensions {list(self.dims)} of {x}")
        if rank and not self.dims:
            raise self.error("no-dims", f"reduces no dimension of {x}")
        shape = tuple(
            1 if index in self.dims else size
            for index, size in enumerate(x.shape)
            if self.keepdim or index not in self.dims
        )
        return TensorType(dtype, shape, x.device)

    def space(self) -> IterationSpace:
        """Return parallel factors for what stays, and reduction or opaque ones for the rest."""
        linear = ((0,),) if self.is_linear() else ()
        combine = self.combine_operation()
        kind = FactorKind.REDUCTION if combine else FactorKind.OPAQUE
        return reduced_space(self.x, self.dims, self.keepdim, kind, combine, len(self.results),
                             linear)  # fmt: skip

    def combine_operation(self) -> str:
        """Return the name of the operation that combines partial results, or an empty text."""
        return self.combine


def reduced_space(
    x: Value,
    dims: tuple[int, ...],
    keepdim: bool,
    kind: FactorKind,
    combine: str,
    results: int,
    linear: tuple[tuple[int, ...], ...] = (),
) -> IterationSpace:
    """Return a space whose factors for `dims` are of one kind, the others parallel."""
    factors = tuple(
        Factor(f"d{i}", size, kind, combine) if i in dims else Factor(f"d{i}", size)
        for i, size in enumerate(x.shape)
    )
    operand: IndexMap = tuple((factor.name,) for factor in factors)
    result: list[Axis] = []
    for index, axis in enumerate(operand):
        if index not in dims:
            result.append(axis)
        elif keepdim:
            result.append(())
    return IterationSpace(factors, (operand,), (tuple(result),) * results, linear)


class _Total(Reduction):
    """Base of reductions that may convert the elements first: to `dtype`, or integers to `i64`."""

    dtype: DType | None = None

    def result_dtype(self) -> DType:
        """Return the type given, or the one that torch takes."""
        return self.dtype or _sum_dtype(self.x.tensor_type.dtype)

    def is_linear(self) -> bool:
        """Whether elements keep their kind, so that conversion and sum commute."""
        given, result = self.x.tensor_type.dtype, self.result_dtype()
        if given.is_floating or given.is_complex:
            return result.is_floating or result.is_complex
        return given is result


class Sum(_Total, name="sum"):
    """Add the elements, in `dtype` if given; integers and booleans in `i64` by default.

    %r = sum %x {dims = [1], keepdim = true} : f32[4, 1]
    """

    combine: ClassVar[str] = "sum"


class Mean(_Total, name="mean"):
    """Average the elements, in `dtype` if given.

        %r = mean %x {dims = [1]} : f32[4]

    Averages of parts do not add up to the average of the whole, so the dimensions are opaque.
    """

    def infer(self) -> TensorType:
        """Return the type of the result, which is no integer."""
        if not (self.result_dtype().is_floating or self.result_dtype().is_complex):
            raise self.error("bad-dtype", f"cannot average {self.x.type} in {self.result_dtype()}")
        return self.reduced_type(self.result_dtype())


class Product(_Total, name="prod"):
    """Multiply the elements, in `dtype` if given; integers and booleans in `i64` by default.

    %r = prod %x {dims = [1]} : f32[4]
    """

    combine: ClassVar[str] = "product"

    def is_linear(self) -> bool:
        """Return false: a product is not linear."""
        return False


class NanSum(_Total, name="nansum"):
    """Add the elements that are not NaN.

    %r = nansum %x {dims = [1]} : f32[4]
    """

    combine: ClassVar[str] = "sum"

    def is_linear(self) -> bool:
        """Return false: skipping NaN is not linear."""
        return False


class _Ordered(Reduction):
    """Base of the reductions to an extreme element."""

    def infer(self) -> Any:
        """Return the type of the result; the elements must have an order."""
        if self.x.tensor_type.dtype.is_complex:
            raise self.error("bad-dtype", f"cannot order {self.x.type}")
        return super().infer()


class Amax(_Ordered, name="amax"):
    """Take the largest element; NaN wins.

    %r = amax %x {dims = [1]} : f32[4]
    """

    combine: ClassVar[str] = "max"


class Amin(_Ordered, name="amin"):
    """Take the smallest element; NaN wins.

    %r = amin %x {dims = [1]} : f32[4]
    """

    combine: ClassVar[str] = "min"


class _Indexed(_Ordered):
    """Base of the extremes along one dimension that also say where they are."""

    def infer(self) -> tuple[TensorType, TensorType]:
        """Return the types of the values and of the indices."""
        if len(self.dims) > 1:
            raise self.error("bad-dims", f"reduces one dimension, got {list(self.dims)}")
        value = super().infer()
        return value, value.with_dtype(DType.I64)


class MaxWithIndex(_Indexed, name="max"):
    """Take the largest element along one dimension, and its index.

    %v, %i = max %x {dims = [1]} : f32[4], i64[4]
    """


class MinWithIndex(_Indexed, name="min"):
    """Take the smallest element along one dimension, and its index.

    %v, %i = min %x {dims = [1]} : f32[4], i64[4]
    """


class _Whole(_Ordered):
    """Base of the extremes of a whole tensor, where eager breaks the tie of zeros otherwise."""

    def infer(self) -> TensorType:
        """Return the type of the result; all dimensions are reduced."""
        if len(self.dims) != self.x.tensor_type.rank or self.keepdim:
            raise self.error("bad-dims", "reduces all dimensions, and keeps none")
        return self.reduced_type(self.result_dtype())


class MaxOfAll(_Whole, name="max_all"):
    """Take the largest element of a tensor; NaN wins.

        %r = max_all %x {dims = [0, 1]} : f32[]

    Of zeros of both signs it may return another one than `amax`.
    """

    combine: ClassVar[str] = "max"


class MinOfAll(_Whole, name="min_all"):
    """Take the smallest element of a tensor; NaN wins.

        %r = min_all %x {dims = [0, 1]} : f32[]

    Of zeros of both signs it may return another one than `amin`.
    """

    combine: ClassVar[str] = "min"


class _ArgReduction(Reduction):
    """Base of the indices of extremes; over all dimensions the index is into the row-major order.

    Of equal elements eager's choice counts.
    """

    def infer(self) -> TensorType:
        """Return indices."""
        x = self.x.tensor_type
        if len(self.dims) > 1 and len(self.dims) != x.rank:
            raise self.error("bad-dims", f"reduces one dimension or all, got {list(self.dims)}")
        if x.dtype.is_complex:
            raise self.error("bad-dtype", f"cannot order {x}")
        return self.reduced_type(DType.I64)


class ArgMax(_ArgReduction, name="argmax"):
    """Find the index of the largest element, along one dimension or of the whole tensor.

    %r = argmax %x {dims = [1]} : i64[4]
    """


class ArgMin(_ArgReduction, name="argmin"):
    """Find the index of the smallest element, along one dimension or of the whole tensor.

    %r = argmin %x {dims = [1]} : i64[4]
    """


class _Logical(Reduction):
    """Base of reductions of truth values; they are `u8` for an operand of `u8`, as in torch."""

    def result_dtype(self) -> DType:
        """Return the type of a truth value."""
        return DType.U8 if self.x.tensor_type.dtype is DType.U8 else DType.BOOL


class AnyNonzero(_Logical, name="any"):
    """Say whether an element is not zero.

    %r = any %x {dims = [1]} : bool[4]
    """

    combine: ClassVar[str] = "or"


class AllNonzero(_Logical, name="all"):
    """Say whether no element is zero.

    %r = all %x {dims = [1]} : bool[4]
    """

    combine: ClassVar[str] = "and"


class CountNonzero(Reduction, name="count_nonzero"):
    """Count the elements that are not zero.

    %r = count_nonzero %x {dims = [1]} : i64[4]
    """

    combine: ClassVar[str] = "sum"

    def result_dtype(self) -> DType:
        """Return the type of a count."""
        return DType.I64


class Moment(Reduction):
    """Base of variance and standard deviation: squares are divided by `count - correction`."""

    correction: float = 1.0

    def result_dtype(self) -> DType:
        """Return the type of the result, which is real."""
        dtype = self.x.tensor_type.dtype
        if not (dtype.is_floating or dtype.is_complex):
            raise self.error("bad-dtype", f"needs floating elements, got {dtype}")
        return real_dtype(dtype)


class Variance(Moment, name="var"):
    """Compute the variance.

    %r = var %x {dims = [1], correction = 0.0} : f32[4]
    """


class StandardDeviation(Moment, name="std"):
    """Compute the standard deviation.

    %r = std %x {dims = [1]} : f32[4]
    """


class MomentAndMean(Moment):
    """Base of the pairs of a moment and the mean."""

    def infer(self) -> tuple[TensorType, TensorType]:
        """Return the types of the moment and of the mean."""
        moment = self.reduced_type(self.result_dtype())
        return moment, moment.with_dtype(self.x.tensor_type.dtype)


class VarianceAndMean(MomentAndMean, name="var_mean"):
    """Compute the variance and the mean.

    %v, %m = var_mean %x {dims = [1]} : f32[4], f32[4]
    """


class DeviationAndMean(MomentAndMean, name="std_mean"):
    """Compute the standard deviation and the mean.

    %s, %m = std_mean %x {dims = [1]} : f32[4], f32[4]
    """


class LogSumExp(Reduction, name="logsumexp"):
    """Compute `log(sum(exp(x)))` without overflow.

    %r = logsumexp %x {dims = [1]} : f32[4]
    """

    def result_dtype(self) -> DType:
        """Return the type of the result, which is no integer."""
        dtype = self.x.tensor_type.dtype
        if not (dtype.is_floating or dtype.is_complex):
            raise self.error("bad-dtype", f"needs floating elements, got {dtype}")
        return dtype


class VectorNorm(Reduction, name="vector_norm"):
    """Compute `sum(|x| ** order) ** (1 / order)`, in `dtype` if given.

        %r = vector_norm %x {dims = [1], order = 1.0} : f32[4]

    Order 0 counts the elements that are not zero, an infinite order takes an extreme.
    """

    order: float = 2.0
    dtype: DType | None = None

    def result_dtype(self) -> DType:
        """Return the type of the result, which is real."""
        dtype = self.dtype or self.x.tensor_type.dtype
        if not (dtype.is_floating or dtype.is_complex):
            raise self.error("bad-dtype", f"needs floating elements, got {dtype}")
        return real_dtype(dtype)

    def combine_operation(self) -> str:
        """Return the operation for the orders for which norms of parts combine directly."""
        by_order = {0.0: "sum", 1.0: "sum", float("inf"): "max", float("-inf"): "min"}
        return by_order.get(self.order, "")
