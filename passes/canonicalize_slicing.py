"""Simplifications of ops that take parts of tensors and put parts together: no bit changes."""

from __future__ import annotations

import bisect

import sympy

from lynx.ir.core import Value
from lynx.ir.dims import Dim, is_equal, simplify
from lynx.ir.ops.layout import Unsqueeze
from lynx.ir.ops.layout_slicing import Concatenate, Pad, Select, Slice

from .rewrite import NoMatch, Rule, rule


@rule
def drop_whole_slice(op: Slice) -> Value | NoMatch:
    """Drop a slice that takes everything.

    slice(x, 0:size:1)  ==>  x
    """
    if op.start != 0 or op.step != 1 or not is_equal(op.stop, op.x.shape[op.dim]):
        return NoMatch(f"takes {op.start}:{op.stop}:{op.step} of {op.x.type}")
    return op.x


@rule
def merge_slices(op: Slice) -> Value | NoMatch:
    """Take a part of a part at once.

    slice(slice(x, a:b), c:d)  ==>  slice(x, a+c:a+d)
    """
    inner = op.x.defined_by(Slice)
    if inner is None or inner.dim != op.dim:
        return NoMatch("the operand is no slice of the same dimension")
    bounds = _composed(inner, op)
    if bounds is None:
        return NoMatch("steps over symbolic bounds")
    start, stop, step = bounds
    return Slice(inner.x, op.dim, start, stop, step, loc=op.loc).out


def _composed(inner: Slice, outer: Slice) -> tuple[Dim, Dim, Dim] | None:
    """Return start, stop and step of a slice of a slice."""
    if inner.step == 1 and outer.step == 1:
        start, stop = inner.start + outer.start, inner.start + outer.stop
        return simplify(sympy.sympify(start)), simplify(sympy.sympify(stop)), 1
    a, step, c, d, outer_step = inner.start, inner.step, outer.start, outer.stop, outer.step
    if not (isinstance(a, int) and isinstance(step, int) and isinstance(c, int)):
        return None
    if not (isinstance(d, int) and isinstance(outer_step, int)):
        return None
    count = -((c - d) // outer_step)
    if count == 0:
        return a, a, 1
    first, stride = a + c * step, step * outer_step
    return first, first + (count - 1) * stride + 1, stride


@rule
def select_of_slice(op: Select) -> Value | NoMatch:
    """Index into the whole instead of into a part.

    select(slice(x, a:b:s), i)  ==>  select(x, a + i * s)
    """
    inner = op.x.defined_by(Slice)
    if inner is None or inner.dim != op.dim:
        return NoMatch("the operand is no slice of the same dimension")
    index = simplify(sympy.sympify(inner.start + op.index * inner.step))
    return Select(inner.x, op.dim, index, loc=op.loc).out


@rule
def select_of_unsqueeze(op: Select) -> Value | NoMatch:
    """Do not insert a dimension whose only index is taken.

    select(unsqueeze(x, d), d, 0)  ==>  x
    """
    inner = op.x.defined_by(Unsqueeze)
    if inner is None or inner.dim != op.dim:
        return NoMatch("the operand is not unsqueezed in the same dimension")
    return inner.x


@rule
def concatenate_of_one(op: Concatenate) -> Value | NoMatch:
    """Drop a concatenation of one part.

    concatenate([x])  ==>  x
    """
    if len(op.parts) != 1:
        return NoMatch(f"there are {len(op.parts)} parts")
    return op.parts[0]


@rule
def slice_of_concatenate(op: Slice) -> Value | NoMatch:
    """Take a slice from the one part in which it lies.

    slice(concatenate([x, y]), a:b)  ==>  slice(y, a - len(x):b - len(x))
    """
    inner = op.x.defined_by(Concatenate)
    if inner is None or inner.dim != op.dim:
        return NoMatch("the operand is not concatenated along the same dimension")
    found = _part_of(inner, op.start, op.stop)
    if found is None:
        return NoMatch("it is not seen to lie within one part")
    part, start, stop = found
    return Slice(part, op.dim, start, stop, op.step, loc=op.loc).out


@rule
def select_of_concatenate(op: Select) -> Value | NoMatch:
    """Index into the part in which the index lies.

    select(concatenate([x, y]), i)  ==>  select(y, i - len(x))
    """
    inner = op.x.defined_by(Concatenate)
    if inner is None or inner.dim != op.dim:
        return NoMatch("the operand is not concatenated along the same dimension")
    found = _part_of(inner, op.index, op.index + 1)
    if found is None:
        return NoMatch("it is not seen in which part it lies")
    part, index, _ = found
    return Select(part, op.dim, index, loc=op.loc).out


def _part_of(whole: Concatenate, start: Dim, stop: Dim) -> tuple[Value, Dim, Dim] | None:
    """Return the part within which a range lies, and the range in that part."""
    ends = whole.static_ends
    if ends is not None and isinstance(start, int) and isinstance(stop, int):
        index = bisect.bisect_right(ends, start)
        if index == len(ends) or stop > ends[index]:
            return None
        begin = ends[index - 1] if index else 0
        return whole.parts[index], start - begin, stop - begin
    offset: Dim = 0
    for part in whole.parts:
        size = part.shape[whole.dim]
        first = simplify(sympy.sympify(start - offset))
        last = simplify(sympy.sympify(stop - offset))
        if is_equal(first, 0) and is_equal(last, size):
            return part, 0, size
        known = isinstance(first, int) and isinstance(last, int) and isinstance(size, int)
        if known and 0 <= first <= last <= size and first < size:
            return part, first, last
        offset = offset + size
    return None


@rule
def drop_empty_pad(op: Pad) -> Value | NoMatch:
    """Drop a padding by nothing.

    pad(x, [0, 0], [0, 0])  ==>  x
    """
    if any(amount != 0 for amount in (*op.low, *op.high)):
        return NoMatch("it adds or cuts elements")
    return op.x


SLICING_RULES: tuple[Rule, ...] = (
    drop_whole_slice,
    merge_slices,
    select_of_slice,
    select_of_unsqueeze,
    concatenate_of_one,
    slice_of_concatenate,
    select_of_concatenate,
    drop_empty_pad,
)
