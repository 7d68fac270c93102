"""Run the programs of a mesh on real memory over a transport that does its worst.

Buffers lie where the plan says. What is in flight arrives either at once, or only when it is waited
for, and then from what the operands hold by that time; until then its memory holds NaN. A device
waits until all members of the group have started, so programs may also hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lynx.backends.reference.dtypes import torch_dtype
from lynx.backends.reference.evaluate import run
from lynx.backends.reference.mesh import exchange
from lynx.ir.core import Op, Value
from lynx.ir.ops.schedule import Start, Wait
from lynx.ir.program import Arena, Fresh, InPlace, Placement, Program, Saved, Step, Target, View
from lynx.ir.sharding import Mesh
from lynx.passes.distribution.ranks import members


class HangError(Exception):
    """All devices wait for others."""


@dataclass
class Flight:
    """One communication of one group, as far as its members have come."""

    starts: dict[int, Start] = field(default_factory=dict)
    arrived: dict[int, list[torch.Tensor]] = field(default_factory=dict)


@dataclass
class Device:
    """One device: its program, its memory, and how far it has come."""

    program: Program
    number: int
    values: dict[Value, torch.Tensor]
    position: int = 0
    counts: dict[tuple[int, ...], int] = field(default_factory=dict)
    flights: dict[Op, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    arenas: dict[bool, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for arena in self.program.arenas:
            self.arenas[arena.saved] = torch.full((arena.size // 4 + 16,), torch.nan)

    def memory(self, value: Value, placement: Placement) -> torch.Tensor:
        """Return the tensor that a result is written to."""
        if isinstance(placement, InPlace | Target):
            assert placement.of is not None
            return self.values[placement.of]
        shape, strides = value.shape, placement.strides
        if isinstance(placement, Arena | Saved):
            assert placement.offset is not None
            arena = self.arenas[isinstance(placement, Saved)]
            return arena.as_strided(shape, strides, placement.offset // 4)  # type: ignore[arg-type]  # sizes are known
        return torch.empty_strided(shape, strides, dtype=torch_dtype(value.tensor_type.dtype))  # type: ignore[arg-type]  # sizes are known

    def write(self, step: Step, results: Sequence[torch.Tensor]) -> None:
        for value, placement, result in zip(step.op.results, step.placements, results, strict=True):
            if isinstance(placement, Arena | Saved | Fresh | InPlace | Target):
                self.values[value] = self.memory(value, placement)
                self.values[value].copy_(result)
            else:
                self.values[value] = result


class HostileMesh:
    """All devices of a mesh; `late` says when things arrive."""

    def __init__(
        self, programs: Sequence[Program], inputs: Sequence[Sequence[Any]], mesh: Mesh, late: bool
    ) -> None:
        self.mesh, self.late = mesh, late
        self.flights: dict[tuple[tuple[int, ...], int], Flight] = {}
        self.devices = [
            Device(program, n, dict(zip(program.graph.inputs, copies, strict=True)))
            for n, (program, given) in enumerate(zip(programs, inputs, strict=True))
            for copies in [map(torch.clone, given)]
        ]

    def run(self) -> list[list[torch.Tensor]]:
        """Return the outputs of each device; `HangError` if they do not end."""
        while True:
            moved = [self.advance(device) for device in self.devices]
            if all(d.position == len(d.program.steps) for d in self.devices):
                break
            if not any(moved):
                raise HangError
        return [
            [device.values[v].clone() for v in device.program.graph.outputs if v is not None]
            for device in self.devices
        ]

    def advance(self, device: Device) -> bool:
        """Run a device until it has to wait; say whether it came any further."""
        first = device.position
        while device.position < len(device.program.steps):
            step = device.program.steps[device.position]
            if isinstance(step.op, Start):
                self.start(device, step)
            elif isinstance(step.op, Wait):
                if not self.wait(device, step):
                    break
            else:
                device.write(step, run(step.op, device.values, {}, device.program.resources))
                for value, placement in zip(step.op.results, step.placements, strict=True):
                    assert not isinstance(placement, View) or value in device.values
            device.position += 1
        return device.position > first

    def start(self, device: Device, step: Step) -> None:
        op = step.op
        assert isinstance(op, Start)
        group = members(self.mesh, op.axes, device.number)
        key = tuple(sorted(group))
        number = device.counts[key] = device.counts.get(key, 0) + 1
        device.flights[op] = key, number
        self.flights.setdefault((key, number), Flight()).starts[device.number] = op
        nothing = [torch.full(tuple(v.shape), torch.nan) for v in op.results]  # type: ignore[arg-type]  # sizes are known
        device.write(step, nothing)
        if not self.late:
            self.arrive(self.flights[key, number], group, write=True)

    def arrive(self, flight: Flight, group: Sequence[int], *, write: bool) -> None:
        """Exchange, if all members are there, what their operands hold now."""
        if len(flight.starts) < len(group) or flight.arrived:
            return
        bundles = [flight.starts[member].parts for member in group]
        flight.arrived = {member: [] for member in group}
        for parts in zip(*bundles, strict=True):
            pairs = zip(group, parts, strict=True)
            given = [self.devices[member].values[part.x] for member, part in pairs]
            for member, result in zip(group, exchange(parts, given), strict=True):
                flight.arrived[member].append(result)
        for member in group if write else ():
            results = flight.starts[member].results
            for value, result in zip(results, flight.arrived[member], strict=True):
                self.devices[member].values[value].copy_(result)

    def wait(self, device: Device, step: Step) -> bool:
        op = step.op
        assert isinstance(op, Wait)
        key = device.flights[op.start]
        flight = self.flights[key]
        group = members(self.mesh, op.start.axes, device.number)
        if len(flight.starts) < len(group):
            return False
        self.arrive(flight, group, write=False)
        if self.late:
            device.write(step, flight.arrived[device.number])
        else:
            device.write(step, [device.values[value].clone() for value in op.pending])
        return True
