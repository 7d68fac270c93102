"""The mask of a score function: which pairs of queries and keys it hides, and how much."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from lynx.ir.dims import Dim
from lynx.ir.kernel import Apply, Constant, Convert, Kernel, Load, Position, Scalar
from lynx.ir.types import DType

from .score import score_of

SURELY_HIDDEN = -1e8
"""A term that is added to a score and at most this hides it.

No score is so large that one hidden by that much could matter beside one that is not hidden.
"""


@dataclass(frozen=True, slots=True)
class Literal:
    """A truth value that must be true, or false, for a pair to be visible."""

    scalar: Scalar
    wanted: bool


@dataclass(frozen=True, slots=True)
class Mask:
    """What must hold for a pair to be visible, all of it.

    If one of `literals` does not hold, the score is at most `limit`. `terms` are numbers that are
    added to the score, and hide it where they are at most `SURELY_HIDDEN`.
    """

    literals: tuple[Literal, ...] = ()
    terms: tuple[Scalar, ...] = ()
    limit: float = -math.inf

    @property
    def is_trivial(self) -> bool:
        """Whether nothing is hidden."""
        return not self.literals and not self.terms


@dataclass
class _Found:
    """What was found on the way from the score to the product.

    A score that was hidden further in is multiplied by `factor` on its way; with `is_shifted`
    numbers are added to it, and it becomes at least `floor`.
    """

    literals: dict[Literal, None] = field(default_factory=dict)
    terms: dict[Scalar, None] = field(default_factory=dict)
    limit: float = -math.inf
    factor: float = 1.0
    floor: float = -math.inf
    is_shifted: bool = False

    def hide(self, literals: Iterator[Literal], fill: float, *, is_added: bool) -> bool:
        """Note literals without which the score is `fill`, or that is added to it.

        Return False if that hides nothing for certain.
        """
        fill = fill * self.factor
        is_exact = not (is_added or self.is_shifted)
        if fill > (HIDING if is_exact else SURELY_HIDDEN):
            return False
        for literal in literals:
            # What the product decides is not known before it is computed.
            if not depends_on_dot(literal.scalar):
                self.literals[literal] = None
        self.limit = max(self.limit, fill if is_exact else fill / 2)
        return True


HIDING = -1e3
"""A filled in number that may hide; whether it does depends on the rest of the row."""


def mask_of(kernel: Kernel) -> Mask:
    """Return the mask of a score kernel: what is certain of it, which may be nothing."""
    found = _Found()
    scalar: Scalar | None = score_of(kernel)
    while scalar is not None:
        source = scalar.instruction
        if isinstance(source, Convert) and source.x.dtype.is_floating:
            scalar = source.x
        else:
            scalar = _next(source, found) if isinstance(source, Apply) else None
    limit = max(found.limit, found.floor)
    return Mask(tuple(found.literals), tuple(found.terms), limit)


def _next(source: Apply, found: _Found) -> Scalar | None:
    """Look at one function between the score and the product; return what to look at next."""
    name, arguments = source.function, source.arguments
    if name == "where":
        return _behind_selection(arguments, found)
    if name in ("add", "sub"):
        return _behind_sum(arguments, found, -1 if name == "sub" else 1)
    for at, value in enumerate(map(number_of, arguments)):
        if value is None or (name == "div" and at == 0):
            continue
        if name in ("mul", "div") and 0 < value < math.inf:
            found.factor *= value if name == "mul" else 1 / value
            return arguments[1 - at]
        if name in ("maximum", "fmax") and value * found.factor <= SURELY_HIDDEN:
            found.floor = max(found.floor, value * found.factor / 2)
            return arguments[1 - at]
    return None


def _behind_selection(arguments: tuple[Scalar, ...], found: _Found) -> Scalar | None:
    condition, chosen, other = arguments
    for fill, rest, wanted in ((other, chosen, True), (chosen, other, False)):
        value = number_of(fill)
        literals = literals_of(condition, wanted=wanted)
        if value is not None and found.hide(literals, value, is_added=False):
            return rest
    return None


def _behind_sum(arguments: tuple[Scalar, ...], found: _Found, sign: int) -> Scalar | None:
    """One of the terms has the product in it; the other may hide."""
    inside = [depends_on_dot(argument) for argument in arguments]
    if inside[0] == inside[1] or (sign < 0 and inside[1]):
        return None
    rest, term = arguments if inside[0] else arguments[::-1]
    hidden = hidden_by(term, sign)
    if hidden is not None:
        found.hide(iter(hidden[1]), hidden[0], is_added=True)
    elif sign > 0 and found.factor == 1 and number_of(term) is None and "k" in term.axes:
        found.terms[term] = None
        found.limit = max(found.limit, SURELY_HIDDEN / 2)
    found.is_shifted = True
    return rest


def hidden_by(term: Scalar, sign: int) -> tuple[float, tuple[Literal, ...]] | None:
    """Return the number that a term is where the literals do not hold, None if nothing is known.

    The term is added, or subtracted with a negative sign; the number is given as it is added.

    Understood are a number chosen by a condition, and `(1 - condition) * number`.
    """
    source = unconverted(term).instruction
    if not isinstance(source, Apply):
        return None
    if source.function == "where":
        condition, chosen, other = source.arguments
        for fill, wanted in ((other, True), (chosen, False)):
            value = number_of(fill)
            if value is not None and value * sign <= HIDING:
                return value * sign, tuple(literals_of(condition, wanted=wanted))
        return None
    if source.function != "mul":
        return None
    for at, factor in enumerate(map(number_of, source.arguments)):
        truth = _truth_behind(source.arguments[1 - at])
        if factor is not None and factor * sign <= HIDING and truth is not None:
            condition, wanted = truth
            return factor * sign, tuple(literals_of(condition, wanted=wanted))
    return None


def _truth_behind(x: Scalar) -> tuple[Scalar, bool] | None:
    """Return the condition that makes a number 1 or 0, and its value where the number is 0."""
    x = unconverted(x)
    if x.dtype is DType.BOOL:
        return x, False
    source = x.instruction
    if isinstance(source, Apply) and source.function == "sub":
        one, rest = source.arguments
        behind = unconverted(rest)
        if number_of(one) == 1 and behind.dtype is DType.BOOL:
            return behind, True
    return None


def unconverted(x: Scalar) -> Scalar:
    """Return what conversions of a number start from."""
    while isinstance(x.instruction, Convert):
        x = x.instruction.x
    return x


def literals_of(condition: Scalar, *, wanted: bool) -> Iterator[Literal]:
    """Take a condition apart into what must hold, all of it."""
    pending = [(condition, wanted)]
    while pending:
        scalar, value = pending.pop()
        junction = junction_of(Literal(scalar, value))
        if junction is None or not junction.is_all:
            yield Literal(scalar, value)
        else:
            pending += [(part.scalar, part.wanted) for part in reversed(junction.parts)]


@dataclass(frozen=True, slots=True)
class Junction:
    """Literals of which all must hold, or any."""

    is_all: bool
    parts: tuple[Literal, ...]


def junction_of(literal: Literal) -> Junction | None:
    """Return the literals that a literal is made of, None if it is not made of others."""
    source, wanted = literal.scalar.instruction, literal.wanted
    if not isinstance(source, Apply) or any(x.dtype is not DType.BOOL for x in source.arguments):
        return None
    if source.function == "not":
        return Junction(True, (Literal(source.arguments[0], not wanted),))
    if source.function in ("and", "or"):
        parts = tuple(Literal(argument, wanted) for argument in source.arguments)
        return Junction((source.function == "and") == wanted, parts)
    if source.function == "where":
        return _junction_of_choice(source.arguments, wanted=wanted)
    return None


def _junction_of_choice(arguments: tuple[Scalar, ...], *, wanted: bool) -> Junction | None:
    """Take a choice between truth values apart, one of which is a constant."""
    condition, *choices = arguments
    values = [number_of(choice) for choice in choices]
    if values[0] is not None and values[1] is not None and values[0] != values[1]:
        return Junction(True, (Literal(condition, bool(values[0]) == wanted),))
    for place, value in enumerate(values):
        if value is not None:
            # Where the constant is chosen, the literal holds, or does not.
            holds = bool(value) == wanted
            is_chosen = Literal(condition, (place == 0) == holds)
            return Junction(not holds, (is_chosen, Literal(choices[1 - place], wanted)))
    return None


def number_of(x: Scalar) -> float | None:
    """Return the value of a constant, None of anything else."""
    source = unconverted(x).instruction
    if isinstance(source, Constant) and isinstance(source.value, bool | int | float):
        return float(source.value)
    return None


def depends_on_dot(x: Scalar) -> bool:
    """Whether the product of query and key has an influence on a scalar."""
    seen: set[Scalar] = set()
    pending = [x]
    while pending:
        scalar = pending.pop()
        if scalar in seen:
            continue
        seen.add(scalar)
        source = scalar.instruction
        if isinstance(source, Load) and source.buffer.name == "dot":
            return True
        pending += source.operands
    return False


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum of weight * axis + sum of weight * scalar + offset`; the scalars depend on b and h."""

    axes: tuple[tuple[str, Dim], ...]
    scalars: tuple[tuple[Scalar, int], ...]
    offset: Dim

    def scaled(self, factor: int) -> Affine:
        """Return it times a number."""
        return Affine(
            tuple((axis, weight * factor) for axis, weight in self.axes),
            tuple((scalar, weight * factor) for scalar, weight in self.scalars),
            self.offset * factor,
        )

    def plus(self, other: Affine) -> Affine:
        """Return the sum."""
        axes: dict[str, Dim] = dict(self.axes)
        for axis, weight in other.axes:
            axes[axis] = axes.get(axis, 0) + weight
        scalars = dict(self.scalars)
        for scalar, factor in other.scalars:
            scalars[scalar] = scalars.get(scalar, 0) + factor
        return Affine(
            tuple((axis, weight) for axis, weight in axes.items() if weight != 0),
            tuple((scalar, factor) for scalar, factor in scalars.items() if factor != 0),
            self.offset + other.offset,
        )

    def weight(self, axis: str) -> Dim:
        """Return the weight of an axis."""
        return dict(self.axes).get(axis, 0)


