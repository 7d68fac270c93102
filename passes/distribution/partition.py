"""Rewrite a graph whose values are laid out on a mesh into one with explicit collectives.

Each op runs over parts of its operands as its strategy says (see `strategy`); where a value lies
otherwise than an op needs it, the cheapest collectives bring it there, once for all users. Types of
the new graph are derived from op to op, so that the verifier proves that no collective is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from lynx.ir.core import Graph, Mutation, Op, OutputSpec, Value
from lynx.ir.errors import InternalError
from lynx.ir.location import Location
from lynx.ir.ops.collective import AllGather, Replicate
from lynx.ir.ops.constraint import Constrain
from lynx.ir.ops.layout import Permute
from lynx.ir.sharding import Partial, Sharding, Split, replicated, sharding_of
from lynx.ir.space import IterationSpace
from lynx.ir.types import TensorType

from .alternatives import alternative, replacement
from .annotations import Annotations
from .pending import Pending
from .propagate import Layouts
from .redistribute import Redistribution, Step
from .strategy import Placed, Strategist, operand_sharding, space_of
from .sums import leave_in_parts


@dataclass(frozen=True, slots=True)
class Cause:
    """What needs a value otherwise than it lies: an operand of an op, or its own place.

    `value` is of the graph before. Without `user` the value is to lie so itself, as `end` says: as
    propagation found, as a constraint or the caller wants, or as the input that it is written to.
    `order` is that of a permutation that comes after the collectives: none if there is none.
    """

    value: Value
    wanted: Sharding
    user: Op | None = None
    position: int = 0
    end: str = ""
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A graph with collectives, and how it was found.

    `spaces` and `splits` say along what each op of the graph before is cut, `origins` from which of
    them an op was made, `causes` why each collective is there.
    """

    graph: Graph
    spaces: Mapping[Op, IterationSpace | None]
    splits: Mapping[Op, Mapping[str, Split]]
    origins: Mapping[Op, Op]
    causes: Mapping[Op, Cause]


def partition(graph: Graph, layouts: Layouts, annotations: Annotations) -> Partitioned:
    """Return the graph with collectives, in which every value lies as its type says."""
    return _Partition(graph, layouts, annotations).run()


