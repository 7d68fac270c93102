"""Packing of buffers with lifetimes into one arena: offsets such that no two living ones overlap.

The problem (dynamic storage allocation, interval packing) is NP-hard; the sum of what lives at one
time is a lower bound that real programs nearly reach. Three greedy orders are tried, the best is
improved by moving what lies at the peak to the front. Every step counts the pairs of buffers that
it compares; once `budget` is spent, the best plan so far is returned, so that the time is bounded
on any input. The first order needs no pairs: it replays the program with a best-fit free list.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

DEFAULT_BUDGET = 1_000_000
_ROUNDS = 12


class Lifetime(NamedTuple):
    """A buffer: its size in bytes, and the first and last step (included) in which it is needed."""

    size: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Packing:
    """An offset for each buffer, the bytes that they reach, and the bytes that must be living."""

    offsets: tuple[int, ...]
    peak: int
    lower_bound: int


def pack(lifetimes: Sequence[Lifetime], budget: int = DEFAULT_BUDGET) -> Packing:
    """Return offsets for buffers whose sizes are all multiples of the alignment."""
    bound = lower_bound(lifetimes)
    best = _replay(lifetimes)
    peak = _peak(lifetimes, best)
    if peak == bound:
        return Packing(tuple(best), peak, bound)
    neighbours = _neighbours(lifetimes, budget // 4)
    if neighbours is None:
        return Packing(tuple(best), peak, bound)
    search = _Search(lifetimes, neighbours, budget, bound, best, peak)
    search.run()
    return Packing(tuple(search.best), search.peak, bound)


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """Return the largest number of bytes that live in one step."""
    changes: dict[int, int] = {}
    for size, start, end in lifetimes:
        changes[start] = changes.get(start, 0) + size
        changes[end + 1] = changes.get(end + 1, 0) - size
    living = most = 0
    for step in sorted(changes):
        living += changes[step]
        most = max(most, living)
    return most


def _peak(lifetimes: Sequence[Lifetime], offsets: Sequence[int]) -> int:
    ends = (offset + life.size for offset, life in zip(offsets, lifetimes, strict=True))
    return max(ends, default=0)


class _FreeList:
    """Gaps of the arena below its top, found by size and merged with their neighbours."""

    def __init__(self) -> None:
        self.top = 0
        self.starts: list[int] = []
        self.ends: dict[int, int] = {}
        self.by_size: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """Return an offset in the smallest gap that fits, or at the top."""
        index = bisect.bisect_left(self.by_size, (size, -1))
        if index < len(self.by_size):
            length, start = self.by_size[index]
            self._remove(start)
            if length > size:
                self._add(start + size, start + length)
            return start
        start = self.top
        if self.starts and self.ends[self.starts[-1]] == self.top:
            start = self.starts[-1]  # the last gap touches the top: grow over it
            self._remove(start)
        self.top = start + size
        return start

    def give(self, start: int, size: int) -> None:
        """Make a range free again."""
        if size == 0:
            return
        end = start + size
        index = bisect.bisect_left(self.starts, start)
        if index < len(self.starts) and self.starts[index] == end:
            following = self.starts[index]
            end = self.ends[following]
            self._remove(following)
        if index > 0 and self.ends[self.starts[index - 1]] == start:
            start = self.starts[index - 1]
            self._remove(start)
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        bisect.insort(self.starts, start)
        self.ends[start] = end
        bisect.insort(self.by_size, (end - start, start))

    def _remove(self, start: int) -> None:
        del self.starts[bisect.bisect_left(self.starts, start)]
        end = self.ends.pop(start)
        del self.by_size[bisect.bisect_left(self.by_size, (end - start, start))]


def _replay(lifetimes: Sequence[Lifetime]) -> list[int]:
    """Allocate and free in order of time, larger buffers first within a step."""
    offsets = [0] * len(lifetimes)
    free = _FreeList()
    living: list[tuple[int, int]] = []
    order = sorted(range(len(lifetimes)), key=lambda i: (lifetimes[i].start, -lifetimes[i].size, i))
    for index in order:
        size, start, end = lifetimes[index]
        while living and living[0][0] < start:
            _, dead = heapq.heappop(living)
            free.give(offsets[dead], lifetimes[dead].size)
        if size:
            offsets[index] = free.take(size)
            heapq.heappush(living, (end, index))
    return offsets


def _neighbours(lifetimes: Sequence[Lifetime], limit: int) -> list[list[int]] | None:
    """Return for each buffer those that live at the same time; None if there are too many pairs."""
    neighbours: list[list[int]] = [[] for _ in lifetimes]
    living: dict[int, None] = {}
    deaths: list[tuple[int, int]] = []
    pairs = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].start):
        size, start, end = lifetimes[index]
        if size == 0:
            continue
        while deaths and deaths[0][0] < start:
            del living[heapq.heappop(deaths)[1]]
        pairs += len(living)
        if pairs > limit:
            return None
        neighbours[index].extend(living)
        for other in living:
            neighbours[other].append(index)
        living[index] = None
        heapq.heappush(deaths, (end, index))
    return neighbours


class _Search:
    """Greedy placement in several orders, and moves of what lies at the peak."""

    def __init__(
        self,
        lifetimes: Sequence[Lifetime],
        neighbours: list[list[int]],
        budget: int,
        bound: int,
        best: list[int],
        peak: int,
    ) -> None:
        self.lifetimes = lifetimes
        self.neighbours = neighbours
        self.cost = max(1, sum(map(len, neighbours)))
        self.budget = budget
        self.bound = bound
        self.best = best
        self.peak = peak

    def run(self) -> None:
        """Improve `best` and `peak` until the bound is reached or the budget spent."""
        lives = self.lifetimes
        everything = range(len(lives))
        orders = (
            sorted(everything, key=lambda i: (-lives[i].size, lives[i].start, i)),
            sorted(everything, key=lambda i: (-lives[i].size * _length(lives[i]), i)),
            sorted(everything, key=lambda i: (-_length(lives[i]), -lives[i].size, i)),
        )
        results: list[tuple[int, list[int], list[int]]] = []
        for order in orders:
            if not self._can_afford():
                break
            offsets = self._place(order)
            results.append((_peak(lives, offsets), order, offsets))
        if results:
            peak, order, offsets = min(results, key=lambda result: result[0])
            self._improve(order, offsets, peak)

    def _can_afford(self) -> bool:
        if self.peak <= self.bound or self.budget < self.cost:
            return False
        self.budget -= self.cost
        return True

    def _improve(self, order: list[int], offsets: list[int], peak: int) -> None:
        """Place the buffers that reach the peak earlier, as long as that does not make it worse."""
        for _ in range(_ROUNDS):
            if not self._can_afford():
                return
            highest = [
                index for index in order if offsets[index] + self.lifetimes[index].size == peak
            ]
            moved = highest + [index for index in order if index not in set(highest)]
            candidate = self._place(moved)
            height = _peak(self.lifetimes, candidate)
            if height > peak or moved == order:
                return
            order, offsets, peak = moved, candidate, height

    def _place(self, order: Sequence[int]) -> list[int]:
        """Put each buffer into the smallest gap between its placed neighbours."""
        lives = self.lifetimes
        offsets = [-1] * len(lives)
        for index in order:
            size = lives[index].size
            if size == 0:
                offsets[index] = 0
                continue
            taken = sorted(
                (offsets[other], lives[other].size)
                for other in self.neighbours[index]
                if offsets[other] >= 0
            )
            offsets[index] = _smallest_gap(taken, size)
        peak = _peak(lives, offsets)
        if peak < self.peak:
            self.best, self.peak = offsets, peak
        return offsets


def _length(life: Lifetime) -> int:
    return life.end - life.start + 1


def _smallest_gap(taken: list[tuple[int, int]], size: int) -> int:
    """Return the start of the smallest gap that fits, the end of everything if none does."""
    reached = 0
    found = best = -1
    for offset, length in taken:
        gap = offset - reached
        if gap >= size and (best < 0 or gap < best):
            found, best = reached, gap
        reached = max(reached, offset + length)
    return found if found >= 0 else reached
