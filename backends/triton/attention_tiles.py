"""How large the tiles of attention are, chosen from depths and types alone.

The numbers are those with which no kernel spills registers (`tests/backends/triton`), for devices
of compute capability 9.0 and for gfx942.
"""

from __future__ import annotations

from lynx.ir.dims import Dim
from lynx.ir.native import AttentionCall
from lynx.ir.types import DType

from .attention_writer import Tiles, parts_of

UNKNOWN_DEPTH = 128
"""What is assumed of a depth that only the launch knows."""

_Table = dict[str, tuple[Tiles, Tiles, Tiles]]
"""For each kernel the tiles for depths up to 64, 128 and 256."""

_LOW: _Table = {
    "forward": (Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 2), Tiles(64, 32, 8, 2)),
    "rows": (Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2), Tiles(32, 32, 4, 2)),
    "keys": (Tiles(32, 128, 8, 2), Tiles(32, 128, 8, 2), Tiles(32, 32, 8, 2)),
    "queries": (Tiles(64, 64, 4, 2), Tiles(128, 32, 8, 2), Tiles(32, 32, 8, 2)),
}
_WIDE: _Table = {
    "forward": (Tiles(32, 32, 4, 2), Tiles(16, 32, 4, 2), Tiles(16, 16, 4, 1)),
    "rows": (Tiles(32, 32, 8, 2), Tiles(16, 32, 4, 2), Tiles(16, 16, 8, 1)),
    "keys": (Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1)),
    "queries": (Tiles(32, 32, 4, 2), Tiles(32, 16, 4, 2), Tiles(16, 16, 8, 1)),
}
_LOW_AMD: _Table = {
    **_LOW,
    "forward": (Tiles(128, 64, 4, 1), Tiles(128, 64, 4, 1), Tiles(64, 32, 4, 1)),
    "keys": (Tiles(32, 128, 4, 1), Tiles(32, 64, 4, 1), Tiles(32, 32, 4, 1)),
    "queries": (Tiles(64, 64, 4, 1), Tiles(64, 32, 4, 1), Tiles(32, 32, 4, 1)),
}
_WIDE_AMD: _Table = {
    **_WIDE,
    "keys": (Tiles(16, 32, 4, 1), Tiles(16, 16, 4, 1), Tiles(16, 16, 4, 1)),
}


def choose_tiles(kind: str, call: AttentionCall, *, is_amd: bool = False) -> Tiles:
    """Return the tiles of a kernel: `forward`, `rows`, `keys` or `queries`."""
    width = max(map(_width, (call.sizes.depth, call.sizes.value_depth)))
    if call.q.dtype is DType.F32:
        table = _WIDE_AMD if is_amd else _WIDE
    else:
        table = _LOW_AMD if is_amd else _LOW
    return table[kind][0 if width <= 64 else 1 if width <= 128 else 2]


def _width(depth: Dim) -> int:
    """Return how wide the tiles of a depth are together."""
    if not isinstance(depth, int):
        return UNKNOWN_DEPTH
    return sum(int(part.width) for part in parts_of(depth))
