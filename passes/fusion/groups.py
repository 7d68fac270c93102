"""Groups in the making: what ops run over one space, and whether one more op fits in.

The space of a group is a list of atoms, its *domain*. Every op of it runs over the whole domain or,
where a reduction is consumed within the group, over what that reduction leaves: a kernel then has
rows (the axes that stay) and sweeps over each row. A reduction over all rows may be in the group
too, but nothing there can consume it: its result is complete only when the kernel is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, is_equal, product
from lynx.ir.ops.reduction import Reduction
from lynx.ir.types import TensorType
from lynx.ir.writing import (
    carried,
    is_write,
    may_collide,
    reads_part_of,
    storage_of,
    written_into,
    written_shape,
)

from .atoms import Atom, Atoms, aligned, fresh, leaves, merge
from .relations import Pairs, related

MIN_ROWS = 16
"""Fewer rows than that leave threads idle when each sweeps over much."""

SMALL_SWEEP = 1 << 14
"""Up to this many elements a kernel may sweep over all that there is."""

Dims: TypeAlias = list[Atoms | None]
"""The atoms of each dimension of a value; None where nothing is known of a dimension."""

ChainOf: TypeAlias = Callable[["Group", Value], list[Value] | None]
"""Gives the views that lead from a result of a group to a value, both included; None if none do."""


@dataclass(eq=False)
class Group:
    """Ops that become one kernel, with the atoms of each dimension of each value that they touch.

    `reduced` holds, for results of reductions, the atoms that were reduced; `sweep` the atoms of
    the reductions that the group itself consumes, empty as long as there are none. `into` is the
    group that this one was merged into.
    """

    number: int
    domain: Atoms
    ops: list[Op] = field(default_factory=list)
    dims: dict[Value, Dims] = field(default_factory=dict)
    reads: dict[Value, Dims] = field(default_factory=dict)
    reduced: dict[Value, Atoms] = field(default_factory=dict)
    sweep: Atoms = ()
    into: Group | None = None

    @property
    def size(self) -> Dim:
        """The number of points of the domain."""
        return product(atom.size for atom in leaves(self.domain))


class Fit:
    """An attempt to let an op join a group; `reason` says why it does not, empty if it does."""

    def __init__(self, group: Group, op: Op, chain_of: ChainOf) -> None:
        self.group = group
        self.op = op
        self.chain_of = chain_of
        self.reason = ""
        self.sweep = group.sweep
        self.reads: dict[Value, Dims] = {}
        self.into = written_into(op) if is_write(op) else None
        self.main: Dims = [None if size != 1 else () for size in iterated_shape(op)]
        if self._carries_on():
            return
        for step in (self._follow_members, self._consume, self._follow_reads, self._check):
            if not self.reason:
                step()

    def _carries_on(self) -> bool:
        """Whether the op only carries on what one of the group writes, at the same points."""
        inner = carried(self.op)
        if inner is None or inner not in self.group.ops:
            return False
        assert self.into is not None, self.op
        self.reads[self.into] = [() if size == 1 else None for size in self.into.shape]
        return True

    def _tensors(self) -> list[Value]:
        return [v for v in dict.fromkeys(self.op.operands) if isinstance(v.type, TensorType)]

    def _follow_members(self) -> None:
        """Take over the atoms of operands that the group computes."""
        for operand in self._tensors():
            chain = self.chain_of(self.group, operand)
            if chain is None:
                continue
            if is_write(chain[0].op) or operand is self.into:
                self.reason = "needs a tensor that is complete only when the kernel is"
                return
            enter_views(self.group, chain)
            dims = self.group.dims[operand]
            for given, made in pairs_of(self.op, operand):
                atoms = joined(dims, given)
                if atoms is not None and not assign(
                    self.main, iterated_shape(self.op), made, atoms
                ):
                    self.reason = "reads one value along two axes"
                    return

    def _consume(self) -> None:
        """Note which reduction of the group the op needs, all of which must be over one space."""
        for operand in self._tensors():
            chain = self.chain_of(self.group, operand)
            atoms = None if chain is None else self.group.reduced.get(chain[0])
            if atoms is None:
                continue
            wanted = leaves(atoms)
            if not self.sweep:
                self.sweep = tuple(wanted)
                self._check_parallelism()
            elif set(wanted) != set(leaves(self.sweep)):
                self.reason = "needs two reductions over different axes"

    def _check_parallelism(self) -> None:
        sweep = product(atom.size for atom in leaves(self.sweep))
        rows = product(atom.size for atom in self._rows())
        if isinstance(sweep, int) and sweep <= SMALL_SWEEP:
            return
        if isinstance(rows, int) and rows < MIN_ROWS:
            self.reason = f"sweeps over {sweep} elements in only {rows} rows"

    def _rows(self) -> list[Atom]:
        sweep = set(leaves(self.sweep))
        return [atom for atom in leaves(self.group.domain) if atom not in sweep]

    def _follow_reads(self) -> None:
        """Let dimensions that are still open run as others of the same size do."""
        domain = leaves(self.group.domain)
        for operand in self._tensors():
            if operand in self.group.dims and self.chain_of(self.group, operand) is not None:
                continue
            known = self.group.reads.get(operand)
            if known is None:
                continue
            for given, made in pairs_of(self.op, operand):
                atoms = joined(known, given)
                if atoms is not None and self._is_free(atoms, domain):
                    assign(self.main, iterated_shape(self.op), made, atoms, only_open=True)
        self._match_rest(domain)
        for operand in self._tensors():
            if self.chain_of(self.group, operand) is None:
                self.reads[operand] = dims_of_read(self.op, operand, self.main)

    def _is_free(self, atoms: Atoms, domain: Sequence[Atom]) -> bool:
        used = set(self._used())
        return all(atom in domain and atom not in used for atom in leaves(atoms))

    def _used(self) -> list[Atom]:
        return leaves(atom for atoms in self.main for atom in atoms or ())

    def _match_rest(self, domain: Sequence[Atom]) -> None:
        """Match open dimensions with the atoms of the domain that are left, by their sizes."""
        opened = [n for n, atoms in enumerate(self.main) if atoms is None]
        if not opened:
            return
        used = set(self._used())
        left = [atom for atom in domain if atom not in used]
        shape = iterated_shape(self.op)
        if is_equal(product(shape[n] for n in opened), product(atom.size for atom in left)):
            assign(self.main, shape, tuple(opened), tuple(left), only_open=True)

    def _check(self) -> None:
        """Check that the op runs over the domain, or over the rows of it."""
        if any(atoms is None for atoms in self.main):
            self.reason = "runs over another space"
            return
        atoms = self._used()
        domain = leaves(self.group.domain)
        own = set(atoms)
        if len(own) < len(atoms):
            self.reason = "reads one value along two axes"
        elif own == set(domain):
            self._check_reductions()
        elif not self.sweep or own != set(self._rows()):
            self.reason = "runs over another space"
        elif isinstance(self.op, Reduction) and set(self.reduced()) != own:
            self.reason = "reduces some of the rows"
        if not self.reason:
            self._check_writes()

    def _check_writes(self) -> None:
        """Check that a kernel can write in place, and in order where that matters."""
        if self._writes_what_is_read():
            self.reason = "writes where the group reads, or the other way round"
        elif (self.group.reduced or self.sweep) and is_write(self.op) and may_collide(self.op):
            self.reason = "writes in order what is reduced in parallel"

    def _writes_what_is_read(self) -> bool:
        group = self.group
        return any(lies_elsewhere(self.op, value) for value in group.reads) or any(
            lies_elsewhere(op, value) for op in group.ops if is_write(op) for value in self.reads
        )

    def reduced(self) -> list[Atom]:
        """Return the atoms that the op reduces."""
        assert isinstance(self.op, Reduction), self.op
        return leaves(atom for dim in self.op.dims for atom in self.main[dim] or ())

    def _check_reductions(self) -> None:
        """Check that one reduction can be the sweep, and all others are over all of its rows."""
        spaces = [set(leaves(atoms)) for atoms in self.group.reduced.values()]
        if isinstance(self.op, Reduction):
            spaces.append(set(self.reduced()))
        if self.sweep:
            choices = [set(leaves(self.sweep))]
        else:
            choices = spaces[:2] or [set()]
        domain = set(leaves(self.group.domain))
        for choice in choices:
            rows = domain - choice
            if all(space == choice or space >= rows for space in spaces):
                return
        self.reason = "reduces other axes than the group"

    def join(self) -> None:
        """Enter the op into the group."""
        group, op = self.group, self.op
        group.ops.append(op)
        group.sweep = self.sweep
        for value, dims in self.reads.items():
            group.reads.setdefault(value, dims)
        enter_results(group, op, self.main)
        if isinstance(op, Reduction):
            for result in op.results:
                group.reduced[result] = tuple(self.reduced())


def lies_elsewhere(op: Op, value: Value) -> bool:
    """Whether a value lies in the tensor that an op writes into, and is not the written part.

    What reads it belongs into another kernel, so that the write can be done in place.
    """
    into = written_into(op) if is_write(op) else None
    if into is None or reads_part_of(op, value.op):
        return False
    return storage_of(value) is storage_of(into)


def founded(number: int, op: Op) -> Group:
    """Return a group of one op."""
    main: Dims = list(map(fresh, iterated_shape(op)))
    group = Group(number, tuple(atom for atoms in main for atom in atoms or ()), [op])
    for operand in dict.fromkeys(op.operands):
        if isinstance(operand.type, TensorType):
            group.reads[operand] = dims_of_read(op, operand, main)
    enter_results(group, op, main)
    if isinstance(op, Reduction):
        reduced = leaves(atom for dim in op.dims for atom in main[dim] or ())
        for result in op.results:
            group.reduced[result] = tuple(reduced)
    return group


def iterated_shape(op: Op) -> tuple[Dim, ...]:
    """Return the shape of the space that an op runs over."""
    if is_write(op):
        return written_shape(op)
    return op.x.shape if isinstance(op, Reduction) else op.results[0].shape


def pairs_of(op: Op, operand: Value) -> Pairs:
    """Return which dimensions of an operand run along which dimensions of the op's space."""
    if isinstance(op, Reduction):
        return tuple(((n,), (n,)) for n, size in enumerate(operand.shape) if size != 1)
    return related(op, operand)


