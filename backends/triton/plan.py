"""Assign what a kernel does to stages, by its dependences, its sizes, and what touches memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lynx.ir.dims import Dim, maximum, minimum, product
from lynx.ir.kernel import Buffer, Check, Instruction, Kernel, Load, Reduce, Scalar, Store

from .hazards import accumulates_in_order, colliding_axes, find_snapshots, touches_apart
from .sizes import Limits, contiguous_axes, is_split, splits_of

MOST_TRIED = 8
"""How many stages are tried for what runs only once."""


@dataclass(eq=False)
class Draft:
    """A stage in the making."""

    axes: tuple[str, ...]
    columns: tuple[str, ...] = ()
    splits: Dim | None = None
    is_serial: bool = False
    is_merge: bool = False
    across: Dim | None = None
    roots: list[Instruction] = field(default_factory=list)

    @property
    def has_reductions(self) -> bool:
        """Whether anything is reduced in the stage itself."""
        return any(isinstance(root, Reduce) for root in self.roots)


class Plan:
    """Assigns reductions, stores and checks to stages, in the order of the kernel."""

    def __init__(self, kernel: Kernel, is_deterministic: bool, limits: Limits) -> None:
        self.kernel = kernel
        self.is_deterministic = is_deterministic
        self.limits = limits
        self.drafts: list[Draft] = []
        self.stage_of: dict[Instruction, int] = {}
        self.merge_of: dict[Instruction, int] = {}
        self.earliest: dict[Instruction, int] = {}
        self.copied_loads: set[Load] = set()
        self.snapshots: dict[Buffer, Buffer] = {}
        self.contiguous = contiguous_axes(kernel)
        self.read_first: set[Buffer] = set()
        self.places = {one: place for place, one in enumerate(kernel.body)}
        self.members: dict[int, set[Instruction]] = {}
        self.load_stages: dict[Load, set[int]] = {}
        self.stores: dict[Buffer, list[Store]] = {}
        self.drafts_over: dict[str, dict[int, None]] = {}
        self.row_stages = self._row_stages()

    def assign(self) -> None:
        """Give each reduction, store and check its stage."""
        last_store: dict[Buffer, int] = {}
        late = _stores_in_place(self.kernel)
        self.read_first = {store.buffer for store in late}
        loads: dict[Buffer, list[Load]] = {}
        for instruction in self.kernel.body:
            ready = max(map(self._available, instruction.operands), default=0)
            if isinstance(instruction, Load) and instruction.buffer in last_store:
                ready = max(ready, last_store[instruction.buffer] + 1)
            if isinstance(instruction, Load):
                loads.setdefault(instruction.buffer, []).append(instruction)
            self.earliest[instruction] = ready
            if isinstance(instruction, Reduce):
                self._place_reduce(instruction, ready)
            elif isinstance(instruction, Check) or (
                isinstance(instruction, Store) and instruction not in late
            ):
                self._place(instruction, ready)
                if isinstance(instruction, Store):
                    last_store[instruction.buffer] = self.stage_of[instruction]
        for instruction in late:
            users = [
                n for load in loads[instruction.buffer] for n in self.load_stages.get(load, ())
            ]
            self._place(instruction, max([self.earliest[instruction], *users]))
        found = find_snapshots(self.kernel, self._stages_by_load(), self.stage_of)
        self.copied_loads, self.snapshots = found

    def _available(self, scalar: Scalar) -> int:
        """Return the first stage that may use a scalar."""
        maker = scalar.instruction
        if isinstance(maker, Reduce):
            return self.merge_of.get(maker, self.stage_of[maker])
        return self.earliest[maker]

    def _place_reduce(self, reduce: Reduce, ready: int) -> None:
        count = product(self.kernel.sizes[axis] for axis in reduce.over)
        rows = product(self.kernel.sizes[axis] for axis in reduce.result_axes())
        is_along = self._is_along(reduce)
        if not self._is_split(reduce):
            self._join(reduce, ready, reduce.over, splits=None)
            return
        splits: Dim | None = self._join_rows(reduce, ready)
        if splits is None:
            splits = splits_of(rows, count, is_along, self.limits)
            self._join(reduce, ready, reduce.over, splits=splits)
        found = self.stage_of[reduce]
        rows_axes = reduce.result_axes()
        for number in range(found + 1, len(self.drafts)):
            draft = self.drafts[number]
            if draft.is_merge and draft.axes == rows_axes and draft.splits == splits:
                break
        else:
            number = len(self.drafts)
            self.drafts.append(Draft(rows_axes, splits=splits, is_merge=True))
            self._enter(number)
        self.merge_of[reduce] = number

    def _row_stages(self) -> set[tuple[frozenset[str], frozenset[str]]]:
        """Return columns and axes of reductions whose rows one program can hold."""
        sizes = self.kernel.sizes
        found = set()
        for one in self.kernel.body:
            if isinstance(one, Reduce) and not self._is_split(one):
                count = product(sizes[axis] for axis in one.over)
                if isinstance(count, int) and 0 < count <= self.limits.persistent:
                    found.add((frozenset(one.over), frozenset(one.domain)))
        return found

    def _is_split(self, reduce: Reduce) -> bool:
        count = product(self.kernel.sizes[axis] for axis in reduce.over)
        rows = product(self.kernel.sizes[axis] for axis in reduce.result_axes())
        return is_split(rows, count, self._is_along(reduce), self.limits)

    def _is_along(self, reduce: Reduce) -> bool:
        return not any(axis in self.contiguous for axis in reduce.result_axes())

    def _join_rows(self, reduce: Reduce, ready: int) -> Dim | None:
        """Let a reduction over all rows share the sweep of those along the rows, if there are any.

        Return the number of programs that then share the rows.
        """
        columns, domain = reduce.result_axes(), reduce.domain
        if (frozenset(columns), frozenset(domain)) not in self.row_stages:
            return None
        if reduce.combine == "welford":
            # Its parts would have to know how many rows each of them has.
            return None
        rows = product(self.kernel.sizes[axis] for axis in reduce.over)
        across = maximum(minimum(self.limits.programs, rows), 1)
        for number in range(ready, len(self.drafts)):
            draft = self.drafts[number]
            is_plain = not (draft.is_serial or draft.is_merge or draft.splits is not None)
            same = set(draft.columns) == set(columns) and set(draft.axes) == set(domain)
            if is_plain and same:
                draft.across = across
                draft.roots.append(reduce)
                self._assigned(reduce, number)
                return across
        self._append(Draft(self._ordered(domain), columns, across=across), reduce)
        return across

    def _place(self, root: Store | Check, ready: int) -> None:
        if isinstance(root, Store):
            for other in self.stores.get(root.buffer, ()):
                together = touches_apart(root, other, self.kernel)
                ready = max(ready, self.stage_of[other] + (0 if together else 1))
            columns = colliding_axes(root, self.kernel)
            if columns and accumulates_in_order(root, self.is_deterministic):
                self._append(Draft(root.domain, columns, is_serial=True), root)
                return
        self._join(root, ready, (), splits=None)

    def _join(
        self, root: Instruction, ready: int, columns: tuple[str, ...], splits: Dim | None
    ) -> int:
        for number in self._candidates(root.domain, ready):
            draft = self.drafts[number]
            if self._fits(draft, root, columns, splits):
                draft.roots.append(root)
                self._assigned(root, number)
                return number
        return self._append(Draft(self._ordered(root.domain), columns, splits), root)

    def _append(self, draft: Draft, root: Instruction) -> int:
        draft.roots.append(root)
        self.drafts.append(draft)
        self._assigned(root, len(self.drafts) - 1)
        return len(self.drafts) - 1

    def _enter(self, number: int) -> None:
        """Let a stage be found by its axes."""
        for axis in self.drafts[number].axes:
            self.drafts_over.setdefault(axis, {})[number] = None

    def _candidates(self, domain: tuple[str, ...], ready: int) -> list[int]:
        """Return the stages, from one on, that share an axis with a domain, or have none.

        Kernels of many separate parts have many stages, of which each part fits few.
        """
        if not domain:
            return list(range(ready, min(ready + MOST_TRIED, len(self.drafts))))
        found = {n for axis in domain for n in self.drafts_over.get(axis, ()) if n >= ready}
        return sorted(found)

    def _fits(
        self, draft: Draft, root: Instruction, columns: tuple[str, ...], splits: Dim | None
    ) -> bool:
        """Whether a root can run in a stage; changes the stage so that it can."""
        if draft.is_serial or (isinstance(root, Store) and self._overwrites(draft, root)):
            return False
        found = self._extended(draft, root, columns, splits)
        if found is None:
            return False
        axes, columns, splits = found
        changes = axes != draft.axes or columns != draft.columns
        roots = [root, *draft.roots] if changes else [root]
        if not all(self._runs_fully(one, axes, columns) for one in roots):
            return False
        draft.axes, draft.columns, draft.splits = axes, columns, splits
        return True

    def _overwrites(self, draft: Draft, store: Store) -> bool:
        """Whether a store would write over what other programs of the stage may still read."""
        if store.buffer not in self.read_first or not set(store.domain) <= set(draft.axes):
            return False
        rows = draft.axes if draft.splits is not None else _without(draft.axes, draft.columns)
        return not set(rows) <= set(store.domain)

    def _extended(
        self, draft: Draft, root: Instruction, columns: tuple[str, ...], splits: Dim | None
    ) -> tuple[tuple[str, ...], tuple[str, ...], Dim | None] | None:
        """Return axes, columns and splits of a stage that a root joins, None if it cannot."""
        mine, other = set(draft.axes), set(root.domain)
        if not isinstance(root, Reduce):
            if other <= mine:
                return draft.axes, draft.columns, draft.splits
            grows = mine <= other and not (draft.has_reductions or draft.is_merge)
            return (self._ordered(other), draft.columns, draft.splits) if grows else None
        if draft.is_merge or not (mine <= other or other <= mine):
            return None
        if draft.has_reductions:
            same = set(draft.columns) == set(columns) and draft.splits == splits
            fits = other <= mine if splits is None else other == mine
            return (draft.axes, draft.columns, splits) if same and fits else None
        if splits is not None and other != mine:
            return None
        return self._ordered(mine | other), columns, splits

    def _runs_fully(
        self, root: Instruction, axes: tuple[str, ...], columns: tuple[str, ...]
    ) -> bool:
        """Whether a root runs in a stage even if some of the stage's axes turn out to be empty.

        It runs at the first point of the axes that it does not depend on. Columns do not matter to
        what depends on none of them.
        """
        domain = set(root.domain)
        inside = any(axis in domain for axis in columns)
        missing = [a for a in axes if a not in domain and (inside or a not in columns)]
        sizes = [self.kernel.sizes[axis] for axis in missing]
        return all(isinstance(size, int) and size > 0 for size in sizes)

    def _ordered(self, axes: Iterable[str]) -> tuple[str, ...]:
        wanted = set(axes)
        return tuple(axis for axis in self.kernel.sizes if axis in wanted)

    def _stages_by_load(self) -> dict[Load, list[int]]:
        """Return the stages that run each load of a buffer that is written."""
        return {load: sorted(numbers) for load, numbers in self.load_stages.items()}

    def _assigned(self, root: Instruction, number: int) -> None:
        """Note that a root runs in a stage, with all that it needs there."""
        self.stage_of[root] = number
        self._enter(number)
        if isinstance(root, Store):
            self.stores.setdefault(root.buffer, []).append(root)
        members = self.members.setdefault(number, set())
        stack: list[Instruction] = [root]
        while stack:
            one = stack.pop()
            if one in members:
                continue
            members.add(one)
            if isinstance(one, Load) and one.buffer.is_written:
                self.load_stages.setdefault(one, set()).add(number)
            makers = (scalar.instruction for scalar in one.operands)
            stack.extend(maker for maker in makers if not isinstance(maker, Reduce))

    def slice(self, number: int) -> list[Instruction]:
        """Return what a stage has to run, in order, without reductions of other stages."""
        return sorted(self.members.get(number, ()), key=self.places.__getitem__)


def _stores_in_place(kernel: Kernel) -> list[Store]:
    """Return stores to buffers that are read before and not after: they had better come late."""
    first_load: dict[Buffer, int] = {}
    last_load: dict[Buffer, int] = {}
    for place, instruction in enumerate(kernel.body):
        if isinstance(instruction, Load):
            first_load.setdefault(instruction.buffer, place)
            last_load[instruction.buffer] = place
    return [
        instruction
        for place, instruction in enumerate(kernel.body)
        if isinstance(instruction, Store) and last_load.get(instruction.buffer, place) < place
    ]


def _without(axes: tuple[str, ...], removed: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis not in removed)
