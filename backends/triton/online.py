"""Find pairs of reductions, one relative to the other, that a single sweep can compute.

    m = reduce max over j x;          s = reduce sum over j exp(x - m)
    ==>  m, s = reduce softmax over j x

    m = reduce sum over j x / count;  s = reduce sum over j (x - m) * (x - m)
    ==>  m, s = reduce welford over j x

Worth it where the columns do not fit into one tile, so that each sweep reads them from memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.dims import Dim, is_equal, product
from lynx.ir.kernel import Apply, Constant, Instruction, Kernel, KernelBuilder, Reduce, Scalar
from lynx.ir.types import DType

from .copying import copied
from .sizes import Limits


@dataclass(frozen=True)
class _Pair:
    """The reduction that is relative to the result of `first`, and what computes both."""

    second: Reduce
    first: Instruction
    combine: str
    x: Scalar


def merge_sweeps(kernel: Kernel, limits: Limits) -> Kernel:
    """Return the kernel with such pairs of reductions merged."""
    found = [
        pair
        for one in kernel.body
        if isinstance(one, Reduce) and one.combine == "sum" and _is_wide(one, kernel, limits)
        for pair in (_softmax(one), _welford(one, kernel))
        if pair is not None
    ]
    if not found:
        return kernel
    firsts = {pair.first: pair for pair in found}
    seconds = {pair.second: pair for pair in found}
    build = KernelBuilder()
    for axis in kernel.axes:
        build.axis(axis.name, axis.size)
    build.buffers = list(kernel.buffers)
    values: dict[Scalar, Scalar] = {}
    totals: dict[Instruction, Scalar] = {}
    for one in kernel.body:
        if one in firsts:
            pair = firsts[one]
            build.loc = one.loc
            base, total = build.reduce(pair.combine, values[pair.x], pair.second.over)
            values[one.out], totals[one] = base, total
        elif one in seconds:
            values[one.results[0]] = totals[seconds[one].first]
        else:
            values.update(zip(one.results, copied(build, one, values), strict=True))
    return build.build(kernel.name)


def _is_wide(one: Reduce, kernel: Kernel, limits: Limits) -> bool:
    count = _count(one, kernel)
    return not (isinstance(count, int) and count <= limits.persistent)


def _count(one: Reduce, kernel: Kernel) -> Dim:
    return product(kernel.sizes[axis] for axis in one.over)


def _softmax(second: Reduce) -> _Pair | None:
    """Recognise a sum of exponentials relative to the maximum."""
    difference = _arguments(second.x, "exp")
    operands = _arguments(difference[0], "sub") if difference else ()
    if not operands:
        return None
    x, most = operands
    first = most.instruction
    if isinstance(first, Reduce) and first.combine == "max" and _is_of(first, x, second):
        return _Pair(second, first, "softmax", x)
    return None


def _welford(second: Reduce, kernel: Kernel) -> _Pair | None:
    """Recognise a sum of squared distances from the mean."""
    squared = _arguments(second.x, "mul")
    if not squared or squared[0] is not squared[1]:
        return None
    operands = _arguments(squared[0], "sub")
    quotient = _arguments(operands[1], "div") if operands else ()
    if not quotient:
        return None
    total, count = (scalar.instruction for scalar in quotient)
    if not (isinstance(total, Reduce) and total.combine == "sum"):
        return None
    is_count = isinstance(count, Constant) and _is_number(count, _count(second, kernel))
    if is_count and _is_of(total, operands[0], second):
        return _Pair(second, operands[1].instruction, "welford", operands[0])
    return None


def _is_number(constant: Constant, count: Dim) -> bool:
    value = constant.value
    if isinstance(value, bool | complex):
        return False
    if isinstance(value, float):
        return value == count
    return is_equal(value, count)


def _is_of(first: Reduce, x: Scalar, second: Reduce) -> bool:
    """Whether a reduction is of a floating scalar, over the axes of another one."""
    same = set(first.over) == set(second.over)
    return first.x is x and same and x.dtype in (DType.F32, DType.F64)


def _arguments(scalar: Scalar, function: str) -> tuple[Scalar, ...]:
    """Return what a function is applied to; nothing if it is another one."""
    maker = scalar.instruction
    is_it = isinstance(maker, Apply) and maker.function == function
    return maker.arguments if is_it and isinstance(maker, Apply) else ()