def dims_of_read(op: Op, operand: Value, main: Dims) -> Dims:
    """Return the atoms along which an op reads an operand from memory."""
    dims: Dims = [() if size == 1 else None for size in operand.shape]
    for given, made in pairs_of(op, operand):
        atoms = joined(main, made)
        if atoms is not None:
            assign(dims, operand.shape, given, atoms)
    return dims


def enter_results(group: Group, op: Op, main: Dims) -> None:
    """Give the results of an op their atoms."""
    dims = main
    if isinstance(op, Reduction):
        dims = [
            () if n in op.dims else atoms
            for n, atoms in enumerate(main)
            if op.keepdim or n not in op.dims
        ]
    elif is_write(op):
        dims = [() if size == 1 else None for size in op.results[0].shape]
    for result in op.results:
        group.dims[result] = dims


def enter_views(group: Group, chain: Iterable[Value]) -> None:
    """Give every view of a chain its atoms, from those of the value before it."""
    source: Value | None = None
    for view in chain:
        if source is not None and view not in group.dims:
            assert view.op is not None, view
            dims: Dims = [() if size == 1 else None for size in view.shape]
            for given, made in related(view.op, source):
                atoms = joined(group.dims[source], given)
                if atoms is not None:
                    assign(dims, view.shape, made, atoms)
            group.dims[view] = dims
        source = view


