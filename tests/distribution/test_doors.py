"""Distributed tensors and plans, on real processes: the same numbers as one process gives."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distribution import doors, doors_pieces
from tests.distribution.processes import Processes


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with Processes(2) as processes:
        yield processes


@pytest.fixture(scope="module")
def four() -> Iterator[Processes]:
    with Processes(4) as processes:
        yield processes


@pytest.mark.parametrize("how", ["auto", "gather"])
def test_distributed_tensors(two: Processes, how: str) -> None:
    assert two.run(doors.train_distributed, how) == [[], []]


@pytest.mark.parametrize("plan", ["ddp", "fsdp", "tp"])
def test_plans(two: Processes, plan: str) -> None:
    assert two.run(doors.train_planned, plan, "auto") == [[], []]


def test_plan_by_gathering(four: Processes) -> None:
    four.run(doors.train_planned, "dp+tp", "gather", 1)


def test_plan_on_two_axes(four: Processes) -> None:
    assert four.run(doors.train_planned, "dp+tp", "auto") == [[]] * 4


def test_outputs_that_share_memory(two: Processes) -> None:
    two.run(doors.views_and_inputs_as_outputs)


def test_other_sizes_and_partial_inputs(two: Processes) -> None:
    two.run(doors.sizes_change)


def test_calls_of_dtensor_are_left_to_torch(two: Processes) -> None:
    two.run(doors.leaves_dtensor_calls_alone)


def test_rows_keys_and_windows_in_pieces(two: Processes) -> None:
    assert two.run(doors_pieces.in_pieces) == [[], []]


def test_models_of_one_class_with_two_plans(two: Processes) -> None:
    for first, second in two.run(doors_pieces.one_class_two_plans):
        assert first == ["mesh @mesh(dp = 2)"]
        assert second == ["mesh @mesh(tp = 2)"]


@pytest.mark.parametrize(("plan", "kind"), [("ddp", "all_reduce"), ("fsdp", "reduce_scatter")])
def test_buckets_change_no_bit(two: Processes, four: Processes, plan: str, kind: str) -> None:
    for processes in (two, four) if plan == "ddp" else (two,):
        for said in processes.run(doors_pieces.buckets_change_no_bit, plan):
            assert any(f"{kind} over dp travel in" in text for text in said)


def test_constraints(two: Processes) -> None:
    for said in two.run(doors.constraints):
        assert "unknown-axis" in said
        assert "doors.py" in said
        assert "the mesh has tp" in said


def test_checkpoints(two: Processes, tmp_path: Path) -> None:
    two.run(doors.checkpoints, str(tmp_path))


def test_parameters_on_the_meta_device(two: Processes) -> None:
    two.run(doors.from_nothing)


def test_collectives_on_two(two: Processes) -> None:
    two.run(doors.collectives)


def test_collectives_on_four(four: Processes) -> None:
    four.run(doors.collectives)


def test_cuts_within_blocks(four: Processes) -> None:
    four.run(doors.cuts_within_blocks)


def test_wrong_uses(two: Processes) -> None:
    (said, _) = two.run(doors.wrong_uses)
    codes = [text.partition("error[")[2].partition("]")[0] for text in said]
    assert codes == [
        "unmatched-pattern", "unknown-axis", "axis-used-twice", "sharding-rank", "bad-sharding",
        "contradiction", "", "unmatched-pattern", "bad-sharding",
    ]  # fmt: skip
    assert "parameters are up.weight, up.bias" in said[0]
    assert "inputs are inputs.0, inputs.x" in said[7]
    assert all("doors.py" in text for text in (said[0], said[1], said[2]))


def test_ranks_with_different_programs(two: Processes) -> None:
    for said in two.run(doors.different_programs):
        assert "programs-differ" in said
        assert "line 2:\n  - line 1 y\n  + line 1 x" in said


def test_ranks_with_different_inputs(two: Processes) -> None:
    for said in two.run(doors.different_inputs):
        assert "programs-differ" in said
        assert "%primals_3 is inputs.x" in said
        assert "All ranks must call the model alike" in said


@pytest.mark.parametrize("door", ["plan", "tensors"])
def test_explained(two: Processes, door: str) -> None:
    """How values lie and why, what is sent, and for what reason, in words of the model's author."""
    for text, steps, outputs, said, sent in two.run(doors.explained, door):
        line = doors.Best.forward.__code__.co_firstlineno + 1
        assert "laid out on mesh @mesh(tp = 2)" in text
        assert re.search(r"layer.weight +f32\[12, 8\] +tp, _ +as annotated", text), text
        assert re.search(r"inputs.x +f32\[4, 8\] +whole", text), text
        assert f"topk at doors.py:{line} needs the whole of dimension 1" in text
        assert f"all_gather over tp of relu at doors.py:{line}, f32[4, 12 @ tp] -> (_, _)" in text
        assert re.search(r"all_gather +tp +1 +96 B", text), text
        assert sent == 96.0  # half of 4 by 12 numbers
        assert steps[0].startswith(f"relu at doors.py:{line} f32[4, 12] is cut by 'tp': as its")
        assert re.fullmatch(r"layer\.(weight|bias) f32\[.*\] is cut by 'tp': annotated", steps[-1])
        assert outputs == []
        assert "nothing is called 'layer.wieght'; there are layer.weight" in said
        assert "the mesh has no axis 'pp', it has tp" in said


def test_dead_peer() -> None:
    with Processes(3) as processes:
        for said, seconds in processes.run(doors.dies, alive=2):
            assert said.startswith("CommunicationError"), said
            assert "rank 1 does not answer" in said
            assert seconds < 30


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_peer_that_dies_at_any_time(number: int) -> None:
    """While it compiles, communicates, or computes: the others stop, and name it."""
    after = random.Random(number).uniform(0.0, 20.0)
    with Processes(3) as processes:
        for said, seconds in processes.run(doors.dies, after, alive=2):
            assert "rank 1 does not answer" in said, said
            assert seconds < 30
