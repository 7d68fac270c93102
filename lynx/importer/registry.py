"""The table of import rules: for each torch operator, the Lynx ops that mean the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lynx.ir.core import Builder, Op, Value
from lynx.ir.dims import Dim, SymbolRange
from lynx.ir.types import DType, TensorType, Type


@dataclass(frozen=True, slots=True)
class Decline:
    """Why an import rule leaves the operator to torch, in words a model author understands."""

    reason: str


Imported: TypeAlias = Value | tuple[Value | None, ...] | Decline
"""What a rule returns: the results, None for one that the operator leaves out, or why not."""


@dataclass
class Context:
    """What an import rule works with.

    `types` are the result types that fake tensors gave; the importer checks that the rule returns
    values of exactly these, and otherwise runs the operator through torch.
    `strides` are the fake results' strides. `operand_layouts` gives the strides and the storage
    offset that dense tensors had while tracing, `ranges` the ranges of the symbols met so far.
    """

    builder: Builder
    target: str
    types: tuple[Type, ...]
    strides: tuple[tuple[Dim, ...] | None, ...] = ()
    operand_layouts: Mapping[Value, tuple[tuple[Dim, ...], Dim]] = field(default_factory=dict)
    ranges: Mapping[str, SymbolRange] = field(default_factory=dict)

    @property
    def type(self) -> TensorType:
        """The type of the only result, a tensor."""
        (only,) = self.types
        assert isinstance(only, TensorType), only
        return only

    def emit(self, op: Op) -> Value:
        """Append an op with one result and return it."""
        return self.builder.emit(op)

    def add(self, op: Op) -> tuple[Value, ...]:
        """Append an op and return its results."""
        return self.builder.add(op).results


Rule: TypeAlias = Callable[..., Imported]
RULES: dict[str, Rule] = {}


def imports(*targets: str) -> Callable[[Rule], Rule]:
    """Register a rule for torch operators, named as in `aten.add.Tensor`.

    The rule is called as `rule(context, *args, **kwargs)` with the operator's arguments, in which
    FX nodes are `Value`s, symbolic integers `Dim`s, lists tuples, dtypes `DType`s, devices text,
    and layouts and memory formats `Foreign`s.
    """

    def register(rule: Rule) -> Rule:
        for target in targets:
            if target in RULES:
                raise TypeError(f"two import rules for {target}")
            RULES[target] = rule
        return rule

    return register


def dtype_of(value: Any) -> DType | None:
    """Return the element type of a tensor value, None for anything else."""
    if isinstance(value, Value) and isinstance(value.type, TensorType):
        return value.type.dtype
    return None
