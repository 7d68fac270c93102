"""Which operands an op may write its results over."""

from __future__ import annotations

from typing import TypeAlias

from .core import Op, Value
from .dims import Dim, is_equal, product
from .ops.fusion import Fused, Region
from .ops.layout import quotient
from .ops.layout_slicing import SliceScatter
from .ops.reduction import Reduction
from .ops.schedule import Wait
from .space import Axis, FactorKind, IterationSpace
from .writing import carried_by, is_write, reads_part_of, written_into

Part: TypeAlias = tuple[int, Dim, Dim]
"""A part of a dimension of the operand: the dimension, how many elements it steps by, its size."""

Parts: TypeAlias = tuple[Part, ...]


def can_overwrite(op: Op, result: Value, operand: Value, *, alone: bool = False) -> bool:
    """Whether a result may be written over an operand of its type and layout.

    An elementwise op reads each element right before it writes it. A fused op may be run in several
    sweeps over its data. All that it reads of the operand, for whichever result, must lie at the
    place that is written by then, and be complete: read in the sweep that writes, or by reductions
    on which the result depends. An op that writes parts of the operand may not read other parts. If
    the result is `alone`, that is no other result is written over an operand, the sweep that writes
    it can be the last, and so all reads are complete. What a wait returns arrives in the memory
    of what was in flight.
    """
    if isinstance(op, Wait):
        return op.pending[op.results.index(result)] is operand
    if not isinstance(op, Fused):
        return op.is_elementwise and len(op.results) == 1
    if operand.type != result.type or op.inputs.count(operand) != 1:
        return False
    body = op.body
    parameter = body.parameters[op.inputs.index(operand)]
    inner = body.results[op.results.index(result)]
    if inner.op is not None and is_write(inner.op):
        return _writes_parts_of(body, inner, parameter)
    return _Reads(body, parameter).allow(inner, alone)


def _writes_parts_of(region: Region, result: Value, parameter: Value) -> bool:
    """Whether an op writes parts of a parameter of which it reads, if anything, the same before.

    That can be told of slices: what is written must depend on the old part element by element.
    """
    op = result.op
    assert op is not None, result
    readers: dict[Value, list[Op]] = {}
    for other in region.ops:
        for operand in dict.fromkeys(other.operands):
            readers.setdefault(operand, []).append(other)
    done: set[Op] = set()
    while written_into(op) is parameter and op.operands.count(parameter) == 1:
        others = [other for other in readers[parameter] if other is not op]
        found = carried_by(op)
        if parameter in region.results or len(others) > 1:
            return False
        if op is not result.op and op.results[0] in region.results:
            return False
        if found is None or not is_write(found.inner):
            rest = tuple(other for other in region.ops if other not in done and other is not op)
            kept = tuple(other for other in region.results if other is not result)
            return not others or _reads_part(Region((), rest, kept), op, others[0])
        # The part that is written into is a view of the parameter, and all that is read of it.
        for view in found.above:
            if others != [view] or parameter in region.results:
                return False
            parameter = view.results[0]
            others = readers[parameter] if view is not found.above[-1] else []
        done.update((op, *found.below))
        op = found.inner
    return False


def _reads_part(region: Region, op: Op, reader: Op) -> bool:
    """Whether an op reads the part that another one replaces, element by element for what it does.

    The part may be one index of a dimension, which is then missing from what is read.
    """
    if not isinstance(op, SliceScatter) or not reads_part_of(op, reader):
        return False
    return _Reads(region, reader.results[0]).allow(op.source, alone=False)


