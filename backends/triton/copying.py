"""Copy instructions into another kernel."""

from __future__ import annotations

from collections.abc import Mapping

from lynx.ir.errors import InternalError
from lynx.ir.kernel import (
    Apply,
    Check,
    Constant,
    Convert,
    Index,
    Instruction,
    KernelBuilder,
    Load,
    Position,
    Reduce,
    Scalar,
    Store,
    Term,
)

Values = Mapping[Scalar, Scalar]
"""What stands in the copy for each scalar."""


def moved(index: Index, values: Values) -> Index:
    """Return an index in terms of the copies of its scalars."""
    if not index.scalars:
        return index
    terms = tuple(
        Term(values[t.of], t.stride, t.divisor, t.modulus) if isinstance(t.of, Scalar) else t
        for t in index.terms
    )
    return Index(terms, index.offset)


def copied(build: KernelBuilder, one: Instruction, values: Values) -> tuple[Scalar, ...]:
    """Append a copy of an instruction, with the same buffers; return its results."""
    build.loc = one.loc
    match one:
        case Constant():
            return (build.constant(one.value, one.dtype),)
        case Position():
            return (build.position(moved(one.index, values)),)
        case Load():
            mask = values[one.mask] if one.mask is not None else None
            return (build.load(one.buffer, moved(one.index, values), mask, one.other),)
        case Apply():
            arguments = [values[x] for x in one.arguments]
            return (build.apply(one.function, *arguments, dtype=one.dtype),)
        case Convert():
            return (build.convert(values[one.x], one.dtype),)
        case Reduce():
            return build.reduce(one.combine, values[one.x], one.over)
        case Store():
            mask = values[one.mask] if one.mask is not None else None
            index = moved(one.index, values)
            build.store(one.buffer, index, values[one.value], mask, one.combine)
            return ()
        case Check():
            build.check(values[one.condition], one.message)
            return ()
    raise InternalError("unknown-instruction", f"cannot copy {type(one).__name__}")
