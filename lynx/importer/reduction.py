"""Import rules of reductions, scans and softmax."""

from __future__ import annotations

from typing import TypeAlias

from lynx.ir.core import Value
from lynx.ir.ops import reduction as ops
from lynx.ir.ops.scan import (
    CumulativeLogSumExp,
    CumulativeMax,
    CumulativeMin,
    CumulativeProduct,
    CumulativeSum,
    Scan,
)
from lynx.ir.ops.softmax import (
    LogSoftmax,
    LogSoftmaxBackward,
    SafeSoftmax,
    Softmax,
    SoftmaxBackward,
)
from lynx.ir.types import DType

from .layout import cast, wrap
from .registry import Context, Decline, Imported, imports

Dims: TypeAlias = int | tuple[int, ...] | None

_TOTALS: dict[str, type[ops.Sum | ops.Mean | ops.NanSum | ops.Product]] = {
    "aten.sum.default": ops.Sum,
    "aten.sum.dim_IntList": ops.Sum,
    "aten.mean.default": ops.Mean,
    "aten.mean.dim": ops.Mean,
    "aten.nansum.default": ops.NanSum,
    "aten.prod.default": ops.Product,
    "aten.prod.dim_int": ops.Product,
}
_PLAIN: dict[str, type[ops.Reduction]] = {
    "aten.amax.default": ops.Amax,
    "aten.amin.default": ops.Amin,
    "aten.argmax.default": ops.ArgMax,
    "aten.argmin.default": ops.ArgMin,
    "aten.any.default": ops.AnyNonzero,
    "aten.any.dim": ops.AnyNonzero,
    "aten.all.default": ops.AllNonzero,
    "aten.all.dim": ops.AllNonzero,
    "aten.max.default": ops.MaxOfAll,
    "aten.min.default": ops.MinOfAll,
    "aten.count_nonzero.default": ops.CountNonzero,
    "aten.count_nonzero.dim_IntList": ops.CountNonzero,
}
_EXTREMES = (ops.Amax, ops.Amin, ops.ArgMax, ops.ArgMin, ops.MaxOfAll, ops.MinOfAll)
_LOGICAL = {"aten.any.dims": ops.AnyNonzero, "aten.all.dims": ops.AllNonzero}
_INDEXED: dict[str, type[ops.Reduction]] = {
    "aten.max.dim": ops.MaxWithIndex,
    "aten.min.dim": ops.MinWithIndex,
}
_MOMENTS: dict[str, type[ops.Variance | ops.StandardDeviation]] = {
    "aten.var": ops.Variance,
    "aten.std": ops.StandardDeviation,
}
_MOMENT_PAIRS: dict[str, type[ops.VarianceAndMean | ops.DeviationAndMean]] = {
    "aten.var_mean": ops.VarianceAndMean,
    "aten.std_mean": ops.DeviationAndMean,
}
_CONVERTING_SCANS: dict[str, type[CumulativeSum | CumulativeProduct]] = {
    "aten.cumsum.default": CumulativeSum,
    "aten.cumprod.default": CumulativeProduct,
}
_SCANS: dict[str, type[Scan]] = {
    "aten.logcumsumexp.default": CumulativeLogSumExp,
    "aten.cummax.default": CumulativeMax,
    "aten.cummin.default": CumulativeMin,
}
_SOFTMAXES: dict[str, type[Softmax | LogSoftmax]] = {
    "aten._softmax.default": Softmax,
    "aten._log_softmax.default": LogSoftmax,
}
_CONVERTING_SOFTMAXES: dict[str, type[Softmax | LogSoftmax | SafeSoftmax]] = {
    "aten.softmax.int": Softmax,
    "aten.log_softmax.int": LogSoftmax,
    "aten._safe_softmax.default": SafeSoftmax,
}
_BACKWARDS: dict[str, type[SoftmaxBackward | LogSoftmaxBackward]] = {
    "aten._softmax_backward_data.default": SoftmaxBackward,
    "aten._log_softmax_backward_data.default": LogSoftmaxBackward,
}


