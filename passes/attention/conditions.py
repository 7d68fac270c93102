"""Conditions on queries and keys in words: causal, a window, a prefix, documents, padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from lynx.ir.dims import Dim, format_dim
from lynx.ir.kernel import Apply, Load, Scalar
from lynx.ir.types import DType

from .masks import (
    Affine,
    AllOf,
    AtMostZero,
    Literal,
    Region,
    depends_on_dot,
    junction_of,
    number_of,
    region_of,
    unconverted,
)

AXIS_WORDS = {"b": "batch", "h": "head", "q": "query", "k": "key"}
"""What the axes of a score kernel are called."""

NOTHING = "nothing"
"""What is visible where a condition never holds."""


@dataclass(frozen=True, slots=True)
class Both:
    """Holds where all parts do."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Holds where some part does."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = AtMostZero | Both | Either | str
"""What must hold for a pair to be visible; a text is what is not made of half-planes."""


def condition_of(literal: Literal) -> Condition | None:
    """Return what a literal says, None if it holds for all pairs."""
    value = number_of(literal.scalar) if literal.scalar.dtype is DType.BOOL else None
    if value is not None:
        return None if bool(value) == literal.wanted else NOTHING
    junction = junction_of(literal)
    if junction is None:
        region = region_of(literal)
        if region is not None:
            return _from_region(region)
        return condition_text(literal.scalar, wanted=literal.wanted)
    parts = [condition_of(part) for part in junction.parts]
    known = tuple(part for part in parts if part is not None)
    if junction.is_all:
        return Both(known)
    if len(known) < len(parts):
        return None
    possible = tuple(part for part in known if part != NOTHING)
    return Either(possible) if possible else NOTHING


def _from_region(region: Region) -> Condition:
    if isinstance(region, AtMostZero):
        return region
    parts = tuple(map(_from_region, region.parts))
    return Both(parts) if isinstance(region, AllOf) else Either(parts)


def condition_text(scalar: Scalar, *, wanted: bool = True) -> str:
    """Return what a truth value, or a number that hides, is made of."""
    if depends_on_dot(scalar):
        return "where the scores themselves say so"
    if _compares_ids(scalar):
        is_same = scalar.instruction.function == "eq"  # type: ignore[attr-defined]
        return "documents (equal ids)" if is_same == wanted else "documents (other ids)"
    loads = list(loads_of(scalar))
    if not loads:
        return f"computed from positions{axes_text(scalar.axes)}"
    if "q" not in scalar.axes and "k" in scalar.axes:
        return "padding"
    if any(load.index.scalars for load in loads):
        return f"data-dependent mask{axes_text(scalar.axes)}"
    return f"dense mask{axes_text(scalar.axes)}"


def axes_text(axes: Iterable[str]) -> str:
    """Return the axes that something depends on, in words and parentheses."""
    words = [AXIS_WORDS[axis] for axis in axes]
    return f" ({', '.join(words)})" if words else ""


def loads_of(x: Scalar) -> Iterator[Load]:
    """Yield what a scalar reads, each once."""
    seen = {x}
    pending = [x]
    while pending:
        source = pending.pop().instruction
        if isinstance(source, Load):
            yield source
        for operand in source.operands:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)


def _compares_ids(scalar: Scalar) -> bool:
    """Whether a number of the query is compared with a number of the key."""
    source = unconverted(scalar).instruction
    if not isinstance(source, Apply) or source.function not in ("eq", "ne"):
        return False
    sides = [{"q", "k"} & set(argument.axes) for argument in source.arguments]
    return {"q"} in sides and {"k"} in sides


