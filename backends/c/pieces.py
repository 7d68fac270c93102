"""Cut loops where masks change, so that within each piece a mask is known and nothing is chosen.

Masks of concatenations, paddings and parts compare the position along an axis with limits. Between
two limits each comparison has one outcome, which is printed as a constant; what it chooses, or does
not load, the C compiler then leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from lynx.ir.dims import Dim, simplify
from lynx.ir.kernel import Apply, Constant, Instruction, Load, Position, Scalar, Store, Term
from lynx.ir.types import DType

from .printer import Expressions, Names, declared
from .schedule import Sweep

MOST_PIECES = 4
"""Pieces of a loop at most: each is code of its own."""

MOST_LINES = 160
"""Instructions of all pieces together at most."""

_ADDED = {"lt": 0, "ge": 0, "le": 1, "gt": 1}
"""What is added to the limit of a comparison to find the first point after the cut."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison that holds before `cut` along an axis if `is_below`, and from there on if not.

    `rest` is what the position depends on besides the axis; its value is subtracted from the cut.
    """

    axis: str
    cut: Dim
    is_below: bool
    rest: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a loop: where it starts and ends, None for the loop's own ends; what is known."""

    start: Dim | None
    stop: Dim | None
    known: Mapping[Scalar, bool]


_WHOLE = Piece(None, None, {})


@dataclass(eq=False)
class Pieces:
    """The pieces of the innermost loop of a sweep; `known` are the comparisons known in them.

    `outer` are the pieces of another axis, at one point of which the loop runs. `rest` is what the
    single cut depends on, nothing for cuts at fixed points.
    """

    inner: list[Piece] = field(default_factory=lambda: [_WHOLE])
    rest: tuple[Term, ...] = ()
    axis: str = ""
    outer: list[Piece] = field(default_factory=lambda: [_WHOLE])

    @property
    def known(self) -> Iterable[Scalar]:
        """The comparisons that are known in each piece of the innermost loop."""
        return self.inner[0].known


def pieces_of(
    sweep: Sweep,
    sizes: Mapping[str, Dim],
    level: Callable[[str | Scalar], int],
    innermost: str | None,
) -> Pieces:
    """Choose the pieces of a sweep; `level` says how many loops are around a value.

    `sizes` are those of the axes, of which the loop over the `innermost` one is to be cut.
    """
    if innermost is None:
        return Pieces()
    deepest = level(innermost)
    within = [
        i
        for i in (*sweep.needed, *sweep.targets)
        if max((level(axis) for axis in i.domain), default=0) == deepest
    ]
    inner: dict[Scalar, Bound] = {}
    outer: dict[str, dict[Scalar, Bound]] = {}
    for scalar in _choices_of(within):
        for bound in _bounds_of(scalar):
            if bound.axis == innermost:
                inner.setdefault(scalar, bound)
            elif not bound.rest and isinstance(bound.cut, int):
                outer.setdefault(bound.axis, {})[scalar] = bound
    found = _inner_pieces(inner, sizes[innermost])
    if len(found.inner) > MOST_PIECES or len(found.inner) * len(within) > MOST_LINES:
        found = Pieces()
    if outer:
        axis = max(outer, key=lambda name: len(outer[name]))
        pieces = _static_pieces(outer[axis], sizes[axis])
        lines = len(pieces) * len(found.inner) * len(within)
        if len(pieces) <= MOST_PIECES and lines <= MOST_LINES:
            found.axis, found.outer = axis, pieces
    return found


def _choices_of(instructions: Iterable[Instruction]) -> Iterable[Scalar]:
    """Return the comparisons on which masks and choices of some instructions depend."""
    pending: list[Scalar] = []
    for instruction in instructions:
        if isinstance(instruction, Load | Store) and instruction.mask is not None:
            pending.append(instruction.mask)
        elif isinstance(instruction, Apply) and instruction.function == "where":
            pending.append(instruction.arguments[0])
    found: dict[Scalar, None] = {}
    seen: set[Scalar] = set()
    while pending:
        scalar = pending.pop()
        source = scalar.instruction
        if scalar in seen or not isinstance(source, Apply):
            continue
        seen.add(scalar)
        if source.function in _ADDED:
            found[scalar] = None
        elif source.function in ("and", "or", "not"):
            pending.extend(source.arguments)
    return found


def _bounds_of(scalar: Scalar) -> Iterator[Bound]:
    """Yield the ways in which a comparison depends on where along an axis it is made."""
    compared = scalar.instruction
    assert isinstance(compared, Apply), compared
    position, limit = (argument.instruction for argument in compared.arguments)
    if not isinstance(position, Position) or not isinstance(limit, Constant):
        return
    if limit.dtype is not DType.I64 or isinstance(limit.value, bool | float | complex):
        return
    cut = simplify(limit.value + _ADDED[compared.function] - position.index.offset)
    for term in position.index.terms:
        is_plain = term.divisor == 1 and term.modulus is None and term.stride == 1
        rest = tuple(other for other in position.index.terms if other is not term)
        is_alone = all(isinstance(other.of, str) and other.of != term.of for other in rest)
        if isinstance(term.of, str) and is_plain and is_alone:
            yield Bound(term.of, cut, compared.function in ("lt", "le"), rest)


