"""Which operands an op may write its results over."""

from __future__ import annotations

from .core import Op, Value
from .ops.fusion import Fused, Region
from .ops.reduction import Reduction
from .space import Axis, FactorKind, IterationSpace

Axes = tuple[int | None, ...]
"""For each dimension of a value, the dimension of the overwritten operand that it runs along."""


def can_overwrite(op: Op, result: Value, operand: Value) -> bool:
    """Whether a result may be written over an operand of its type and layout.

    An elementwise op reads each element right before it writes it. A fused op may be run in several
    sweeps over its data. All that a sweep reads of the operand, for whichever result, must lie at
    the place that is written next, or be read by reductions on which the overwriting result
    depends: those are complete by then.
    """
    if isinstance(op, Fused):
        if operand.type != result.type or op.inputs.count(operand) != 1:
            return False
        body = op.body
        return _Reads(body, body.parameters[op.inputs.index(operand)]).allow(
            body.results[op.results.index(result)]
        )
    return op.is_elementwise and len(op.results) == 1


class _Reads:
    """How the ops of a region read one of its parameters."""

    def __init__(self, region: Region, parameter: Value) -> None:
        self.region = region
        self.parameter = parameter
        whole = tuple(i if size != 1 else None for i, size in enumerate(parameter.shape))
        self.identity = whole
        self.all_axes = {axis for axis in whole if axis is not None}
        self.axes: dict[Value, Axes] = {parameter: whole}
        self.readers: list[Op] = []
        self.are_aligned = all(self._follow(op) for op in region.ops)

    def allow(self, result: Value) -> bool:
        """Whether this result of the region may take the place of the parameter."""
        if not self.are_aligned or result is self.parameter:
            return False
        if self.axes.get(result) != self.identity:
            return False
        before = self._ancestors((result,))
        if all(reader in before for reader in self.readers):
            return True
        # Several results of one sweep: nothing may force a second one.
        derived = tuple(value for value in self.region.results if value in self.axes)
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
        """Work out along which axes the results of an op run; say whether its reads are aligned."""
        positions = [i for i, operand in enumerate(op.operands) if operand in self.axes]
        if not positions:
            return True
        space = op.space()
        if space is None:
            return False
        axis_of: dict[str, int] = {}
        for position in positions:
            known = self.axes[op.operands[position]]
            if not _collect(op, space, space.operands[position], known, axis_of):
                return False
        reads_whole = any(self._is_whole(op.operands[position]) for position in positions)
        if reads_whole:
            self.readers.append(op)
        kept = set()
        for result, dims in zip(op.results, space.results, strict=True):
            self.axes[result] = tuple(_axis_of(dim, axis_of) for dim in dims)
            kept.update(self.axes[result])
            if reads_whole and not _adds_no_axis(result, self.axes[result]):
                return False
            if not _is_simple(dims, axis_of):
                return False
        return isinstance(op, Reduction) or kept.issuperset(axis_of.values())

    def _is_whole(self, value: Value) -> bool:
        return self.all_axes.issubset(self.axes.get(value, ()))


def _collect(
    op: Op, space: IterationSpace, dims: tuple[Axis, ...], known: Axes, axis_of: dict[str, int]
) -> bool:
    """Note which factor runs along which axis; False if the op reads in another order."""
    for dim, axis in zip(dims, known, strict=True):
        if axis is None:
            continue
        if not isinstance(dim, tuple) or len(dim) != 1:
            return False
        is_parallel = space.factor(dim[0]).kind is FactorKind.PARALLEL
        if not (is_parallel or isinstance(op, Reduction)):
            return False
        if axis_of.setdefault(dim[0], axis) != axis:
            return False
    return True


def _axis_of(dim: Axis, axis_of: dict[str, int]) -> int | None:
    return axis_of.get(dim[0]) if isinstance(dim, tuple) and len(dim) == 1 else None


def _is_simple(dims: tuple[Axis, ...], axis_of: dict[str, int]) -> bool:
    """Whether no dimension of a result mixes an axis with something else."""
    return all(
        isinstance(dim, tuple) and (len(dim) == 1 or axis_of.keys().isdisjoint(dim)) for dim in dims
    )


def _adds_no_axis(result: Value, axes: Axes) -> bool:
    """Whether a result has no dimension along which the operand would be read again and again."""
    return all(axis is not None or size == 1 for axis, size in zip(axes, result.shape, strict=True))
