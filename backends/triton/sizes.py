"""Estimates of sizes, and when a reduction is worth dividing among programs."""

from __future__ import annotations

from dataclasses import dataclass

from lynx.ir.dims import Dim, ceil_div, evaluate, free_symbols, maximum, minimum
from lynx.ir.kernel import Kernel, Load


@dataclass(frozen=True)
class Limits:
    """Where schedules change their kind. Tests make them small to see all kinds on small data.

    `programs` keep a device busy. A program holds up to `persistent` columns at once, otherwise it
    loops over tiles of about `tile` points. A reduction is split from so many numbers on, which lie
    `along` each other or `across`, into parts of at least so many: a second launch costs a few
    microseconds, in which one program reads some 10,000 numbers that lie side by side.
    """

    programs: int = 256
    persistent: int = 8192
    tile: int = 2048
    split_along: int = 16384
    split_across: int = 1024
    part_along: int = 4096
    part_across: int = 128


LIMITS = Limits()
UNKNOWN_SIZE = 64
"""What is assumed of a symbolic size where only speed depends on it."""


def estimate(dim: Dim) -> int:
    """Return a dimension, or a guess at a symbolic one."""
    if isinstance(dim, int):
        return dim
    return max(evaluate(dim, dict.fromkeys(free_symbols([dim]), UNKNOWN_SIZE)), 0)


def next_power(number: int) -> int:
    """Return the lowest power of two that is not less."""
    return 1 << max(number - 1, 0).bit_length()


def contiguous_axes(kernel: Kernel) -> tuple[str, ...]:
    """Return the axes along which the larger part of the loads is contiguous."""
    votes: dict[str, int] = {}
    for instruction in kernel.body:
        if isinstance(instruction, Load):
            points = 1
            for axis in instruction.domain:
                points *= estimate(kernel.sizes[axis])
            for term in instruction.index.terms:
                if isinstance(term.of, str) and term.stride == 1 and term.divisor == 1:
                    votes[term.of] = votes.get(term.of, 0) + points
    most = max(votes.values(), default=0)
    return tuple(axis for axis, count in votes.items() if 2 * count > most)


def _programs(rows: int, count: int, is_along: bool) -> int:
    """Return how many programs a reduction has that is not split."""
    if not is_along:
        return max(rows // 64, 1)
    return max(rows * min(count, 1024) // 1024, 1)


def is_split(rows: Dim, count: Dim, is_along: bool, limits: Limits) -> bool:
    """Whether to divide a reduction of `count` numbers to each of `rows` results.

    `is_along` says that the reduced numbers lie side by side.
    """
    wide = estimate(count)
    few = _programs(estimate(rows), wide, is_along) < limits.programs // 2
    return few and wide >= (limits.split_along if is_along else limits.split_across)


def splits_of(rows: Dim, count: Dim, is_along: bool, limits: Limits) -> Dim:
    """Return the number of programs that share the numbers of one result, at least 1."""
    wanted = max(limits.programs // _programs(estimate(rows), estimate(count), is_along), 2)
    least_part = limits.part_along if is_along else limits.part_across
    return maximum(minimum(wanted, ceil_div(count, least_part)), 1)
