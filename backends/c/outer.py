"""Choose the reductions of a kernel whose partial results threads accumulate, each its own."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lynx.ir.dims import Dim, product
from lynx.ir.kernel import Instruction, Kernel, Load, Reduce, Scalar, Store

from .access import strides_of

SMALL_WORK = 1 << 14
"""Points below which a reduction is not worth a second nest."""

ENOUGH_UNITS = 16
"""Independent pieces that keep the threads of a common machine busy."""

LANES = 64
"""Neighbouring columns that are reduced together."""


def _volume(axes: Iterable[str], sizes: dict[str, Dim]) -> Dim:
    return product(sizes[axis] for axis in axes)


def _is_below(size: Dim, limit: int) -> bool:
    return isinstance(size, int) and size < limit


class OuterReductions:
    """Chooses which reductions are outer."""

    def __init__(self, kernel: Kernel, body: tuple[Instruction, ...]) -> None:
        self.sizes = dict(kernel.sizes)
        self.body = body
        self.users: dict[Scalar, list[Instruction]] = {}
        for instruction in body:
            for operand in instruction.operands:
                self.users.setdefault(operand, []).append(instruction)

    def choose(self) -> dict[Reduce, None]:
        """Return the outer reductions."""
        groups: dict[str, list[Reduce]] = {}
        find = self._components()
        for instruction in self.body:
            if isinstance(instruction, Reduce) and instruction.domain:
                groups.setdefault(find[instruction.domain[0]], []).append(instruction)
        outer: dict[Reduce, None] = {}
        sequential = self._needed_by_scatters()
        for reductions in groups.values():
            over = self._inner_axes([r for r in reductions if r not in sequential])
            for reduction in reductions:
                if set(reduction.over) != over or reduction in sequential:
                    outer[reduction] = None
        return outer

    def _components(self) -> dict[str, str]:
        """Map each axis to a representative of those that it is used with."""
        parent = {axis: axis for axis in self.sizes}

        def find(axis: str) -> str:
            while parent[axis] != axis:
                parent[axis] = parent[parent[axis]]
                axis = parent[axis]
            return axis

        for instruction in self.body:
            for axis in instruction.domain[1:]:
                parent[find(axis)] = find(instruction.domain[0])
        return {axis: find(axis) for axis in self.sizes}

    def _needed_by_scatters(self) -> dict[Reduce, None]:
        """Find what a nest needs that writes to memory in an order of its own."""
        found = closure(i for i in self.body if isinstance(i, Store) and i.is_ordered)
        return {i: None for i in self.body if isinstance(i, Reduce) and i in found}

    def _inner_axes(self, reductions: list[Reduce]) -> set[str]:
        """Return the set of axes whose reductions are inner; empty for none."""
        fine = [r for r in reductions if not self._is_too_coarse(r)]
        counts: dict[frozenset[str], float] = {}
        for reduction in [r for r in fine if self._is_used_along(r)] or fine:
            key = frozenset(reduction.over)
            counts[key] = counts.get(key, 0.0) + self._weight(reduction)
        best: frozenset[str] = max(counts, key=counts.__getitem__, default=frozenset())
        return set(best)

    def _weight(self, reduction: Reduce) -> float:
        """Prefer reductions along neighbouring elements: these are cheapest as inner ones."""
        volume = _volume(reduction.domain, self.sizes)
        weight = math.log2(volume + 2) if isinstance(volume, int) else 20.0
        return weight * (2 if self._is_contiguous(reduction) else 1)

    def _is_contiguous(self, reduction: Reduce) -> bool:
        found = closure([reduction])
        return any(
            strides_of(load.index).get(axis) == 1
            for load in found
            if isinstance(load, Load)
            for axis in reduction.over
        )

    def _is_used_along(self, reduction: Reduce) -> bool:
        """Whether something that runs over the reduced axes depends on the result."""
        over = set(reduction.over)
        pending: list[Instruction] = [reduction]
        seen: set[Instruction] = {reduction}
        while pending:
            for result in pending.pop().results:
                for user in self.users.get(result, ()):
                    if over.intersection(user.domain):
                        return True
                    if user not in seen:
                        seen.add(user)
                        pending.append(user)
        return False

    def _is_too_coarse(self, reduction: Reduce) -> bool:
        """Whether too few threads could work if each result were one thread's."""
        if _is_below(_volume(reduction.domain, self.sizes), SMALL_WORK):
            return False
        units = _volume(reduction.result_axes(), self.sizes)
        enough = ENOUGH_UNITS if self._is_contiguous(reduction) else ENOUGH_UNITS * LANES
        return _is_below(units, enough)


def closure(roots: Iterable[Instruction]) -> dict[Instruction, None]:
    """Return the instructions that the roots depend on, and the roots."""
    found: dict[Instruction, None] = {}
    pending = list(roots)
    while pending:
        instruction = pending.pop()
        if instruction not in found:
            found[instruction] = None
            pending.extend(operand.instruction for operand in instruction.operands)
    return found
