"""Split a kernel into loop nests that run one after the other, so that each nest can be parallel.

A reduction is either *inner*, done for each point of the parallel axes by one thread, or *outer*:
each chunk of the work accumulates a partial result of its own, and a later nest combines these.
Values that are needed on both sides of such a boundary are computed again, except those that come
out of a combination: these are *narrow* and are passed on through scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lynx.ir.dims import Dim, product, symbol
from lynx.ir.errors import CompileError
from lynx.ir.kernel import (
    Buffer,
    Check,
    Index,
    Instruction,
    Kernel,
    Load,
    Reduce,
    Scalar,
    Store,
    Term,
)

from .outer import OuterReductions, closure
from .simplify import simple_body, with_operands


@dataclass(frozen=True, eq=False)
class Partial(Instruction):
    """Combine a scalar into the partial result of the running chunk, at `index` of `buffer`."""

    buffer: Buffer
    index: Index
    combine: str
    x: Scalar

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """The combined scalar."""
        return (self.x,)


Effect = Store | Check | Partial


@dataclass(eq=False)
class Nest:
    """Effects with all that they need, over common axes; `reduced` axes are swept by one thread."""

    effects: list[Effect]
    body: list[Instruction]
    axes: dict[str, Dim]
    reduced: tuple[tuple[str, ...], ...]
    is_sequential: bool = False
    partials: list[Partial] = field(default_factory=list)


@dataclass(eq=False)
class Scratch:
    """Memory between nests: the points of a result, for each chunk of a nest if it is partial."""

    buffer: Buffer
    points: tuple[Dim, ...]
    number: int | None = None


@dataclass(eq=False)
class Plan:
    """What a kernel is split into; chunk counts are the symbols `#0`, `#1`, ... in dimensions."""

    nests: list[Nest]
    scratch: list[Scratch]


def chunk_symbol(number: int) -> str:
    """Return the name of the symbol for the number of chunks of a partial result."""
    return f"#{number}"


def split(kernel: Kernel) -> Plan:
    """Split a kernel; declines what has no safe order with a `CompileError`."""
    body = simple_body(kernel)
    _refuse_late_loads(body)
    splitter = _Splitter(kernel, body)
    splitter.place()
    return splitter.plan()


def _refuse_late_loads(body: Iterable[Instruction]) -> None:
    stored: dict[Buffer, Index] = {}
    for instruction in body:
        if isinstance(instruction, Store):
            stored[instruction.buffer] = instruction.index
        elif isinstance(instruction, Load):
            found = stored.get(instruction.buffer, instruction.index)
            if found != instruction.index:
                raise CompileError(
                    "kernel-order", f"reads {instruction.buffer.name} after it was written"
                )


@dataclass(frozen=True)
class _Home:
    """When a value is known; `narrow` names the axes of a combining nest that it comes out of."""

    stage: int
    narrow: frozenset[str] | None = None


class _Splitter:
    def __init__(self, kernel: Kernel, body: tuple[Instruction, ...]) -> None:
        self.sizes: dict[str, Dim] = dict(kernel.sizes)
        self.body = body
        self.outer = OuterReductions(kernel, body).choose()
        self.homes: dict[Instruction, _Home] = {}
        self.new: dict[Scalar, Scalar] = {}
        self.passed_on: dict[Scalar, Scalar] = {}
        self.effects: list[tuple[int, Effect]] = []
        self.scratch: list[Scratch] = []
        loaded = {i.buffer: None for i in body if isinstance(i, Load)}
        self.in_place = {
            i.buffer: None for i in body if isinstance(i, Store) and i.buffer in loaded
        }

    def place(self) -> None:
        """Rewrite all instructions and give each effect its stage."""
        late: list[Store] = []
        for instruction in self.body:
            if isinstance(instruction, Store) and instruction.buffer in self.in_place:
                late.append(instruction)
                continue
            self._place(instruction, self._home(instruction))
        last = max((stage for stage, _ in self.effects), default=0)
        for store in late:
            last = max(last, self._home(store).stage)
        for store in late:
            home = self._home(store)
            self._place(store, home if home.stage == last else _Home(last))

    def _home(self, instruction: Instruction) -> _Home:
        domain = frozenset(instruction.domain)
        # A sweep over the axes of a combination would need it at every point before it starts, and
        # so does what runs in an order of its own.
        sweeps = isinstance(instruction, Reduce) and instruction not in self.outer
        sweeps |= isinstance(instruction, Store) and instruction.is_ordered
        stage = 0
        for operand in instruction.operands:
            home = self.homes[operand.instruction]
            is_before = home.narrow is not None and (sweeps or home.narrow != domain)
            stage = max(stage, home.stage + is_before)
        is_narrow = stage > 0 and any(
            (home := self.homes[operand.instruction]).stage == stage and home.narrow == domain
            for operand in instruction.operands
        )
        return _Home(stage, domain if is_narrow else None)

    def _place(self, old: Instruction, home: _Home) -> None:
        known: dict[Scalar, Scalar] = {}
        for operand in old.operands:
            source = self.homes[operand.instruction]
            if source.narrow is not None and source != home:
                known[operand] = self._pass_on(operand, source)
            else:
                known[operand] = self.new[operand]
        changed = any(key is not value for key, value in known.items())
        new = with_operands(old, known) if changed else old
        if isinstance(old, Reduce) and old in self.outer:
            self._place_outer(old, known[old.x], home)
            return
        self.homes[old] = home
        self.new.update(zip(old.results, new.results, strict=True))
        if isinstance(new, Store | Check):
            self.effects.append((home.stage, new))

    def _place_outer(self, old: Reduce, x: Scalar, home: _Home) -> None:
        """Accumulate per chunk now, and combine in the next stage."""
        number = len([entry for entry in self.scratch if entry.number is not None])
        axes = old.result_axes()
        points = tuple(self.sizes[axis] for axis in axes)
        buffer = Buffer(f"partial{number}", x.dtype, 0, is_written=True)
        self.scratch.append(Scratch(buffer, points, number))
        index = self._row_major(axes)
        self.effects.append(
            (home.stage, Partial(old.domain, buffer, index, old.combine, x, loc=old.loc))
        )
        chunk = f"chunk{number}"
        self.sizes[chunk] = symbol(chunk_symbol(number))
        term = Term(chunk, product(points))
        load = Load((*axes, chunk), buffer, Index((term, *index.terms)), loc=old.loc)
        combined = Reduce((*axes, chunk), old.combine, load.out, (chunk,), loc=old.loc)
        self.homes[old] = _Home(home.stage + 1, frozenset(axes))
        self.new[old.out] = combined.out

    def _row_major(self, axes: tuple[str, ...]) -> Index:
        terms: list[Term] = []
        for position, axis in enumerate(axes):
            stride = product(self.sizes[inner] for inner in axes[position + 1 :])
            terms.append(Term(axis, stride))
        return Index(tuple(terms))

    def _pass_on(self, value: Scalar, home: _Home) -> Scalar:
        """Return a load of a narrow value from scratch memory."""
        if value not in self.passed_on:
            axes = value.axes
            points = tuple(self.sizes[axis] for axis in axes)
            buffer = Buffer(f"result{len(self.scratch)}", value.dtype, product(points), True)
            self.scratch.append(Scratch(buffer, points))
            index = self._row_major(axes)
            loc = value.instruction.loc
            self.effects.append((home.stage, Store(axes, buffer, index, self.new[value], loc=loc)))
            self.passed_on[value] = Load(axes, buffer, index, loc=loc).out
        return self.passed_on[value]

    def plan(self) -> Plan:
        """Group the effects of each stage into nests."""
        nests: list[Nest] = []
        last = max((stage for stage, _ in self.effects), default=-1)
        for stage in range(last + 1):
            effects = [effect for at, effect in self.effects if at == stage]
            nests.extend(_Grouping(self.sizes, effects, self.in_place).nests())
        return Plan(_in_safe_order(nests, self.in_place), self.scratch)


@dataclass(eq=False)
class _Group:
    effects: list[Effect]
    instructions: dict[Instruction, None]
    axes: dict[str, None]
    reduced: dict[tuple[str, ...], None]
    is_sequential: bool

    def parallel(self) -> set[str]:
        return set(self.axes) - {axis for over in self.reduced for axis in over}


class _Grouping:
    """Puts effects into common nests where each can run once for each point of its own."""

    def __init__(
        self, sizes: dict[str, Dim], effects: list[Effect], in_place: dict[Buffer, None]
    ) -> None:
        self.sizes = sizes
        self.effects = effects
        self.in_place = in_place
        self.groups: list[_Group] = []
        self.last_writer: dict[Buffer, int] = {}

    def nests(self) -> list[Nest]:
        by_axes: dict[str, list[int]] = {}
        for effect in self.effects:
            alone = self._alone(effect)
            first = 0
            if isinstance(effect, Store):
                first = self._first_allowed(effect)
            places = {
                place for axis in alone.axes for place in by_axes.get(axis, ()) if place >= first
            } or (set(range(first, len(self.groups))) if not alone.axes else set())
            if isinstance(effect, Store) and effect.buffer in self.in_place:
                places = {place for place in places if self._may_be_last(place)}
            place = next((p for p in sorted(places) if self._join(self.groups[p], alone)), None)
            if place is None:
                place = len(self.groups)
                self.groups.append(alone)
            for axis in alone.axes:
                if place not in by_axes.setdefault(axis, []):
                    by_axes[axis].append(place)
            if isinstance(effect, Store):
                self.last_writer[effect.buffer] = place
        return [self._nest(group) for group in self.groups]

    def _alone(self, effect: Effect) -> _Group:
        instructions = closure([effect])
        reduced = {i.over: None for i in instructions if isinstance(i, Reduce)}
        axes = dict.fromkeys(effect.domain)
        for over in reduced:
            axes.update(dict.fromkeys(over))
        is_sequential = isinstance(effect, Store) and effect.is_ordered
        return _Group([effect], instructions, axes, reduced, is_sequential)

    def _first_allowed(self, store: Store) -> int:
        """Return the first group that writes the buffer in no other way than this store."""
        writer = self.last_writer.get(store.buffer)
        if writer is None:
            return 0
        same = all(
            effect.index == store.index and effect.domain == store.domain
            for effect in self.groups[writer].effects
            if isinstance(effect, Store) and effect.buffer is store.buffer
        )
        return writer if same else writer + 1

    def _may_be_last(self, place: int) -> bool:
        """Whether no other group writes over what this one writes: what overwrites runs last."""
        return all(
            self.last_writer[effect.buffer] <= place
            for effect in self.groups[place].effects
            if isinstance(effect, Store)
        )

    def _join(self, group: _Group, other: _Group) -> bool:
        if group.is_sequential or other.is_sequential:
            return _join_checks(group, other)
        merged = _Group(
            [*group.effects, *other.effects],
            {**group.instructions, **other.instructions},
            {**group.axes, **other.axes},
            {**group.reduced, **other.reduced},
            is_sequential=False,
        )
        parallel = merged.parallel()
        if parallel != group.parallel() and parallel != other.parallel():
            return False
        if not all(parallel.issubset(effect.domain) for effect in merged.effects):
            return False
        # A reduction sweeps over all axes that are not parallel: none may become one of them.
        swept = (group.parallel() | other.parallel()) - parallel
        reductions = (i for i in merged.instructions if isinstance(i, Reduce))
        if not all(swept.isdisjoint(reduction.result_axes()) for reduction in reductions):
            return False
        group.effects, group.instructions = merged.effects, merged.instructions
        group.axes, group.reduced = merged.axes, merged.reduced
        return True

    def _nest(self, group: _Group) -> Nest:
        axes = {axis: size for axis, size in self.sizes.items() if axis in group.axes}
        partials = [effect for effect in group.effects if isinstance(effect, Partial)]
        body = _in_order(group.instructions)
        return Nest(group.effects, body, axes, tuple(group.reduced), group.is_sequential, partials)


def _join_checks(group: _Group, other: _Group) -> bool:
    """Let what is checked of a store that runs in order be checked in the same loops."""
    store, check = (group, other) if group.is_sequential else (other, group)
    if not all(isinstance(effect, Check) for effect in check.effects):
        return False
    known = {i for i in check.instructions if not isinstance(i, Check)}
    if not known.issubset(store.instructions):
        return False
    group.effects = [*group.effects, *other.effects]
    group.instructions = {**group.instructions, **other.instructions}
    group.axes, group.reduced = store.axes, store.reduced
    group.is_sequential = True
    return True


def _in_order(instructions: dict[Instruction, None]) -> list[Instruction]:
    """Return what is no effect, operands first."""
    ordered: dict[Instruction, None] = {}
    for root in instructions:
        pending = [root]
        while pending:
            instruction = pending[-1]
            needed = [
                operand.instruction
                for operand in instruction.operands
                if operand.instruction not in ordered
            ]
            if needed:
                pending.extend(needed)
                continue
            pending.pop()
            ordered[instruction] = None
    return [i for i in ordered if not isinstance(i, Store | Check | Partial)]


def _in_safe_order(nests: list[Nest], in_place: dict[Buffer, None]) -> list[Nest]:
    """Let each buffer be read before the nest that overwrites what it reads."""
    if not in_place:
        return nests
    before = _writers(nests)
    nests = sorted(nests, key=lambda nest: _overwrites(nest, in_place))
    if _writers(nests) != before:
        raise CompileError("kernel-order", "a buffer would be overwritten before it is written")
    loads = [{i.buffer for i in nest.body if isinstance(i, Load)} for nest in nests]
    stores = [{e.buffer for e in nest.effects if isinstance(e, Store)} for nest in nests]
    for position, nest in enumerate(nests):
        _refuse_moved_elements(nest, in_place)
        for later in range(position + 1, len(nests)):
            if any(b in in_place and b in loads[later] for b in stores[position]):
                raise CompileError(
                    "kernel-order", "a buffer that is overwritten is read by a later loop nest"
                )
    return nests


def _writers(nests: list[Nest]) -> dict[Buffer, list[int]]:
    """Return the nests that write each buffer, in order."""
    found: dict[Buffer, list[int]] = {}
    for nest in nests:
        for buffer in dict.fromkeys(e.buffer for e in nest.effects if isinstance(e, Store)):
            found.setdefault(buffer, []).append(id(nest))
    return found


def _overwrites(nest: Nest, in_place: dict[Buffer, None]) -> bool:
    return any(isinstance(e, Store) and e.buffer in in_place for e in nest.effects)


def _refuse_moved_elements(nest: Nest, in_place: dict[Buffer, None]) -> None:
    for store in nest.effects:
        if not isinstance(store, Store) or store.buffer not in in_place:
            continue
        for load in nest.body:
            if not isinstance(load, Load) or load.buffer is not store.buffer:
                continue
            if load.index != store.index:
                raise CompileError(
                    "kernel-order", f"overwrites {store.buffer.name} while reading it elsewhere"
                )
