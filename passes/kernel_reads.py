"""What a kernel reads of the buffers that it writes over."""

from __future__ import annotations

from collections.abc import Iterable

from lynx.ir.kernel import Index, Kernel, Load, Store


def reads_in_step(kernel: Kernel, names: Iterable[str]) -> bool:
    """Whether each buffer of these names is read before it is written, and only where it is.

    Nothing may be read of what is written at places that are read from memory: two may be one.
    """
    return all(_is_read_in_step(kernel, name) for name in names)


def _is_read_in_step(kernel: Kernel, name: str) -> bool:
    loads: list[Index] = []
    stores: list[Index] = []
    for instruction in kernel.body:
        if isinstance(instruction, Load) and instruction.buffer.name == name:
            if stores:
                return False
            loads.append(instruction.index)
        elif isinstance(instruction, Store) and instruction.buffer.name == name:
            stores.append(instruction.index)
    if loads and any(index.scalars for index in stores):
        return False
    places = {(frozenset(index.terms), index.offset) for index in (*loads, *stores)}
    return len(stores) == 1 and len(places) == 1
