"""Finds writes that can be done in place, so that kernels need not touch the rest of a tensor."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Mutation, Op, Value
from lynx.ir.ops.aten import Aten, Resource
from lynx.ir.ops.elementwise_arithmetic import Copy
from lynx.ir.ops.factory import Full, Iota
from lynx.ir.ops.layout_slicing import SliceScatter
from lynx.ir.types import TensorType
from lynx.ir.writing import Carried, carried_by, is_write, storage_of, written_into

from .base import PassContext, Requirement, register_pass
from .fusion import why_not
from .fusion.emit_products import PRODUCTS
from .requirements import IS_GRAPH

MOST_CHOICES = 4
"""So many parts are chosen among for each element; more are written one after the other."""


@register_pass
@dataclass(frozen=True)
class MarkWrites:
    """Mark each `slice_scatter` into a tensor whose memory its result can have.

    That is an input that is to hold the result, or a value that nothing else needs afterwards, if
    no kernel that computes it or reads the result can choose the elements by the way. Of
    a write into a part of such a tensor, which is then put back, the whole is marked: the part and
    the tensor are one memory. What reads the part afterwards reads it from the tensor, and what is
    to be written is copied first if it lies there itself.
    """

    name: ClassVar[str] = "mark-writes"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with marks."""
        if not any(map(_may_write, module.ops)):
            return module
        chains = _Chains(module)
        found = [c for c in chains.chains if chains.is_in_place(c) and c.is_changed]
        return _Rewriter(module, chains, found).graph() if found else module


def _may_write(op: Op) -> bool:
    return is_write(op) or isinstance(op, SliceScatter)


@dataclass(frozen=True, eq=False)
class _Chain:
    """A write, and the ops that carry it on to larger tensors; `links` say how, one for each."""

    ops: tuple[Op, ...]
    links: tuple[Carried, ...]

    @property
    def into(self) -> Value | None:
        """The tensor that is written into in the end."""
        return written_into(self.ops[-1])

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to mark, or to copy."""
        return any(isinstance(op, SliceScatter) for op in self.ops) or bool(self.looks)

    @property
    def looks(self) -> tuple[Value, ...]:
        """The operands that are only another look at the tensor that is written into."""
        first, into = self.ops[0], self.into
        own = written_into(first)
        root = None if into is None else storage_of(into)
        return tuple(
            v for v in dict.fromkeys(first.operands) if v is not own and storage_of(v) is root
        )

    @property
    def result(self) -> Value:
        """What that tensor becomes."""
        return self.ops[-1].results[0]


class _Chains:
    """The chains of a graph, in order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.positions = {op: index for index, op in enumerate(graph.ops)}
        self.ends = set(graph.uses)
        self.targets = {mutation.target: mutation for mutation in graph.mutations}
        self.users: dict[Value, list[Op]] = {}
        for op in graph.ops:
            for operand in dict.fromkeys(op.operands):
                self.users.setdefault(operand, []).append(op)
        links = self._links()
        carriers = {op for op, _ in links.values()}
        self.chains = [
            _chain(op, links) for op in graph.ops if _may_write(op) and op not in carriers
        ]
        self.written: set[Value] = set()
        self.by_target: dict[Value, _Chain] = {}
        for chain in self.chains:
            if chain.into is not None:
                self.by_target.setdefault(chain.into, chain)

    def _links(self) -> dict[Op, tuple[Op, Carried]]:
        """Map writes to the op that carries them on."""
        links: dict[Op, tuple[Op, Carried]] = {}
        made = (_put_back(mutation) for mutation in self.graph.mutations)
        for op in (*self.graph.ops, *(op for op in made if op is not None)):
            found = carried_by(op)
            if found is not None:
                links.setdefault(found.inner, (op, found))
        return links

    def is_in_place(self, chain: _Chain) -> bool:
        """Whether the result of a chain can probably have the memory that it writes into."""
        into = chain.into
        if into is None or not isinstance(into.type, TensorType):
            return False
        if into.op is None:
            if not self._becomes(into, chain):
                return False
        else:
            is_elsewhere = into.op.is_view or isinstance(into.op, Aten | Resource | Full | Iota)
            is_few = _written_before(into) < MOST_CHOICES and into not in self.written
            if is_elsewhere or (is_few and self._is_chosen(into, chain)):
                return False
        if self._is_read_later(into, chain):
            return False
        self.written.add(chain.result)
        return True

    def _is_chosen(self, into: Value, chain: _Chain) -> bool:
        """Whether kernels better choose between old and new elements where they need them.

        If one computes the old ones, or only kernels read the result, that costs nothing.
        """
        if into.op is not None and _has_kernel(into.op) and not is_write(into.op):
            return True
        stack, seen = [chain.result], 0
        while stack:
            value = stack.pop()
            if value in self.ends:
                return False
            for user in self.users.get(value, ()):
                seen += 1
                if user.is_view:
                    stack += user.results
                elif not _has_kernel(user):
                    return False
        return seen > 0

    def _becomes(self, target: Value, chain: _Chain) -> bool:
        """Whether an input is to hold what a chain, and others after it, make of it."""
        mutation = self.targets.get(target)
        if mutation is None:
            return False
        current: _Chain | None = chain
        while current is not None:
            if current.result is mutation.value or current.ops[-1] not in self.positions:
                return True
            current = self.by_target.get(current.result)
        return False

    def _is_read_later(self, into: Value, chain: _Chain) -> bool:
        """Whether anything but the chain needs the old tensor when the first write is done."""
        first = self.positions[chain.ops[0]]
        stack = [into]
        while stack:
            value = stack.pop()
            if value in self.ends:
                return True
            for user in self.users.get(value, ()):
                if user in chain.ops:
                    continue
                if user.is_view:
                    stack += user.results
                elif self.positions[user] >= first:
                    return True
        return False


