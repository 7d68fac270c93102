"""Import rules of indexing, scattering and sorting."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Operand, Value
from lynx.ir.dims import Dim
from lynx.ir.ops.elementwise_arithmetic import Where
from lynx.ir.ops.indexing import Embedding, EmbeddingBackward, Gather, Index, IndexSelect, Take
from lynx.ir.ops.layout import Reshape
from lynx.ir.ops.scatter import (
    IndexAdd,
    IndexCopy,
    IndexFill,
    IndexPut,
    Put,
    Scatter,
    ScatterAdd,
    ScatterReduce,
)
from lynx.ir.ops.sorting import Histogram, KthValue, Median, Mode, SearchSorted, Sort, TopK
from lynx.ir.types import DType

from .elementwise import coefficient
from .registry import Context, Decline, Imported, imports


def _dim(x: Value, dim: int) -> int:
    """Return the dimension counted from the front; a 0-dim tensor counts as having one."""
    return dim % max(x.tensor_type.rank, 1)


@imports("aten.embedding.default")
def embedding(
    context: Context,
    weight: Value,
    indices: Value,
    padding_idx: Dim = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Imported:
    """Look up rows; the other arguments are about the gradient."""
    return context.emit(Embedding(weight, indices))


@imports("aten.embedding_dense_backward.default")
def embedding_backward(
    context: Context,
    grad: Value,
    indices: Value,
    num_weights: Dim,
    padding_idx: Dim,
    scale_grad_by_freq: bool,
) -> Imported:
    """Add up the gradients of rows."""
    if not isinstance(padding_idx, int):
        return Decline("a symbolic padding index")
    padding = max(padding_idx, -1)
    return context.emit(EmbeddingBackward(grad, indices, num_weights, padding, scale_grad_by_freq))


@imports("aten.gather.default")
def gather(
    context: Context, x: Value, dim: int, index: Value, *, sparse_grad: bool = False
) -> Imported:
    """Read along a dimension."""
    return context.emit(Gather(x, index, _dim(x, dim)))


@imports("aten.index_select.default")
def index_select(context: Context, x: Value, dim: int, index: Value) -> Imported:
    """Read slices."""
    return context.emit(IndexSelect(x, index, _dim(x, dim)))


@imports("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(context: Context, x: Value, indices: tuple[Value | None, ...]) -> Imported:
    """Read at places."""
    if _masks(indices):
        return Decline("a boolean index, whose result's size depends on its values")
    return context.emit(Index(x, _trimmed(indices)))


@imports("aten.take.default")
def take(context: Context, x: Value, index: Value) -> Imported:
    """Read at places counted over all elements."""
    return context.emit(Take(x, index))


@imports("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    context: Context,
    x: Value,
    indices: tuple[Value | None, ...],
    values: Value,
    accumulate: bool = False,
) -> Imported:
    """Write at places, or choose where a single mask says which."""
    if not _masks(indices):
        return context.emit(IndexPut(x, _trimmed(indices), values, accumulate))
    given = [(n, index) for n, index in enumerate(indices) if index is not None]
    if len(given) > 1 or accumulate or any(size != 1 for size in values.shape):
        return Decline("a boolean index, whose number of places depends on its values")
    ((first, mask),) = given
    if mask.tensor_type.dtype is not DType.BOOL:
        return Decline("a mask that is not of type bool")
    after = x.tensor_type.rank - first - mask.tensor_type.rank
    if first or after:
        mask = context.emit(Reshape(mask, (*(1,) * first, *mask.shape, *(1,) * after)))
    return context.emit(Where(mask, values, x))


def _masks(indices: tuple[Value | None, ...]) -> list[Value]:
    kinds = (DType.BOOL, DType.U8)
    return [i for i in indices if i is not None and i.tensor_type.dtype in kinds]


def _trimmed(indices: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    """Leave out dimensions without an index at the end."""
    count = max((n + 1 for n, index in enumerate(indices) if index is not None), default=0)
    return indices[:count]


@imports("aten.put.default")
def put(
    context: Context, x: Value, index: Value, source: Value, accumulate: bool = False
) -> Imported:
    """Write at places counted over all elements."""
    return context.emit(Put(x, index, source, accumulate))


@imports("aten.scatter.src", "aten.scatter.value")
def scatter(
    context: Context,
    x: Value,
    dim: int,
    index: Value,
    src: Operand | None = None,
    value: Operand | None = None,
) -> Imported:
    """Write along a dimension."""
    given = value if src is None else src
    assert given is not None
    return context.emit(Scatter(x, index, given, _dim(x, dim)))


@imports("aten.scatter_add.default")
def scatter_add(context: Context, x: Value, dim: int, index: Value, src: Value) -> Imported:
    """Add along a dimension."""
    return context.emit(ScatterAdd(x, index, src, _dim(x, dim)))


@imports("aten.scatter_reduce.two")
def scatter_reduce(
    context: Context,
    x: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Imported:
    """Combine along a dimension."""
    return context.emit(ScatterReduce(x, index, src, _dim(x, dim), reduce, include_self))


@imports("aten.index_add.default")
def index_add(
    context: Context, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Imported:
    """Add to slices."""
    factor = coefficient(alpha)
    if factor is None:
        return Decline(f"a coefficient {alpha} that is no float")
    return context.emit(IndexAdd(x, index, source, _dim(x, dim), factor))


@imports("aten.index_copy.default")
def index_copy(context: Context, x: Value, dim: int, index: Value, source: Value) -> Imported:
    """Replace slices."""
    return context.emit(IndexCopy(x, index, source, _dim(x, dim)))


@imports("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(context: Context, x: Value, dim: int, index: Value, value: Operand) -> Imported:
    """Fill slices."""
    return context.emit(IndexFill(x, index, value, _dim(x, dim)))


@imports("aten.sort.default", "aten.sort.stable")
def sort(
    context: Context,
    x: Value,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = False,
) -> Imported:
    """Order along a dimension."""
    return context.add(Sort(x, _dim(x, dim), descending, bool(stable)))


@imports("aten.topk.default")
def topk(
    context: Context,
    x: Value,
    k: Dim,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,  # noqa: A002 - torch's name
) -> Imported:
    """Choose the largest or smallest elements."""
    return context.add(TopK(x, k, _dim(x, dim), largest, sorted))


@imports("aten.median.dim", "aten.nanmedian.dim")
def median(context: Context, x: Value, dim: int, keepdim: bool = False) -> Imported:
    """Choose the element in the middle."""
    return context.add(Median(x, _dim(x, dim), keepdim, "nan" in context.target))


@imports("aten.mode.default")
def mode(context: Context, x: Value, dim: int = -1, keepdim: bool = False) -> Imported:
    """Choose the most frequent element."""
    return context.add(Mode(x, _dim(x, dim), keepdim))


@imports("aten.kthvalue.default")
def kth_value(context: Context, x: Value, k: Dim, dim: int = -1, keepdim: bool = False) -> Imported:
    """Choose the element at a place in the order."""
    return context.add(KthValue(x, _dim(x, dim), keepdim, k))


@imports("aten.bucketize.Tensor")
def bucketize(
    context: Context,
    x: Value,
    boundaries: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Imported:
    """Find places in one row."""
    return context.emit(SearchSorted(boundaries, x, right, out_int32))


@imports("aten.searchsorted.Tensor")
def search_sorted(
    context: Context,
    rows: Value,
    values: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Imported:
    """Find places in rows."""
    if sorter is not None:
        return Decline("rows in an order that a tensor gives")
    return context.emit(SearchSorted(rows, values, right or side == "right", out_int32))


@imports("aten.histc.default")
def histogram(
    context: Context,
    x: Value,
    bins: Dim = 100,
    min: Any = 0,  # noqa: A002 - torch's name
    max: Any = 0,  # noqa: A002 - torch's name
) -> Imported:
    """Count elements in parts of a range."""
    low, high = coefficient(min), coefficient(max)
    if low is None or high is None or not isinstance(bins, int):
        return Decline("a range that is not given by numbers")
    return context.emit(Histogram(x, bins, low, high))


@imports(
    "aten.nonzero.default",
    "aten.masked_select.default",
    "aten.bincount.default",
    "aten.repeat_interleave.Tensor",
    "aten._unique2.default",
    "aten.unique_dim.default",
    "aten.unique_consecutive.default",
)
def data_dependent(context: Context, *arguments: Any, **keywords: Any) -> Imported:
    """Leave to torch what allocates by the values of its operands."""
    return Decline("the size of the result depends on values")
