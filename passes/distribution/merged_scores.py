"""Attention whose score function merges batch and heads is taken apart, so that they can be cut.

Models that multiply batches of matrices keep scores as `[batch * heads, queries, keys]`, and what
they add to scores as well. In the shape of the products, a cut of the batch or of heads is one of
everything that scores are made of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, is_equal, product
from lynx.ir.ops.attention import Attending, Attention, AttentionBackward
from lynx.ir.ops.fusion import Region
from lynx.ir.ops.layout import Broadcast, Reshape
from lynx.ir.space import FactorKind
from lynx.ir.structure import shared_space
from lynx.ir.types import TensorType
from lynx.passes.rewrite import NoMatch, rule

from .propagate import Layouts

_BEFORE_INPUTS = 4
"""How many choices of gradients come before those of the score function's inputs."""
_CUT_DIMS = (0, 1)
"""The dimensions of queries that the score function may merge: batch and heads."""


def cuts_merged(op: Op, layouts: Layouts) -> bool:
    """Whether batch or heads are cut that the score function merges, and need not."""
    if not isinstance(op, Attending) or op.scoring() is None:
        return False
    space, sharding = shared_space(op), layouts.of(op.q)
    if space is None or sharding is None:
        return False
    # What comes first of heads are those of keys; the others are opaque wherever they share these.
    firsts = [
        axis[0]
        for dim in _CUT_DIMS
        if sharding.splits[dim].axes and isinstance(axis := space.operands[0][dim], tuple) and axis
    ]
    is_opaque = any(space.factor(name).kind is FactorKind.OPAQUE for name in firsts)
    return is_opaque and isinstance(_apart(op), _Made)


@rule
def take_scores_apart(op: Attention) -> tuple[Value, ...] | NoMatch:
    """Compute scores in the shape of the products.

    score(s, b) = reshape(reshape(s, [n]) + b, shape)  ==>  s + c, where c = reshape(b, shape)
    """
    made = _apart(op)
    if isinstance(made, NoMatch):
        return made
    inputs = tuple(value for value, _ in made.inputs)
    return dataclasses.replace(op, inputs=inputs, score=made.region).results


@rule
def take_scores_apart_backward(op: AttentionBackward) -> tuple[Value, ...] | Value | NoMatch:
    """Compute scores in the shape of the products; gradients get the shapes of what was given."""
    made = _apart(op)
    if isinstance(made, NoMatch):
        return made
    first, of_inputs = op.wanted[:_BEFORE_INPUTS], op.wanted[_BEFORE_INPUTS:]
    wanted = (*first, *(of_inputs[place] for _, place in made.inputs))
    inputs = tuple(value for value, _ in made.inputs)
    new = dataclasses.replace(op, inputs=inputs, score=made.region, wanted=wanted)
    results = tuple(
        result if result.type == old.type else Reshape(result, old.shape).out
        for result, old in zip(new.results, op.results, strict=True)
    )
    return results if len(results) != 1 else results[0]


@dataclass(frozen=True)
class _Made:
    """A score function, and the inputs that it takes, each with its place among the given ones."""

    region: Region
    inputs: tuple[tuple[Value, int], ...]


def _apart(op: Attending) -> _Made | NoMatch:
    region = op.scoring()
    if region is None:
        return NoMatch("the products are the scores")
    shape = op.dot_type.shape
    groups = next(filter(None, (_merge_of(one, shape) for one in region.ops)), None)
    if groups is None:
        return NoMatch("the score function merges no dimensions")
    taken = _Apart(region, shape, groups).run()
    if isinstance(taken, NoMatch):
        return taken
    inputs = []
    for (place, is_apart), parameter in zip(taken.parameters, taken.region.parameters[1:],
                                            strict=True):  # fmt: skip
        given = op.inputs[place]
        inputs.append((Reshape(given, parameter.shape).out if is_apart else given, place))
    return _Made(taken.region, tuple(inputs))


