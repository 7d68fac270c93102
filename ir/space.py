"""Iteration spaces: the one declaration from which sharding, fusion, cost and loops are derived.

An op names the axes (factors) of its computation and says how each dimension of each operand and
result is indexed by them:

    matmul     b i k, b k j -> b i j      sum: k
    reshape    (a b) c -> a (b c)
    softmax    i k -> i k                 opaque: k

A dimension is indexed by one factor, by several (written in parentheses, the outermost first; the
compound index runs over their product), by none (`1`, a broadcast dimension of size one, or an
index that the op chooses), or by a window that slides over another factor (`h+kh`, convolution
and pooling).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .dims import Dim, minimum


class FactorKind(enum.Enum):
    """What running along a factor means.

    PARALLEL: iterations are independent and each writes its own part of the results.
    REDUCTION: iterations are combined by an associative operation (`Factor.combine`) in each result
    whose map lacks the factor; a result that has it in its map is computed part by part.
    SCAN: each iteration needs the previous ones (cumulative sum).
    OPAQUE: the op needs the whole extent at once (sort, softmax, a gathered axis).
    """

    PARALLEL = "parallel"
    REDUCTION = "reduction"
    SCAN = "scan"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class Factor:
    """A named axis of a computation with its size; `combine` names a reduction's operation."""

    name: str
    size: Dim
    kind: FactorKind = FactorKind.PARALLEL
    combine: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """A dimension indexed by `position * stride + offset * dilation - padding`.

    `position` and `offset` are factors: the output position and the place in the window. Windows
    that lie side by side are cut between them (see `tiles`); others need a halo of the neighbour's
    elements. `size` is the length of the dimension, 0 where it does not matter: the last windows of
    a longer row of windows are short, or empty.
    """

    position: str
    offset: str
    stride: Dim = 1
    dilation: Dim = 1
    padding: Dim = 0
    size: Dim = 0

    def __str__(self) -> str:
        return f"{self.position}+{self.offset}"

    def rows(self, start: Dim, count: Dim) -> tuple[Dim, Dim]:
        """Return the start and the length of what `count` windows side by side cover."""
        first = minimum(start * self.stride, self.size)
        return first, minimum((start + count) * self.stride, self.size) - first


Axis: TypeAlias = tuple[str, ...] | Window
IndexMap: TypeAlias = tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class IterationSpace:
    """The factors of an op and how they index each tensor operand and each result.

    `operands` follows `Op.operands` (an operand that is no tensor has the empty map). `linear`
    lists the sets of operand positions in which the op is linear jointly: the op applied to sums of
    these operands is the sum of the op applied to the parts, with all others fixed; partial sums
    may flow through them.
    """

    factors: tuple[Factor, ...]
    operands: tuple[IndexMap, ...]
    results: tuple[IndexMap, ...]
    linear: tuple[tuple[int, ...], ...] = ()
    _by_name: Mapping[str, Factor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {factor.name: factor for factor in self.factors})

    def factor(self, name: str) -> Factor:
        """Return the factor of this name; `KeyError` if there is none."""
        return self._by_name[name]

    def of_kind(self, kind: FactorKind) -> tuple[Factor, ...]:
        """Return the factors of one kind, in order."""
        return tuple(factor for factor in self.factors if factor.kind is kind)

    def __str__(self) -> str:
        text = (
            f"{', '.join(map(format_map, self.operands))} -> "
            f"{', '.join(map(format_map, self.results))}"
        )
        for factor in self.factors:
            if factor.kind is FactorKind.REDUCTION:
                text += f"; {factor.combine}: {factor.name}"
            elif factor.kind is not FactorKind.PARALLEL:
                text += f"; {factor.kind.value}: {factor.name}"
        return text


def format_map(index_map: IndexMap) -> str:
    """Return the text of an index map, which `axes` reads."""
    return " ".join(_format_axis(axis) for axis in index_map) or "()"


def _format_axis(axis: Axis) -> str:
    if isinstance(axis, Window):
        return str(axis)
    if len(axis) == 1:
        return axis[0]
    return f"({' '.join(axis)})" if axis else "1"


def axes(text: str) -> IndexMap:
    """Read one index map: `axes("b (h d) 1")` is `(("b",), ("h", "d"), ())`."""
    result: list[Axis] = []
    group: list[str] | None = None
    for word in text.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            group = []
        elif word == ")":
            result.append(tuple(group or ()))
            group = None
        elif group is not None:
            group.append(word)
        else:
            result.append(() if word == "1" else (word,))
    return tuple(result)


def space(
    text: str,
    sizes: Mapping[str, Dim],
    *,
    reduction: Mapping[str, str] | None = None,
    opaque: tuple[str, ...] = (),
    scan: tuple[str, ...] = (),
    linear: tuple[tuple[int, ...], ...] = (),
) -> IterationSpace:
    """Build a space from einsum-like text: `space("i k, k j -> i j", sizes, reduction=...)`.

    Factors are ordered as `sizes` is. `reduction` maps a factor to its combine operation.
    """
    left, right = text.split("->")
    kinds: dict[str, tuple[FactorKind, str]] = {}
    for name, combine in (reduction or {}).items():
        kinds[name] = (FactorKind.REDUCTION, combine)
    kinds |= dict.fromkeys(opaque, (FactorKind.OPAQUE, ""))
    kinds |= dict.fromkeys(scan, (FactorKind.SCAN, ""))
    factors = tuple(
        Factor(name, size, *kinds.get(name, (FactorKind.PARALLEL, "")))
        for name, size in sizes.items()
    )
    operands = tuple(axes(part) for part in left.split(",")) if left.strip() else ()
    return IterationSpace(factors, operands, tuple(axes(part) for part in right.split(",")), linear)


def names(prefix: str, count: int) -> tuple[str, ...]:
    """Return factor names `d0, d1, ...` for ops of any rank."""
    return tuple(f"{prefix}{index}" for index in range(count))
