"""Run a program over a mesh in one process: every device's own program, in lockstep.

It is the oracle for programs over meshes. Each device runs up to its next communication; there the
tensors of all members of a group are exchanged, and all go on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import CompileError, InternalError
from lynx.ir.ops.communication import (
    Communication,
    LocalAllGather,
    LocalAllReduce,
    LocalAllToAll,
    LocalReduceScatter,
)
from lynx.ir.ops.schedule import Start, Wait
from lynx.ir.sharding import Mesh, Sharding
from lynx.ir.types import TensorType, Type
from lynx.passes.distribution.localize import identity, localize

from .dtypes import dtype_from_torch
from .evaluate import bind_symbols, run


def run_on_mesh(
    graph: Graph, inputs: Sequence[Any], symbols: Mapping[str, int] | None = None
) -> list[Any]:
    """Return the whole outputs of a program over a mesh, given whole inputs.

    `CompileError` if an output is partial, `InternalError` if devices that should hold the same
    do not, bit for bit.
    """
    return evaluate_on_mesh(graph, inputs, symbols)[0]


def evaluate_on_mesh(
    graph: Graph,
    inputs: Sequence[Any],
    symbols: Mapping[str, int] | None = None,
    change: Callable[[Graph], Graph] = lambda local: local,
) -> tuple[list[Any], list[Any]]:
    """Return the whole outputs, and the new whole values of mutated inputs; see `run_on_mesh`.

    Each device runs what `change` makes of its own program.
    """
    mesh = graph.mesh or Mesh("mesh", ())
    sizes = dict(symbols or {}) or bind_symbols(graph, inputs)
    parts = [
        split(value.type, given, mesh) for value, given in zip(graph.inputs, inputs, strict=True)
    ]
    devices = [
        _Device(change(localize(graph, mesh.coordinates(number))), mesh.coordinates(number), sizes)
        for number in range(mesh.device_count)
    ]
    for number, device in enumerate(devices):
        device.values.update(
            (value, part[number]) for value, part in zip(device.graph.inputs, parts, strict=True)
        )
    _run_all(devices, mesh)
    outputs = [
        None if value is None else _assemble(value, [d.outputs[n] for d in devices], mesh, n)
        for n, value in enumerate(graph.outputs)
    ]
    mutated = [
        _assemble(mutation.value, [device.mutated[n] for device in devices], mesh, n)
        for n, mutation in enumerate(graph.mutations)
    ]
    return outputs, mutated


@dataclass
class _Device:
    """One device: its program, how far it has come, and the state of its random generator."""

    graph: Graph
    coordinates: dict[str, int]
    symbols: Mapping[str, int]
    values: dict[Value, Any] = field(default_factory=dict)
    position: int = 0
    state: torch.Tensor = field(default_factory=torch.get_rng_state)

    def advance(self) -> Communication | Start | None:
        """Run up to the next communication and return it; None at the end."""
        torch.set_rng_state(self.state)
        while self.position < len(self.graph.ops):
            op = self.graph.ops[self.position]
            self.position += 1
            if isinstance(op, Communication | Start):
                self.state = torch.get_rng_state()
                return op
            if isinstance(op, Wait):  # what is started here has arrived
                arrived = [self.values[value] for value in op.pending]
                self.values.update(zip(op.results, arrived, strict=True))
                continue
            results = run(op, self.values, self.symbols, self.graph.resources)
            self._check(op, results)
            self.values.update(zip(op.results, results, strict=True))
        self.state = torch.get_rng_state()
        return None

    def _check(self, op: Op, results: tuple[Any, ...]) -> None:
        for result, actual in zip(op.results, results, strict=True):
            type_ = result.type
            if not isinstance(type_, TensorType) or not isinstance(actual, torch.Tensor):
                continue
            known = all(isinstance(size, int) for size in type_.shape)
            if known and (tuple(actual.shape), dtype_from_torch(actual.dtype)) != (
                type_.shape,
                type_.dtype,
            ):
                message = f"'{op.name}' gave {list(actual.shape)} for {type_}"
                raise InternalError("bad-local-type", message, op.loc)

    @property
    def outputs(self) -> list[Any]:
        return [None if value is None else self.values[value] for value in self.graph.outputs]

    @property
    def mutated(self) -> list[Any]:
        return [self.values[mutation.value] for mutation in self.graph.mutations]


def _run_all(devices: list[_Device], mesh: Mesh) -> None:
    """Run all devices to the end; the random generator is left as each device leaves it."""
    while True:
        waiting = [device.advance() for device in devices]
        kinds = {type(op) for op in waiting}
        if len(kinds) > 1:
            names = ", ".join(sorted("the end" if op is None else op.name for op in waiting))
            raise InternalError("mesh-out-of-step", f"devices wait at once for: {names}")
        for members in _groups(waiting, mesh):
            ops = [op for op in (waiting[member] for member in members) if op is not None]
            _communicate([devices[member] for member in members], ops)
        if waiting[0] is None:
            break
    states = {bytes(device.state.tolist()) for device in devices}
    if len(states) != 1:
        raise InternalError("mesh-out-of-step", "devices have drawn different random numbers")


def _communicate(members: Sequence[_Device], ops: Sequence[Communication | Start]) -> None:
    """Exchange the tensors of an op that all members of a group have come to."""
    bundles = [op.parts if isinstance(op, Start) else (op,) for op in ops]
    if len({len(bundle) for bundle in bundles}) > 1:
        raise InternalError("mesh-out-of-step", f"members of '{ops[0].name}' disagree", ops[0].loc)
    for position, parts in enumerate(zip(*bundles, strict=True)):
        given = [device.values[part.x] for device, part in zip(members, parts, strict=True)]
        for device, op, result in zip(members, ops, exchange(parts, given), strict=True):
            device.values[op.results[position]] = result


def _groups(waiting: Sequence[Communication | Start | None], mesh: Mesh) -> list[list[int]]:
    """Return the members of each group in order; `InternalError` if they disagree."""
    first = waiting[0]
    if first is None:
        return []
    if any(op is None or op.axes != first.axes for op in waiting):
        raise InternalError("mesh-out-of-step", f"'{first.name}' runs over different axes")
    others = [axis for axis in mesh.names if axis not in first.axes]
    groups: list[list[int]] = []
    for outside in itertools.product(*(range(mesh.size(axis)) for axis in others)):
        fixed = dict(zip(others, outside, strict=True))
        inside = itertools.product(*(range(mesh.size(axis)) for axis in first.axes))
        groups.append(
            [mesh.device(fixed | dict(zip(first.axes, place, strict=True))) for place in inside]
        )
    return groups


def exchange(ops: Sequence[Communication], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return each member's result of a communication, given each member's op and tensor."""
    for number, op in enumerate(ops):
        own = op.attributes.get("index", number)
        mine = {k: v for k, v in op.attributes.items() if k != "index"}
        first = {k: v for k, v in ops[0].attributes.items() if k != "index"}
        if own != number or mine != first:
            raise InternalError("mesh-out-of-step", f"members of '{op.name}' disagree", op.loc)
    match ops[0]:
        case LocalAllReduce(reduction=reduction):
            return [combine(given, reduction) for _ in ops]
        case LocalAllGather(dim=dim):
            return [torch.cat(list(given), dim) for _ in ops]
        case LocalReduceScatter(dim=dim, sizes=sizes, reduction=reduction):
            pieces = torch.split_with_sizes(combine(given, reduction), list(sizes), dim)
            return [piece.clone() for piece in pieces]
        case LocalAllToAll(source=source, target=target, target_sizes=sizes):
            whole = torch.cat(list(given), source)
            pieces = torch.split_with_sizes(whole, list(sizes), target)
            return [piece.clone() for piece in pieces]
    raise InternalError("no-local-form", f"no meaning of '{ops[0].name}'", ops[0].loc)


