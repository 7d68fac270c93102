"""Make each kernel once: groups of equal structure, as in repeated layers, share one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lynx.ir.core import Value
from lynx.ir.dims import Dim
from lynx.ir.kernel import Kernel
from lynx.ir.ops.fusion import Fused

from .kernels import kernel_of

Strides = tuple[Dim, ...]


class KernelFactory:
    """Makes the kernels of a program; a shared one has the locations of the first group."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Kernel] = {}

    def kernel_of(
        self,
        fused: Fused,
        input_strides: Sequence[Strides | None],
        result_strides: Sequence[Strides],
        in_place: Mapping[int, int],
    ) -> Kernel:
        """Return the kernel of a fused op, see `lynx.passes.fusion.kernel_of`."""
        layout = (tuple(input_strides), tuple(result_strides), tuple(sorted(in_place.items())))
        key = (structure_of(fused), *layout)
        kernel = self._made.get(key)
        if kernel is None:
            kernel = kernel_of(fused, input_strides, result_strides, in_place)
            self._made[key] = kernel
        return kernel


def structure_of(fused: Fused) -> tuple[object, ...]:
    """Return a key that is equal for fused ops whose regions compute the same in the same order."""
    region = fused.body
    numbers: dict[Value, int] = {}
    for value in region.parameters:
        numbers[value] = len(numbers)
    parts: list[object] = [tuple(value.type for value in region.parameters)]
    for op in region.ops:
        operands = tuple(_spelled(getattr(op, name), numbers) for name in op.operand_fields)
        # The text tells -0.0 from 0.0 and 1 from 1.0 and True, which are equal as keys.
        attributes = tuple(repr(getattr(op, name)) for name in op.attribute_fields)
        parts.append((op.name, operands, attributes))
        for result in op.results:
            numbers[result] = len(numbers)
    parts.append(tuple(numbers[value] for value in region.results))
    return tuple(parts)


def _spelled(item: Any, numbers: Mapping[Value, int]) -> object:
    if isinstance(item, Value):
        return numbers[item]
    if isinstance(item, tuple):
        return tuple(_spelled(part, numbers) for part in item)
    return repr(item)
