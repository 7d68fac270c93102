"""Look-ups in windows of tables, as look-ups of what lies inside and zeros elsewhere."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.dims import Dim
from lynx.ir.ops.indexing import Embedding, EmbeddingBackward, Gather
from lynx.ir.ops.windows import EmbeddingWindow, EmbeddingWindowBackward, GatherWindow
from lynx.ir.types import DType

from .decompose_build import Number, choose
from .rewrite import NoMatch, Rule, rule


def _inside(indices: Value, start: Dim, size: Dim) -> tuple[Number, Number] | None:
    """Return which indices are inside of a window, and places that are safe to read for all."""
    if not isinstance(start, int) or not isinstance(size, int) or size == 0:
        return None
    place = Number(Number(indices).to(DType.I64)) - start
    inside = (place >= 0) & (place < size)
    return inside, choose(inside, place, 0)


_UNKNOWN = NoMatch("the window has no known size, or none at all")


@rule
def expand_embedding_window(op: EmbeddingWindow) -> Value | NoMatch:
    """Look up what is inside, and choose zero elsewhere.

    embedding_window(w, i)  ==>  where(inside(i), w[i - start], 0)
    """
    found = _inside(op.indices, op.start, op.weight.shape[0])
    if found is None:
        return _UNKNOWN
    inside, place = found
    rows = Embedding(op.weight, place.value).out
    return choose(inside.unsqueezed(len(op.indices.shape)), Number(rows), 0.0).value


@rule
def expand_embedding_window_backward(op: EmbeddingWindowBackward) -> Value | NoMatch:
    """Add the gradients of what is inside; those of all others are zero.

    embedding_window_backward(g, i)  ==>  embedding_backward(where(inside(i), g, 0), i - start)
    """
    found = _inside(op.indices, op.start, op.rows)
    if found is None:
        return _UNKNOWN
    inside, place = found
    if op.padding >= 0:
        inside = inside & Number(op.indices).differs(op.padding)
    kept = choose(inside.unsqueezed(len(op.indices.shape)), Number(op.grad), 0.0)
    return EmbeddingBackward(kept.value, place.value, op.rows).out


@rule
def expand_gather_window(op: GatherWindow) -> Value | NoMatch:
    """Read what is inside, and choose zero elsewhere.

    gather_window(x, i)  ==>  where(inside(i), gather(x, i - start), 0)
    """
    found = _inside(op.index, op.start, op.x.shape[op.dim] if op.x.shape else 1)
    if found is None:
        return _UNKNOWN
    inside, place = found
    read = Gather(op.x, place.value, op.dim).out
    dtype = op.x.tensor_type.dtype
    zero = 0.0 if dtype.is_floating else False if dtype is DType.BOOL else 0
    return choose(inside, Number(read), zero).value


WINDOW_RULES: tuple[Rule, ...] = (
    expand_embedding_window,
    expand_embedding_window_backward,
    expand_gather_window,
)
