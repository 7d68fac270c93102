"""Iteration spaces of operators that Lynx does not know, as rules that users write."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .core import Value
from .dims import Dim, is_equal, product
from .errors import CompileError, UsageError
from .space import Factor, FactorKind, IndexMap, IterationSpace, Window, axes, format_map
from .types import TensorType

_COMBINES = ("sum", "product", "max", "min", "and", "or")
_KINDS = (*_COMBINES, "opaque")
_ARGUMENT = re.compile(r"argument\s+(\w+(?:\.\d+)*)", re.ASCII)
_NAMES = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class SpaceRule:
    """How the dimensions of the tensors of an operator belong together.

    `kinds` holds factors that are no plain ones: the operation by which a factor is combined, or
    `opaque`. A factor that no result has is opaque unless it is combined: what the operator does
    along it is unknown. `arguments` are the places of integer arguments that are the size of a
    factor, with the name of that: `2.0` is the first entry of the third argument.
    """

    operands: tuple[IndexMap, ...]
    results: tuple[IndexMap, ...]
    kinds: tuple[tuple[str, str], ...] = ()
    arguments: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        sides = (", ".join(map(format_map, side)) for side in (self.operands, self.results))
        tails = [f"; {kind}: {name}" for name, kind in self.kinds]
        tails += [f"; argument {place}: {name}" for place, name in self.arguments]
        return " -> ".join(sides) + "".join(tails)

    def space(self, operands: Sequence[Value], results: Sequence[Value]) -> IterationSpace:
        """Return the space for these tensors; `CompileError` if the rule does not fit them."""
        maps = _aligned(self.operands, operands, "operands")
        sizes: dict[str, Dim] = {}
        for value, index_map in zip(operands, maps, strict=True):
            if index_map:
                _measure(value, index_map, sizes)
        found = _aligned(self.results, results, "results")
        return IterationSpace(tuple(self._factor(*item) for item in sizes.items()), maps, found)

    def _factor(self, name: str, size: Dim) -> Factor:
        kind = dict(self.kinds).get(name, "")
        shown = any(name in axis for index_map in self.results for axis in index_map)  # type: ignore[operator]
        if kind in _COMBINES:
            return Factor(name, size, FactorKind.REDUCTION, kind)
        if kind == "opaque" or not shown:
            return Factor(name, size, FactorKind.OPAQUE)
        return Factor(name, size)


SPACE_RULES: dict[str, SpaceRule] = {}
"""Rules by the name of a torch operator, with or without its overload: `mylib.op`."""


def rule_of(target: str) -> SpaceRule | None:
    """Return the rule that a user has given for an operator, with or without its overload."""
    return SPACE_RULES.get(target) or SPACE_RULES.get(target.rpartition(".")[0])


def parse_rule(text: str) -> SpaceRule:
    """Read a rule: `b s d, d -> b s; sum: d`; `UsageError` where it is malformed.

    Dimensions that belong together have one name, several in parentheses make up one dimension, a
    `1` stands for a dimension that nothing cuts. After `;` factors along which results are combined
    (`sum: d`), or that the operator needs as a whole (`opaque: s`), or which an integer argument is
    the size of (`argument 2.0: b`: the first entry of the third argument).
    """
    body, *tails = text.split(";")
    left, arrow, right = body.partition("->")
    if not arrow or not right.strip():
        raise UsageError("bad-rule", f"'{text}' is no rule, expected 'a b, b -> a'")
    operands, results = (
        tuple(() if part.strip() == "()" else axes(part) for part in side.split(","))
        if side.strip()
        else ()
        for side in (left, right)
    )
    words = {n for side in (operands, results) for m in side for axis in m for n in axis}  # type: ignore[union-attr]
    strange = sorted(word for word in words if not _NAMES.fullmatch(word))
    if strange:
        raise UsageError("bad-rule", f"'{strange[0]}' in '{text}' is no name of a factor")
    known = {n for index_map in operands for axis in index_map for n in axis}  # type: ignore[union-attr]
    kinds: list[tuple[str, str]] = []
    arguments: list[tuple[str, str]] = []
    for tail in tails:
        kind, _, rest = tail.partition(":")
        names = [name for name in re.split(r"[\s,]+", rest.strip()) if name]
        place = _ARGUMENT.fullmatch(kind.strip())
        if place is not None:
            arguments += [(place[1], name) for name in names]
        elif kind.strip() in _KINDS:
            kinds += [(name, kind.strip()) for name in names]
        else:
            choices = ", ".join(_KINDS)
            raise UsageError("bad-rule", f"'{kind.strip()}' in '{text}': expected {choices}")
    missing = sorted((words | {name for name, _ in kinds} | {n for _, n in arguments}) - known)
    if missing:
        raise UsageError("bad-rule", f"no operand in '{text}' has '{missing[0]}'")
    return SpaceRule(operands, results, tuple(kinds), tuple(arguments))


def cut_shape(
    space: IterationSpace, shape: Sequence[Dim], index_map: IndexMap, sizes: Mapping[str, Dim]
) -> tuple[Dim, ...]:
    """Return what a shape is that is indexed so, where some factors have other sizes."""
    cut: list[Dim] = []
    for size, axis in zip(shape, index_map, strict=True):
        assert not isinstance(axis, Window)
        cut.append(
            size
            if sizes.keys().isdisjoint(axis)
            else product(sizes.get(name, space.factor(name).size) for name in axis)
        )
    return tuple(cut)


def _aligned(
    maps: tuple[IndexMap, ...], values: Sequence[Value], what: str
) -> tuple[IndexMap, ...]:
    """Return an index map for each value: the empty one for what is no tensor."""
    tensors = [value for value in values if isinstance(value.type, TensorType)]
    if len(tensors) != len(maps):
        raise CompileError(
            "rule-mismatch", f"a rule for {len(maps)} {what} is used for {len(tensors)}"
        )
    given = iter(maps)
    found = []
    for value in values:
        index_map = next(given) if isinstance(value.type, TensorType) else ()
        if isinstance(value.type, TensorType) and len(index_map) != value.type.rank:
            message = f"a rule with {len(index_map)} dimensions is used for {value.type}"
            raise CompileError("rule-mismatch", message)
        found.append(index_map)
    return tuple(found)


def _measure(value: Value, index_map: IndexMap, sizes: dict[str, Dim]) -> None:
    """Note the sizes of factors; a compound dimension tells none but that of a last unknown one."""
    for size, axis in zip(value.shape, index_map, strict=True):
        assert not isinstance(axis, Window)
        unknown = [name for name in axis if name not in sizes]
        known = product(sizes[name] for name in axis if name in sizes)
        if len(unknown) == 1 and isinstance(size, int) and isinstance(known, int) and known:
            sizes[unknown[0]] = size // known
        elif len(unknown) == 1 and len(axis) == 1:
            sizes[unknown[0]] = size
        elif unknown:
            message = f"the sizes of {', '.join(unknown)} in {size} are not known"
            raise CompileError("rule-mismatch", message)
        if axis and not is_equal(product(sizes[name] for name in axis), size):
            raise CompileError("rule-mismatch", f"'{' '.join(axis)}' is {size} and another size")
