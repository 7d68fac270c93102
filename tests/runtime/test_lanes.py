"""Programs whose communication is split, in processes: the numbers of the unsplit program."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import lynx
from lynx.backends.reference import call_of, communicators
from lynx.backends.reference.schedule import in_flight
from lynx.distribution.agreement import Agreement
from lynx.distribution.failures import CommunicationError
from lynx.distribution.groups import Groups
from lynx.distribution.lanes import Lane
from lynx.distribution.running import entered
from lynx.ir import parse_graph
from lynx.ir.core import Graph
from lynx.ir.program import Program
from lynx.ir.program_text import parse_program, print_program
from lynx.ir.program_verifier import verify_program
from lynx.pass_context import pass_context
from lynx.passes import Pipeline
from lynx.passes.distribution.buckets import BucketCollectives
from lynx.passes.distribution.overlap import ScheduleOverlap
from lynx.passes.distribution.prefetch import PrefetchGathers
from lynx.passes.distribution.split import SplitCollectives
from lynx.passes.lower import Lower
from lynx.passes.plan_memory import PlanMemory
from lynx.passes.reinplace import Reinplace
from lynx.records import RECORDS
from lynx.runtime import build
from tests.processes import run_in_processes
from tests.schedules import RECIPES, local_inputs, local_step

SCHEDULES = (
    (SplitCollectives(),),
    (SplitCollectives(), ScheduleOverlap()),
    (SplitCollectives(), BucketCollectives(), PrefetchGathers(), ScheduleOverlap(mode="free")),
)
LOWER = (Lower(), Reinplace(), PlanMemory())


def program_of(graph: Graph, *passes: Any) -> Program:
    """Return the program of a local graph after these passes."""
    program = Pipeline((*passes, *LOWER)).run(graph, pass_context(graph))
    assert isinstance(program, Program)
    return program


def enter(recipe: str) -> Groups:
    """Make the groups of a recipe's mesh, and let programs use them."""
    mesh = RECIPES[recipe][1]
    device_mesh = init_device_mesh("cpu", tuple(n for _, n in mesh.axes), mesh_dim_names=mesh.names)
    groups = Groups(device_mesh)
    for axes in [(name,) for name in mesh.names] + [mesh.names]:
        communicators[axes] = groups.group(axes)
    return groups


def outputs_of(graph: Graph, program: Program, seed: int) -> list[torch.Tensor]:
    executable = build(program, call_of, resources=program.resources)
    result: list[torch.Tensor] = executable(local_inputs(graph, seed))
    return [tensor.clone() for tensor in result]


def split_and_unsplit(rank: int, recipe: str) -> list[bool]:
    in_flight.clear()  # what the process that forked this one left
    enter(recipe)
    graph = local_step(recipe, rank, batch=9, width=13, hidden=15)
    plain = outputs_of(graph, program_of(graph), rank)
    same: list[bool] = []
    for passes in SCHEDULES:
        made = outputs_of(graph, program_of(graph, *passes), rank)
        assert not in_flight
        same += [torch.equal(a, b) for a, b in zip(plain, made, strict=True)]
    return same


@pytest.mark.parametrize("recipe", ["fsdp4", "dp+tp", "fsdp+tp"])
def test_scheduled_programs_give_the_same_bits(recipe: str) -> None:
    count = RECIPES[recipe][1].device_count
    for rank in range(count):
        local_step(recipe, rank, batch=9, width=13, hidden=15)  # once, before the processes part
    assert all(all(same) for same in run_in_processes(count, split_and_unsplit, recipe))


def run_with_another_order(rank: int) -> str:
    """Let one rank start two gathers the other way round, and everybody agree before a step."""
    groups = enter("fsdp")
    text = print_program(
        program_of(local_step("fsdp", rank), SplitCollectives(), ScheduleOverlap())
    )
    lines = re.sub(r"  free \([^)]*\)", "", text).split("\n")
    first, second = [n for n, line in enumerate(lines) if "start_all_gather" in line][::2][:2]
    if rank == 1:
        lines[first], lines[second] = lines[second], lines[first]
    program = parse_program("\n".join(lines))
    verify_program(program)
    executable = build(program, call_of)
    agreement = Agreement("step", "", groups)
    run = entered(executable, local_step("fsdp", rank), agreement)
    try:
        run(local_inputs(program.graph))
    except CommunicationError as error:
        return str(error)
    return ""