class _Reads:
    """How the ops of a region read one of its parameters.

    `parts` tells along which parts of the parameter's dimensions each dimension of a value runs,
    for the values that depend on it.
    """

    def __init__(self, region: Region, parameter: Value) -> None:
        self.region = region
        self.parameter = parameter
        self.identity = tuple(_whole(dim, size) for dim, size in enumerate(parameter.shape))
        self.numel = product(size for size in parameter.shape if size != 1)
        self.parts: dict[Value, tuple[Parts, ...]] = {parameter: self.identity}
        self.readers: list[Op] = []
        self.are_aligned = all(self._follow(op) for op in region.ops)

    def allow(self, result: Value, alone: bool) -> bool:
        """Whether this result of the region may take the place of the parameter."""
        if not self.are_aligned or result is self.parameter:
            return False
        if not _is_same(self.parts.get(result), self.identity):
            return False
        before = self._ancestors((result,))
        if alone or all(reader in before for reader in self.readers):
            return True
        # Several results of one sweep: nothing may force a second one.
        derived = tuple(value for value in self.region.results if value in self.parts)
        return not any(isinstance(op, Reduction) for op in self._ancestors(derived))

    def _ancestors(self, values: tuple[Value, ...]) -> set[Op]:
        needed = set(values)
        found = set()
        for op in reversed(self.region.ops):
            if not needed.isdisjoint(op.results):
                found.add(op)
                needed.update(op.operands)
        return found

    def _follow(self, op: Op) -> bool:
        """Work out along what the results of an op run; say whether its reads are aligned."""
        positions = [i for i, operand in enumerate(op.operands) if operand in self.parts]
        if not positions:
            return True
        space = op.space()
        if space is None:
            return False
        factors: dict[str, Parts] = {}
        for position in positions:
            known = self.parts[op.operands[position]]
            if not _collect(op, space, space.operands[position], known, factors):
                return False
        reads_whole = any(self._is_whole(op.operands[position]) for position in positions)
        if reads_whole:
            self.readers.append(op)
        kept: set[str] = set()
        for result, dims in zip(op.results, space.results, strict=True):
            if not all(isinstance(dim, tuple) for dim in dims):
                return False
            self.parts[result] = tuple(_joined(dim, factors) for dim in dims)
            kept.update(name for dim in dims if isinstance(dim, tuple) for name in dim)
            if reads_whole and not _adds_nothing(dims, space, factors):
                return False
        running = {name for name, parts in factors.items() if parts}
        return isinstance(op, Reduction) or running <= kept

    def _is_whole(self, value: Value) -> bool:
        """Whether a value still has all elements of the parameter, so that reductions are left."""
        sizes = [size for parts in self.parts.get(value, ()) for _, _, size in parts]
        return is_equal(product(sizes), self.numel)


def _is_same(parts: tuple[Parts, ...] | None, others: tuple[Parts, ...]) -> bool:
    """Whether dimensions run alike, those of size 1 aside."""
    return parts is not None and [*filter(None, parts)] == [*filter(None, others)]


def _whole(dim: int, size: Dim) -> Parts:
    return () if size == 1 else ((dim, 1, size),)


def _collect(
    op: Op,
    space: IterationSpace,
    dims: tuple[Axis, ...],
    known: tuple[Parts, ...],
    factors: dict[str, Parts],
) -> bool:
    """Note along what each factor runs; False if the op reads in another order."""
    for dim, parts in zip(dims, known, strict=True):
        if not parts:
            continue
        if not isinstance(dim, tuple) or not dim:
            return False
        found = _split(parts, [space.factor(name).size for name in dim])
        if found is None:
            return False
        for name, piece in zip(dim, found, strict=True):
            is_parallel = space.factor(name).kind is FactorKind.PARALLEL
            if not (is_parallel or isinstance(op, Reduction)):
                return False
            if factors.setdefault(name, piece) != piece:
                return False
    return True


def _split(parts: Parts, sizes: list[Dim]) -> list[Parts] | None:
    """Cut parts into pieces of these sizes, the outermost first; None if they do not fit."""
    left = list(parts)
    pieces: list[Parts] = []
    for size in reversed(sizes):
        piece: list[Part] = []
        wanted: Dim = size
        while wanted != 1 and left:
            dim, step, extent = left.pop()
            rest = quotient(wanted, extent)
            if rest is not None:
                piece.insert(0, (dim, step, extent))
                wanted = rest
                continue
            outer = quotient(extent, wanted)
            if outer is None:
                return None
            piece.insert(0, (dim, step, wanted))
            left.append((dim, product((step, wanted)), outer))
            wanted = 1
        if wanted != 1:
            return None
        pieces.insert(0, tuple(piece))
    return None if left else pieces


def _joined(dim: Axis, factors: dict[str, Parts]) -> Parts:
    """Return along what a dimension runs, with neighbouring parts of one dimension as one."""
    joined: list[Part] = []
    for name in dim if isinstance(dim, tuple) else ():
        for inner in factors.get(name, ()):
            outer = joined[-1] if joined else None
            if (
                outer is not None
                and outer[0] == inner[0]
                and is_equal(outer[1], product(inner[1:]))
            ):
                joined[-1] = (inner[0], inner[1], product((outer[2], inner[2])))
            else:
                joined.append(inner)
    return tuple(joined)


def _adds_nothing(dims: tuple[Axis, ...], space: IterationSpace, factors: dict[str, Parts]) -> bool:
    """Whether a result has no dimension along which the operand would be read again and again."""
    names = (name for dim in dims if isinstance(dim, tuple) for name in dim)
    return all(factors.get(name) or space.factor(name).size == 1 for name in names)
