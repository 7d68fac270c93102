"""Parts of a region: its ops over some of the iterations along a dimension of its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, simplify
from lynx.ir.errors import LynxError
from lynx.ir.space import Axis, FactorKind, IterationSpace

from .factory import Iota
from .fusion import Region
from .layout_slicing import Slice

How: TypeAlias = int | Literal["sum", "whole"]
"""How a value comes in parts: cut along a dimension, as terms of a sum, or whole in each."""


@dataclass(frozen=True)
class Part:
    """A region over parts of the parameters of another one.

    `parameters` says for each parameter of `region` which one of the other region it stands for,
    and the dimension along which it is cut (None: whole); `results` how the results are made of
    those of all parts.
    """

    region: Region
    parameters: tuple[tuple[int, int | None], ...]
    results: tuple[How, ...]


@dataclass(frozen=True)
class CannotCut:
    """Why a region has no parts."""

    reason: str


def part_of(region: Region, cut: Mapping[int, int], start: Dim, size: Dim) -> Part | CannotCut:
    """Return the part `start <= i < start + size` of a region.

    `cut` gives the parameters that are cut whatever happens, with the dimension of each. Other
    parameters are cut where the ops that need the cut ones read only a part of them; what depends
    on neither is computed in parts where it can be.
    """
    try:
        return _Cutter(region, cut, start, size).run()
    except _CannotCutError as error:
        return CannotCut(str(error))


class _CannotCutError(Exception):
    """An op needs more than a part."""


class _Cutter:
    def __init__(self, region: Region, cut: Mapping[int, int], start: Dim, size: Dim) -> None:
        self.region, self.start, self.size = region, start, size
        self.spaces: dict[Op, IterationSpace | None] = {}
        self.factors: dict[Op, str] = {}
        # How the values come that depend on parameters that are cut.
        self.known: dict[Value, How] = {region.parameters[n]: dim for n, dim in cut.items()}
        # In which forms the others are needed: cut along a dimension, or whole (None).
        self.needed: dict[Value, dict[int | None, None]] = {}
        self.made: dict[tuple[Value, int | None], Value] = {}
        self.parameters: list[tuple[int, int | None]] = []
        self.ops: list[Op] = []

    def run(self) -> Part:
        region = self.region
        for op in region.ops:
            self._follow(op)
        for result in region.results:
            if result not in self.known:
                self._need(result, None)
        for op in reversed(region.ops):
            self._ask(op)
        parameters = self._make_parameters()
        for op in region.ops:
            self._make(op)
        results = tuple(self._form(result) for result in region.results)
        hows = tuple(self.known.get(result, "whole") for result in region.results)
        made = Region(tuple(parameters), tuple(self.ops), results)
        return Part(made, tuple(self.parameters), hows)

    # which values depend on what is cut, and how

    def _follow(self, op: Op) -> None:
        """Find out how the results come, if the op depends on anything that is cut."""
        hows = {n: self.known[v] for n, v in enumerate(op.operands) if v in self.known}
        if not hows:
            return
        space = self._space(op)
        if space is None:
            raise _CannotCutError(f"'{op.name}' has no iteration space")
        if "sum" in hows.values():
            if tuple(sorted(hows)) not in space.linear or set(hows.values()) != {"sum"}:
                raise _CannotCutError(f"'{op.name}' needs a sum as a whole")
            self.known.update(dict.fromkeys(op.results, "sum"))
            return
        axes = {_along(space.operands[n], how) for n, how in hows.items()}
        name = axes.pop()
        if name is None or axes:
            raise _CannotCutError(f"'{op.name}' has no dimension of its own for what is cut")
        self.factors[op] = name
        factor = space.factor(name)
        is_sum = factor.kind is FactorKind.REDUCTION and factor.combine == "sum"
        if factor.kind is not FactorKind.PARALLEL and not is_sum:
            raise _CannotCutError(f"'{op.name}' needs all of a dimension")
        for result, index_map in zip(op.results, space.results, strict=True):
            dim = _place(index_map, name)
            if dim is None and not is_sum:
                raise _CannotCutError(f"'{op.name}' merges a dimension with another")
            self.known[result] = "sum" if dim is None else dim

    # what is needed of the others

    def _ask(self, op: Op) -> None:
        """Note what an op needs of values that depend on nothing that is cut."""
        if op in self.factors:
            self._ask_along(op, self.factors[op])
        elif any(result in self.known for result in op.results):
            self._ask_whole(op)  # what is added to nothing but sums is multiplied with each term
        else:
            for dim in {d: None for r in op.results for d in self.needed.get(r, ())}:
                name = None if dim is None else self._local_factor(op, dim)
                if name is None:
                    self._ask_whole(op)
                else:
                    self._ask_along(op, name)

    def _ask_whole(self, op: Op) -> None:
        for operand in op.operands:
            if operand not in self.known:
                self._need(operand, None)
        for result in op.results:
            if result not in self.known:
                self._need(result, None)

    def _ask_along(self, op: Op, name: str) -> None:
        space = self._space(op)
        assert space is not None
        for operand, index_map in zip(op.operands, space.operands, strict=True):
            if any(_mentions(axis, name) and axis != (name,) for axis in index_map):
                raise _CannotCutError(f"'{op.name}' reads a dimension that is not its own")
            if operand not in self.known:
                self._need(operand, _place(index_map, name))

    def _need(self, value: Value, dim: int | None) -> None:
        self.needed.setdefault(value, {})[dim] = None

    def _local_factor(self, op: Op, dim: int) -> str | None:
        """Return the factor along which a part of results can be computed, if there is one."""
        space = self._space(op)
        if space is None or len(op.results) != 1:
            return None
        name = _along(space.results[0], dim)
        if name is None or space.factor(name).kind is not FactorKind.PARALLEL:
            return None
        for index_map in space.operands:
            if any(_mentions(axis, name) and axis != (name,) for axis in index_map):
                return None
        return None if isinstance(op, Iota) and op.operands else name

    # the ops of the part

    def _make_parameters(self) -> list[Value]:
        made: list[Value] = []
        for index, parameter in enumerate(self.region.parameters):
            how = self.known.get(parameter)
            dims: list[int | None]
            dims = [how] if isinstance(how, int) else list(self.needed.get(parameter, (None,)))
            for dim in dims:
                made.append(self._parameter(parameter, dim))
                self.parameters.append((index, dim))
                self.made[parameter, dim] = made[-1]
        return made

    def _parameter(self, parameter: Value, dim: int | None) -> Value:
        if dim is None:
            return Value(parameter.type, name=parameter.name)
        type_ = parameter.tensor_type
        shape = (*type_.shape[:dim], self.size, *type_.shape[dim + 1 :])
        return Value(dataclasses.replace(type_, shape=shape), name=parameter.name)

    def _make(self, op: Op) -> None:
        if op in self.factors:
            self._make_part(op, self.factors[op])
        elif any(result in self.known for result in op.results):
            self._make_whole(op)
        else:
            dims = list({d: None for r in op.results for d in self.needed.get(r, ())})
            if None in dims:
                self._make_whole(op)
            for dim in (dim for dim in dims if dim is not None):
                name = self._local_factor(op, dim)
                if name is not None:
                    self._make_part(op, name)
                else:
                    self._cut(op.out, dim)

    def _make_whole(self, op: Op) -> None:
        mapping = {operand: self._form(operand) for operand in op.operands}
        made = op.replace_operands(mapping)
        if made is op:
            made = dataclasses.replace(op)
        self._place_results(op, made)

    def _make_part(self, op: Op, name: str) -> None:
        space = self._space(op)
        assert space is not None
        operands = tuple(
            self._form(operand, _place(index_map, name))
            for operand, index_map in zip(op.operands, space.operands, strict=True)
        )
        try:
            made = op.localized(operands, name, self.start, self.size)
        except LynxError as error:
            raise _CannotCutError(error.message) from None
        dims = [_place(index_map, name) for index_map in space.results]
        self._place_results(op, made, dims)

    def _place_results(self, op: Op, made: Op, dims: list[int | None] | None = None) -> None:
        self.ops.append(made)
        for index, (old, new) in enumerate(zip(op.results, made.results, strict=True)):
            self.made[old, None if dims is None else dims[index]] = new

    def _cut(self, value: Value, dim: int) -> None:
        stop = simplify(self.start + self.size)
        op = Slice(self.made[value, None], dim, self.start, stop)
        self.ops.append(op)
        self.made[value, dim] = op.out

    def _form(self, value: Value, dim: int | None = None) -> Value:
        """Return a value of the part in the form that it has, or that is asked for."""
        how = self.known.get(value)
        if how is not None:
            dim = how if isinstance(how, int) else None
        return self.made[value, dim]

    def _space(self, op: Op) -> IterationSpace | None:
        if op not in self.spaces:
            self.spaces[op] = op.space()
        return self.spaces[op]


def _along(index_map: tuple[Axis, ...], dim: How) -> str | None:
    """Return the only factor that indexes a dimension, None if there is no such factor."""
    axis = index_map[dim] if isinstance(dim, int) else ()
    return axis[0] if isinstance(axis, tuple) and len(axis) == 1 else None


def _place(index_map: tuple[Axis, ...], name: str) -> int | None:
    """Return the dimension that a factor alone indexes, None if there is none."""
    return next((n for n, axis in enumerate(index_map) if axis == (name,)), None)


def _mentions(axis: Axis, name: str) -> bool:
    return name in axis if isinstance(axis, tuple) else name in (axis.position, axis.offset)