def joined(dims: Dims, which: tuple[int, ...]) -> Atoms | None:
    """Return the atoms of some dimensions one after the other, None if one is not known."""
    result: list[Atom] = []
    for index in which:
        atoms = dims[index]
        if atoms is None:
            return None
        result += leaves(atoms)
    return tuple(result)


def assign(
    dims: Dims,
    shape: Sequence[Dim],
    which: tuple[int, ...],
    atoms: Atoms,
    *,
    only_open: bool = False,
) -> bool:
    """Let dimensions run along atoms; return whether that agrees with what is known of them.

    With `only_open` known dimensions are left alone.
    """
    if len(which) == 1 and dims[which[0]] is None:
        dims[which[0]] = atoms
        return True
    opened = [n for n in which if dims[n] is None]
    if only_open and len(opened) < len(which):
        return True
    if len(opened) < len(which):
        known = joined(dims, which)
        pairs = None if known is None else aligned(known, atoms)
        return pairs is not None and all(a is b for a, b in pairs)
    parts = [fresh(shape[n]) for n in which]
    pairs = aligned(atoms, tuple(atom for part in parts for atom in part))
    if pairs is None:
        return False
    for old, new in pairs:
        merge(old, new)
    for n, part in zip(which, parts, strict=True):
        dims[n] = part
    return True