_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.logical_and,
    "or": torch.logical_or,
}


def combine(parts: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    """Return tensors of one shape combined element by element, in order."""
    total = parts[0].clone()
    for part in parts[1:]:
        total = _COMBINE[reduction](total, part).to(total.dtype)
    return total


def split(type_: Type, whole: Any, mesh: Mesh) -> list[Any]:
    """Return each device's part of a whole value.

    A partial value is made of parts that combine to it: of a sum, random terms; of another
    reduction, each element on one device chosen at random.
    """
    count = mesh.device_count
    if not isinstance(type_, TensorType) or type_.sharding is None:
        return [whole] * count
    sharding = dataclasses.replace(type_.sharding, mesh=mesh)
    terms = _terms(whole, sharding, mesh)
    parts: list[torch.Tensor] = []
    for number in range(count):
        coordinates = mesh.coordinates(number)
        part = terms[tuple(coordinates[partial.axis] for partial in sharding.partial)]
        for dim, rows in enumerate(_rows(sharding, whole.shape, coordinates)):
            part = part[(slice(None),) * dim + (rows,)]
        parts.append(part.clone())
    return parts


def _terms(
    whole: torch.Tensor, sharding: Sharding, mesh: Mesh
) -> dict[tuple[int, ...], torch.Tensor]:
    """Return what the devices at each place along the partial axes hold of a whole value."""
    terms: dict[tuple[int, ...], torch.Tensor] = {(): whole}
    generator = torch.Generator().manual_seed(0)
    for partial in sharding.partial:
        size = mesh.size(partial.axis)
        terms = {
            (*place, number): part
            for place, term in terms.items()
            for number, part in enumerate(_divide(term, partial.reduction, size, generator))
        }
    return terms


def _divide(
    whole: torch.Tensor, reduction: str, count: int, generator: torch.Generator
) -> list[torch.Tensor]:
    if reduction == "sum" and whole.dtype is not torch.bool:
        noise = [
            torch.randint(-4, 5, whole.shape, generator=generator).to(whole.dtype)
            for _ in range(count - 1)
        ]
        first = whole
        for term in noise:
            first = first - term
        return [first, *noise]
    owner = torch.randint(0, count, whole.shape, generator=generator)
    dtype = dtype_from_torch(whole.dtype)
    assert dtype is not None
    nothing = torch.full_like(whole, identity(reduction, dtype))
    return [torch.where(owner == number, whole, nothing) for number in range(count)]


def _assemble(value: Value, parts: list[Any], mesh: Mesh, index: int) -> Any:
    """Return the whole of an output; raise if it is partial or replicas differ."""
    type_ = value.type
    what = f"output {index} of type {type_}"
    if not isinstance(type_, TensorType):
        if any(part != parts[0] for part in parts):
            raise InternalError("replicas-differ", f"{what} is not the same on all devices")
        return parts[0]
    sharding = type_.sharding or Sharding(((),) * type_.rank)
    if sharding.partial:
        raise CompileError("partial-output", f"{what} is partial; reduce it first")
    sharding = dataclasses.replace(sharding, mesh=mesh)
    # A cut dimension has a known size; others are whole in each part.
    shape = tuple(
        size if isinstance(size, int) else parts[0].shape[dim]
        for dim, size in enumerate(type_.shape)
    )
    whole = parts[0].new_empty(shape)
    seen: dict[tuple[tuple[int, ...], ...], torch.Tensor] = {}
    for number, part in enumerate(parts):
        rows = _rows(sharding, shape, mesh.coordinates(number))
        known = seen.setdefault(tuple(tuple(one.tolist()) for one in rows), part)
        if not is_same(known, part):
            raise InternalError("replicas-differ", f"{what} differs on device {number}")
        if rows:
            whole[torch.meshgrid(*rows, indexing="ij")] = part
        else:
            whole.copy_(part)
    return whole


def _rows(
    sharding: Sharding, shape: Sequence[int], coordinates: dict[str, int]
) -> list[torch.Tensor]:
    """Return, for each dimension, which of its elements a device holds, in order."""
    assert sharding.mesh is not None
    mesh = sharding.mesh
    return [
        torch.cat(
            [torch.arange(start, start + n) for start, n in split.blocks(size, mesh, coordinates)]
        )
        for split, size in zip(sharding.splits, shape, strict=True)
    ]


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors have the same type, shape and bits."""
    if a.shape != b.shape or a.dtype is not b.dtype:
        return False
    return torch.equal(
        *(x.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for x in (a, b))
    )
