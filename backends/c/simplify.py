"""Write compound reductions as simple ones: sums, products, extremes, and truth values.

Two sweeps over a row that lies in the cache cost less than one with a chain of dependent steps, and
are more accurate: the variance is a sum of squared deviations from the mean that is known already.
"""

from __future__ import annotations

import dataclasses

from lynx.ir.core import Number
from lynx.ir.dims import maximum, product
from lynx.ir.kernel import (
    Apply,
    Check,
    Constant,
    Convert,
    Index,
    Instruction,
    Kernel,
    Load,
    Position,
    Reduce,
    Scalar,
    Store,
    Term,
)
from lynx.ir.types import DType

SIMPLE = ("sum", "prod", "max", "min", "any", "all")


class _Rewriter:
    """Copies instructions, with the compound reductions replaced."""

    def __init__(self, kernel: Kernel) -> None:
        self.sizes = kernel.sizes
        self.order = tuple(kernel.sizes)
        self.body: list[Instruction] = []
        self.replaced: dict[Scalar, Scalar] = {}

    def emit(self, instruction: Instruction) -> Scalar:
        self.body.append(instruction)
        return instruction.out

    def domain(self, *scalars: Scalar) -> tuple[str, ...]:
        wanted = {axis for scalar in scalars for axis in scalar.axes}
        return tuple(axis for axis in self.order if axis in wanted)

    def apply(self, function: str, *arguments: Scalar, dtype: DType) -> Scalar:
        return self.emit(Apply(self.domain(*arguments), function, arguments, dtype))

    def constant(self, value: Number, dtype: DType) -> Scalar:
        return self.emit(Constant((), value, dtype))

    def reduce(self, combine: str, x: Scalar, old: Reduce) -> Scalar:
        return self.emit(Reduce(old.domain, combine, x, old.over, loc=old.loc))

    def rewrite(self, old: Reduce, x: Scalar) -> tuple[Scalar, ...]:
        """Return the results of a reduction of `x`."""
        if x.dtype.is_low_precision:
            wide = self.emit(Convert(x.axes, x, DType.F32, loc=old.loc))
            results = self.rewrite(old, wide)
            return tuple(
                self.emit(Convert(result.axes, result, x.dtype, loc=old.loc))
                if result.dtype is DType.F32
                else result
                for result in results
            )
        if old.combine in ("argmax", "argmin"):
            return self._arg_extreme(old, x)
        if old.combine == "welford":
            return self._welford(old, x)
        if old.combine == "softmax":
            maximum = self.reduce("max", x, old)
            shifted = self.apply("sub", x, maximum, dtype=x.dtype)
            powers = self.apply("exp", shifted, dtype=x.dtype)
            return maximum, self.reduce("sum", powers, old)
        return (self.reduce(old.combine, x, old),)

    def _arg_extreme(self, old: Reduce, x: Scalar) -> tuple[Scalar, ...]:
        """Find the first place of what equals the extreme, or of NaN where that is the extreme."""
        extreme = self.reduce(old.combine.removeprefix("arg"), x, old)
        found = self.apply("eq", x, extreme, dtype=DType.BOOL)
        if x.dtype in (DType.F32, DType.F64):
            is_nan = self.apply("isnan", x, dtype=DType.BOOL)
            found = self.apply("or", found, is_nan, dtype=DType.BOOL)
        terms = []
        for position, axis in enumerate(old.over):
            stride = product(self.sizes[inner] for inner in old.over[position + 1 :])
            terms.append(Term(axis, stride))
        place = self.emit(Position(self._in_order(old.over), Index(tuple(terms)), loc=old.loc))
        last = self.constant((1 << 63) - 1, DType.I64)
        chosen = self.apply("where", found, place, last, dtype=DType.I64)
        return extreme, self.reduce("min", chosen, old)

    def _in_order(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in self.order if axis in axes)

    def _welford(self, old: Reduce, x: Scalar) -> tuple[Scalar, ...]:
        # Over no point the mean is 0, as the interpreter has it.
        size = maximum(1, product(self.sizes[axis] for axis in old.over))
        count = self.constant(size, x.dtype)
        total = self.reduce("sum", x, old)
        mean = self.apply("div", total, count, dtype=x.dtype)
        deviation = self.apply("sub", x, mean, dtype=x.dtype)
        square = self.apply("mul", deviation, deviation, dtype=x.dtype)
        return mean, self.reduce("sum", square, old)

    def copy(self, old: Instruction) -> Instruction:
        """Return the instruction with its operands replaced; itself when none was."""
        if not any(operand in self.replaced for operand in old.operands):
            return old
        new = with_operands(old, self.replaced)
        self.replaced.update(zip(old.results, new.results, strict=True))
        return new


def with_operands(old: Instruction, replaced: dict[Scalar, Scalar]) -> Instruction:
    """Return the instruction with some of its operands replaced."""

    def now(scalar: Scalar | None) -> Scalar | None:
        return replaced.get(scalar, scalar) if scalar is not None else None

    def index(old_index: Index) -> Index:
        terms = [
            term
            if isinstance(term.of, str)
            else dataclasses.replace(term, of=replaced.get(term.of, term.of))
            for term in old_index.terms
        ]
        return Index(tuple(terms), old_index.offset)

    changes: dict[str, object] = {}
    match old:
        case Position():
            changes = {"index": index(old.index)}
        case Load():
            changes = {"index": index(old.index), "mask": now(old.mask)}
        case Apply():
            changes = {"arguments": tuple(now(argument) for argument in old.arguments)}
        case Convert() | Reduce():
            changes = {"x": now(old.x)}
        case Store():
            changes = {"index": index(old.index), "value": now(old.value), "mask": now(old.mask)}
        case Check():
            changes = {"condition": now(old.condition)}
    return dataclasses.replace(old, **changes)  # type: ignore[arg-type]


def simple_body(kernel: Kernel) -> tuple[Instruction, ...]:
    """Return instructions that mean the same, whose reductions are all in `SIMPLE`."""
    reductions = [old for old in kernel.body if isinstance(old, Reduce)]
    if all(r.combine in SIMPLE and not r.x.dtype.is_low_precision for r in reductions):
        return kernel.body
    rewriter = _Rewriter(kernel)
    for old in kernel.body:
        if isinstance(old, Reduce) and (old.combine not in SIMPLE or old.x.dtype.is_low_precision):
            results = rewriter.rewrite(old, rewriter.replaced.get(old.x, old.x))
            rewriter.replaced.update(zip(old.results, results, strict=True))
        else:
            rewriter.body.append(rewriter.copy(old))
    return tuple(rewriter.body)
