"""What a kernel costs at least: bytes moved between memory and the processor, and operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .dims import Dim, is_equal, is_static, minimum, product, simplify
from .kernel import (
    Apply,
    Buffer,
    Convert,
    Index,
    Kernel,
    Load,
    Reduce,
    Store,
)


class KernelCost(NamedTuple):
    """The bytes that a kernel reads and writes, and its operations.

    Each element of a buffer counts once, however often it is touched: what is read again comes from
    a cache. An operation is one function, conversion or step of a reduction at one point.
    """

    read: Dim
    written: Dim
    operations: Dim


def kernel_cost(kernel: Kernel) -> KernelCost:
    """Return what a kernel costs, over its symbols.

    An index that depends on scalars counts as if no two points had the same.
    """
    read: dict[Buffer, dict[Index, Dim]] = {}
    written: dict[Buffer, dict[Index, Dim]] = {}
    steps: Counter[tuple[str, ...]] = Counter()
    for instruction in kernel.body:
        if isinstance(instruction, Load | Store):
            points = _points(kernel, instruction.index)
            is_load = isinstance(instruction, Load)
            if is_load or (isinstance(instruction, Store) and instruction.combine == "add"):
                read.setdefault(instruction.buffer, {})[instruction.index] = points
            if not is_load:
                written.setdefault(instruction.buffer, {})[instruction.index] = points
        elif isinstance(instruction, Apply | Convert | Reduce):
            steps[instruction.domain] += 1
    operations = _sum(
        product((count, *(kernel.sizes[axis] for axis in domain)))
        for domain, count in steps.items()
    )
    return KernelCost(_bytes(read), _bytes(written), operations)


def _points(kernel: Kernel, index: Index) -> Dim:
    """Return the number of positions that an index takes at most."""
    axes: set[str] = set()
    for term in index.terms:
        axes.update((term.of,) if isinstance(term.of, str) else term.of.axes)
    sizes = {axis: size for axis, size in kernel.sizes.items() if axis in axes}
    for axis in sizes:
        terms = [term for term in index.terms if term.of == axis]
        if len(terms) == 1 and not any(axis in scalar.axes for scalar in index.scalars):
            sizes[axis] = _distinct(sizes[axis], terms[0].divisor, terms[0].modulus)
    return product(sizes.values())


def _distinct(size: Dim, divisor: Dim, modulus: Dim | None) -> Dim:
    """Return the number of values of `i // divisor % modulus`."""
    parts = (size, divisor, 1 if modulus is None else modulus)
    if not is_static(parts):
        return size
    count = -(-int(size) // int(divisor))
    return count if modulus is None else min(count, int(modulus))


def _bytes(touched: dict[Buffer, dict[Index, Dim]]) -> Dim:
    total: Dim = 0
    for buffer, indices in touched.items():
        count = _at_most(_sum(indices.values()), buffer.extent)
        total = total + count * buffer.dtype.itemsize
    return simplify(total)


def _sum(dims: Iterable[Dim]) -> Dim:
    total: Dim = 0
    for dim in dims:
        total = total + dim
    return simplify(total)


def _at_most(count: Dim, limit: Dim) -> Dim:
    return limit if is_equal(count, limit) else minimum(count, limit)
