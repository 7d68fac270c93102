"""What reductions, scans and softmax mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lynx.ir.call import Call
from lynx.ir.ops import reduction, scan, softmax
from lynx.ir.types import DType

from .dtypes import torch_dtype
from .registry import aten, means
from .strides import contiguous_only


def _dtype(dtype: DType | None) -> torch.dtype | None:
    return None if dtype is None else torch_dtype(dtype)


@means(reduction.Sum)
def sum_(op: reduction.Sum) -> Call:
    """Call `sum.dim_IntList`."""
    return aten("sum", op.x, op.dims, op.keepdim, overload="dim_IntList", dtype=_dtype(op.dtype))


@means(reduction.Mean)
def mean(op: reduction.Mean) -> Call:
    """Call `mean.dim`."""
    return aten("mean", op.x, op.dims, op.keepdim, overload="dim", dtype=_dtype(op.dtype))


@means(reduction.NanSum)
def nansum(op: reduction.NanSum) -> Call:
    """Call `nansum`."""
    return aten("nansum", op.x, op.dims, op.keepdim, dtype=_dtype(op.dtype))


def _prod(
    x: torch.Tensor, dims: Sequence[int], keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    """Multiply along several dimensions: all at once, or one after the other."""
    if len(dims) == x.dim():
        total: torch.Tensor = torch.ops.aten.prod.default(x, dtype=dtype)
        return total.reshape([1] * x.dim()) if keepdim else total
    for dim in reversed(dims):
        x = torch.ops.aten.prod.dim_int(x, dim, keepdim, dtype=dtype)
    return x


@means(reduction.Product)
def prod(op: reduction.Product) -> Call:
    """Call `prod.dim_int`, or `prod` over all dimensions."""
    if len(op.dims) == 1:
        return aten(
            "prod", op.x, op.dims[0], op.keepdim, overload="dim_int", dtype=_dtype(op.dtype)
        )
    return Call(_prod, (op.x, op.dims, op.keepdim, _dtype(op.dtype)))


@means(reduction.Amax, reduction.Amin)
def extreme(op: reduction.Reduction) -> Call:
    """Call the operator of the same name."""
    return aten(op.name, op.x, op.dims, op.keepdim)


@means(reduction.LogSumExp)
def logsumexp(op: reduction.LogSumExp) -> Call:
    """Call `logsumexp`; a 0-dim tensor counts as having one dimension."""
    return aten("logsumexp", op.x, op.dims or (0,), op.keepdim)


@means(reduction.MaxOfAll)
def max_of_all(op: reduction.MaxOfAll) -> Call:
    """Call `max` without a dimension."""
    return aten("max", op.x)


@means(reduction.MinOfAll)
def min_of_all(op: reduction.MinOfAll) -> Call:
    """Call `min` without a dimension."""
    return aten("min", op.x)


@means(reduction.MaxWithIndex, reduction.MinWithIndex)
def extreme_with_index(op: reduction.Reduction) -> Call:
    """Call the overload with a dimension; a 0-dim tensor counts as having one."""
    return aten(op.name, op.x, op.dims[0] if op.dims else 0, op.keepdim, overload="dim")


@means(reduction.ArgMax, reduction.ArgMin)
def arg_extreme(op: reduction.Reduction) -> Call:
    """Call the operator for one dimension, or for none, which is all."""
    return aten(op.name, op.x, op.dims[0] if len(op.dims) == 1 else None, op.keepdim)


@means(reduction.AnyNonzero, reduction.AllNonzero)
def logical(op: reduction.Reduction) -> Call:
    """Call the overload with dimensions; no dimension means all of a 0-dim tensor."""
    return aten(op.name, op.x, op.dims or None, op.keepdim, overload="dims")


def _count_nonzero(x: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    count: torch.Tensor = torch.ops.aten.count_nonzero.dim_IntList(x, dims)
    for dim in dims if keepdim else ():
        count = count.unsqueeze(dim)
    return count


@means(reduction.CountNonzero)
def count_nonzero(op: reduction.CountNonzero) -> Call:
    """Call `count_nonzero`, which cannot keep dimensions."""
    return Call(_count_nonzero, (op.x, op.dims, op.keepdim))


@means(
    reduction.Variance,
    reduction.StandardDeviation,
    reduction.VarianceAndMean,
    reduction.DeviationAndMean,
)
def moment(op: reduction.Moment) -> Call:
    """Call the overload with a correction."""
    return aten(
        op.name,
        op.x,
        op.dims or None,
        overload="correction",
        correction=op.correction,
        keepdim=op.keepdim,
    )


@means(reduction.VectorNorm)
def vector_norm(op: reduction.VectorNorm) -> Call:
    """Call `linalg_vector_norm`."""
    return aten(
        "linalg_vector_norm",
        op.x,
        op.order,
        op.dims or None,
        op.keepdim,
        dtype=_dtype(op.dtype),
    )


@means(scan.CumulativeSum, scan.CumulativeProduct)
def cumulative_total(op: scan.CumulativeTotal) -> Call:
    """Call the operator of the same name."""
    return aten(op.name, op.x, op.dim, dtype=_dtype(op.dtype))


@means(scan.CumulativeLogSumExp, scan.CumulativeMax, scan.CumulativeMin)
def cumulative(op: scan.Scan) -> Call:
    """Call the operator of the same name."""
    return aten(op.name, op.x, op.dim)


@means(softmax.Softmax, softmax.LogSoftmax)
def softmax_(op: softmax.Normalized) -> Call:
    """Call `_softmax` or `_log_softmax`, without conversion."""
    return contiguous_only(aten(f"_{op.name}", op.x, op.dim, False))


@means(softmax.SafeSoftmax)
def safe_softmax(op: softmax.SafeSoftmax) -> Call:
    """Call `_safe_softmax`."""
    return aten("_safe_softmax", op.x, op.dim)


@means(softmax.SoftmaxBackward, softmax.LogSoftmaxBackward)
def softmax_backward(op: softmax.NormalizedBackward) -> Call:
    """Call `_softmax_backward_data` or `_log_softmax_backward_data`."""
    dtype = torch_dtype(op.result.tensor_type.dtype)
    return contiguous_only(aten(f"_{op.name}_data", op.grad, op.result, op.dim, dtype))
