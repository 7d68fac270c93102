"""Names for the axes of a fused group, such that loops that can be shared have one name.

Names are a matter of speed only: whatever they are, the kernel computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim
from lynx.ir.ops.fusion import Region
from lynx.ir.ops.reduction import Reduction
from lynx.ir.types import TensorType
from lynx.ir.writing import carried, is_write, written_shape

from .atoms import Atom, Atoms, aligned, fresh, leaves, merge
from .relations import moves, related

AxisList = tuple[tuple[str, Dim], ...]
"""Names and sizes of the axes that a dimension runs along, the fastest last."""


class AxisNames:
    """The axes of each dimension of each value of a region.

    Dimensions that run together have the same axes. Parameters that several ops read are taken to
    be read at the same place, unless that would make two dimensions of one value the same.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.written: dict[Op, list[Atoms]] = {}
        self.dims = self._dims(shares=True)
        if self._has_twins():
            self.dims = self._dims(shares=False)
        self._names: dict[Atom, str] = {}

    def of(self, value: Value, dim: int) -> AxisList:
        """Return the axes of one dimension of a value."""
        return tuple((self._name(atom), atom.size) for atom in leaves(self.dims[value][dim]))

    def of_write(self, op: Op, dim: int) -> AxisList:
        """Return the axes of one dimension of what an op writes."""
        return tuple((self._name(atom), atom.size) for atom in leaves(self.written[op][dim]))

    def fresh(self, size: Dim) -> AxisList:
        """Return an axis that nothing else has."""
        return tuple((self._name(atom), atom.size) for atom in fresh(size))

    def _name(self, atom: Atom) -> str:
        return self._names.setdefault(atom, f"i{len(self._names)}")

    def _dims(self, *, shares: bool) -> dict[Value, list[Atoms]]:
        dims: dict[Value, list[Atoms]] = {}
        for op in self.region.ops:
            own = _own_dims(op)
            for result in op.results:
                dims[result] = own
            if is_write(op):
                inner = carried(op)
                made = list(map(fresh, written_shape(op))) if inner is None else self.written[inner]
                self.written[op] = made
        for value in self.region.parameters:
            if isinstance(value.type, TensorType):
                dims[value] = [fresh(dim) for dim in value.shape]
        for op in self.region.ops:
            for operand in dict.fromkeys(op.operands):
                if operand.op is None and not shares:
                    continue
                _link(op, operand, dims, self.written.get(op))
        return dims

    def _has_twins(self) -> bool:
        for dims in (*self.dims.values(), *self.written.values()):
            atoms = leaves(atom for dim in dims for atom in dim)
            if len(set(atoms)) < len(atoms):
                return True
        return False


def _own_dims(op: Op) -> list[Atoms]:
    shape = op.results[0].shape if isinstance(op.results[0].type, TensorType) else ()
    return [fresh(dim) for dim in shape]


def _link(
    op: Op, operand: Value, dims: dict[Value, list[Atoms]], written: list[Atoms] | None
) -> None:
    if operand not in dims or (moves(op, operand) and operand.op is None):
        return
    space = dims[op.results[0]] if written is None else written
    for given, made in related(op, operand):
        a = _joined(dims[operand], given)
        b = _joined(space, made)
        for x, y in aligned(a, b) or ():
            merge(x, y)


def _joined(dims: Sequence[Atoms], which: tuple[int, ...]) -> Atoms:
    return tuple(atom for index in which for atom in dims[index])


def reduced_dims(op: Reduction) -> tuple[int, ...]:
    """Return the dimensions that a reduction takes away and that have more than one element."""
    shape = op.x.shape
    return tuple(d for d in op.dims if not (isinstance(shape[d], int) and shape[d] == 1))