def test_ranks_with_other_orders_are_found_before_the_first_step() -> None:
    local_step("fsdp", 0)
    local_step("fsdp", 1)
    for text in run_in_processes(2, run_with_another_order):
        assert "ranks compiled different programs: step of rank 0 and that of rank 1" in text
        assert "- lane dp: all_gather (dp): f32 rank 2 dim 0 site 0" in text


def positions_do_not_matter(rank: int) -> bool:
    groups = enter("fsdp4")
    group = groups.group(("dp",))
    torch.manual_seed(rank)
    xs = [torch.randn(size) for size in (1, 5, 64, 1000)]
    alone = [group.all_reduce(x) for x in xs]
    together = group.all_reduce(torch.cat(xs)).split([len(x) for x in xs])
    rows = [group.reduce_scatter(x.repeat(4), 0, [len(x)] * 4) for x in xs]
    return all(map(torch.equal, alone, together)) and all(map(torch.equal, alone, rows))


def test_sums_of_members_do_not_depend_on_the_place_in_a_tensor() -> None:
    assert all(run_in_processes(4, positions_do_not_matter))


def test_a_lane_works_while_the_program_goes_on_and_keeps_the_order() -> None:
    lane, gate, seen = Lane(), threading.Event(), list[int]()
    x = torch.zeros(1)

    def first() -> None:
        gate.wait(10)
        seen.append(1)

    waits = [lane.submit(first, [x]), lane.submit(lambda: seen.append(2), [x])]
    time.sleep(0.01)
    assert seen == []
    gate.set()
    for wait in reversed(waits):
        wait()
    assert seen == [1, 2]


def test_the_error_of_a_job_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ValueError("broken")

    lane = Lane()
    wait = lane.submit(fail, [torch.zeros(1)])
    after: Sequence[Any] = [lane.submit(lambda: None, [torch.zeros(1)])]
    with pytest.raises(ValueError, match="broken"):
        wait()
    after[0]()


def test_jobs_behind_a_failed_communication_fail_at_once() -> None:
    def fail() -> None:
        raise CommunicationError("collective-failed", "nobody answers")

    lane, seen = Lane(), list[int]()
    waits = [lane.submit(job, [torch.zeros(1)]) for job in (fail, lambda: seen.append(1))]
    for wait in waits:
        with pytest.raises(CommunicationError, match="nobody answers"):
            wait()
    assert seen == []


class Broken:
    """A communicator whose transport fails."""

    def all_reduce(self, x: torch.Tensor, reduction: str) -> torch.Tensor:
        raise CommunicationError("collective-failed", "nobody answers")

    def submit(self, job: Callable[[], None], given: Sequence[torch.Tensor]) -> Callable[[], None]:
        return job


def test_a_failed_communication_names_the_line_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(communicators, ("b",), Broken())  # type: ignore[misc]  # does one thing only
    text = """
graph @g(%a: f32[4]) {
  %0 = local_all_reduce %a {axes = ["b"]} : f32[4]  loc("model.py":7)
  return %0
}
"""
    graph = parse_graph(text)
    executable = build(program_of(graph, SplitCollectives()), call_of)
    with pytest.raises(CommunicationError, match=r"model\.py:7"):
        executable([torch.zeros(4)])


def compiled_layers(rank: int) -> list[str]:
    """Compile a model with distributed parameters, and return the ops of its programs."""
    device_mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    x = torch.randn(4, 8)
    expected = model(x).detach()
    plan = {"0.weight": "tp, _", "0.bias": "tp", "2.weight": "_, tp"}
    compiled = lynx.parallelize(model, device_mesh, plan, options={"strict": True})
    result = compiled(x)
    result = result.full_tensor() if hasattr(result, "full_tensor") else result
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    records = [record.executable.program for record in RECORDS.graphs]
    return [op.name for program in records for op in program.ops]


def test_compiled_models_run_their_communication_on_lanes() -> None:
    for names in run_in_processes(2, compiled_layers):
        assert "start_all_reduce" in names
        assert names.count("wait") == sum(name.startswith("start_") for name in names)
        assert not any(name.startswith("local_") for name in names)
