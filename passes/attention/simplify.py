"""What a score and its derivative become where it is known which pairs a mask hides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lynx.ir.kernel import Apply, Constant, Convert, Index, Instruction, Kernel, Scalar
from lynx.ir.types import DType


def simplified(
    scalars: Iterable[Scalar], known: Mapping[Scalar, bool]
) -> Callable[[Scalar], Scalar]:
    """Return a function that finds a simpler equal of scalars where truth values are `known`."""
    found: dict[Scalar, Scalar] = {}
    truths = dict(known)

    def simpler(x: Scalar) -> Scalar:
        return found.get(x, x)

    for instruction in in_order(scalars):
        for result in instruction.results:
            value = _truth(instruction, truths) if result.dtype is DType.BOOL else None
            if value is not None:
                truths.setdefault(result, value)
        if not isinstance(instruction, Apply):
            continue
        arguments = instruction.arguments
        chosen: Scalar | None = None
        if instruction.function == "where":
            value = truths.get(arguments[0])
            chosen = None if value is None else arguments[1 if value else 2]
        elif instruction.function == "add":
            zeros = [_is_number(simpler(a), 0) for a in arguments]
            chosen = arguments[1] if zeros[0] else arguments[0] if zeros[1] else None
        if chosen is not None:
            found[instruction.out] = simpler(chosen)
    return simpler


def _truth(source: Instruction, known: Mapping[Scalar, bool]) -> bool | None:
    """Return the truth value that an instruction gives, None if that is not known."""
    if isinstance(source, Constant):
        return bool(source.value) if isinstance(source.value, bool | int) else None
    if not isinstance(source, Apply):
        return None
    values = [known.get(argument) for argument in source.arguments]
    match source.function:
        case "not":
            return None if values[0] is None else not values[0]
        case "and" | "or":
            decisive = source.function == "or"
            if decisive in values:
                return decisive
            return None if None in values else not decisive
        case "where":
            if values[0] is not None:
                return values[1] if values[0] else values[2]
            return values[1] if values[1] == values[2] else None
    return None


def _is_number(x: Scalar, value: float) -> bool:
    source = x.instruction
    while isinstance(source, Convert):
        source = source.x.instruction
    return isinstance(source, Constant) and source.value == value


def in_order(scalars: Iterable[Scalar]) -> list[Instruction]:
    """Return all that scalars depend on, operands first."""
    done: dict[Instruction, None] = {}
    pending = [scalar.instruction for scalar in scalars]
    while pending:
        top = pending[-1]
        missing = [o.instruction for o in top.operands if o.instruction not in done]
        if top in done or not missing:
            done[pending.pop()] = None
        else:
            pending += missing
    return list(done)


def known_in(kernel: Kernel, known: Mapping[Scalar, bool]) -> dict[Scalar, bool]:
    """Return the truth values of a derivative that are known where those of the score are."""
    keys = {_key(scalar): value for scalar, value in known.items()}
    found: dict[Scalar, bool] = {}
    for instruction in kernel.body:
        if instruction.results and instruction.results[0].dtype is DType.BOOL:
            scalar = instruction.results[0]
            value = keys.get(_key(scalar))
            if value is not None:
                found[scalar] = value
    return found


def _key(scalar: Scalar) -> str:
    """Return what a scalar computes, as text; conditions of masks are small."""
    source = scalar.instruction
    parts = [type(source).__name__, str(scalar.dtype)]
    for name in ("function", "value", "mask", "other"):
        value = getattr(source, name, None)
        if not isinstance(value, Scalar):
            parts.append(repr(value))
    buffer = getattr(source, "buffer", None)
    parts.append(buffer.name if buffer is not None else "")
    index = getattr(source, "index", None)
    if isinstance(index, Index):
        parts.append(repr([(t.stride, t.divisor, t.modulus, t.of if isinstance(t.of, str) else "")
                           for t in index.terms]))  # fmt: skip
        parts.append(str(index.offset))
    parts += [_key(operand) for operand in source.operands]
    return f"({' '.join(parts)})"
