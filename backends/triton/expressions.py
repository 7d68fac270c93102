"""Names, numbers and index expressions of a generated kernel, and the tiles that they fill."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field

from lynx.ir.dims import Dim, python_source
from lynx.ir.kernel import Index, Scalar, Term

from .device import HELPERS

_RESERVED = frozenset(
    (
        *("tl", "triton", "libdevice", "torch", "range", "float", "max", "min", "INDEX", "run"),
        *("row", "row_mask", "outer", "outer_mask", "column", "column_mask", "tile", "index"),
        *(
            "start",
            "begin",
            "end",
            "part",
            "block",
            "better",
            "delta",
            "rounds",
            "new_max",
            "shift",
        ),
        *("program", "row_block", "row_blocks", "column_block", "column_blocks", "first", "batch"),
        *("together", "depth", "depth_mask", "total", "GROUP", "KBLOCK"),
        *("seen", "all_seen", "apart", "scale", "failures", "XBLOCK", "YBLOCK", "RBLOCK"),
        *HELPERS,
    )
)
"""What generated kernels and functions call by name, and names that they use themselves."""


def identifier(name: str) -> str:
    """Return a name that Python accepts and that no generated kernel uses for itself."""
    name = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    if name[0].isdigit() or name in _RESERVED or keyword.iskeyword(name):
        name = f"{name}_" if not name[0].isdigit() else f"_{name}"
    return name


class Names:
    """Hands out names, each once."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        """Return the wanted name, or one with a number behind it if it is taken."""
        base = identifier(wanted)
        name = base
        while name in self._used:
            self._used[base] += 1
            name = f"{base}_{self._used[base]}"
        self._used[name] = 0
        return name


@dataclass
class SizeArguments:
    """Dimensions that are arguments of the kernel, computed by the host: symbolic ones, mostly."""

    names: Names
    known: dict[str, tuple[str, Dim]] = field(default_factory=dict)

    def text(self, dim: Dim) -> str:
        """Return a number, or the name of the argument."""
        if isinstance(dim, int):
            return str(dim)
        source = python_source(dim)
        if source not in self.known:
            wanted = source if source.isidentifier() else f"n{len(self.known)}"
            self.known[source] = (self.names.fresh(wanted), dim)
        return self.known[source][0]

    def hidden(self, number: int, wanted: str) -> str:
        """Return the name of an argument for a number that the compiler shall not know."""
        key = f"{wanted} = {number}"
        if key not in self.known:
            self.known[key] = (self.names.fresh(wanted), number)
        return self.known[key][0]


Tile = tuple[bool, ...]
"""For each dimension of the tile, whether something varies along it."""


def joined(*tiles: Tile) -> Tile:
    """Return the tile that holds all tiles."""
    return tuple(any(flags) for flags in zip(*tiles, strict=True))


@dataclass
class Tiling:
    """The dimensions of a tile: for each, the axes that it holds and the name of its size."""

    groups: tuple[tuple[str, ...], ...]
    blocks: tuple[str, ...]

    def of(self, axes: tuple[str, ...]) -> Tile:
        """Return the tile of what depends on these axes."""
        return tuple(any(axis in group for axis in axes) for group in self.groups)

    def shape(self, tile: Tile) -> str:
        """Return the shape of a tile as text."""
        sizes = [block if used else "1" for block, used in zip(self.blocks, tile, strict=True)]
        return f"[{', '.join(sizes)}]"


@dataclass
class IndexText:
    """Prints indices, given how axes and scalars are called."""

    tiling: Tiling
    sizes: SizeArguments
    axis_names: dict[str, str]
    scalar_names: dict[Scalar, str]
    index_type: str

    def tile(self, index: Index) -> Tile:
        """Return the tile that the value of an index fills."""
        axes = [term.of for term in index.terms if isinstance(term.of, str)]
        for scalar in index.scalars:
            axes.extend(scalar.axes)
        return self.tiling.of(tuple(axes))

    def text(self, index: Index) -> str:
        """Return the expression of an index; only a number if it has no terms."""
        parts = [self._term(term) for term in index.terms]
        if index.offset != 0 or not parts:
            parts.append(self.sizes.text(index.offset))
        return " + ".join(parts).replace("+ -", "- ")

    def filled(self, index: Index, tile: Tile) -> str:
        """Return the expression of an index, spread over a tile that holds it."""
        text = self.text(index)
        if self.tile(index) == tile and any(tile):
            return text
        return f"{text} + tl.zeros({self.tiling.shape(tile)}, {self.index_type})"

    def _term(self, term: Term) -> str:
        if isinstance(term.of, str):
            text = self.axis_names[term.of]
        else:
            text = self.scalar_names[term.of]
            if term.of.dtype.value != self.index_type.removeprefix("tl."):
                text = f"{text}.to({self.index_type})"
        if term.divisor != 1:
            text = f"{text} // {self.sizes.text(term.divisor)}"
        if term.modulus is not None:
            text = f"({text})" if "//" in text else text
            text = f"{text} % {self.sizes.text(term.modulus)}"
        if term.stride == 1:
            return text
        text = f"({text})" if " " in text else text
        return f"{text} * {self.sizes.text(term.stride)}"