@dataclass(frozen=True, slots=True)
class AtMostZero:
    """Holds where an affine function is 0 or less."""

    affine: Affine


@dataclass(frozen=True, slots=True)
class AllOf:
    """Holds where all parts do."""

    parts: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds where some part does."""

    parts: tuple[Region, ...]


Region: TypeAlias = AtMostZero | AllOf | AnyOf
"""A set of pairs of queries and keys that is made of half-planes."""


def region_of(literal: Literal) -> Region | None:
    """Return where a literal holds, None if that is not made of affine comparisons."""
    source = literal.scalar.instruction
    value = number_of(literal.scalar) if literal.scalar.dtype is DType.BOOL else None
    if value is not None:
        return AtMostZero(Affine((), (), 0 if bool(value) == literal.wanted else 1))
    junction = junction_of(literal)
    if junction is not None:
        known = tuple(part for part in map(region_of, junction.parts) if part is not None)
        if len(known) < len(junction.parts):
            return None
        return AllOf(known) if junction.is_all else AnyOf(known)
    if not isinstance(source, Apply):
        return None
    return _comparison(source.function, source.arguments, wanted=literal.wanted)


_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def _comparison(name: str, arguments: tuple[Scalar, ...], *, wanted: bool) -> Region | None:
    if name not in _NEGATED or arguments[0].dtype is DType.BOOL:
        return None
    name = name if wanted else _NEGATED[name]
    for at, sides in enumerate(map(_sides_of, arguments)):
        if sides is not None:
            bound = affine_of(arguments[1 - at])
            return None if bound is None else _of_distance(name, at, sides, bound)
    left, right = affine_of(arguments[0]), affine_of(arguments[1])
    return None if left is None or right is None else _of_difference(name, left, right)


def _sides_of(x: Scalar) -> tuple[Affine, Affine] | None:
    """Return the two affine functions of which a distance is the larger one, None if it is none."""
    source = x.instruction
    if isinstance(source, Convert) and _is_exact(source):
        return _sides_of(source.x)
    if not isinstance(source, Apply) or source.function != "abs":
        return None
    inner = affine_of(source.arguments[0])
    return None if inner is None else (inner, inner.scaled(-1))


def _of_distance(name: str, at: int, sides: tuple[Affine, Affine], bound: Affine) -> Region:
    """Return where a distance, the argument `at` of a comparison, compares with a bound."""
    name = name if at == 0 else _SWAPPED[name]
    if name in ("eq", "ne"):
        near, far = (_of_distance(one, 0, sides, bound) for one in ("le", "ge"))
        if name == "eq":
            return AllOf((near, far))
        return AnyOf(tuple(_of_distance(one, 0, sides, bound) for one in ("lt", "gt")))
    parts = tuple(_of_difference(name, side, bound) for side in sides)
    return AllOf(parts) if name in ("lt", "le") else AnyOf(parts)


def _of_difference(name: str, left: Affine, right: Affine) -> Region:
    below, above = left.plus(right.scaled(-1)), right.plus(left.scaled(-1))
    one = Affine((), (), 1)
    if name in ("le", "lt"):
        return AtMostZero(below if name == "le" else below.plus(one))
    if name in ("ge", "gt"):
        return AtMostZero(above if name == "ge" else above.plus(one))
    if name == "eq":
        return AllOf((AtMostZero(below), AtMostZero(above)))
    return AnyOf((AtMostZero(below.plus(one)), AtMostZero(above.plus(one))))


def affine_of(x: Scalar) -> Affine | None:
    """Return a whole number as an affine function of the axes, None if it is none."""
    if not set(x.axes) & {"q", "k"}:
        return _of_row(x)
    source = x.instruction
    match source:
        case Position():
            return _of_position(source)
        case Convert():
            return affine_of(source.x) if _is_exact(source) else None
        case Apply() if source.function in ("add", "sub"):
            left, right = affine_of(source.arguments[0]), affine_of(source.arguments[1])
            if left is None or right is None:
                return None
            return left.plus(right if source.function == "add" else right.scaled(-1))
        case Apply() if source.function == "neg":
            inner = affine_of(source.arguments[0])
            return None if inner is None else inner.scaled(-1)
        case Apply() if source.function == "mul":
            return _scaled(*source.arguments)
    return None


def _is_exact(source: Convert) -> bool:
    """Whether a conversion leaves the place of a query or key what it is."""
    wide = source.dtype in (DType.I64, DType.I32, DType.F32, DType.F64)
    return wide and not source.x.dtype.is_floating


def _scaled(x: Scalar, y: Scalar) -> Affine | None:
    for factor, other in ((number_of(x), y), (number_of(y), x)):
        if factor is not None and factor == int(factor):
            inner = affine_of(other)
            return None if inner is None else inner.scaled(int(factor))
    return None


def _of_row(x: Scalar) -> Affine | None:
    source = x.instruction
    if isinstance(source, Constant):
        if isinstance(source.value, bool | complex):
            return None
        if isinstance(source.value, float):
            whole = math.isfinite(source.value) and source.value == int(source.value)
            return Affine((), (), int(source.value)) if whole else None
        return Affine((), (), source.value)
    if isinstance(source, Convert) and not source.x.dtype.is_floating:
        return _of_row(source.x)
    if isinstance(source, Position):
        return _of_position(source)
    return Affine((), ((x, 1),), 0) if x.dtype in (DType.I32, DType.I64) else None


def _of_position(source: Position) -> Affine | None:
    axes: dict[str, Dim] = {}
    for term in source.index.terms:
        plain = term.divisor == 1 and term.modulus is None
        if not plain or not isinstance(term.of, str):
            return None
        axes[term.of] = axes.get(term.of, 0) + term.stride
    return Affine(tuple(axes.items()), (), source.index.offset)