def _has_kernel(op: Op) -> bool:
    return not isinstance(op, PRODUCTS) and not why_not(op)


def _written_before(value: Value) -> int:
    """Return how many parts of a value were replaced one after the other."""
    count = 0
    while isinstance(value.op, SliceScatter):
        value = value.op.x
        count += 1
    return count


def _put_back(mutation: Mutation) -> Op | None:
    """Return an op that puts all of a mutation's value back into its target."""
    target, value = mutation.target, mutation.value
    is_view = value.op is not None and value.op.is_view
    if not is_view or target.type != value.type or not target.shape:
        return None
    return SliceScatter(target, value, 0, 0, target.shape[0], in_place=True)


def _chain(op: Op, links: dict[Op, tuple[Op, Carried]]) -> _Chain:
    ops, found = [op], []
    while op in links:
        op, link = links[op]
        ops.append(op)
        found.append(link)
    return _Chain(tuple(ops), tuple(found))


class _Rewriter:
    """Rebuilds a graph with some chains done in place, each at once."""

    def __init__(self, graph: Graph, chains: _Chains, found: list[_Chain]) -> None:
        self.given = graph
        self.chains = chains
        self.starts = {chain.ops[0]: chain for chain in found}
        self.dropped = {op for chain in found for op in chain.ops}
        self.ops: list[Op] = []
        self.mapping: dict[Value, Value] = {}

    def graph(self) -> Graph:
        """Return the graph."""
        for op in self.given.ops:
            chain = self.starts.get(op)
            if chain is not None:
                self._replace(chain, self._write(chain))
            elif op not in self.dropped:
                made = op.replace_operands(self.mapping)
                self.ops.append(made)
                if made is not op:
                    self.mapping.update(zip(op.results, made.results, strict=True))
        return self.given.with_ops(tuple(self.ops), self.mapping)

    def _write(self, chain: _Chain) -> Value:
        """Emit the ops of a chain, and return what the tensor becomes."""
        made = {value: self.mapping.get(value, value) for value in chain.ops[0].operands}
        for value in chain.looks:
            # It has to be read before anything is written.
            made[value] = self._add(Copy(made[value], loc=chain.ops[0].loc))
        first = chain.ops[0].replace_operands(made)
        if isinstance(first, SliceScatter):
            first = dataclasses.replace(first, in_place=True)
        value = self._add(first)
        for op, link in zip(chain.ops[1:], chain.links, strict=True):
            assert isinstance(op, SliceScatter), op
            for view in link.below:
                value = self._add(view.replace_operands({view.operands[0]: value}))
            x = self.mapping.get(op.x, op.x)
            loc = op.loc if op.loc.is_known else first.loc
            value = self._add(dataclasses.replace(op, x=x, source=value, in_place=True, loc=loc))
        return value

    def _replace(self, chain: _Chain, value: Value) -> None:
        """Let what reads a part of the tensor read it from the whole."""
        last = chain.ops[-1]
        self.mapping[last.results[0]] = value
        if isinstance(last, SliceScatter) and last not in self.chains.positions:
            self.mapping[last.source] = value
            self.dropped.update({last.source.op} if last.source.op is not None else ())
        parts = [*zip(chain.ops[:-1], chain.links, strict=True)]
        read = [self._is_read(op, chain, link) for op, link in parts]
        for number in reversed(range(len(parts))):
            op, link = parts[number]
            if not any(read[: number + 1]):
                continue
            for view in link.above:
                value = self._add(view.replace_operands({view.operands[0]: value}))
            self.mapping[op.results[0]] = value

    def _is_read(self, op: Op, chain: _Chain, link: Carried) -> bool:
        """Whether anything outside of a chain reads a part; drops views that nothing else needs."""
        hidden = {*chain.ops, *link.below}
        is_read = False
        for part in (*reversed(link.below), op):
            value = part.results[0]
            if value not in self.mapping:
                users = self.chains.users.get(value, ())
                is_read |= value in self.chains.ends or not hidden.issuperset(users)
            if not is_read:
                self.dropped.add(part)
        return is_read

    def _add(self, op: Op) -> Value:
        self.ops.append(op)
        return op.results[0]
