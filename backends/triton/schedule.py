"""How a stage runs on a device: tile sizes, warps, and whether it loops over its columns.

Chosen from sizes alone, never from a measurement, so all ranks decide alike; a measurement may only
pick another of the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lynx.ir.dims import Dim, product
from lynx.ir.kernel import Constant, Instruction, Kernel, Load, Scalar, Store

from .parts import Merge, Stage
from .sizes import LIMITS, Limits, contiguous_axes, estimate, next_power

REGISTERS = 96
"""How many of the 255 registers of a thread the values of a tile may take."""

WARP = 32


@dataclass(frozen=True)
class Schedule:
    """Tile sizes and warps of a launch.

    A program handles `x_block` rows and `r_block` columns at a time, all columns at once unless
    `is_looped`. Where `y_axes` are given, the tile is made of two groups of rows instead:
    `y_block` points of those axes times `x_block` of the others.
    """

    x_block: int
    r_block: int = 1
    warps: int = 4
    is_looped: bool = False
    y_axes: tuple[str, ...] = ()
    y_block: int = 1


def choose(stage: Stage, limits: Limits = LIMITS) -> Schedule:
    """Return the schedule that the sizes suggest."""
    if not stage.columns:
        return _pointwise(stage, limits)
    if stage.is_serial:
        block = min(next_power(_rows(stage)), 128)
        return Schedule(block, 1, max(min(block // WARP, 4), 1), is_looped=True)
    return _reduction(stage, limits)


def candidates(stage: Stage) -> tuple[Schedule, ...]:
    """Return schedules worth a measurement, the chosen one first."""
    first = choose(stage)
    if stage.is_serial:
        return (first,)
    found = [first]
    for factor in (2, 0.5, 4):
        x_block = int(first.x_block * factor)
        if x_block >= 1 and (not stage.columns or x_block * first.r_block <= 2 * LIMITS.persistent):
            found.append(replace(first, x_block=x_block))
    for warps in (first.warps * 2, first.warps // 2):
        if 1 <= warps <= 16:
            found.append(replace(first, warps=warps))
    if first.is_looped and first.r_block >= 16:
        found.append(replace(first, r_block=first.r_block * 2))
        found.append(replace(first, r_block=first.r_block // 2))
    return tuple(dict.fromkeys(found))


def _size(stage: Stage, axes: tuple[str, ...]) -> Dim:
    return product(stage.kernel.sizes[axis] for axis in axes)


def _rows(stage: Stage) -> int:
    return max(estimate(_size(stage, stage.rows)), 1)


def _pointwise(stage: Stage, limits: Limits) -> Schedule:
    transposed = _transposed_axes(stage)
    if transposed:
        return Schedule(32, warps=4, y_axes=transposed, y_block=32)
    rows = _rows(stage)
    most = 1024 if peak_width(stage) <= 16 else 512
    # Enough programs to fill the device come before work for each thread.
    block = min(most, max(128, next_power(rows // (2 * limits.programs) + 1)))
    block = min(block, next_power(rows)) if rows >= WARP else WARP
    return Schedule(block, warps=max(min(block // 256, 8), 1))


def _transposed_axes(stage: Stage) -> tuple[str, ...]:
    """Return the rows of the other tile dimension, if two axes are contiguous in large accesses.

    Then a tile of one dimension would read or write one of the buffers with large strides.
    """
    sizes = stage.kernel.sizes
    votes: dict[str, int] = {}
    for access in stage.kernel.body:
        if not isinstance(access, Load | Store) or set(access.domain) != set(stage.rows):
            continue
        for term in access.index.terms:
            if isinstance(term.of, str) and term.stride == 1 and term.divisor == 1:
                votes[term.of] = votes.get(term.of, 0) + 1
    wide = [axis for axis in votes if estimate(sizes[axis]) >= 16]
    if len(wide) < 2:
        return ()
    kept = max(wide, key=lambda axis: (votes[axis], stage.rows.index(axis)))
    other = max((axis for axis in wide if axis != kept), key=lambda axis: votes[axis])
    # Its neighbours must be neighbours in the tile, so it comes last.
    return (*(axis for axis in stage.rows if axis not in (kept, other)), other)


def _reduction(stage: Stage, limits: Limits) -> Schedule:
    count = _size(stage, stage.columns)
    if any(isinstance(one, Merge) for one in stage.kernel.body):
        # The number of parts is never more than the number of programs wanted.
        block = next_power(count) if isinstance(count, int) else limits.programs
        x_block = max(1, min(4096 // block, next_power(_rows(stage))))
        return Schedule(x_block, block, max(min(block * x_block // 256, 8), 1))
    wide = max(estimate(count), 1)
    rows = _rows(stage)
    along = _lies_along(stage)
    width = peak_width(stage)
    if stage.across is not None:
        block = next_power(wide)
        found = _persistent(block, rows, width, True, limits)
        return found if found is not None else Schedule(1, block, 16)
    is_small = isinstance(count, int) and count <= limits.persistent and stage.splits is None
    if is_small and (along or wide <= 64):
        block = next_power(wide)
        schedule = _persistent(block, rows, width, along, limits)
        if schedule is not None:
            return schedule
    if along:
        block = min(limits.tile, max(next_power(wide), 2))
        block = max(block // 2, 1) if width > 12 else block
        x_block = max(1, min(limits.tile // 2 // block, next_power(rows)))
        return Schedule(x_block, block, max(min(block * x_block // 256, 8), 1), is_looped=True)
    x_block = min(64, next_power(rows), limits.tile)
    r_block = max(limits.tile // x_block, 1) if wide > 64 else min(32, limits.tile)
    return Schedule(x_block, r_block, 8, is_looped=True)


def _persistent(block: int, rows: int, width: int, along: bool, limits: Limits) -> Schedule | None:
    """Return a schedule that holds all columns, None if they do not fit into registers."""
    most = 1024 // block if along else 2048 // block
    x_block = max(1, min(most, next_power(rows // limits.programs + 1)))
    if not along:
        x_block = max(x_block, min(32, next_power(rows), max(most, 1)))
    warps = max(min(block * x_block // 256, 16), 1)
    while warps < 16 and _registers(block * x_block, warps, width) > REGISTERS:
        warps *= 2
    while x_block > 1 and _registers(block * x_block, warps, width) > REGISTERS:
        x_block //= 2
    if _registers(block * x_block, warps, width) > REGISTERS:
        return None
    return Schedule(x_block, block, warps)


def _registers(elements: int, warps: int, width: int) -> int:
    return max(elements // (warps * WARP), 1) * width


def _lies_along(stage: Stage) -> bool:
    """Whether neighbours in memory are neighbours among the columns."""
    contiguous = contiguous_axes(stage.kernel)
    return not any(axis in stage.rows for axis in contiguous)


def peak_width(stage: Stage) -> int:
    """Return the registers that the values of one point take, at most, in the order of the body."""
    last: dict[Scalar, int] = {}
    kernel: Kernel = stage.kernel
    for place, instruction in enumerate(kernel.body):
        for scalar in instruction.operands:
            last[scalar] = place
    width = peak = 0
    dying: dict[int, int] = {}
    for place, instruction in enumerate(kernel.body):
        for scalar in instruction.results:
            if _takes_registers(scalar, stage) and scalar in last:
                cost = max(scalar.dtype.itemsize // 4, 1)
                width += cost
                dying[last[scalar]] = dying.get(last[scalar], 0) + cost
        peak = max(peak, width)
        width -= dying.pop(place, 0)
    return max(peak, 1)


def _takes_registers(scalar: Scalar, stage: Stage) -> bool:
    maker: Instruction = scalar.instruction
    if isinstance(maker, Constant):
        return False
    return any(axis in stage.columns for axis in scalar.axes) if stage.columns else True
