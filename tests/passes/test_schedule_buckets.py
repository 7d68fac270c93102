"""Buckets and gathers ahead of time: same meaning, fewer transfers, no overlap lost."""

from __future__ import annotations

import pytest
import torch

from lynx.backends.reference.mesh import evaluate_on_mesh
from lynx.ir import UsageError, parse_graph
from lynx.ir.core import Graph
from lynx.ir.ops.schedule import Start
from lynx.ir.verifier import verify
from lynx.passes import PassContext, parse_pipeline
from lynx.passes.distribution.buckets import BucketCollectives, bucket_plan, merged
from lynx.passes.distribution.cost import Costs
from lynx.passes.distribution.machine import read_target
from lynx.passes.distribution.overlap import ScheduleOverlap, best_order
from lynx.passes.distribution.prefetch import PrefetchGathers
from lynx.passes.distribution.split import SplitCollectives
from tests.schedules import RECIPES, local_step, typed_step

SMALL = {"batch": 64, "width": 64, "hidden": 128}


def split(graph: Graph) -> Graph:
    return SplitCollectives().run(graph, PassContext())


def starts(graph: Graph) -> list[Start]:
    return [op for op in graph.ops if isinstance(op, Start)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_buckets_never_cost_time(recipe: str) -> None:
    for sizes in (SMALL, {"batch": 512, "width": 512, "hidden": 1024}):
        graph = split(local_step(recipe, 0, 3, **sizes))
        costs = Costs(read_target("cpu-gloo"), graph.mesh)
        result = BucketCollectives(target="cpu-gloo").run(graph, PassContext())
        verify(result)
        tensors = [len(start.xs) for start in starts(result)]
        assert sum(tensors) == len(starts(graph))
        before = best_order(graph, costs, ScheduleOverlap())[1]
        after = best_order(result, costs, ScheduleOverlap())[1]
        assert after.duration <= before.duration
        if recipe != "tp" and sizes is SMALL:  # all sums of `tp` depend on each other
            assert max(tensors) > 1
            assert after.duration < before.duration


@pytest.mark.parametrize("recipe", ["fsdp", "fsdp4", "dp+tp", "fsdp+tp"])
def test_the_meaning_on_a_mesh_stays(recipe: str) -> None:
    typed = typed_step(recipe, batch=7, width=5, hidden=9)
    inputs = [torch.randn(*map(int, value.shape)) for value in typed.inputs]
    plain, _ = evaluate_on_mesh(typed, inputs)
    pipeline = parse_pipeline(
        "split-collectives,bucket-collectives,prefetch-gathers,schedule-overlap"
    )
    sizes: list[int] = []

    def change(graph: Graph) -> Graph:
        result = pipeline.run(graph, PassContext())
        assert isinstance(result, Graph)
        sizes.extend(len(start.xs) for start in starts(result))
        return result

    moved, _ = evaluate_on_mesh(typed, inputs, change=change)
    assert all(map(torch.equal, plain, moved))
    assert max(sizes) > 1


def test_a_plan_of_one_device_serves_all() -> None:
    graphs = [split(local_step("fsdp4", n, batch=9, width=13, hidden=15)) for n in range(4)]
    plan = bucket_plan(graphs[0], Costs(read_target("cpu-gloo"), graphs[0].mesh))
    shapes = []
    for graph in graphs:
        result = BucketCollectives(plan=plan).run(graph, PassContext())
        verify(result)
        shapes.append([(start.name, len(start.xs)) for start in starts(result)])
    assert all(shape == shapes[0] for shape in shapes)


@pytest.mark.parametrize("plan", ["0 1", "0 99", "0 2, 2 4", "a b"])
def test_plans_that_cannot_be_are_told(plan: str) -> None:
    graph = split(local_step("tp", 0, 2))
    with pytest.raises(UsageError) as raised:
        BucketCollectives(plan=plan).run(graph, PassContext())
    assert raised.value.code == "bad-buckets"


def test_buckets_that_wait_for_each_other_are_refused() -> None:
    graph = split(parse_graph(CROSSED))
    with pytest.raises(UsageError, match="wait for each other"):
        merged(graph, [(0, 3), (1, 2)])
    verify(merged(graph, [(0, 3)]))
    verify(merged(graph, [(1, 2)]))


CROSSED = """
graph @crossed(%a: f32[4], %b: f32[4]) {
  %0 = local_all_reduce %a {axes = ["x"]} : f32[4]
  %1 = local_all_reduce %b {axes = ["x"]} : f32[4]
  %2 = sin %0 : f32[4]
  %3 = local_all_reduce %2 {axes = ["x"]} : f32[4]
  %4 = sin %1 : f32[4]
  %5 = local_all_reduce %4 {axes = ["x"]} : f32[4]
  return %3, %5
}
"""

REGATHERED = """
graph @backward(%w0: f32[8, 16], %w1: f32[8, 16], %g: f32[16, 16]) mesh @mesh(dp = 2) {
  %0 = local_all_gather %w1 {axes = ["dp"], dim = 0, sizes = [8, 8], index = 0} : f32[16, 16]
  %1 = matmul %g, %0 : f32[16, 16]
  %2 = local_reduce_scatter %1
    {axes = ["dp"], dim = 0, sizes = [8, 8], index = 0} : f32[8, 16]
  %3 = local_all_gather %w0 {axes = ["dp"], dim = 0, sizes = [8, 8], index = 0} : f32[16, 16]
  %4 = matmul %1, %3 : f32[16, 16]
  %5 = local_reduce_scatter %4
    {axes = ["dp"], dim = 0, sizes = [8, 8], index = 0} : f32[8, 16]
  return %2, %5
}
"""


def test_gathers_go_ahead_of_what_comes_before_them() -> None:
    graph = split(parse_graph(REGATHERED))
    result = PrefetchGathers().run(graph, PassContext())
    verify(result)
    names = [start.name.removeprefix("start_") for start in starts(result)]
    assert names == ["all_gather", "all_gather", "reduce_scatter", "reduce_scatter"]
    costs = Costs(read_target("cpu-gloo"), graph.mesh)
    with_it = best_order(result, costs, ScheduleOverlap())[1]
    assert with_it.duration < best_order(graph, costs, ScheduleOverlap())[1].duration


def test_gathers_do_not_go_ahead_without_memory_for_them() -> None:
    graph = split(parse_graph(REGATHERED))
    assert PrefetchGathers(limit=0).run(graph, PassContext()) is graph
