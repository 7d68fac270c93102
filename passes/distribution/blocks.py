"""Take blocks of a dimension apart, and put them together, along a dimension of their own.

Queries, keys and values of one projection are three blocks of a dimension. Where a mesh axis cuts
each of them, taking one of them apart needs no communication: the blocks are counted by a factor
that nothing cuts.
"""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.dims import is_static
from lynx.ir.ops.layout import Reshape, Squeeze, Unsqueeze
from lynx.ir.ops.layout_slicing import Concatenate, Slice
from lynx.passes.rewrite import NoMatch, rule


@rule
def slice_whole_block(op: Slice) -> Value | NoMatch:
    """Count equal blocks by a dimension of their own, and take one of them.

    slice(x[3 * n], n, 2 * n)  ==>  squeeze(slice(reshape(x, [3, n]), 1, 2))
    """
    shape, dim = op.x.shape, op.dim
    size, start, stop = shape[dim], op.start, op.stop
    if not (
        isinstance(size, int)
        and isinstance(start, int)
        and isinstance(stop, int)
        and is_static((op.step,))
    ):
        return NoMatch("the bounds are symbolic")
    length = stop - start
    if op.step != 1 or length < 2 or length == size or size % length or start % length:
        return NoMatch("it takes no whole block of several")
    apart = Reshape(op.x, (*shape[:dim], size // length, length, *shape[dim + 1 :])).out
    number = start // length
    return Squeeze(Slice(apart, dim, number, number + 1).out, (dim,)).out


@rule
def join_equal_blocks(op: Concatenate) -> Value | NoMatch:
    """Count equal parts by a dimension of their own, and merge it with theirs.

    concatenate(x[n], y[n], z[n])  ==>  reshape(concatenate([1, n], ...), [3 * n])
    """
    sizes = {part.shape[op.dim] for part in op.parts}
    size = next(iter(sizes))
    if len(sizes) > 1 or not isinstance(size, int) or size < 2 or len(op.parts) < 2:
        return NoMatch("its parts are not blocks of one size")
    parts = tuple(Unsqueeze(part, op.dim).out for part in op.parts)
    return Reshape(Concatenate(parts, op.dim).out, op.out.shape).out
