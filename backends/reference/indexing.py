"""What indexing, scattering and sorting mean."""

from __future__ import annotations

import torch

from lynx.ir.call import Call
from lynx.ir.core import Value
from lynx.ir.ops.indexing import Embedding, EmbeddingBackward, Gather, Index, IndexSelect, Take
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

from .elementwise import exact
from .registry import aten, means
from .strides import copying


@means(Embedding)
def embedding(op: Embedding) -> Call:
    """Look up rows; into given memory by `index_select`, which is what torch's CPU kernel does."""
    function = torch.ops.aten.embedding.default
    return Call(function, (op.weight, op.indices), {}, out=_embedding_into)


def _embedding_into(
    weight: torch.Tensor, indices: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    if not out.is_contiguous():
        return out.copy_(torch.ops.aten.embedding.default(weight, indices))
    rows = out.view(indices.numel(), weight.shape[1])
    torch.ops.aten.index_select.out(weight, 0, indices.reshape(-1), out=rows)
    return out


@means(EmbeddingBackward)
def embedding_backward(op: EmbeddingBackward) -> Call:
    """Call the dense form."""
    return aten(
        "embedding_dense_backward", op.grad, op.indices, op.rows, op.padding, op.by_frequency
    )


@means(Gather)
def gather(op: Gather) -> Call:
    """Call the operator of the same name."""
    return aten("gather", op.x, op.dim, op.index)


@means(IndexSelect)
def index_select(op: IndexSelect) -> Call:
    """Call the operator of the same name."""
    return aten("index_select", op.x, op.dim, op.index)


@means(Index)
def index(op: Index) -> Call:
    """Call the operator of the same name."""
    return aten("index", op.x, op.indices, overload="Tensor")


@means(Take)
def take(op: Take) -> Call:
    """Call the operator of the same name."""
    return aten("take", op.x, op.index)


@means(Scatter)
def scatter(op: Scatter) -> Call:
    """Call the overload for a tensor or for a number."""
    overload = "src" if isinstance(op.src, Value) else "value"
    return aten("scatter", op.x, op.dim, op.index, op.src, overload=overload)


@means(ScatterAdd)
def scatter_add(op: ScatterAdd) -> Call:
    """Call the operator of the same name."""
    return aten("scatter_add", op.x, op.dim, op.index, op.src)


@means(ScatterReduce)
def scatter_reduce(op: ScatterReduce) -> Call:
    """Call the operator of the same name."""
    return aten(
        "scatter_reduce",
        op.x,
        op.dim,
        op.index,
        op.src,
        op.reduction,
        overload="two",
        include_self=op.include_self,
    )


@means(IndexAdd)
def index_add(op: IndexAdd) -> Call:
    """Call the operator of the same name."""
    alpha = exact(op.alpha, op.x.tensor_type.dtype)
    return aten("index_add", op.x, op.dim, op.index, op.source, alpha=alpha)


@means(IndexCopy)
def index_copy(op: IndexCopy) -> Call:
    """Call the operator of the same name."""
    return aten("index_copy", op.x, op.dim, op.index, op.source)


@means(IndexFill)
def index_fill(op: IndexFill) -> Call:
    """Call the overload for a tensor or for a number."""
    overload = "int_Tensor" if isinstance(op.value, Value) else "int_Scalar"
    call = aten("index_fill", op.x, op.dim, op.index, op.value, overload=overload)
    return copying(call, getattr(torch.ops.aten.index_fill_, overload))


@means(IndexPut)
def index_put(op: IndexPut) -> Call:
    """Call the operator of the same name."""
    call = aten("index_put", op.x, op.indices, op.values, op.accumulate)
    return copying(call, torch.ops.aten.index_put_.default)


@means(Put)
def put(op: Put) -> Call:
    """Call the operator of the same name."""
    call = aten("put", op.x, op.index, op.source, op.accumulate)
    return copying(call, torch.ops.aten.put_.default)


@means(Sort)
def sort(op: Sort) -> Call:
    """Call the operator of the same name."""
    if not op.stable:
        return aten("sort", op.x, op.dim, op.descending)
    return aten("sort", op.x, overload="stable", stable=True, dim=op.dim, descending=op.descending)


@means(TopK)
def topk(op: TopK) -> Call:
    """Call the operator of the same name."""
    return aten("topk", op.x, op.k, op.dim, op.largest, op.ordered)


@means(Median)
def median(op: Median) -> Call:
    """Call the operator that looks at NaN or the one that does not."""
    name = "nanmedian" if op.ignores_nan else "median"
    return aten(name, op.x, op.dim, op.keepdim, overload="dim")


@means(Mode)
def mode(op: Mode) -> Call:
    """Call the operator of the same name."""
    return aten("mode", op.x, op.dim, op.keepdim)


@means(KthValue)
def kth_value(op: KthValue) -> Call:
    """Call the operator of the same name."""
    return aten("kthvalue", op.x, op.k, op.dim, op.keepdim)


@means(SearchSorted)
def search_sorted(op: SearchSorted) -> Call:
    """Call the operator of the same name."""
    return aten(
        "searchsorted",
        op.rows,
        op.values,
        overload="Tensor",
        out_int32=op.narrow,
        right=op.right,
    )


@means(Histogram)
def histogram(op: Histogram) -> Call:
    """Call the operator for one dimension."""
    return aten("histc", op.x, op.bins, op.low, op.high)
