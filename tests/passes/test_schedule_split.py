"""Communication in two halves: what the pass makes, that it means the same, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lynx.backends.reference.mesh import evaluate_on_mesh
from lynx.ir import CompileError, TextError, parse_graph, print_graph
from lynx.ir.core import Graph
from lynx.ir.ops.schedule import Start, Wait
from lynx.ir.verifier import verify
from lynx.passes import PassContext
from lynx.passes.distribution.split import SplitCollectives
from tests.schedules import RECIPES, local_step, typed_step

GOOD = """
graph @good(%a: f32[4, 8]) {
  %p = start_all_reduce [%a] {axes = ["tp"], lane = "tp"} : f32[4, 8]
  %b = sin %a : f32[4, 8]
  %c = wait [%p], [%a] : f32[4, 8]
  %d = add %b, %c : f32[4, 8]
  return %d
}
"""


def split(graph: Graph) -> Graph:
    return SplitCollectives().run(graph, PassContext())


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_communication_becomes_a_start_and_a_wait(recipe: str) -> None:
    graph = local_step(recipe, 0)
    result = split(graph)
    verify(result)
    names = [op.name.removeprefix("local_") for op in graph.ops if op.name.startswith("local_")]
    starts = [op for op in result.ops if isinstance(op, Start)]
    assert [op.name.removeprefix("start_") for op in starts] == names
    assert sum(isinstance(op, Wait) for op in result.ops) == len(starts)
    text = print_graph(result)
    assert print_graph(parse_graph(text)) == text


@pytest.mark.parametrize("recipe", ["fsdp", "dp+tp", "fsdp+tp"])
def test_the_meaning_on_a_mesh_stays(recipe: str) -> None:
    typed = typed_step(recipe, batch=7, width=5, hidden=9)
    inputs = [torch.randn(*map(int, value.shape)) for value in typed.inputs]
    plain, _ = evaluate_on_mesh(typed, inputs)
    halves, _ = evaluate_on_mesh(typed, inputs, change=split)
    assert all(map(torch.equal, plain, halves))


def test_nothing_is_done_without_communication() -> None:
    graph = parse_graph("graph @g(%a: f32[4]) {\n  %b = sin %a : f32[4]\n  return %b\n}")
    assert split(graph) is graph


def test_a_start_may_have_ops_before_its_wait() -> None:
    verify(parse_graph(GOOD))


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("%b = sin %a", "%b = sin %p", "in-flight"),
        ("return %d", "return %p", "in-flight"),
        ("wait [%p], [%a]", "wait [%p], [%b]", "bad-wait"),
        ("wait [%p], [%a]", "wait [%b], [%a]", "bad-wait"),
        ("%c = wait [%p], [%a]", "%c = sin %a", "not-waited"),
        ("%d = add %b, %c", "%d = wait [%p], [%a]", "waited-twice"),
        ("%b = sin %a", '%b = start_all_reduce [%a] {axes = ["dp"], lane = "tp"}', "bad-lane"),
        ("%b = sin %a", '%b = start_all_reduce [%a] {axes = ["tp"], lane = "x"}', "bad-lane"),
    ],
)
def test_what_breaks_a_flight_is_refused(old: str, new: str, code: str) -> None:
    assert old in GOOD
    with pytest.raises((CompileError, TextError)) as raised:
        verify(parse_graph(GOOD.replace(old, new)))
    assert raised.value.code == code


def test_a_bucket_holds_tensors_of_one_kind() -> None:
    text = GOOD.replace("f32[4, 8]) {", "f32[4, 8], %i: i32[2]) {")
    with pytest.raises(TextError, match="differ in kind"):
        parse_graph(
            text.replace(
                "%p = start_all_reduce [%a]", "%p, %q = start_all_reduce [%a, %i]"
            ).replace('"tp"} : f32[4, 8]', '"tp"} : f32[4, 8], i32[2]')
        )


def test_counts_of_a_bucket_agree() -> None:
    start = next(op for op in split(local_step("fsdp", 0)).ops if isinstance(op, Start))
    with pytest.raises(CompileError, match="entries for 1 tensors"):
        dataclasses.replace(start, dims=(0, 0))
