"""Where the dimensions of one tensor lie among those of another: axes, cut into their parts.

All coordinates are functions of the axes of one space, that of the weights in the second product.
An axis is cut into *atoms* wherever something reads only a part of it, such as `h // n` for the
heads of keys that several heads of queries share.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lynx.ir.core import Value
from lynx.ir.dims import Dim, is_equal, product
from lynx.ir.errors import LynxError
from lynx.ir.kernel import Buffer, Index, KernelBuilder, Scalar, Term
from lynx.ir.ops.fusion import Region
from lynx.ir.types import DType, TensorType
from lynx.passes.fusion.coordinates import Coordinates
from lynx.passes.fusion.emit import Emission, Emitter, Want, why_not
from lynx.passes.fusion.emit_elementwise import aligned
from lynx.passes.fusion.naming import AxisNames
from lynx.passes.fusion.sizes import exact_quotient
from lynx.recognise.nodes import Refusal


@dataclass(frozen=True)
class Atom:
    """The part of an axis between two strides: `(axis // low) % (high // low)`."""

    axis: str
    low: Dim
    size: Dim

    def __repr__(self) -> str:
        return f"{self.axis}/{self.low}:{self.size}"


class Tracker(Emitter):
    """Finds out where values are read, when an element of a result is computed.

    `found` gives the coordinates at which each of `stops` is read.
    """

    def __init__(self, axes: Mapping[str, Dim], stops: Iterable[Value]) -> None:
        super().__init__(KernelBuilder(), AxisNames(Region((), (), ())), {})
        for name, size in axes.items():
            self.builder.axis(name, size)
        self.found: dict[Value, list[Coordinates]] = {stop: [] for stop in stops}
        self._memory: dict[Value, Buffer] = {}

    def read(self, value: Value, at: Coordinates) -> None:
        """Note what is read for an element of a value."""
        try:
            self.element(value, at)
        except LynxError as error:
            raise Refusal(f"its scores are not computed one by one: {error.message}") from error

    def _known(self, want: Want) -> Scalar | None:
        value = want.value
        if value.op is not None and value not in self.found:
            return super()._known(want)
        places = self.found.setdefault(value, [])
        if want.at not in places:
            places.append(want.at)
        type_ = value.type
        dtype = type_.dtype if isinstance(type_, TensorType) else DType.I64
        buffer = self._memory.setdefault(value, Buffer(f"m{len(self._memory)}", dtype, 1))
        place = Index(tuple(t for c in want.at for t in c.terms))
        return self.builder.load(buffer, place, want.mask)

    def _begin(self, want: Want) -> Emission:
        op = want.value.op
        assert op is not None
        reason = why_not(op)
        if reason and op.is_elementwise:
            return self._each_operand(want)
        if reason:
            raise Refusal(f"'{op.name}' {reason}")
        return super()._begin(want)

    def _each_operand(self, want: Want) -> Emission:
        """Read what an element of an elementwise op depends on, whatever it computes of that."""
        found: list[Scalar] = []
        assert want.value.op is not None
        for operand in want.value.op.operands:
            found.append((yield Want(operand, aligned(want.at, operand), want.mask)))
        return (found[0],)


def along_axis(name: str) -> Index:
    """Return the coordinate that is an axis."""
    return Index((Term(name),))


class Space:
    """Axes by name, cut into atoms by all that reads them. Axes of size 1 have no atoms."""

    def __init__(self, axes: Mapping[str, Dim]) -> None:
        self.axes = dict(axes)
        self._bounds: dict[str, list[Dim]] = {name: [1, size] for name, size in axes.items()}

    def cut(self, coordinates: Iterable[Index]) -> None:
        """Cut axes where coordinates need it; `Refusal` if cuts do not fit together."""
        for coordinate in coordinates:
            for term in coordinate.terms:
                if not isinstance(term.of, str):
                    raise Refusal("scores are read where other numbers say")
                self._cut(term.of, term.divisor)
                if term.modulus is not None:
                    self._cut(term.of, product((term.divisor, term.modulus)))

    def _cut(self, axis: str, bound: Dim) -> None:
        bounds = self._bounds[axis]
        for place, other in enumerate(bounds):
            if is_equal(other, bound):
                return
            if exact_quotient(other, bound) is not None:
                if place and exact_quotient(bound, bounds[place - 1]) is None:
                    break
                bounds.insert(place, bound)
                return
        raise Refusal(f"an axis of size {self.axes[axis]} is read in parts that do not fit")

    def atoms_of(self, axis: str) -> tuple[Atom, ...]:
        """Return the atoms of an axis, the outermost first."""
        bounds = self._bounds[axis]
        atoms = []
        for low, high in itertools.pairwise(bounds):
            size = exact_quotient(high, low)
            if size is None:
                raise Refusal("an axis is read in parts that do not fit")
            if not is_equal(size, 1):
                atoms.append(Atom(axis, low, size))
        return tuple(reversed(atoms))

    def merged(self, coordinate: Index, size: Dim) -> tuple[Atom, ...]:
        """Return the atoms that a dimension runs along, the outermost first.

        `Refusal` unless it runs through all of them once, and over all of its own size.
        """
        parts: list[tuple[Atom, Dim]] = []
        for term in coordinate.terms:
            assert isinstance(term.of, str)
            parts += self._parts(term)
        if not is_equal(coordinate.offset, 0):
            raise Refusal("only a part of the scores is used")
        ordered: list[Atom] = []
        reach: Dim = 1
        while parts:
            found = next(
                (n for n, (_, stride) in enumerate(parts) if is_equal(stride, reach)), None
            )
            if found is None:
                raise Refusal("only a part of the scores is used, or some twice")
            atom, _ = parts.pop(found)
            reach = product((reach, atom.size))
            ordered.append(atom)
        if not is_equal(reach, size):
            raise Refusal("only a part of the scores is used")
        if len(set(ordered)) != len(ordered):
            raise Refusal("scores are read along a diagonal")
        return tuple(reversed(ordered))

    def _parts(self, term: Term) -> list[tuple[Atom, Dim]]:
        assert isinstance(term.of, str)
        limit = None if term.modulus is None else product((term.divisor, term.modulus))
        found = []
        for atom in reversed(self.atoms_of(term.of)):
            if exact_quotient(atom.low, term.divisor) is None:
                continue
            if limit is not None and exact_quotient(limit, product((atom.low, atom.size))) is None:
                continue
            stride = exact_quotient(product((term.stride, atom.low)), term.divisor)
            assert stride is not None
            found.append((atom, stride))
        return found


Dims = tuple[tuple[Atom, ...], ...]


def dims_of(space: Space, coordinates: Sequence[Index], shape: Sequence[Dim]) -> Dims:
    """Return the atoms of each dimension of a tensor."""
    pairs = zip(coordinates, shape, strict=True)
    return tuple(space.merged(coordinate, size) for coordinate, size in pairs)


def flat(dims: Iterable[Sequence[Atom]]) -> list[Atom]:
    """Return all atoms of dimensions, in order; `Refusal` if one comes twice."""
    atoms = [atom for dim in dims for atom in dim]
    if len(set(atoms)) != len(atoms):
        raise Refusal("a tensor is read along a diagonal")
    return atoms
