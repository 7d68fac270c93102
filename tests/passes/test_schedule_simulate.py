"""The simulator: times that add up, memory, traces, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lynx.__main__ import main
from lynx.ir import print_graph
from lynx.ir.program import Program
from lynx.ir.program_text import parse_program, print_program
from lynx.pass_context import pass_context
from lynx.passes import PassContext, parse_pipeline
from lynx.passes.distribution.machine import read_target
from lynx.passes.distribution.overlap import ScheduleOverlap
from lynx.passes.distribution.simulate import Simulation, simulate
from lynx.passes.distribution.split import SplitCollectives
from tests.schedules import RECIPES, local_step, typed_step

LARGE = {"batch": 512, "width": 512, "hidden": 1024}


def program(recipe: str, passes: str) -> Program:
    graph = local_step(recipe, 0, 3, **LARGE)
    module = parse_pipeline(passes).run(graph, pass_context(graph))
    assert isinstance(module, Program)
    return module


@pytest.mark.parametrize("recipe", RECIPES)
def test_times_add_up(recipe: str) -> None:
    target = read_target("cpu-gloo")
    plain = simulate(program(recipe, "lower,reinplace,plan-memory"), target)
    better = simulate(
        program(recipe, "split-collectives,schedule-overlap,lower,reinplace,plan-memory"), target
    )
    sent = [
        sum(s for lane, s in one.timeline.busy.items() if lane != "compute")
        for one in (plain, better)
    ]
    assert plain.exposed == pytest.approx(sent[0])
    assert sent[0] == pytest.approx(sent[1])
    for one in (plain, better):
        assert one.step_time == pytest.approx(one.timeline.busy["compute"] + one.exposed)
        assert 0 < one.peak <= one.reserved + 2**30
    assert better.exposed < plain.exposed


def test_the_text_of_a_program_is_all_that_it_takes() -> None:
    target = read_target("h100")
    module = program("fsdp", "split-collectives,schedule-overlap,lower,reinplace,plan-memory")
    again = parse_program(print_program(module))
    assert str(simulate(again, target)) == str(simulate(module, target))


def test_lanes_do_one_thing_at_a_time() -> None:
    graph = ScheduleOverlap().run(
        SplitCollectives().run(local_step("fsdp+tp", 0, 3, **LARGE), PassContext()), PassContext()
    )
    result = simulate(graph, read_target("cpu-gloo"))
    ends: dict[str, float] = {}
    for event in result.timeline.events:
        assert event.start >= ends.get(event.lane, 0.0)
        ends[event.lane] = event.end
    assert set(ends) == {"compute", "dp", "tp"}


def check_trace(result: Simulation) -> None:
    trace = json.loads(json.dumps(result.trace()))
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert all({"pid", "tid", "name", "ts", "dur"} <= span.keys() for span in spans)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert {"compute", "dp"} <= names
    assert max(e["args"]["bytes"] for e in trace["traceEvents"] if e["ph"] == "C") == result.peak


def test_traces_are_those_of_chrome() -> None:
    check_trace(simulate(local_step("fsdp", 0), read_target("cpu-gloo")))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed, trace = tmp_path / "step.lynx", tmp_path / "trace.json"
    typed.write_text(print_graph(typed_step("dp+tp")))
    arguments = ["simulate", str(typed), "--target", "a100", "--device", "3", "--trace", str(trace)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "step on a100" in text
    assert "lane tp" in text
    assert json.loads(trace.read_text())["traceEvents"]
    assert main(["simulate", str(typed), "--device", "4"]) == 1
    assert "there is no device 4 among 4" in capsys.readouterr().err
    assert main(["simulate", str(typed), "--target", "abacus"]) == 1
