"""Orders that hide communication: valid, of the same meaning, equal starts, and faster."""

from __future__ import annotations

import random

import pytest
import torch

from lynx.backends.reference.mesh import evaluate_on_mesh
from lynx.ir import UsageError
from lynx.ir.core import Graph, Op
from lynx.ir.ops.schedule import Start
from lynx.ir.verifier import verify
from lynx.passes import PassContext
from lynx.passes.distribution.cost import Costs
from lynx.passes.distribution.machine import read_target
from lynx.passes.distribution.order import Needs, in_order, peak_bytes, scheduled, starts_first
from lynx.passes.distribution.overlap import ScheduleOverlap
from lynx.passes.distribution.split import SplitCollectives
from lynx.passes.distribution.timeline import play
from tests.schedules import RECIPES, local_step, typed_step

LARGE = {"batch": 512, "width": 512, "hidden": 1024}


def split(graph: Graph) -> Graph:
    return SplitCollectives().run(graph, PassContext())


def starts(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if isinstance(op, Start)]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("mode", ["conservative", "free"])
def test_communication_is_hidden(recipe: str, mode: str) -> None:
    graph = split(local_step(recipe, 0, 4, **LARGE))
    costs = Costs(read_target("cpu-gloo"), graph.mesh)
    result = ScheduleOverlap(mode=mode).run(graph, PassContext())
    verify(result)
    assert sorted(map(id, result.ops)) == sorted(map(id, graph.ops))
    before, after = play(graph.ops, costs), play(result.ops, costs)
    assert after.duration < before.duration
    assert after.exposed < before.exposed * (0.5 if recipe != "tp" else 0.7)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_conservative_mode_keeps_the_order_of_starts(recipe: str) -> None:
    for device in range(RECIPES[recipe][1].device_count):
        graph = split(local_step(recipe, device, batch=9, width=13, hidden=15))
        result = ScheduleOverlap().run(graph, PassContext())
        assert starts(result) == starts(graph)


@pytest.mark.parametrize("recipe", ["fsdp", "dp+tp", "fsdp+tp"])
def test_the_meaning_on_a_mesh_stays(recipe: str) -> None:
    typed = typed_step(recipe, batch=7, width=5, hidden=9)
    inputs = [torch.randn(*map(int, value.shape)) for value in typed.inputs]
    plain, _ = evaluate_on_mesh(typed, inputs)

    def change(graph: Graph) -> Graph:
        return ScheduleOverlap().run(split(graph), PassContext())

    moved, _ = evaluate_on_mesh(typed, inputs, change=change)
    assert all(map(torch.equal, plain, moved))


@pytest.mark.parametrize("limit", [0, 1 << 20, 3 << 20, 1 << 40])
def test_what_is_in_flight_stays_below_the_limit(limit: int) -> None:
    graph = split(local_step("fsdp", 0, 4, **LARGE))
    costs = Costs(read_target("cpu-gloo"), graph.mesh)
    needs = Needs.of(graph)
    for priority in (in_order(needs), starts_first(needs)):
        ops = scheduled(needs, costs, priority, limit)
        flying = most = alone = 0
        for op in ops:
            size = sum(int(result.tensor_type.nbytes) for result in op.results)
            if isinstance(op, Start):
                flying += size
                most, alone = max(most, flying), max(alone, size)
            elif op.name == "wait":
                flying -= size
        assert most <= max(limit, alone)


def test_random_priorities_give_orders_that_verify() -> None:
    graph = split(local_step("fsdp+tp", 0, 3))
    costs = Costs(read_target("cpu-gloo"), graph.mesh)
    needs = Needs.of(graph)
    seed = random.Random(0)
    for _ in range(20):
        numbers = {op: seed.random() for op in graph.ops}
        ops = scheduled(needs, costs, lambda op: (int(numbers[op] * 1000), needs.positions[op]), 0)  # noqa: B023 - called in this turn
        verify(Graph(**{**vars(graph), "ops": ops}))


def test_peaks_count_what_is_alive() -> None:
    graph = split(local_step("fsdp", 0, 1, batch=4, width=12, hidden=14))
    assert peak_bytes(graph.ops, graph) >= max(
        int(result.tensor_type.nbytes) for op in graph.ops for result in op.results
    )


def test_unknown_modes_are_told() -> None:
    graph = split(local_step("fsdp", 0, 1))
    with pytest.raises(UsageError, match="conservative or free"):
        ScheduleOverlap(mode="wild").run(graph, PassContext())
