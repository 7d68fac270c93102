"""Axes, buffers and index maps of random kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir import DType, symbol
from lynx.ir.dims import Dim, evaluate, simplify
from lynx.ir.kernel import Buffer, Index, KernelBuilder, Term
from tests.tools import kernel_nodes as nodes
from tests.tools.kernel_nodes import Node

DTYPES = (
    DType.F32, DType.F64, DType.BF16, DType.F16, DType.I64, DType.I32, DType.U8, DType.BOOL,
)  # fmt: skip
REDUCTIONS = (
    "sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford", "softmax",
)  # fmt: skip
SIZES = (4, 3, 8, 1, 2, 5, 16, 7, 17, 33, 40, 0)
MOST_POINTS = 4096


@dataclass(frozen=True)
class Options:
    """What random kernels may hold: for a back end that cannot do everything."""

    dtypes: tuple[DType, ...] = DTYPES
    reductions: tuple[str, ...] = REDUCTIONS
    functions: tuple[str, ...] = nodes.APPROXIMATE
    symbols: bool = True
    scatters: bool = True
    checks: bool = True
    in_place: bool = True
    specials: bool = True


class Parts:
    """Draws what kernels consist of; `pool` holds the scalars to compute with."""

    def __init__(self, draw: DrawFn, options: Options) -> None:
        self.draw = draw
        self.options = options
        self.builder = KernelBuilder()
        self.sizes: dict[str, int] = {}
        self.symbols: dict[str, int] = {}
        self.pool: list[Node] = []
        self.data: dict[str, torch.Tensor] = {}
        self.tolerances: dict[str, tuple[float, float]] = {}
        self.seed = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
        self.loads: list[tuple[Buffer, Index, Node]] = []
        self.has_reductions = False

    def pick(self, items: Any) -> Any:
        return self.draw(st.sampled_from(tuple(items)))

    def chance(self, of: int) -> bool:
        """Return true once in so many times, and never in the simplest example."""
        return bool(self.draw(st.integers(0, of - 1)) == of - 1)

    def axis_size(self, axis: str) -> Dim:
        return self.builder.axes[axis].size

    def count(self, axes: tuple[str, ...]) -> int:
        return math.prod(self.sizes[axis] for axis in axes)

    def enter_axes(self) -> None:
        for name in ("i", "j", "k")[: self.pick((1, 2, 2, 3))]:
            room = MOST_POINTS // max(self.count(tuple(self.sizes)), 1)
            size = self.pick([size for size in SIZES if size <= room])
            dim: Dim = size
            if self.options.symbols and self.chance(4):
                dim = symbol(f"s{len(self.symbols)}")
                self.symbols[f"s{len(self.symbols)}"] = size
            self.sizes[self.builder.axis(name, dim)] = size

    def some_axes(self) -> tuple[str, ...]:
        """Return all axes mostly, sometimes only a part."""
        names = tuple(self.builder.axes)
        return names if not self.chance(3) else tuple(a for a in names if self.chance(2))

    def buffer(self, dtype: DType, extent: Dim, **options: Any) -> Buffer:
        name = f"b{len(self.data)}"
        size = evaluate(extent, self.symbols)
        special = options.pop("special", False)
        bounds = options.pop("bounds", None)
        self.data[name] = self.contents(dtype, size, special, bounds)
        return self.builder.buffer(name, dtype, extent, **options)

    def contents(
        self, dtype: DType, size: int, special: bool, bounds: tuple[int, int] | None
    ) -> torch.Tensor:
        kind = torch_dtype(dtype)
        if dtype is DType.BOOL or dtype.is_integer:
            low = -9 if dtype.value.startswith("i") else 0
            low, high = bounds or (low, 2 if dtype is DType.BOOL else 10)
            return torch.randint(low, high, (size,), generator=self.seed).to(kind)
        values = torch.rand(size, generator=self.seed, dtype=torch.float64) * 16 - 8
        # Equal numbers make ties, small ones and whole ones reach other branches.
        which = torch.randint(0, 6, (size,), generator=self.seed)
        values = torch.where(
            which == 0, values.round(), torch.where(which == 1, values / 8, values)
        )
        if special:
            numbers = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40, 1.0])
            chosen = numbers[torch.randint(0, len(numbers), (size,), generator=self.seed)].double()
            values = torch.where(torch.rand(size, generator=self.seed) < 0.2, chosen, values)
        return values.to(kind)

    def index(self, axes: tuple[str, ...], *, injective: bool = False) -> tuple[Index, Dim]:
        """Return an index over axes and the extent that it needs."""
        order = self.draw(st.permutations(axes)) if self.chance(3) else list(axes)
        scale = self.pick((1, 1, 1, 2))
        terms: dict[str, list[Term]] = {}
        stride: Dim = scale
        offset: Dim = 0
        for axis in reversed(order):
            size = self.axis_size(axis)
            terms[axis] = self.axis_terms(axis, stride, injective)
            if terms[axis][0].stride == -stride:
                offset = offset + stride * (size - 1)
            stride = simplify(stride * size)
        extent = simplify(stride)
        if self.chance(5):
            offset, extent = offset + 3, extent + 3
        if self.symbols:
            # A symbol may be 0, so that nothing is touched, but an offset is all the same.
            extent = simplify(extent + 3)
        parts = tuple(term for axis in order for term in terms[axis])
        return Index(parts, simplify(offset)), extent

    def axis_terms(self, axis: str, stride: Dim, injective: bool) -> list[Term]:
        """Return how an axis enters an index, with values below its size times the stride."""
        size = self.axis_size(axis)
        if self.chance(6):
            return [Term(axis, simplify(-stride))]
        if isinstance(size, int) and size % 4 == 0 and size and self.chance(3):
            across = size // 4
            return [Term(axis, stride, 4), Term(axis, simplify(stride * across), 1, 4)]
        if isinstance(size, int) and not injective and size > 3 and self.chance(4):
            return [Term(axis, stride, *self.pick(((2, None), (1, 3), (2, 2))))]
        return [Term(axis, stride)]
