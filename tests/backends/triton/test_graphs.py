"""Recorded graphs of launches, with a recorder that stands for the device's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from lynx.backends.reference.torch_internals import storage_users
from lynx.backends.triton.graphs import (
    MOST_MOVES,
    MOST_RECORDINGS,
    MOST_SIGNATURES,
    CudaRecorder,
    GraphedFunction,
)


class FakeRecorder:
    """Replays by running the function again and copying its results to where they were."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def record(self, function: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], list[Any]]:
        self.recorded += 1
        outputs = [torch.empty_like(o) if isinstance(o, torch.Tensor) else o for o in function()]

        def replay() -> None:
            self.replayed += 1
            for old, new in zip(outputs, function(), strict=True):
                if isinstance(old, torch.Tensor):
                    old.copy_(new)

        return replay, outputs


def make(
    function: Callable[[list[Any]], Sequence[Any]], fixed: Sequence[int] = ()
) -> tuple[GraphedFunction, FakeRecorder, list[str]]:
    recorder, remarks = FakeRecorder(), list[str]()
    return GraphedFunction(function, fixed, recorder, remarks.append), recorder, remarks


def double(inputs: list[Any]) -> list[Any]:
    return [inputs[0] * 2, inputs[0].shape[0]]


def test_second_call_records_and_later_ones_replay() -> None:
    graphed, recorder, remarks = make(double)
    for step in range(5):
        result, size = graphed([torch.full((3,), float(step))])
        assert result.tolist() == [2.0 * step] * 3
        assert size == 3
        del result
    assert (recorder.recorded, recorder.replayed, remarks) == (1, 4, [])


def test_outputs_that_are_alive_are_not_written_over() -> None:
    graphed, recorder, remarks = make(double)
    kept = [graphed([torch.full((2,), float(step))])[0][1:] for step in range(MOST_RECORDINGS + 4)]
    assert [int(t) for t in kept] == [2 * step for step in range(MOST_RECORDINGS + 4)]
    assert recorder.recorded == MOST_RECORDINGS
    assert remarks == [
        f"runs without a CUDA graph: outputs of {MOST_RECORDINGS} calls are still alive"
    ]


def test_fixed_inputs_are_read_and_written_where_they_are() -> None:
    state = torch.zeros(2)

    def accumulate(inputs: list[Any]) -> list[Any]:
        inputs[0].add_(inputs[1])
        return [inputs[0] * 1]

    graphed, recorder, _ = make(accumulate, fixed=[0])
    for _ in range(4):
        graphed([state, torch.ones(2)])
    # The stand-in runs the function while it records, which a device does not.
    assert state.tolist() == [4.0 + recorder.recorded] * 2


def test_a_moved_input_is_recorded_anew_but_not_forever() -> None:
    graphed, recorder, remarks = make(double, fixed=[0])
    held = []
    for step in range(MOST_MOVES + 6):
        held.append(torch.full((2,), float(step)))
        assert graphed([held[-1]])[0].tolist() == [2.0 * step] * 2
    assert recorder.recorded == MOST_MOVES + 1
    assert remarks == ["runs without a CUDA graph: inputs that should keep their place move"]


def test_each_signature_has_its_own_recording() -> None:
    graphed, recorder, remarks = make(double)
    for _ in range(3):
        for size in range(1, MOST_SIGNATURES + 3):
            assert graphed([torch.ones(size)])[0].tolist() == [2.0] * size
    assert recorder.recorded == MOST_SIGNATURES
    assert remarks == [
        f"runs without a CUDA graph: more than {MOST_SIGNATURES} signatures of inputs"
    ]


def test_numbers_are_part_of_the_signature() -> None:
    graphed, _, _ = make(lambda inputs: [inputs[0] * inputs[1]])
    for factor in (2, 3, 2, 3, 2, 3):
        assert graphed([torch.ones(1), factor])[0].item() == factor


def test_what_cannot_be_recorded_runs_as_it_is() -> None:
    graphed, recorder, remarks = make(double)

    def refuse(function: Callable[[], Sequence[Any]]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    recorder.record = refuse  # type: ignore[method-assign]
    for _ in range(3):
        assert graphed([torch.ones(1)])[0].item() == 2
    reason = "cannot be recorded: operation not permitted when stream is capturing"
    assert remarks == [f"runs without a CUDA graph: {reason}"]


def test_storage_users_counts_views() -> None:
    tensor = torch.ones(4)
    before = storage_users(tensor)
    assert storage_users(tensor) == before
    view = tensor.detach()[1:]
    assert storage_users(tensor) > before
    del view
    assert storage_users(tensor) == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_graph() -> None:
    weight = torch.randn(64, 64, device="cuda")
    remarks: list[str] = []
    graphed = GraphedFunction(
        lambda inputs: [torch.relu(inputs[0] @ inputs[1])], [1], CudaRecorder(), remarks.append
    )
    for _ in range(6):
        x = torch.randn(8, 64, device="cuda")
        torch.testing.assert_close(graphed([x, weight])[0], torch.relu(x @ weight))
    assert remarks == []
