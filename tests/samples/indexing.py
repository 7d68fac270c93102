"""Samples of indexing, scattering and sorting."""

from __future__ import annotations

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
from lynx.ir.ops.windows import EmbeddingWindow, EmbeddingWindowBackward, GatherWindow
from lynx.ir.types import DType, TensorType

from . import Sample
from .linear import tensor


def index(*shape: int, dtype: DType = DType.I64) -> Value:
    return Value(TensorType(dtype, shape))


X, LONG, CUBE = tensor(5, 6), tensor(5, 6, dtype=DType.I64), tensor(4, 5, 6)

SAMPLES = [
    Sample(Embedding(tensor(10, 7), index(2, 3)), {1: (0, 10)}),
    Sample(Embedding(tensor(10, 7), index(dtype=DType.I32)), {1: (0, 10)}),
    Sample(Embedding(tensor(10, 7), index(0, 3)), {1: (0, 10)}),
    Sample(EmbeddingBackward(tensor(2, 3, 7), index(2, 3), 10), {1: (0, 10)}),
    Sample(EmbeddingWindow(tensor(10, 7), index(2, 3)), {1: (0, 10)}),
    Sample(EmbeddingWindow(tensor(5, 7), index(4, 3), 3), {1: (0, 12)}),
    Sample(EmbeddingWindowBackward(tensor(2, 3, 7), index(2, 3), 10), {1: (0, 10)}),
    Sample(EmbeddingWindowBackward(tensor(6, 7), index(6), 4, 5, 3), {1: (0, 12)}),
    Sample(GatherWindow(X, index(5, 3), 1), {1: (0, 6)}),
    Sample(GatherWindow(X, index(2, 6), 0, 2), {1: (0, 9)}),
    Sample(GatherWindow(LONG, index(5, 6), 0, 1), {1: (0, 9)}),
    Sample(EmbeddingBackward(tensor(5, 7), index(5), 4, 2, True), {1: (0, 4)}),
    Sample(Gather(X, index(5, 3), 1), {1: (0, 6)}),
    Sample(Gather(X, index(2, 6), 0), {1: (0, 5)}),
    Sample(Gather(X, index(2, 3), 1), {1: (0, 6)}),
    Sample(Gather(LONG, index(5, 6), 0), {1: (0, 5)}),
    Sample(Gather(tensor(), index(), 0), {1: (0, 1)}),
    Sample(IndexSelect(CUBE, index(3), 1), {1: (0, 5)}),
    Sample(IndexSelect(CUBE, index(), 2), {1: (0, 6)}),
    Sample(IndexSelect(tensor(), index(1), 0), {1: (0, 1)}),
    Sample(Index(CUBE, (index(3),)), {1: (0, 4)}),
    Sample(Index(CUBE, (None, index(3), index(2, 1))), {1: (0, 5), 2: (0, 6)}),
    Sample(Index(CUBE, (index(3), None, index(1))), {1: (-4, 4), 2: (0, 6)}),
    Sample(Index(CUBE, (None, index(2, 3))), {1: (0, 5)}),
    Sample(Index(CUBE, (index(), index(2), index(2))), {1: (0, 4), 2: (0, 5), 3: (0, 6)}),
    Sample(Take(X, index(2, 3)), {1: (0, 30)}),
    Sample(Scatter(X, index(5, 3), tensor(5, 3), 1), {1: (0, 6)}),
    Sample(Scatter(X, index(2, 6), tensor(3, 6), 0), {1: (0, 5)}),
    Sample(Scatter(X, index(4, 6), tensor(4, 7), 0), {1: (0, 5)}),
    Sample(Scatter(X, index(5, 3), 1.5, 1), {1: (0, 6)}),
    Sample(Scatter(X, index(5, 3), 0, 1), {1: (0, 6)}),
    Sample(ScatterAdd(X, index(5, 3), tensor(5, 3), 1), {1: (0, 6)}),
    Sample(ScatterAdd(LONG, index(5, 3), tensor(5, 4, dtype=DType.I64), 1), {1: (0, 6)}),
    *(
        Sample(ScatterReduce(X, index(5, 3), tensor(5, 3), 1, reduction, own), {1: (0, 6)})
        for reduction in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    Sample(ScatterReduce(LONG, index(5, 3), LONG, 1, "mean"), {1: (0, 6)}),
    Sample(IndexAdd(CUBE, index(3), tensor(4, 3, 6), 1, 0.5), {1: (0, 5)}),
    Sample(IndexAdd(LONG, index(3), tensor(3, 6, dtype=DType.I64), 0, 2.0), {1: (0, 5)}),
    Sample(IndexCopy(CUBE, index(3), tensor(4, 3, 6), 1), {1: (0, 5)}),
    Sample(IndexFill(CUBE, index(3), 2, 1), {1: (0, 5)}),
    Sample(IndexFill(CUBE, index(3), 0, 1), {1: (0, 5)}),
    Sample(IndexFill(CUBE, index(), tensor(), 1), {1: (0, 5)}),
    Sample(IndexFill(tensor(), index(1), 1.5, 0), {1: (0, 1)}),
    Sample(IndexPut(CUBE, (index(3),), tensor(3, 5, 6)), {1: (0, 4)}),
    Sample(IndexPut(CUBE, (index(3),), tensor(), True), {1: (0, 4)}),
    Sample(
        IndexPut(CUBE, (None, index(3), index(2, 1)), tensor(4, 1, 3), True),
        {1: (0, 5), 2: (0, 6)},
    ),
    Sample(IndexPut(CUBE, (index(3), None, index(1)), tensor(5), True), {1: (0, 4), 2: (0, 6)}),
    Sample(IndexPut(LONG, (index(4),), tensor(6, dtype=DType.I64), True), {1: (-5, 5)}),
    Sample(Put(X, index(2, 3), tensor(2, 3), True), {1: (0, 30)}),
    Sample(Sort(X, 1)),
    Sample(Sort(LONG, 0, True, True)),
    Sample(Sort(tensor(), 0)),
    Sample(TopK(X, 2, 1)),
    Sample(TopK(CUBE, 3, 1, False, True)),
    Sample(TopK(tensor(), 1, 0)),
    Sample(Median(X, 1)),
    Sample(Median(CUBE, 0, True, True)),
    Sample(Mode(LONG, 1, True)),
    Sample(KthValue(X, 0, False, 3)),
    Sample(KthValue(tensor(), 0, True, 1)),
    Sample(SearchSorted(tensor(4), tensor(3, 5))),
    Sample(SearchSorted(tensor(3, 4), tensor(3, 5), True, True)),
    Sample(Histogram(CUBE, 7, -1.0, 2.0)),
    Sample(Histogram(X, 3)),
    Sample(Gather(tensor(4, 5, 6), index(2, 5, 1), 0), {1: (0, 4)}),
    Sample(Gather(tensor(1, 6), index(1, 9), 1), {1: (0, 6)}),
    Sample(Index(CUBE, (None, index(2, 1), index(3))), {1: (0, 5), 2: (0, 6)}),
    Sample(Index(CUBE, (index(2, 1), None, index(2, 3))), {1: (0, 4), 2: (0, 6)}),
    Sample(Index(tensor(2, 4, 3, 6), (None, index(5), None, index(5))), {1: (0, 4), 2: (0, 6)}),
    Sample(Index(CUBE, (index(0),)), {1: (0, 4)}),
    Sample(IndexPut(CUBE, (None, None, index(4)), tensor(5, 1), True), {1: (0, 6)}),
    Sample(
        IndexPut(tensor(2, 4, 6), (index(), None, index(3)), tensor(3, 1), True),
        {1: (0, 2), 2: (0, 6)},
    ),
    Sample(ScatterAdd(tensor(1, 6), index(1, 4), tensor(2, 5), 1), {1: (0, 6)}),
    Sample(ScatterAdd(tensor(4, 1), index(9, 1), tensor(9, 1), 0), {1: (0, 4)}),
    *(
        Sample(ScatterReduce(CUBE, index(4, 2, 6), CUBE, 1, reduction, own), {1: (0, 5)})
        for reduction in ("mean", "prod")
        for own in (True, False)
    ),
    Sample(IndexAdd(tensor(4, 1), index(7), tensor(7, 1), 0, -1.0), {1: (0, 4)}),
    Sample(EmbeddingBackward(tensor(4, 3, 2), index(4, 3), 5, 0), {1: (0, 5)}),
    Sample(Sort(tensor(2, 1, 4), 1, True)),
    Sample(KthValue(CUBE, 1, True, 5)),
    Sample(SearchSorted(tensor(2, 3, 4), tensor(2, 3, 1), True)),
]
