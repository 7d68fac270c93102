"""Simplifications of look-ups in order: what counts up by itself need not be read as an index."""

from __future__ import annotations

from lynx.ir.core import Op, Value
from lynx.ir.dims import is_equal
from lynx.ir.ops.elementwise_arithmetic import Add, Cast
from lynx.ir.ops.factory import Iota
from lynx.ir.ops.indexing import Embedding, EmbeddingBackward, IndexSelect
from lynx.ir.ops.layout import Broadcast, Reshape, Squeeze, Unsqueeze
from lynx.ir.ops.layout_slicing import Pad, Slice

from .rewrite import NoMatch, Rule, rule


def _range_of(index: Value) -> tuple[int, int, int] | NoMatch:
    """Return start and stop of an index that counts up by 1, and the dimension along which.

    Along other dimensions, if it has any of more than one element, it is repeated.
    """
    repeated = index.defined_by(Broadcast)
    once = index if repeated is None else repeated.x
    op: Op | None = once.op
    while isinstance(op, Cast | Reshape | Squeeze | Unsqueeze):
        op = op.x.op
    if not isinstance(op, Iota):
        return NoMatch("the index does not count")
    start, length = op.start, op.length
    if not (isinstance(start, int) and isinstance(length, int) and op.step == 1):
        return NoMatch(f"the index counts from {start} in steps of {op.step}")
    if not op.dtype.is_integer or start < 0:
        return NoMatch("the index is not one of known places")
    along = [n for n, size in enumerate(once.shape) if not is_equal(size, 1)]
    if len(along) != 1 or not is_equal(once.shape[along[0]], length):
        return NoMatch("it cannot be told along which dimension the index counts")
    return start, start + length, along[0] + len(index.shape) - len(once.shape)


@rule
def look_up_in_order(op: Embedding | IndexSelect) -> Value | NoMatch:
    """Take neighbouring rows at once.

    embedding(weight, iota(a, n))  ==>  slice(weight, a:a+n)
    """
    table, index, dim = (
        (op.weight, op.indices, 0) if isinstance(op, Embedding) else (op.x, op.index, op.dim)
    )
    if not table.shape or not index.shape:
        return NoMatch("a single number is read")
    found = _range_of(index)
    if isinstance(found, NoMatch):
        return found
    start, stop, along = found
    dim %= len(table.shape)
    size = table.shape[dim]
    if not (isinstance(size, int) and stop <= size):
        return NoMatch(f"places up to {stop} may not be among {size}")
    rows = Slice(table, dim, start, stop, loc=op.loc).out
    if isinstance(op, IndexSelect):
        return rows
    inner = [1] * len(index.shape)
    inner[along] = stop - start
    shaped = Reshape(rows, (*inner, table.shape[1]), loc=op.loc).out
    return Broadcast(shaped, op.out.shape, loc=op.loc).out


@rule
def add_up_in_order(op: EmbeddingBackward) -> Value | NoMatch:
    """Put neighbouring rows where they belong; 0 is added, since eager adds to 0.

    embedding_backward(grad, iota(a, n))  ==>  pad(grad + 0, a, rows - a - n)
    """
    found = _range_of(op.indices)
    if isinstance(found, NoMatch):
        return found
    start, stop, along = found
    if not all(is_equal(n, 1) for k, n in enumerate(op.indices.shape) if k != along):
        return NoMatch("rows are looked up several times")
    if not (isinstance(op.rows, int) and stop <= op.rows) or start <= op.padding < stop:
        return NoMatch(f"not all of {start}:{stop} are rows that get a gradient")
    rows = Reshape(op.grad, (stop - start, op.grad.shape[-1]), loc=op.loc).out
    zero = 0.0 if op.grad.tensor_type.dtype.is_floating else 0
    total = Add(rows, zero, loc=op.loc).out
    return Pad(total, zero, (start, 0), (op.rows - stop, 0), loc=op.loc).out


INDEXING_RULES: tuple[Rule, ...] = (look_up_in_order, add_up_in_order)
