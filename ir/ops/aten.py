"""The op for everything that runs through torch, and literals of a graph."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from lynx.ir.core import Argument, Op, Value
from lynx.ir.dims import Dim, contiguous_strides
from lynx.ir.errors import UsageError
from lynx.ir.space import IterationSpace
from lynx.ir.space_rules import SpaceRule, cut_shape, parse_rule, rule_of
from lynx.ir.types import DType, ScalarType, TensorType, Type

_parsed = functools.cache(parse_rule)


class Aten(Op, name="aten"):
    """Call a torch operator, a higher-order operator or a Python function by its name.

        %v, %i = aten @aten.topk.default(%x, 5, largest = true) : f32[4, 5], i64[4, 5]

    The result types are those that fake tensors gave. `operand_strides` are the strides that each
    tensor operand had while tracing (None for the others); the runtime restores them, since such an
    op may look at the layout. `strides` are those of the results. `sequences` says, for operators
    in Python, what each sequence in the arguments is, from the outermost inwards: "list", "tuple",
    or "dict" with the key of each item; if it is empty they are lists. `reason` says why there is
    no structured op. `rule` says what of it can be cut, where nobody has given a rule for the
    target: `d0 1, d0 -> d0 1` (see `space_rules`).
    """

    target: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    types: tuple[Type, ...]
    operand_strides: tuple[tuple[Dim, ...] | None, ...] = ()
    strides: tuple[tuple[Dim, ...] | None, ...] = ()
    random: bool = False
    effect: bool = False
    reason: str = ""
    sequences: tuple[str, ...] = ()
    rule: str = ""

    def infer(self) -> tuple[Type, ...]:
        """Return the recorded types."""
        return self.types

    @property
    def is_removable(self) -> bool:
        """Whether nothing but its results tells that it ran."""
        return not (self.random or self.effect)

    def space(self) -> IterationSpace | None:
        """Return the space that a rule gives, None if there is no rule."""
        rule = self.space_rule()
        return None if rule is None else rule.space(self.operands, self.results)

    def space_rule(self) -> SpaceRule | None:
        """Return the rule of the user for the target, or the op's own."""
        known = rule_of(self.target)
        if known is not None or not self.rule:
            return known
        try:
            return _parsed(self.rule)
        except UsageError as error:
            raise self.error("rule-mismatch", f"has a malformed rule: {error.message}") from None

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Op:
        """Return the call on parts of the operands, whose results are dense."""
        rule, space = self.space_rule(), self.space()
        if rule is None or space is None:
            raise self.error("no-space", f"has no rule to be cut along '{factor}'")
        types = tuple(
            type_.with_shape(cut_shape(space, type_.shape, axes, {factor: size}))
            if isinstance(type_, TensorType)
            else type_
            for type_, axes in zip(self.types, space.results, strict=True)
        )
        local = self.with_operands(
            operands,
            types=types,
            operand_strides=tuple(map(_dense, (one.type for one in operands))),
            strides=tuple(map(_dense, types)),
        )
        sizes = {place: size for place, name in rule.arguments if name == factor}
        return with_integers(local, sizes) if sizes else local


def integers(op: Aten) -> dict[str, int]:
    """Return the integers among the arguments by their places: `2.0`, or `output_size.1`."""
    found: dict[str, int] = {}
    waiting: list[tuple[str, Argument]] = [(str(n), item) for n, item in enumerate(op.arguments)]
    waiting += op.keywords
    while waiting:
        place, item = waiting.pop(0)
        if isinstance(item, tuple):
            waiting += [(f"{place}.{n}", part) for n, part in enumerate(item)]
        elif isinstance(item, int) and not isinstance(item, bool):
            found[place] = item
    return found


def with_integers(op: Aten, changed: Mapping[str, Dim]) -> Aten:
    """Return the op with other integers at some places among its arguments."""

    def filled(place: str, item: Argument) -> Argument:
        if isinstance(item, tuple):
            return tuple(filled(f"{place}.{n}", part) for n, part in enumerate(item))
        return changed.get(place, item)

    return dataclasses.replace(
        op,
        arguments=tuple(filled(str(n), item) for n, item in enumerate(op.arguments)),
        keywords=tuple((name, filled(name, item)) for name, item in op.keywords),
    )


def _dense(type_: Type) -> tuple[Dim, ...] | None:
    return contiguous_strides(type_.shape) if isinstance(type_, TensorType) else None


class Symbolic(Op, name="symbolic"):
    """Give the value of a symbolic integer.

    %n = symbolic {expr = s0*2} : int(s0*2)
    """

    expr: Dim

    def infer(self) -> ScalarType:
        """Return an integer whose value is known as an expression."""
        return ScalarType("int", self.expr)

    def space(self) -> IterationSpace:
        """Return the empty space."""
        return IterationSpace((), (), ((),))


class Resource(Op, name="resource"):
    """Read a constant tensor that the graph holds under a name.

    %c = resource {key = "c0", dtype = i64, shape = [2]} : i64[2]
    """

    key: str
    dtype: DType
    shape: tuple[Dim, ...]
    device: str = "cpu"

    def infer(self) -> TensorType:
        """Return the declared type."""
        return TensorType(self.dtype, self.shape, self.device)