@dataclass
class _Bounds:
    """What half-planes leave of the keys: relative to the query, and by themselves.

    Each is `None`, or the last or first key that is left.
    """

    until: Affine | None = None
    since: Affine | None = None
    below: Affine | None = None
    above: Affine | None = None
    rest: int = 0

    def add(self, affine: Affine) -> None:
        """Take in that an affine function is 0 or less."""
        bound = Affine(_without(affine.axes), affine.scalars, affine.offset)
        match affine.weight("q"), affine.weight("k"):
            case -1, 1 if self.until is None:
                self.until = bound.scaled(-1)
            case 1, -1 if self.since is None:
                self.since = bound
            case 0, 1 if self.below is None:
                self.below = bound.scaled(-1)
            case 0, -1 if self.above is None:
                self.above = bound
            case _:
                self.rest += 1

    def words(self) -> Iterator[str]:
        """Yield what is left, in words."""
        yield from self._relative()
        if self.below is not None:
            yield _keys_below(self.below)
        if self.above is not None:
            yield "padding before" if self.above.scalars else f"keys from {_text(self.above)}"
        if self.rest:
            yield "half-planes of positions"

    def _relative(self) -> Iterator[str]:
        until, since = self.until, self.since
        if until is not None and since is not None:
            yield _window(until, since)
        elif until is not None:
            yield "causal" if _is_zero(until) else f"causal with offset {_text(until)}"
        elif since is not None:
            place = "the query" if _is_zero(since) else f"the query and {_text(since)}"
            yield f"keys from {place} on"


def _without(axes: tuple[tuple[str, Dim], ...]) -> tuple[tuple[str, Dim], ...]:
    return tuple((axis, weight) for axis, weight in axes if axis not in ("q", "k"))


def _window(until: Affine, since: Affine) -> str:
    if _is_zero(until) and _is_zero(since):
        return "the query itself"
    if _is_zero(until):
        return f"sliding window of {_text(_plus(since.scaled(-1), 1))}"
    if until == since.scaled(-1):
        return f"window of {_text(until)} to each side"
    return f"window from {_text(since)} to {_text(until)}"


def _keys_below(last: Affine) -> str:
    if last.scalars:
        return "padding"
    return f"keys below {_text(_plus(last, 1))}"


def _plus(affine: Affine, number: int) -> Affine:
    return affine.plus(Affine((), (), number))


_ONE = Affine((), (), 1)


def _is_zero(affine: Affine) -> bool:
    return not affine.axes and not affine.scalars and affine.offset == 0


def _text(affine: Affine) -> str:
    """Return a number in words: a sum of axes, what the data tell, and a constant."""
    parts = [f"{AXIS_WORDS[axis]} times {format_dim(weight)}" for axis, weight in affine.axes]
    parts += ["a number of the data" for _ in affine.scalars[:1]]
    if affine.offset != 0 or not parts:
        parts.append(format_dim(affine.offset))
    return " plus ".join(parts)


def words_of(condition: Condition) -> list[str]:
    """Return what a condition says, all of which must hold."""
    if isinstance(condition, str):
        return [condition]
    if isinstance(condition, Either):
        one = len(condition.parts) == 1
        return words_of(condition.parts[0]) if one else [_alternative(condition)]
    bounds = _Bounds()
    texts: list[str] = []
    for part in _flattened(condition, Both):
        if isinstance(part, AtMostZero):
            bounds.add(part.affine)
        else:
            texts += words_of(part)
    return list(dict.fromkeys([*bounds.words(), *texts]))


def _alternative(condition: Either) -> str:
    parts = _flattened(condition, Either)
    halves = _Bounds()
    others = [part for part in parts if not isinstance(part, AtMostZero)]
    for part in parts:
        if isinstance(part, AtMostZero):
            halves.add(part.affine)
    if len(parts) == 2 and halves.until is not None:
        if halves.below is not None:
            return f"prefix of {_text(_plus(halves.below, 1))}"
        if others == ["padding"]:
            return "prefix by a mask of keys"
        if halves.since is not None and halves.since == halves.until.scaled(-1) == _ONE:
            return "all but the query itself"
    return " or ".join(dict.fromkeys(" and ".join(words_of(part)) for part in parts))


def _flattened(condition: Condition, kind: type[Both] | type[Either]) -> list[Condition]:
    found: list[Condition] = []
    pending = [condition]
    while pending:
        part = pending.pop()
        if isinstance(part, Both | Either) and isinstance(part, kind):
            pending += reversed(part.parts)
        else:
            found.append(part)
    return found
