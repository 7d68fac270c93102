"""Simplifications of ops that replace parts of tensors, and of reads of those: no bit changes."""

from __future__ import annotations

from typing import TypeAlias

from lynx.ir.core import Value
from lynx.ir.dims import Dim, is_equal
from lynx.ir.ops.layout_slicing import Select, Slice, SliceScatter

from .rewrite import NoMatch, Rule, rule

_Part: TypeAlias = tuple[int, Dim, Dim, Dim]


def _is_same(a: _Part, b: _Part) -> bool:
    return all(is_equal(x, y) for x, y in zip(a, b, strict=True))


def _part(op: Slice | SliceScatter) -> _Part:
    return op.dim, op.start, op.stop, op.step


@rule
def slice_of_replaced(op: Slice) -> Value | NoMatch:
    """Read a part from what it was replaced by.

    slice(slice_scatter(x, y, a:b), a:b)  ==>  y
    """
    inner = op.x.defined_by(SliceScatter)
    if inner is None or not _is_same(_part(op), _part(inner)):
        return NoMatch("the operand is no tensor of which this very part was replaced")
    return inner.source


@rule
def select_of_replaced(op: Select) -> Value | NoMatch:
    """Read an index from what it was replaced by.

    select(slice_scatter(x, y, i:i+1), i)  ==>  select(y, 0)
    """
    inner = op.x.defined_by(SliceScatter)
    if inner is None or not _is_same((op.dim, op.index, op.index + 1, 1), _part(inner)):
        return NoMatch("the operand is no tensor of which this very index was replaced")
    return Select(inner.source, op.dim, 0, loc=op.loc).out


@rule
def replace_once(op: SliceScatter) -> Value | NoMatch:
    """Do not write what is written over.

    slice_scatter(slice_scatter(x, y, a:b), z, a:b)  ==>  slice_scatter(x, z, a:b)
    """
    inner = op.x.defined_by(SliceScatter)
    if inner is None or not _is_same(_part(op), _part(inner)):
        return NoMatch("the operand is no tensor of which this very part was replaced")
    return SliceScatter(inner.x, op.source, *_part(op), loc=op.loc).out


@rule
def drop_replacement_by_itself(op: SliceScatter) -> Value | NoMatch:
    """Do not put a part where it is.

    slice_scatter(x, slice(x, a:b), a:b)  ==>  x
    """
    part = op.source.defined_by(Slice)
    if part is None or part.x is not op.x or not _is_same(_part(op), _part(part)):
        return NoMatch("the source is not this very part")
    return op.x


SCATTER_RULES: tuple[Rule, ...] = (
    slice_of_replaced,
    select_of_replaced,
    replace_once,
    drop_replacement_by_itself,
)