class _Partition:
    def __init__(self, graph: Graph, layouts: Layouts, annotations: Annotations) -> None:
        self.graph, self.layouts, self.annotations = graph, layouts, annotations
        self.mesh = layouts.mesh
        self.ops: list[Op] = []
        self.made: dict[Value, Value] = {}
        self.forms: dict[tuple[Value, Sharding], Value] = {}
        self.spaces: dict[Op, IterationSpace | None] = {}
        self.splits: dict[Op, Mapping[str, Split]] = {}
        self.needed: dict[tuple[int, int, int], Sharding] = {}
        self.routes: dict[Hashable, list[Step]] = {}
        self.origins: dict[Op, Op] = {}
        self.causes: dict[Op, Cause] = {}

    def run(self) -> Partitioned:
        self._choose()
        leave_in_parts(self.graph, self.spaces, self.splits, self.mesh)
        waiting = Pending(self.graph, self.spaces, self.splits, self.mesh).run()
        inputs = tuple(map(self._input, self.graph.inputs))
        for op in self.graph.ops:
            self._place(op, waiting)
        outputs, specs = self._outputs()
        mutations = tuple(map(self._mutation, self.graph.mutations))
        graph = dataclasses.replace(
            self.graph,
            inputs=inputs,
            ops=tuple(self.ops),
            outputs=outputs,
            output_specs=specs,
            mutations=mutations,
            mesh=self.mesh,
        )
        return Partitioned(graph, self.spaces, self.splits, self.origins, self.causes)

    def _choose(self) -> None:
        """Find the factors that are cut; ops alike whose tensors lie alike share them."""
        strategist = Strategist(self.mesh)
        known: dict[Hashable, tuple[IterationSpace | None, Mapping[str, Split]]] = {}
        for op in self.graph.ops:
            placed = [self.layouts.placed(value) for value in (*op.operands, *op.results)]
            key = (op.structure, *[None if one is None else one.state for one in placed])
            if op.structure is None or key not in known:
                known[key] = self._strategy(op, placed, strategist)
            self.spaces[op], self.splits[op] = known[key]

    def _strategy(
        self, op: Op, placed: Sequence[Placed | None], strategist: Strategist
    ) -> tuple[IterationSpace | None, Mapping[str, Split]]:
        """Return the space of the form in which an op runs, and how its factors are cut."""
        count, other = len(op.operands), alternative(op)
        wider = op if other is None else other
        space = space_of(wider)
        splits = strategist.choose(space, placed[:count], placed[count:], wider.structure)
        plain = space if other is None else space_of(op)
        if not self._form_of(op, wider, plain, space, splits).is_uniform and any(
            split.groups for split in splits.values()
        ):
            placed = [_without_blocks(one) for one in placed]
            splits = strategist.choose(space, placed[:count], placed[count:], wider.structure)
        if self._form_of(op, wider, plain, space, splits) is op:
            space = plain
        return space, splits

    @staticmethod
    def _form_of(
        op: Op, other: Op, plain: IterationSpace | None, space: IterationSpace | None,
        splits: Mapping[str, Split],
    ) -> Op:  # fmt: skip
        """Return the form of an op that runs with these factors cut; see `alternatives`."""
        if plain is None or space is None:
            return other
        return op if _runs_as(plain, space, splits) else other

    def _input(self, value: Value) -> Value:
        sharding = self.layouts.of(value)
        type_ = value.type
        if isinstance(type_, TensorType) and sharding is not None:
            type_ = dataclasses.replace(type_, sharding=sharding)
        made = self.made[value] = Value(type_, name=value.name)
        return made

    # ops

    def _place(self, op: Op, waiting: Mapping[Value, Sequence[Partial]]) -> None:
        """Add an op over parts of its operands, and bring its results to where they shall lie."""
        if isinstance(op, Constrain):
            wanted = self.layouts.of(op.out)
            assert wanted is not None
            cause = Cause(op.x, wanted, op)
            self.made[op.out] = self._form(cause, op.loc)
            return
        space, splits = self.spaces[op], self.splits[op]
        chosen = replacement(op, splits, space)
        operands: list[Value] = []
        for position, operand in enumerate(op.operands):
            wanted = self._needed(op, position, space, splits, waiting)
            if wanted is None:
                operands.append(self.made[operand])
            else:
                operands.append(self._form(Cause(operand, wanted, op, position), op.loc))
        made = chosen.with_operands(tuple(operands))
        self.ops.append(made)
        self.origins[made] = op
        for old, new in zip(op.results, made.results, strict=True):
            self._settle(old, new, waiting.get(old, ()), op.loc)

    def _needed(
        self, op: Op, position: int, space: IterationSpace | None, splits: Mapping[str, Split],
        waiting: Mapping[Value, Sequence[Partial]],
    ) -> Sharding | None:  # fmt: skip
        """Return how an operand must lie; None for what is no tensor."""
        operand = op.operands[position]
        if not isinstance(operand.type, TensorType):
            return None
        if space is None:
            return replicated(operand.type.rank, self.mesh)
        # Ops of one structure share their space and, from the strategist, their splits.
        key = (id(space), id(splits), position)
        sharding = self.needed.get(key)
        if sharding is None:
            sharding = operand_sharding(space, space.operands[position], splits, self.mesh)
            assert sharding is not None
            self.needed[key] = sharding
        pending = tuple(waiting.get(operand, ()))
        return sharding_of(sharding.splits, pending, self.mesh) if pending else sharding

    def _settle(self, old: Value, new: Value, waiting: Sequence[Partial], loc: Location) -> None:
        """Reduce what does not wait, and lay a new result out as was decided."""
        self.made[old] = new
        wanted = self.layouts.of(old)
        if wanted is None or not isinstance(new.type, TensorType):
            return
        given = new.type.sharding
        if given is not None and waiting:
            # It is laid out where the sum is taken.
            wanted = sharding_of(given.splits, tuple(waiting), self.mesh)
        if given is None and wanted.is_replicated:
            return
        self.made[old] = self._moved(new, Cause(old, wanted, end="place"), loc)

    def _form(self, cause: Cause, loc: Location) -> Value:
        """Return a value in the form that is wanted, made once."""
        value = self.made[cause.value]
        given = value.tensor_type.sharding
        if given == cause.wanted or (given is None and cause.wanted.is_replicated):
            return value
        return self._moved(value, cause, loc)

    def _moved(self, value: Value, cause: Cause, loc: Location) -> Value:
        """Bring a value to another sharding by collectives, each added once."""
        wanted = cause.wanted
        type_ = value.tensor_type
        if type_.sharding is None:
            axes, sizes = zip(*self.mesh.axes, strict=True)
            value = self._add(value, Replicate(value, axes, sizes, loc=loc), cause)
            type_ = value.tensor_type
        assert type_.sharding is not None
        if type_.sharding == wanted:
            return value
        key = (type_.sharding, wanted, type_.shape)
        steps = self.routes.get(key)
        if steps is None:
            steps = self.routes[key] = Redistribution(
                type_.sharding, wanted, type_.shape, type_.dtype.itemsize, self.mesh
            ).steps
        if isinstance(value.op, Permute) and steps and all(s.kind is AllGather for s in steps):
            return self._permuted(value, value.op, cause, loc)
        for step in steps:
            op = step.emit(value)
            value = self._add(value, dataclasses.replace(op, loc=loc), cause)
        if value.tensor_type.sharding != wanted:
            raise InternalError("not-reached", f"{value.type} was to lie as {wanted}", loc)
        return value

    def _permuted(self, value: Value, op: Permute, cause: Cause, loc: Location) -> Value:
        """Gather what was permuted, and permute that: weights are gathered once for all uses."""
        wanted = cause.wanted
        known = self.forms.get((value, wanted))
        if known is not None:
            return known
        place = {dim: index for index, dim in enumerate(op.dims)}
        splits = tuple(wanted.splits[place[dim]] for dim in range(len(place)))
        there = sharding_of(splits, wanted.partial, self.mesh)
        order = tuple(op.dims[dim] for dim in cause.order or range(len(op.dims)))
        source = self._moved(op.x, dataclasses.replace(cause, wanted=there, order=order), loc)
        made = dataclasses.replace(op, x=source)
        self.ops.append(made)
        self.forms[value, wanted] = made.out
        return made.out

    def _add(self, source: Value, op: Op, cause: Cause) -> Value:
        """Add a collective, or take the equal one that is there."""
        (result,) = op.results
        sharding = result.tensor_type.sharding
        assert sharding is not None
        known = self.forms.get((source, sharding))
        if known is not None:
            return known
        self.ops.append(op)
        self.causes[op] = cause
        self.forms[source, sharding] = result
        return result

    # the end

    def _outputs(self) -> tuple[tuple[Value | None, ...], tuple[OutputSpec, ...]]:
        promised = self.annotations.outputs or (None,) * len(self.graph.outputs)
        outputs: list[Value | None] = []
        specs: list[OutputSpec] = []
        for output, spec, wanted in zip(
            self.graph.outputs, self.graph.output_specs, promised, strict=True
        ):
            if output is None or not isinstance(output.type, TensorType):
                outputs.append(None if output is None else self.made[output])
                specs.append(spec)
                continue
            made = self.made[output]
            if wanted is not None:
                made = self._form(Cause(output, wanted, end="output"), _where(output))
            lies = made.tensor_type.sharding or replicated(made.tensor_type.rank, self.mesh)
            outputs.append(made)
            specs.append(dataclasses.replace(spec, sharding=lies))
        return tuple(outputs), tuple(specs)

    def _mutation(self, mutation: Mutation) -> Mutation:
        target = self.made[mutation.target]
        value = self.made[mutation.value]
        if isinstance(target.type, TensorType):
            sharding = target.type.sharding
            assert sharding is not None
            cause = Cause(mutation.value, sharding, end="input")
            value = self._moved(value, cause, _where(mutation.value))
        return Mutation(target, value)


def _without_blocks(one: Placed | None) -> Placed | None:
    """Return a tensor as if axes that cut each of several blocks did not."""
    if one is None or not one.sharding.groups:
        return one
    splits = tuple(Split() if split.groups else split for split in one.sharding.splits)
    sharding = sharding_of(splits, one.sharding.partial, one.sharding.mesh)
    return Placed(one.type, sharding, one.priorities)


def _runs_as(plain: IterationSpace, other: IterationSpace, splits: Mapping[str, Split]) -> bool:
    """Whether the factors that are cut are of the same kind in both spaces."""
    kinds = {factor.name: factor.kind for factor in plain.factors}
    return all(kinds.get(name) is other.factor(name).kind for name in splits)


def _where(value: Value) -> Location:
    return value.op.loc if value.op is not None else Location()