def _inner_pieces(bounds: Mapping[Scalar, Bound], size: Dim) -> Pieces:
    """Return the pieces between cuts at fixed points, or before and after one that moves."""
    fixed = {s: b for s, b in bounds.items() if isinstance(b.cut, int) and not b.rest}
    if fixed:
        return Pieces(_static_pieces(fixed, size))
    first = next(iter(bounds.values()), None)
    if first is None:
        return Pieces()
    same = {s: b for s, b in bounds.items() if (b.cut, b.rest) == (first.cut, first.rest)}
    before = Piece(None, first.cut, {s: b.is_below for s, b in same.items()})
    after = Piece(first.cut, None, {s: not b.is_below for s, b in same.items()})
    return Pieces([before, after], first.rest)


def _static_pieces(bounds: Mapping[Scalar, Bound], size: Dim) -> list[Piece]:
    cuts = sorted({int(bound.cut) for bound in bounds.values() if int(bound.cut) > 0})
    cuts = [cut for cut in cuts if not isinstance(size, int) or cut < size]
    starts: list[int | None] = [None, *cuts]
    pieces = []
    for start, stop in zip(starts, [*cuts, None], strict=True):
        at = 0 if start is None else start
        known = {scalar: (at < int(b.cut)) == b.is_below for scalar, b in bounds.items()}
        pieces.append(Piece(start, stop, known))
    return pieces


class Printing(Protocol):
    """What it takes to print pieces."""

    names: Names
    expressions: Expressions

    def emit(self, *lines: str) -> None:
        """Add lines."""
        ...

    def open(self, line: str) -> None:
        """Open a block."""
        ...

    def close(self) -> None:
        """Close a block."""
        ...

    def name(self, scalar: Scalar) -> str:
        """Return the variable of a scalar."""
        ...


Loop: TypeAlias = Callable[[str, str, list[str]], None]
"""Prints a loop between two ends over the lines of a body."""


class PiecePrinter:
    """Prints the innermost loop of a sweep piece by piece; `chosen` tells lines of comparisons."""

    def __init__(self, row: Printing, pieces: Pieces, chosen: Mapping[str, Scalar]) -> None:
        self.row = row
        self.pieces = pieces
        self.chosen = chosen

    def print(self, low: str, high: str, body: list[str], loop: Loop) -> None:
        """Print all pieces between two ends."""
        row, outer = self.row, self.pieces.outer
        if len(outer) == 1:
            self._inner(low, high, body, loop)
            return
        axis = row.names.axis(self.pieces.axis)
        for number, piece in enumerate(outer):
            test = f"if ({axis} < {piece.stop})" if piece.stop is not None else ""
            row.open(" ".join(filter(None, ("else" if number else "", test))))
            row.emit(*(self._known(scalar, piece) for scalar in piece.known))
            self._inner(low, high, body, loop)
            row.close()

    def _inner(self, low: str, high: str, body: list[str], loop: Loop) -> None:
        row, pieces = self.row, self.pieces.inner
        if len(pieces) == 1:
            loop(low, high, body)
            return
        row.open("")
        if self._moves:
            cut = row.names.dim(pieces[0].stop or 0)
            terms = [f" - ({row.expressions.axis_term(term)})" for term in self.pieces.rest]
            row.emit(f"const i64 cut = lynx_max({low}, lynx_min({high}, {cut}{''.join(terms)}));")
        for piece in pieces:
            known = [
                self._known(self.chosen[line], piece) if line in self.chosen else line
                for line in body
            ]
            row.open("")
            start, stop = (self._end(at, low, high) for at in (piece.start, piece.stop))
            loop(start or low, stop or high, known)
            row.close()
        row.close()

    @property
    def _moves(self) -> bool:
        """Whether the cut is only known when the loop begins."""
        return bool(self.pieces.rest) or not isinstance(self.pieces.inner[0].stop, int)

    def _end(self, cut: Dim | None, low: str, high: str) -> str | None:
        """Return where a piece ends that a cut bounds, within a loop."""
        if cut is None:
            return None
        if self._moves:
            return "cut"
        if low == "0" and high.isdigit():
            return str(min(int(high), int(cut)))
        return f"lynx_max({low}, lynx_min({high}, {cut}))"

    def _known(self, scalar: Scalar, piece: Piece) -> str:
        return declared(scalar, self.row.name(scalar), str(int(piece.known[scalar])))
