"""Choose how a loop nest runs: the vectorized axis, the units of work, the sweeps, what is kept.

A *unit* is one point of the row axes (and one block of the vector axis, where that is a parallel
one); a thread runs it alone. Within it, *sweeps* run over the reduced axes. What is known at depth
d depends on reductions of depth below d, so sweep d comes after the reductions of sweep d - 1.
Each axis set and depth has a sweep of its own. A value that several sweeps need is computed again
when that is cheap, and kept in memory of the unit otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lynx.ir.dims import Dim, product, symbol
from lynx.ir.kernel import (
    Apply,
    Check,
    Constant,
    Instruction,
    Load,
    Position,
    Reduce,
    Scalar,
    Store,
)

from .access import separating, strides_of
from .functions import cost
from .outer import ENOUGH_UNITS, LANES
from .split import Effect, Nest, Partial

BLOCK = 1024
"""Elements of a parallel vector axis in one unit."""

TRANSPOSED_BLOCK = 16
"""Elements of one when some operand strides along it: a cache line of results."""

KEPT_BYTES = 1 << 18
"""Row memory that fits into the second-level cache."""

PART = "#part"
"""The axis along which places that are written are shared out among units."""

PARTS = "#parts"
"""The symbol for the number of shares: it depends on the threads, of which no result depends."""

CHEAP = 7
"""Operations that are done again rather than kept; more for rows that do not fit."""

CHEAP_FOR_LARGE_ROWS = 25


@dataclass(eq=False)
class Sweep:
    """Loops over some reduced axes at one depth. `kept` are results written to row memory."""

    depth: int
    axes: tuple[str, ...]
    targets: list[Instruction] = field(default_factory=list)
    needed: list[Instruction] = field(default_factory=list)
    loaded: dict[Scalar, None] = field(default_factory=dict)


@dataclass(eq=False)
class Schedule:
    """How a nest runs. `vector` is the axis of the innermost loops.

    With `block`, it is a parallel axis of which a unit has that many elements. With `is_columns`,
    sweeps run over other axes, and what is one scalar in a row is an array of `block` here. Of what
    is written where `share` says, each unit does its share, a range of the places.
    """

    nest: Nest
    rows: tuple[str, ...]
    inner: tuple[str, ...]
    vector: str | None
    block: int
    is_columns: bool
    share: Scalar | None = None
    depths: dict[Instruction, int] = field(default_factory=dict)
    sweeps: list[Sweep] = field(default_factory=list)
    kept: dict[Scalar, None] = field(default_factory=dict)

    def is_swept(self, instruction: Instruction) -> bool:
        """Whether an instruction runs for each point of a sweep, not once a row."""
        return any(axis in self.inner for axis in instruction.domain)

    def is_swept_value(self, scalar: Scalar) -> bool:
        """Whether a value differs between the points of a sweep."""
        return any(axis in self.inner for axis in scalar.axes)

    def is_in_lanes(self, scalar: Scalar) -> bool:
        """Whether a value of a row is an array over the lanes of a block of columns."""
        return self.is_columns and self.vector in scalar.axes


def schedule(nest: Nest) -> Schedule:
    """Return a schedule for a nest."""
    result = _sequential(nest) if nest.is_sequential else _parallel(nest)
    _find_depths(result)
    _find_sweeps(result)
    return result


def _sequential(nest: Nest) -> Schedule:
    """Only axes that lead to addresses of their own are parallel; the others run in order."""
    (store,) = (effect for effect in nest.effects if isinstance(effect, Store))
    apart = separating(store.index, nest.axes)
    separate = [axis for axis in apart if axis in store.domain]
    vector = next((axis for axis in separate if strides_of(store.index).get(axis) == 1), None)
    rows = tuple(axis for axis in nest.axes if axis in separate and axis != vector)
    inner = tuple(axis for axis in nest.axes if axis not in separate)
    if vector is None or _is_below(nest.axes[vector], 8):
        return Schedule(nest, rows, inner, vector, LANES if vector else 0, is_columns=True)
    shares = [i for i in apart if isinstance(i, Scalar) and set(inner).intersection(i.axes)]
    share = next((scalar for scalar in shares if vector not in scalar.axes), None)
    units = product(nest.axes[axis] for axis in rows)
    if isinstance(units, int) and units >= ENOUGH_UNITS:
        share = None
    elif share is None:
        return Schedule(nest, rows, inner, vector, LANES, is_columns=True)
    if share is not None:
        nest.axes[PART] = symbol(PARTS)
        rows = (*rows, PART)
    return Schedule(nest, rows, (*inner, vector), vector, 0, is_columns=False, share=share)


def _is_below(size: Dim, limit: int) -> bool:
    return isinstance(size, int) and size < limit


def _parallel(nest: Nest) -> Schedule:
    reduced = {axis for over in nest.reduced for axis in over}
    parallel = tuple(axis for axis in nest.axes if axis not in reduced)
    scores, strided = _scores(nest)
    vector = max(reversed(list(nest.axes)), key=lambda axis: scores[axis], default=None)
    if vector is None:
        return Schedule(nest, (), (), None, 0, is_columns=False)
    if not reduced:
        rows = tuple(axis for axis in parallel if axis != vector)
        if vector in strided:
            partner = strided[vector]
            rows = tuple(axis for axis in rows if axis != partner)
            rows = (*rows, partner) if partner in parallel else rows
            return Schedule(nest, rows, (vector,), vector, TRANSPOSED_BLOCK, is_columns=False)
        size = nest.axes[vector]
        block = 0 if isinstance(size, int) and size <= 2 * BLOCK else BLOCK
        return Schedule(nest, rows, (vector,), vector, block, is_columns=False)
    inner = tuple(axis for axis in nest.axes if axis in reduced)
    if vector in reduced:
        inner = (*(axis for axis in inner if axis != vector), vector)
        return Schedule(nest, parallel, inner, vector, 0, is_columns=False)
    rows = tuple(axis for axis in parallel if axis != vector)
    return Schedule(nest, rows, inner, vector, LANES, is_columns=True)


def _scores(nest: Nest) -> tuple[dict[str, float], dict[str, str]]:
    """Say how well each axis would be vectorized, and which other axis its strided accesses like.

    An access counts for the axis along which it goes through neighbouring elements, and against
    those along which it strides; a load counts once for each sweep that will need it.
    """
    scores = dict.fromkeys(nest.axes, 0.0)
    partners: dict[str, str] = {}
    accesses = [i for i in (*nest.body, *nest.effects) if isinstance(i, Load | Store | Partial)]
    sweeps = _sweeps_of_loads(nest)
    for access in accesses:
        # A store that strides costs more than a load that does.
        weight = 1.5 if isinstance(access, Store) else float(sweeps.get(access, 1))
        weight *= len(access.domain) / max(1, len(nest.axes))
        strides = strides_of(access.index)
        nearest = next((axis for axis, stride in strides.items() if stride == 1), None)
        for axis, stride in strides.items():
            if stride == 1:
                scores[axis] += weight
            elif stride is None:
                scores[axis] -= weight
            elif stride != 0:
                scores[axis] -= 0.25 * weight
                if nearest is not None:
                    partners.setdefault(axis, nearest)
    for axis, size in nest.axes.items():
        if isinstance(size, int) and size < 8:
            scores[axis] = scores[axis] * size / 8 - (100.0 if size <= 1 else 0.0)
    return scores, partners


def _sweeps_of_loads(nest: Nest) -> dict[Instruction, int]:
    """Return for each load how many sweeps need it: one for each depth of what is made of it."""
    depths: dict[Instruction, int] = {}
    for instruction in (*nest.body, *nest.effects):
        sources = [operand.instruction for operand in instruction.operands]
        depths[instruction] = max((depths[i] + isinstance(i, Reduce) for i in sources), default=0)
    needed: dict[Instruction, set[int]] = {}
    for instruction in reversed((*nest.body, *nest.effects)):
        own = needed.setdefault(instruction, set())
        if isinstance(instruction, Reduce) or not instruction.results:
            own = {depths[instruction]}
        for operand in instruction.operands:
            needed.setdefault(operand.instruction, set()).update(own)
    return {i: max(1, len(needed[i])) for i in nest.body if isinstance(i, Load)}


def _find_depths(plan: Schedule) -> None:
    for instruction in (*plan.nest.body, *plan.nest.effects):
        depth = 0
        for operand in instruction.operands:
            source = operand.instruction
            depth = max(depth, plan.depths[source] + isinstance(source, Reduce))
        plan.depths[instruction] = depth


def _sweep_key(plan: Schedule, target: Instruction, deepest: int) -> tuple[int, tuple[str, ...]]:
    axes = tuple(axis for axis in plan.inner if axis in target.domain)
    if plan.nest.is_sequential and axes:
        axes = plan.inner  # what is checked of a store is checked beside it
    is_last = isinstance(target, Store) and overwrites(plan.nest, target)
    return (deepest if is_last else plan.depths[target], axes)


def overwrites(nest: Nest, store: Store) -> bool:
    """Whether a store replaces elements that the nest reads."""
    return any(isinstance(i, Load) and i.buffer is store.buffer for i in nest.body)


def _find_sweeps(plan: Schedule) -> None:
    targets: list[Instruction] = [i for i in plan.nest.body if isinstance(i, Reduce)]
    targets.extend(effect for effect in plan.nest.effects if plan.is_swept(effect))
    deepest = max((plan.depths[target] for target in targets), default=0)
    sweeps: dict[tuple[int, tuple[str, ...]], Sweep] = {}
    for target in targets:
        key = _sweep_key(plan, target, deepest)
        sweeps.setdefault(key, Sweep(*key)).targets.append(target)
    plan.sweeps = sorted(sweeps.values(), key=lambda sweep: (sweep.depth, _is_last(plan, sweep)))
    computed: dict[Scalar, None] = {}
    costs = _Costs(plan)
    for sweep in plan.sweeps:
        _find_needed(plan, sweep, computed, costs)


def _is_last(plan: Schedule, sweep: Sweep) -> bool:
    return any(isinstance(t, Store) and overwrites(plan.nest, t) for t in sweep.targets)


def _find_needed(plan: Schedule, sweep: Sweep, computed: dict[Scalar, None], costs: _Costs) -> None:
    """Collect what a sweep computes; what an earlier one has and is dear is kept there."""
    found: dict[Instruction, None] = {}
    pending = [operand for target in sweep.targets for operand in target.operands]
    while pending:
        scalar = pending.pop()
        source = scalar.instruction
        if source in found or not plan.is_swept(source) or isinstance(source, Reduce):
            continue
        if scalar in computed and costs.of(source) > costs.limit(scalar):
            plan.kept[scalar] = None
            sweep.loaded[scalar] = None
            continue
        found[source] = None
        pending.extend(source.operands)
    sweep.needed = [i for i in plan.nest.body if i in found]
    for instruction in sweep.needed:
        computed.update(dict.fromkeys(instruction.results))


class _Costs:
    """What it takes to compute swept values again from loads and values of the row."""

    def __init__(self, plan: Schedule) -> None:
        self.plan = plan
        self.known: dict[Instruction, int] = {}
        for instruction in plan.nest.body:
            if plan.is_swept(instruction) and not isinstance(instruction, Reduce):
                inherited = sum(
                    self.known.get(operand.instruction, 0) for operand in instruction.operands
                )
                self.known[instruction] = min(1000, inherited + operations(instruction))

    def of(self, instruction: Instruction) -> int:
        return self.known.get(instruction, 0)

    def limit(self, scalar: Scalar) -> int:
        row = product(self.plan.nest.axes[a] for a in scalar.axes if a in self.plan.inner)
        lanes = LANES if self.plan.is_in_lanes(scalar) else 1
        if isinstance(row, int) and row * lanes * scalar.dtype.itemsize > KEPT_BYTES:
            return CHEAP_FOR_LARGE_ROWS
        return CHEAP


def operations(instruction: Instruction) -> int:
    """Return roughly how many simple operations an instruction takes."""
    match instruction:
        case Apply():
            return cost(instruction.function)
        case Load():
            return 5 if instruction.index.scalars or instruction.mask is not None else 1
        case Constant():
            return 0
        case Position():
            return len(instruction.index.terms)
        case _:
            return 1


def unit_dims(plan: Schedule) -> tuple[list[Dim], Dim | None]:
    """Return the factors of the number of units, and the size that is cut into blocks if any."""
    size = plan.nest.axes[plan.vector] if plan.vector and plan.block else None
    return [plan.nest.axes[axis] for axis in plan.rows], size


def points_per_unit(plan: Schedule) -> list[Dim]:
    """Return the factors of the number of points of a unit, an upper bound."""
    dims: list[Dim] = [
        plan.nest.axes[axis] for axis in plan.inner if not (axis == plan.vector and plan.block)
    ]
    if plan.block and plan.vector:
        size = plan.nest.axes[plan.vector]
        dims.append(min(size, plan.block) if isinstance(size, int) else plan.block)
    return dims


def picoseconds(plan: Schedule) -> int:
    """Return a rough cost of one point on one thread: operations, and bytes to and from memory."""
    effects: list[Effect] = plan.nest.effects
    total = sum(operations(i) * (2 if _is_wide(i) else 1) for s in plan.sweeps for i in s.needed)
    touched = [*(i for i in plan.nest.body if isinstance(i, Load)), *effects]
    moved = 0
    for access in touched:
        if isinstance(access, Check) or not plan.is_swept(access):
            continue
        dtype = access.buffer.dtype
        moved += dtype.itemsize
    return 20 + 50 * total + 50 * moved


def _is_wide(instruction: Instruction) -> bool:
    return any(result.dtype.itemsize == 8 for result in instruction.results)
