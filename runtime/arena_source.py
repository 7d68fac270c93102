"""The part of a generated program that makes the tensors and addresses of one arena."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from lynx.ir.dims import free_symbols, python_source
from lynx.ir.types import DType
from lynx.passes.plan_memory import BufferGroup

from .dtypes import torch_dtype
from .expressions import Constants, Names

ROLES = ("block", "take", "give", "tensors", "sizes")


@dataclass
class ArenaSource:
    """The part of a program that belongs to one arena.

    `maker` is the name of the generated function that makes its tensors, `sizes` of the one that
    gives the bytes of its buffers where they depend on `symbols`; `take` and `give` are the names
    under which the program finds the arena. `used` are the names that the program gets from it.
    """

    group: BufferGroup
    symbols: tuple[str, ...]
    block: str
    take: str
    give: str
    maker: str
    sizes: str
    lines: list[str] = field(default_factory=list)
    used: dict[str, None] = field(default_factory=dict)
    addresses: dict[tuple[int | None, ...], str] = field(default_factory=dict)
    bases: dict[DType, str] = field(default_factory=dict)

    @classmethod
    def named(cls, group: BufferGroup, names: Names) -> ArenaSource:
        """Return the source of an arena, with names that nothing else has."""
        prefix = f"{'saved_' if group.saved else ''}{group.device.replace(':', '')}"
        symbols = tuple(free_symbols(_dims_of(group)))
        block, take, give, maker, sizes = (names.unique(f"{prefix}_{role}") for role in ROLES)
        return cls(group, symbols, block, take, give, maker, sizes)

    @property
    def is_planned(self) -> bool:
        """Whether the offsets of all buffers are known."""
        return all(buffer.placement.offset is not None for buffer in self.group.buffers)

    def address(self, chosen: tuple[int | None, ...], names: Names, constants: Constants) -> str:
        """Return the name of the packed addresses of these buffers, None for the arena's start."""
        known = self.addresses.get(chosen)
        if known is None:
            known = self.addresses[chosen] = names.unique(f"{self.maker}_addresses")
            starts = ["start" if i is None else f"start + offsets[{i}]" for i in chosen]
            pack = constants.name(packer(len(chosen), 0), f"pack_{len(chosen)}")
            if len(self.addresses) == 1:
                self.lines.append("start = memory.start")
            self.lines.append(f"{known} = {pack}({', '.join(starts)})")
            self.used[known] = None
        return known

    def base(self, dtype: DType, names: Names) -> str:
        """Return the name of the tensor at the start of the arena of which others are made."""
        known = self.bases.get(dtype)
        if known is None:
            known = self.bases[dtype] = names.unique(f"{self.maker}_{dtype}")
            self.lines.append(f"{known} = memory.base({torch_dtype(dtype)})")
        return known

    def functions(self) -> list[str]:
        """Return the lines of the functions that make the arena."""
        parameters = ", ".join(("memory", "offsets", *self.symbols))
        lines = [f"def {self.maker}({parameters}):"]
        lines += [f"    {line}" for line in self.lines]
        lines += [f"    return ({''.join(f'{name}, ' for name in self.used)})", ""]
        if not self.is_planned:
            sizes = "".join(f"{python_source(size)}, " for size in self.group.sizes)
            lines += [f"def {self.sizes}({', '.join(self.symbols)}):", f"    return ({sizes})", ""]
        return [*lines, ""]

    def around(self, body: list[str]) -> list[str]:
        """Return the body of a program between taking the arena and giving it back."""
        names = "".join(f"{name}, " for name in self.used)
        take = f"{self.take}({', '.join(self.symbols)})"
        if self.group.saved:
            return [f"({names}) = {take}", *body]
        return [
            f"{self.block}, ({names}) = {take}",
            "try:",
            *(f"    {line}" for line in body),
            "finally:",
            f"    {self.give}({self.block})",
        ]


_PACKERS: dict[tuple[int, int], Any] = {}


def packer(addresses: int, numbers: int) -> Any:
    """Return the function that packs so many addresses and signed numbers into bytes."""
    key = (addresses, numbers)
    if key not in _PACKERS:
        _PACKERS[key] = struct.Struct(f"={addresses}Q{numbers}q").pack
    return _PACKERS[key]


def _dims_of(group: BufferGroup) -> list[Any]:
    dims: list[Any] = []
    for buffer in group.buffers:
        dims += [*buffer.value.shape, *(buffer.placement.strides or ()), buffer.placement.size]
    return dims