def _merge_of(op: Op, shape: tuple[Dim, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Return which dimensions of the products each dimension of a reshape's result merges."""
    if not isinstance(op, Reshape) or op.x.shape != shape or len(op.shape) >= len(shape):
        return None
    groups: list[tuple[int, ...]] = []
    dim = 0
    for size in op.shape:
        start = dim
        dim += 1
        while dim < len(shape) and not is_equal(product(shape[start:dim]), size):
            dim += 1
        if not is_equal(product(shape[start:dim]), size):
            return None
        groups.append(tuple(range(start, dim)))
    return tuple(groups) if dim == len(shape) else None


@dataclass(frozen=True)
class _Taken:
    """A score function; of its parameters but the first: which they were, and if in new shapes."""

    region: Region
    parameters: tuple[tuple[int, bool], ...]


@dataclass
class _Apart:
    """Rebuilds a score function; `apart` has what was merged, in the shape of the products.

    `parameters` and `others` have in that shape what is broadcast with it: new parameters, and
    values that are computed from what was never merged.
    """

    region: Region
    shape: tuple[Dim, ...]
    groups: tuple[tuple[int, ...], ...]
    ops: list[Op] = field(default_factory=list)
    made: dict[Value, Value] = field(default_factory=dict)
    apart: dict[Value, Value] = field(default_factory=dict)
    parameters: dict[Value, Value] = field(default_factory=dict)
    others: dict[Value, Value] = field(default_factory=dict)

    def run(self) -> _Taken | NoMatch:
        """Return the score function; parameters that only what was merged reads get new shapes."""
        for op in self.region.ops:
            if not self._place(op):
                return NoMatch(f"'{op.name}' needs merged dimensions")
        if any(self._read(result) is None for result in self.region.results):
            return NoMatch("scores are merged")
        results = tuple(self.made[result] for result in self.region.results)
        ops = _needed(self.ops, results)
        read = {*results, *(operand for op in ops for operand in op.operands)}
        first, *others = self.region.parameters
        kept: list[Value] = [first]
        places: list[tuple[int, bool]] = []
        for place, parameter in enumerate(others):
            new = self.parameters.get(parameter)
            if new is not None and parameter in read:
                return NoMatch("an input is read in two shapes")
            kept.append(parameter if new is None else new)
            places.append((place, new is not None))
        return _Taken(Region(tuple(kept), tuple(ops), results), tuple(places))

    def _place(self, op: Op) -> bool:
        """Add an op, or what takes its place; false if it needs what is merged as it is."""
        if isinstance(op, Reshape) and len(op.shape) == len(self.groups):
            source = self._read(op.x)
            if source is not None and self._split(op.shape) == op.x.shape:
                self.apart[op.out] = source
                return True
        if not self.apart.keys().isdisjoint(op.operands):
            return self._place_apart(op)
        operands = tuple(map(self._read, op.operands))
        placed = op.with_operands(tuple(one for one in operands if one is not None))
        self.ops.append(placed)
        self.made.update(zip(op.results, placed.results, strict=True))
        return True

    def _place_apart(self, op: Op) -> bool:
        if isinstance(op, Reshape):
            if op.shape != self.shape:
                return False
            self.made[op.out] = self.apart[op.x]
            return True
        if isinstance(op, Broadcast):
            made = self._broadcast(op)
            return made is not None and self._add_apart(op, made)
        if not op.is_elementwise:
            return False
        operands = [self._read_apart(one) for one in op.operands]
        found = [one for one in operands if one is not None]
        return len(found) == len(operands) and self._add_apart(op, op.with_operands(tuple(found)))

    def _broadcast(self, op: Broadcast) -> Broadcast | None:
        """Broadcast to the shape of the products what is broadcast to the merged one."""
        shape, source = self._split(op.shape), self._read_apart(op.x)
        return None if shape is None or source is None else Broadcast(source, shape, loc=op.loc)

    def _add_apart(self, old: Op, new: Op) -> bool:
        self.ops.append(new)
        self.apart.update(zip(old.results, new.results, strict=True))
        return True

    def _read(self, value: Value) -> Value | None:
        """Return a value in its own shape; None if there is only what was merged."""
        if value in self.apart:
            return None
        return self.made.get(value, value)

    def _read_apart(self, value: Value) -> Value | None:
        """Return a value in the shape of the products, as far as it has one."""
        known = self.apart.get(value) or self.others.get(value)
        if known is not None:
            return known
        if not isinstance(value.type, TensorType) or not value.shape:
            return self._read(value)
        shape = self._split(value.shape)
        if shape is None:
            return None
        if value in self.region.parameters:
            type_ = dataclasses.replace(value.tensor_type, shape=shape)
            return self.parameters.setdefault(value, Value(type_, name=value.name))
        source = self._read(value)
        if source is None:
            return None
        wide = value.defined_by(Broadcast)
        made = None if wide is None else self._broadcast(wide)
        self.ops.append(made or Reshape(source, shape))
        (self.others[value],) = self.ops[-1].results
        return self.others[value]

    def _split(self, shape: Sequence[Dim]) -> tuple[Dim, ...] | None:
        """Return the shape in which merged dimensions lie apart, of what is broadcast with them."""
        given = (1,) * (len(self.groups) - len(shape)) + tuple(shape)
        if len(given) != len(self.groups):
            return None
        split: list[Dim] = []
        for size, group in zip(given, self.groups, strict=True):
            sizes = tuple(self.shape[dim] for dim in group)
            if is_equal(size, product(sizes)):
                split += sizes
            elif is_equal(size, 1):
                split += (1,) * len(group)
            else:
                return None
        return tuple(split)


def _needed(ops: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Return the ops that results depend on, in order."""
    live = set(results)
    kept: list[Op] = []
    for op in reversed(ops):
        if not live.isdisjoint(op.results):
            kept.append(op)
            live.update(op.operands)
    return kept[::-1]
