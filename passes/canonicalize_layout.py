"""Simplifications of ops that rearrange a tensor: they move elements, so no bit changes."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.dims import contiguous_strides, is_equal
from lynx.ir.ops.factory import Full
from lynx.ir.ops.layout import (
    AsStrided,
    Bitcast,
    Broadcast,
    Permute,
    Reshape,
    Squeeze,
    Unsqueeze,
)
from lynx.ir.ops.layout_slicing import Select, Slice

from .rewrite import NoMatch, Rule, rule


@rule
def drop_identity_layout(
    op: Reshape | Broadcast | Permute | Squeeze | Bitcast,
) -> Value | NoMatch:
    """Drop a rearrangement that changes nothing.

    reshape(x, shape of x)  ==>  x
    """
    if isinstance(op, Permute) and op.dims != tuple(range(len(op.dims))):
        return NoMatch("dimensions change their places")
    if op.out.type != op.x.type:
        return NoMatch(f"the type changes from {op.x.type} to {op.out.type}")
    return op.x


@rule
def merge_reshapes(op: Reshape | Squeeze | Unsqueeze) -> Value | NoMatch:
    """Keep only the last of several shapes.

    reshape(reshape(x, a), b)  ==>  reshape(x, b)
    """
    inner = op.x.op
    if not isinstance(inner, Reshape) and not (
        isinstance(op, Reshape) and isinstance(inner, Squeeze | Unsqueeze)
    ):
        return NoMatch("the operand is not reshaped")
    assert isinstance(inner, Reshape | Squeeze | Unsqueeze), inner
    return Reshape(inner.x, op.out.shape, loc=op.loc).out


@rule
def squeeze_of_unsqueeze(op: Squeeze) -> Value | NoMatch:
    """Do not insert a dimension that is removed again.

    squeeze(unsqueeze(x, d), [d, ...])  ==>  squeeze(x, [...])
    """
    inner = op.x.defined_by(Unsqueeze)
    if inner is None:
        return NoMatch("the operand is not unsqueezed")
    if inner.dim not in op.dims:
        return NoMatch(f"dimension {inner.dim} was inserted, others are removed")
    rest = tuple(dim - (dim > inner.dim) for dim in op.dims if dim != inner.dim)
    return Squeeze(inner.x, rest, loc=op.loc).out


@rule
def unsqueeze_of_squeeze(op: Unsqueeze) -> Value | NoMatch:
    """Do not remove a dimension that is inserted again.

    unsqueeze(squeeze(x, [d]), d)  ==>  x
    """
    inner = op.x.defined_by(Squeeze)
    if inner is None:
        return NoMatch("the operand is not squeezed")
    if inner.x.type != op.out.type or inner.dims != (op.dim,):
        return NoMatch("another dimension was removed")
    return inner.x


@rule
def merge_permutes(op: Permute) -> Value | NoMatch:
    """Make two permutations in a row one.

    permute(permute(x, p), q)  ==>  permute(x, [p[i] for i in q])
    """
    inner = op.x.defined_by(Permute)
    if inner is None:
        return NoMatch("the operand is not permuted")
    return Permute(inner.x, tuple(inner.dims[dim] for dim in op.dims), loc=op.loc).out


@rule
def permute_of_unsqueeze(op: Permute) -> Value | NoMatch:
    """Insert a dimension where it is then moved to.

    permute(unsqueeze(x, d), p)  ==>  unsqueeze(x, p.index(d))
    """
    inner = op.x.defined_by(Unsqueeze)
    if inner is None:
        return NoMatch("the operand is not unsqueezed")
    others = [dim for dim in op.dims if dim != inner.dim]
    if others != sorted(others):
        return NoMatch("other dimensions change their order too")
    return Unsqueeze(inner.x, op.dims.index(inner.dim), loc=op.loc).out


@rule
def merge_broadcasts(op: Broadcast) -> Value | NoMatch:
    """Keep only the last of several broadcast shapes.

    broadcast(broadcast(x, a), b)  ==>  broadcast(x, b)
    """
    inner = op.x.defined_by(Broadcast)
    if inner is None:
        return NoMatch("the operand is not broadcast")
    return Broadcast(inner.x, op.shape, loc=op.loc).out


@rule
def broadcast_of_leading_unsqueeze(op: Broadcast) -> Value | NoMatch:
    """Leave it to broadcasting to add leading dimensions.

    broadcast(unsqueeze(x, 0), shape)  ==>  broadcast(x, shape)
    """
    inner = op.x.defined_by(Unsqueeze)
    if inner is None:
        return NoMatch("the operand is not unsqueezed")
    if inner.dim != 0:
        return NoMatch("the inserted dimension is not the first")
    return Broadcast(inner.x, op.shape, loc=op.loc).out


@rule
def merge_bitcasts(op: Bitcast) -> Value | NoMatch:
    """Keep only the last of several readings of the same bytes.

    bitcast(bitcast(x, a), b)  ==>  bitcast(x, b)
    """
    inner = op.x.defined_by(Bitcast)
    if inner is None:
        return NoMatch("the operand is not read as another type")
    return Bitcast(inner.x, op.dtype, loc=op.loc).out


@rule
def as_strided_is_reshape(op: AsStrided) -> Value | NoMatch:
    """Reshape instead of reading all elements in their order.

    as_strided(x, size, row-major strides of size, 0)  ==>  reshape(x, size)
    """
    if op.offset != 0:
        return NoMatch("it does not start at the first element")
    if not is_equal(op.x.tensor_type.numel, op.out.tensor_type.numel):
        return NoMatch("the number of elements may change")
    wanted = contiguous_strides(op.size)
    for size, stride, expected in zip(op.size, op.stride, wanted, strict=True):
        if size != 1 and not is_equal(stride, expected):
            return NoMatch(f"the stride is {stride} and not {expected}")
    return Reshape(op.x, op.size, loc=op.loc).out


@rule
def layout_of_full(
    op: Reshape | Broadcast | Permute | Squeeze | Unsqueeze | Slice | Select,
) -> Value | NoMatch:
    """Give a constant its shape at once.

    permute(full(value, shape))  ==>  full(value, new shape)
    """
    inner = op.x.defined_by(Full)
    if inner is None:
        return NoMatch("the operand is no constant")
    type_ = op.out.tensor_type
    if type_.sharding is not None:
        return NoMatch("the constant is distributed")
    return Full(inner.value, type_.shape, type_.dtype, type_.device, loc=op.loc).out


LAYOUT_RULES: tuple[Rule, ...] = (
    drop_identity_layout,
    merge_reshapes,
    squeeze_of_unsqueeze,
    unsqueeze_of_squeeze,
    merge_permutes,
    permute_of_unsqueeze,
    merge_broadcasts,
    broadcast_of_leading_unsqueeze,
    merge_bitcasts,
    as_strided_is_reshape,
    layout_of_full,
)