def reduced(x: Value, dims: Dims) -> tuple[int, ...]:
    """Return the dimensions, counted from the front, in order; none given means all."""
    rank = len(x.shape)
    if dims is None or dims == () or rank == 0:
        return tuple(range(rank))
    given = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted({wrap(dim, rank) for dim in given}))


def needed(x: Value, dtype: DType | None, *, totals: bool = True) -> DType | None:
    """Return the type to convert to, None where that is what happens anyway."""
    given = x.tensor_type.dtype
    is_number = given.is_floating or given.is_complex
    usual = given if is_number or not totals else DType.I64
    return None if dtype is usual else dtype


@imports(*_TOTALS)
def total(
    context: Context,
    self: Value,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Imported:
    """Reduce the dimensions given, or all."""
    kind = _TOTALS[context.target]
    return context.emit(kind(self, reduced(self, dim), keepdim, needed(self, dtype)))


@imports(*_PLAIN)
def plain(context: Context, self: Value, dim: Dims = None, keepdim: bool = False) -> Imported:
    """Reduce the dimensions given, or all."""
    kind, dims = _PLAIN[context.target], reduced(self, dim)
    if issubclass(kind, _EXTREMES) and any(self.shape[d] == 0 for d in dims):
        return Decline("torch raises for the largest or smallest of nothing")
    return context.emit(kind(self, dims, keepdim))


@imports(*_LOGICAL)
def logical(context: Context, self: Value, dim: Dims = None, keepdim: bool = False) -> Imported:
    """Reduce the dimensions given, or all; here an empty list means none."""
    if dim == () and self.shape:
        return Decline("no dimension is reduced")
    return context.emit(_LOGICAL[context.target](self, reduced(self, dim), keepdim))


@imports(*_INDEXED)
def indexed(context: Context, self: Value, dim: int, keepdim: bool = False) -> Imported:
    """Reduce one dimension."""
    return context.add(_INDEXED[context.target](self, reduced(self, dim), keepdim))


@imports("aten.var.default", "aten.std.default", "aten.var.dim", "aten.std.dim")
def moment_unbiased(context: Context, self: Value, *arguments: Dims, **keywords: Dims) -> Imported:
    """Divide by the count less one if `unbiased`, else by the count."""
    kind = _MOMENTS[context.target.rpartition(".")[0]]
    dims, correction, keepdim = _unbiased(context, arguments, keywords)
    return context.emit(kind(self, reduced(self, dims), keepdim, correction))


@imports("aten.var_mean.default", "aten.std_mean.default", "aten.var_mean.dim", "aten.std_mean.dim")
def moment_and_mean_unbiased(
    context: Context, self: Value, *arguments: Dims, **keywords: Dims
) -> Imported:
    """Divide by the count less one if `unbiased`, else by the count."""
    kind = _MOMENT_PAIRS[context.target.rpartition(".")[0]]
    dims, correction, keepdim = _unbiased(context, arguments, keywords)
    return context.add(kind(self, reduced(self, dims), keepdim, correction))


def _unbiased(
    context: Context, arguments: tuple[Dims, ...], keywords: dict[str, Dims]
) -> tuple[Dims, float, bool]:
    """Read the arguments of the overloads `default` and `dim`: dimensions, correction, keepdim."""
    order = ("dim", "unbiased", "keepdim")
    named = dict(zip(order if context.target.endswith(".dim") else order[1:], arguments))  # noqa: B905 - defaults may be left out
    named |= keywords
    correction = 1.0 if named.get("unbiased", True) else 0.0
    return named.get("dim"), correction, bool(named.get("keepdim", False))


@imports("aten.var.correction", "aten.std.correction")
def moment(
    context: Context,
    self: Value,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Imported:
    """Divide by the count less the correction, which is 1 unless given."""
    kind = _MOMENTS[context.target.rpartition(".")[0]]
    by = 1.0 if correction is None else float(correction)
    return context.emit(kind(self, reduced(self, dim), keepdim, by))


@imports("aten.var_mean.correction", "aten.std_mean.correction")
def moment_and_mean(
    context: Context,
    self: Value,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Imported:
    """Divide by the count less the correction, which is 1 unless given."""
    kind = _MOMENT_PAIRS[context.target.rpartition(".")[0]]
    by = 1.0 if correction is None else float(correction)
    return context.add(kind(self, reduced(self, dim), keepdim, by))


@imports("aten.logsumexp.default")
def logsumexp(context: Context, self: Value, dim: Dims, keepdim: bool = False) -> Imported:
    """Integers are converted first."""
    if dim == () and self.shape:
        return Decline("no dimension is reduced")
    x = cast(context, self, context.type.dtype)
    return context.emit(ops.LogSumExp(x, reduced(x, dim), keepdim))


@imports("aten.linalg_vector_norm.default")
def vector_norm(
    context: Context,
    self: Value,
    ord: float = 2,  # noqa: A002 - the operator's name
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Imported:
    """Norm over the dimensions given, or all."""
    return _norm(context, self, ord, dim, keepdim, dtype)


@imports(
    "aten.norm.Scalar",
    "aten.norm.ScalarOpt_dim",
    "aten.norm.ScalarOpt_dtype",
    "aten.norm.ScalarOpt_dim_dtype",
)
def norm(
    context: Context,
    self: Value,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Imported:
    """Norm over the dimensions given, or all; without an order, the second."""
    return _norm(context, self, 2 if p is None else p, dim, keepdim, dtype)


def _norm(
    context: Context, x: Value, order: float, dims: Dims, keepdim: bool, dtype: DType | None
) -> Imported:
    if isinstance(order, complex | Value):
        return Decline("the order of the norm is no plain number")
    if not x.shape:
        return Decline("the norm of a 0-dim tensor depends on how its dimensions are given")
    dtype = needed(x, dtype, totals=False)
    return context.emit(ops.VectorNorm(x, reduced(x, dims), keepdim, float(order), dtype))


@imports(*_CONVERTING_SCANS)
def converting_scan(
    context: Context, self: Value, dim: int, *, dtype: DType | None = None
) -> Imported:
    """Scan along one dimension, after a conversion if asked for."""
    kind = _CONVERTING_SCANS[context.target]
    return context.emit(kind(self, wrap(dim, len(self.shape)), needed(self, dtype)))


@imports(*_SCANS)
def scan(context: Context, self: Value, dim: int) -> Imported:
    """Scan along one dimension."""
    results = context.add(_SCANS[context.target](self, wrap(dim, len(self.shape))))
    return results if len(results) > 1 else results[0]


@imports(*_SOFTMAXES)
def softmax(context: Context, self: Value, dim: int, half_to_float: bool) -> Imported:
    """Convert first, which is exact."""
    x = cast(context, self, DType.F32 if half_to_float else None)
    return context.emit(_SOFTMAXES[context.target](x, wrap(dim, len(self.shape))))


@imports(*_CONVERTING_SOFTMAXES)
def converting_softmax(
    context: Context, self: Value, dim: int, dtype: DType | None = None
) -> Imported:
    """Convert first if asked for."""
    kind = _CONVERTING_SOFTMAXES[context.target]
    return context.emit(kind(cast(context, self, dtype), wrap(dim, len(self.shape))))


@imports(*_BACKWARDS)
def softmax_backward(
    context: Context, grad_output: Value, output: Value, dim: int, input_dtype: DType
) -> Imported:
    """Round the gradient last."""
    kind = _BACKWARDS[context.target]
    gradient = context.emit(kind(grad_output, output, wrap(dim, len(output.shape))))
    return cast(context, gradient, input_dtype)
