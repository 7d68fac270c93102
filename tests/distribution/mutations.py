"""Break programs over meshes, one collective at a time: types must not let any of it pass."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import CompileError
from lynx.ir.ops.collective import AllReduce, Collective, Replicate
from lynx.ir.sharding import REDUCTIONS, replicated
from lynx.ir.types import TensorType
from lynx.ir.verifier import verify


@dataclass(frozen=True)
class Mutation:
    """A change of one collective: `fields` it gets, or that it is gone or there twice."""

    op: Collective
    what: str
    fields: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        changed = ", ".join(f"{name} = {value}" for name, value in self.fields)
        return f"{self.op.name} {self.what} {changed}".rstrip()


def mutations(graph: Graph) -> Iterator[Mutation]:
    """Yield every change of a single collective of a graph that changes what it means."""
    assert graph.mesh is not None
    for op in graph.ops:
        if isinstance(op, Collective) and not isinstance(op, Replicate):
            yield Mutation(op, "deleted")
            yield Mutation(op, "doubled")
            for axes in _other_axes(op, graph.mesh.names):
                yield Mutation(op, "changed", (("axes", axes),))
            for reduction in REDUCTIONS:
                if getattr(op, "reduction", reduction) != reduction:
                    yield Mutation(op, "changed", (("reduction", reduction),))
            yield from _other_dims(op)


def _other_axes(op: Collective, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield each other axis in the place of each, and each other order where that matters."""
    for index, name in itertools.product(range(len(op.axes)), names):
        if name != op.axes[index]:
            yield (*op.axes[:index], name, *op.axes[index + 1 :])
    for index in range(len(op.axes) if len(op.axes) > 1 else 0):
        yield (*op.axes[:index], *op.axes[index + 1 :])
    if not isinstance(op, AllReduce):
        for axes in itertools.permutations(op.axes):
            if axes != op.axes:
                yield axes
    for name in names:
        if name not in op.axes:
            yield (*op.axes, name)


def _other_dims(op: Collective) -> Iterator[Mutation]:
    dims = [name for name in ("dim", "source", "target") if name in op.attribute_fields]
    for name, dim in itertools.product(dims, range(op.x.tensor_type.rank)):
        if dim != getattr(op, name):
            yield Mutation(op, "changed", ((name, dim),))
    if len(dims) == 2:
        source, target = (getattr(op, name) for name in dims)
        yield Mutation(op, "turned round", (("source", target), ("target", source)))


def mutated(graph: Graph, mutation: Mutation) -> Graph:
    """Return the graph with the change, all types derived anew; `CompileError` if ill-typed."""
    mapping: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        made = op.replace_operands(mapping)
        if op is mutation.op:
            if mutation.what == "deleted":
                mapping[op.out] = made.operands[0]
                continue
            made = dataclasses.replace(made, **dict(mutation.fields))
            if mutation.what == "doubled":
                ops.append(made)
                made = dataclasses.replace(made, x=made.out)  # type: ignore[call-arg]
        ops.append(made)
        mapping.update(zip(op.results, made.results, strict=True))
    return graph.with_ops(tuple(ops), mapping)


def rejection(graph: Graph, mutation: Mutation) -> CompileError | None:
    """Return why building or verifying the changed graph fails, None if neither does."""
    try:
        verify(mutated(graph, mutation))
    except CompileError as error:
        return error
    return None


def promising(graph: Graph) -> Graph:
    """Return the graph with a promise for each output: to lie as it does."""
    specs = []
    for value, spec in zip(graph.outputs, graph.output_specs, strict=True):
        if value is not None and isinstance(value.type, TensorType):
            sharding = value.type.sharding or replicated(value.type.rank, graph.mesh)
            spec = dataclasses.replace(spec, sharding=sharding)
        specs.append(spec)
    return dataclasses.replace(graph, output_specs=tuple(specs))
