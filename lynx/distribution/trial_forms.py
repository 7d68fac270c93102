"""An operator on tensors of other sizes than its own, to be tried: shrunk, resized, in pieces."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lynx.backends.reference import run
from lynx.ir.core import Foreign, Value
from lynx.ir.ops.aten import Aten, integers, with_integers
from lynx.ir.types import DType, TensorType

from .trial_values import draw

LARGE = 12
"""Sizes up to here are tried as they are."""
_MOST_RUNS = 6000


class GivingUpError(Exception):
    """Why an operator cannot be tried out any further."""


@dataclass
class Budget:
    """How often an operator may still run: counted, so that all processes stop at one place."""

    runs: int = _MOST_RUNS

    def spend(self) -> None:
        """Count a run; `GivingUpError` if there were too many."""
        self.runs -= 1
        if self.runs < 0:
            raise GivingUpError("trying it out takes too long")


@dataclass(frozen=True, slots=True)
class Factor:
    """Dimensions that are cut together: one or none of each operand and of each result.

    `places` are the integer arguments that are its size. Where a result lacks it, results of pieces
    are added up.
    """

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    places: tuple[str, ...] = ()

    @property
    def is_sum(self) -> bool:
        """Whether a result is the sum of those of pieces."""
        return None in self.results


Shapes = tuple[tuple[int, ...], ...]
Tensors = Sequence[torch.Tensor]
Outcome = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Form:
    """An operator on operands of some shapes and element types, with integers to go with them."""

    op: Aten
    shapes: Shapes
    dtypes: tuple[DType, ...]
    numbers: Mapping[str, int]
    budget: Budget
    sizes: Mapping[int, int] = field(default_factory=dict)
    """What the operator's own sizes became, where it was shrunk."""

    @property
    def numel(self) -> int:
        """How many elements the operands have."""
        return sum(math.prod(shape) for shape in self.shapes)

    def resized(self, factor: Factor, size: int) -> Form:
        """Return the form with another size of a factor."""
        shapes = [list(shape) for shape in self.shapes]
        for shape, dim in zip(shapes, factor.operands, strict=True):
            if dim is not None:
                shape[dim] = size
        numbers = dict(self.numbers) | dict.fromkeys(factor.places, size)
        return dataclasses.replace(self, shapes=tuple(map(tuple, shapes)), numbers=numbers)

    def draw(self, kind: str, factor: Factor | None, generator: torch.Generator) -> Tensors:
        """Return operands with values of a kind, see `trial_values`."""
        below = min((size for shape in self.shapes for size in shape), default=1)
        dims = (None,) * len(self.shapes) if factor is None else factor.operands
        return [
            draw(kind, dtype, shape, dim, below, generator)
            for dtype, shape, dim in zip(self.dtypes, self.shapes, dims, strict=True)
        ]

    def run(self, tensors: Tensors, numbers: Mapping[str, int] | None = None) -> Outcome:
        """Return the results that are there; whatever the operator raises comes through."""
        self.budget.spend()
        op = with_integers(self.op, dict(self.numbers) | dict(numbers or {}))
        given = [tensor.clone() for tensor in tensors]
        results = run(op, dict(zip(op.operands, given, strict=True)), {}, {})
        return tuple(result for result in results if result is not None)

    def wide(self) -> Form | None:
        """Return the form in double precision; None if it is that, or has no such numbers."""
        dtypes = tuple(_WIDE.get(dtype, dtype) for dtype in self.dtypes)
        if dtypes == self.dtypes:
            return None
        return dataclasses.replace(self, op=_with_dtypes(self.op), dtypes=dtypes)


_WIDE = {
    DType.F16: DType.F64, DType.BF16: DType.F64, DType.F32: DType.F64, DType.C64: DType.C128,
}  # fmt: skip


def form_of(op: Aten, budget: Budget) -> Form:
    """Return an operator with its own sizes, on the CPU, each operand a value of its own."""
    types = [value.tensor_type for value in op.operands]
    apart = op.with_operands(tuple(Value(dataclasses.replace(t, sharding=None)) for t in types))
    apart = _changed(apart, lambda item: _CPU if _is_device(item) else item)
    shapes = tuple(tuple(int(size) for size in type_.shape) for type_ in types)
    return Form(apart, shapes, tuple(type_.dtype for type_ in types), integers(op), budget)


def shrunk_forms(form: Form) -> list[Form]:
    """Return forms with small sizes to try in turn, of which not each need be possible.

    Equal sizes stay equal, integer arguments that are sizes follow, and what divides a size goes on
    dividing it; or all large sizes shrink in proportion. The last form has the own sizes.
    """
    sizes = sorted({size for shape in form.shapes for size in shape if size > LARGE})
    if not sizes or form.numel <= 1 << 12:
        return [form]
    maps = [_apart(form, sizes), _in_proportion(sizes)]
    found = [mapped(form, one) for one in maps if one]
    return [*found, form]


def own_results(form: Form) -> Shapes:
    """Return the shapes that the results have in the program, those of absent ones left out."""
    types = [type_ for type_ in form.op.types if isinstance(type_, TensorType)]
    return tuple(tuple(int(size) for size in type_.shape) for type_ in types)


def _apart(form: Form, sizes: Sequence[int]) -> dict[int, int]:
    """Return a size of its own for each large one, with the divisors that seem to matter."""
    step = 1
    for number in form.numbers.values():
        if 1 < number <= 16 and math.lcm(step, number) <= 48:
            step = math.lcm(step, number)
    taken = {size for shape in form.shapes for size in shape}
    found: dict[int, int] = {}
    for size in sizes:
        for small in itertools.count(LARGE // 2):
            fits = small % step == size % step and math.gcd(small, 12) == math.gcd(size, 12)
            if small >= size or (fits and small not in taken):
                found[size] = min(small, size)
                taken.add(found[size])
                break
    return found


def _in_proportion(sizes: Sequence[int]) -> dict[int, int]:
    common = math.gcd(*sizes)
    by = max((d for d in range(1, common + 1) if common % d == 0 and sizes[0] // d >= 4), default=1)
    return {size: size // by for size in sizes} if by > 1 else {}


def mapped(form: Form, sizes: Mapping[int, int]) -> Form:
    """Return the form with other sizes in the place of some, in shapes and integer arguments."""
    shapes = tuple(tuple(sizes.get(size, size) for size in shape) for shape in form.shapes)
    numbers = {place: sizes.get(number, number) for place, number in form.numbers.items()}
    return dataclasses.replace(form, shapes=shapes, numbers=numbers, sizes=sizes)


def _with_dtypes(op: Aten) -> Aten:
    return _changed(op, lambda item: _WIDE.get(item, item) if isinstance(item, DType) else item)


_CPU = Foreign("device", "cpu")


def _is_device(item: Any) -> bool:
    return isinstance(item, Foreign) and item.kind == "device"


def _changed(op: Aten, change: Any) -> Aten:
    """Return the op with arguments changed that are no tuples."""

    def filled(item: Any) -> Any:
        return tuple(map(filled, item)) if isinstance(item, tuple) else change(item)

    keywords = tuple((name, filled(item)) for name, item in op.keywords)
    return dataclasses.replace(op, arguments=filled(op.arguments), keywords=keywords)
