"""Fewer axes: those that run together through every buffer become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lynx.ir.dims import Dim, is_equal, product
from lynx.ir.kernel import (
    Apply,
    Check,
    Constant,
    Convert,
    Index,
    Instruction,
    Kernel,
    KernelAxis,
    KernelBuilder,
    Load,
    Position,
    Reduce,
    Scalar,
    Store,
    Term,
)


def coalesced(kernel: Kernel) -> Kernel:
    """Return the kernel with axes merged where `a * size(b) + b` is all that indices know of them.

    Every instruction depends on both or on neither, reductions run over both or neither, and in no
    index do they appear in another way.
    """
    pair = _find(kernel)
    while pair is not None:
        kernel = _merged(kernel, *pair)
        pair = _find(kernel)
    return kernel


def _find(kernel: Kernel) -> tuple[str, str] | None:
    names = [axis.name for axis in kernel.axes]
    together = _domain_classes(kernel)
    for a in names:
        for b in names:
            if a != b and together[a] == together[b] and _can_merge(kernel, a, b):
                return a, b
    return None


def _domain_classes(kernel: Kernel) -> dict[str, tuple[object, ...]]:
    """Return for each axis where it occurs; axes that always occur together have equal entries."""
    found: dict[str, list[object]] = {axis.name: [] for axis in kernel.axes}
    for number, instruction in enumerate(kernel.body):
        for name in instruction.domain:
            found[name].append(number)
        if isinstance(instruction, Reduce):
            for name in instruction.over:
                found[name].append(-number - 1)
    return {name: tuple(entries) for name, entries in found.items()}


def _can_merge(kernel: Kernel, a: str, b: str) -> bool:
    size = kernel.sizes[b]
    for instruction in kernel.body:
        index = getattr(instruction, "index", None)
        if isinstance(index, Index) and not _runs_together(index, a, b, size):
            return False
        if isinstance(instruction, Reduce) and a in instruction.over:
            place = instruction.over.index(a)
            if instruction.over[place + 1 : place + 2] != (b,):
                return False
    return True


def _runs_together(index: Index, a: str, b: str, size: Dim) -> bool:
    strides: dict[str, Dim] = {}
    for term in index.terms:
        if term.of not in (a, b):
            continue
        if term.modulus is not None or not is_equal(term.divisor, 1) or term.of in strides:
            return False
        strides[str(term.of)] = term.stride
    if not strides:
        return True
    return len(strides) == 2 and is_equal(strides[a], product((strides[b], size)))


def reordered(kernel: Kernel, axes: tuple[KernelAxis, ...]) -> Kernel:
    """Return the kernel with its axes in another order."""
    return _rebuilt(kernel, axes, lambda index: index, "")


def _merged(kernel: Kernel, a: str, b: str) -> Kernel:
    def join(index: Index) -> Index:
        inner = next((term.stride for term in index.terms if term.of == b), None)
        terms = (
            Term(a, inner) if term.of == a and inner is not None else term
            for term in index.terms
            if term.of != b
        )
        return Index(tuple(terms), index.offset)

    size = product((kernel.sizes[a], kernel.sizes[b]))
    axes = tuple(
        KernelAxis(a, size) if axis.name == a else axis for axis in kernel.axes if axis.name != b
    )
    return _rebuilt(kernel, axes, join, b)


def _rebuilt(
    kernel: Kernel,
    axes: tuple[KernelAxis, ...],
    changed: Callable[[Index], Index],
    dropped: str,
) -> Kernel:
    """Build the kernel anew over other axes, with every index changed."""
    builder = KernelBuilder()
    for axis in axes:
        builder.axis(axis.name, axis.size)
    builder.buffers = list(kernel.buffers)
    renamed: dict[Scalar, Scalar] = {}

    def index_of(index: Index) -> Index:
        index = changed(index)
        terms = (
            Term(renamed[term.of], term.stride, term.divisor, term.modulus)
            if isinstance(term.of, Scalar)
            else term
            for term in index.terms
        )
        return Index(tuple(terms), index.offset)

    for instruction in kernel.body:
        builder.loc = instruction.loc
        made = _replayed(builder, instruction, renamed, index_of, dropped)
        renamed.update(zip(instruction.results, made, strict=True))
    return builder.build(kernel.name)


def _replayed(
    builder: KernelBuilder,
    instruction: Instruction,
    renamed: Mapping[Scalar, Scalar],
    index_of: Callable[[Index], Index],
    dropped: str,
) -> tuple[Scalar, ...]:
    """Build an instruction anew, with other operands and indices."""
    mask = getattr(instruction, "mask", None)
    mask = None if mask is None else renamed[mask]
    match instruction:
        case Constant():
            return (builder.constant(instruction.value, instruction.dtype),)
        case Position():
            return (builder.position(index_of(instruction.index)),)
        case Load():
            index = index_of(instruction.index)
            return (builder.load(instruction.buffer, index, mask, instruction.other),)
        case Apply():
            arguments = tuple(renamed[argument] for argument in instruction.arguments)
            return (builder.apply(instruction.function, *arguments, dtype=instruction.dtype),)
        case Convert():
            return (builder.convert(renamed[instruction.x], instruction.dtype),)
        case Reduce():
            over = tuple(axis for axis in instruction.over if axis != dropped)
            return builder.reduce(instruction.combine, renamed[instruction.x], over)
        case Store():
            index, value = index_of(instruction.index), renamed[instruction.value]
            builder.store(instruction.buffer, index, value, mask, instruction.combine)
        case Check():
            builder.check(renamed[instruction.condition], instruction.message)
        case _:
            raise AssertionError(instruction)
    return ()
