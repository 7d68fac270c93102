"""Recorded graphs of launches, with a recorder that stands for the device's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from lynx.runtime.graphs import (
    MOST_MOVES,
    MOST_RECORDINGS,
    MOST_SIGNATURES,
    CudaRecorder,
    GraphedFunction,
    Recorded,
)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the same memory that does not keep it alive, as addresses do not."""
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    if not tensor.numel():
        return tensor.detach().clone()
    memory = (ctypes.c_char * (reach * tensor.element_size())).from_address(tensor.data_ptr())
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=reach)
    return flat.as_strided(tensor.shape, tensor.stride())


class FakeRecorder:
    """Replays by running the function again and copying its results to where they were.

    Unlike that of a device, it runs the function when it records too.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0
        self.stream = 0

    def place(self, device: torch.device) -> int:
        return self.stream

    def record(self, function: Any, inputs: list[Any], device: torch.device) -> Recorded:
        self.recorded += 1
        places = [alias(x) if isinstance(x, torch.Tensor) else x for x in inputs]
        outputs = list(function(list(inputs)))

        def replay() -> None:
            self.replayed += 1
            for old, new in zip(outputs, function(list(places)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        return Recorded(replay, outputs)

    def wait(self) -> None:
        return


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
        inputs = [torch.full((3,), float(step))]
        result, size = graphed(inputs)
        assert result.tolist() == [2.0 * step] * 3
        assert size == 3
        assert step == 0 or inputs == []
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
    # The stand-in runs the function while it records.
    assert state.tolist() == [4.0 + recorder.recorded] * 2


def test_a_moved_input_is_recorded_anew_but_not_forever() -> None:
    graphed, recorder, remarks = make(double, fixed=[0])
    held = []
    for step in range(MOST_RECORDINGS + MOST_MOVES + 6):
        held.append(torch.full((2,), float(step)))
        assert graphed([held[-1]])[0].tolist() == [2.0 * step] * 2
    assert recorder.recorded == MOST_RECORDINGS + MOST_MOVES
    assert remarks == ["runs without a CUDA graph: inputs that should keep their place move"]


def test_inputs_that_go_from_place_to_place_are_recorded_once_at_each() -> None:
    graphed, recorder, remarks = make(double, fixed=[0])
    places = [torch.zeros(2) for _ in range(MOST_RECORDINGS)]
    for step in range(5 * MOST_RECORDINGS):
        place = places[step % MOST_RECORDINGS].fill_(step)
        assert graphed([place])[0].tolist() == [2.0 * step] * 2
    assert recorder.recorded == MOST_RECORDINGS
    assert remarks == []


def test_each_signature_has_its_own_recording() -> None:
    graphed, recorder, remarks = make(double)
    for _ in range(3):
        for size in range(1, MOST_SIGNATURES + 3):
            assert graphed([torch.ones(size)])[0].tolist() == [2.0] * size
    assert recorder.recorded == MOST_SIGNATURES
    assert remarks == [
        f"runs without a CUDA graph: more than {MOST_SIGNATURES} signatures of inputs"
    ]


def test_numbers_and_streams_are_part_of_the_signature() -> None:
    graphed, recorder, _ = make(lambda inputs: [inputs[0] * inputs[1]])
    for factor in (2, 3, 2, 3, 2, 3):
        assert graphed([torch.ones(1), factor])[0].item() == factor
    assert recorder.recorded == 2
    recorder.stream = 1
    for _ in range(2):
        graphed([torch.ones(1), 2])
    assert recorder.recorded == 3


def test_what_cannot_be_recorded_runs_as_it_is_and_is_not_tried_again() -> None:
    graphed, recorder, remarks = make(double)
    attempts = []

    def refuse(function: Any, inputs: list[Any], device: torch.device) -> Any:
        attempts.append(device)
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    recorder.record = refuse  # type: ignore[method-assign]
    for _ in range(4):
        assert graphed([torch.ones(1)])[0].item() == 2
    reason = "cannot be recorded: operation not permitted when stream is capturing"
    assert remarks == [f"runs without a CUDA graph: {reason}"]
    assert len(attempts) == 1


def test_inputs_returned_as_they_are_are_the_callers() -> None:
    graphed, _, _ = make(lambda inputs: [inputs[0], inputs[1], inputs[0] + inputs[1]], fixed=[0])
    weight = torch.nn.Parameter(torch.ones(2))
    for step in range(4):
        x = torch.full((2,), float(step))
        first, second, total = graphed([weight, x])
        assert first is weight
        assert second is x
        assert total.tolist() == [1.0 + step] * 2
        assert not total.requires_grad


def test_views_of_fixed_inputs_do_not_keep_a_recording_busy() -> None:
    graphed, recorder, _ = make(lambda inputs: [inputs[0].t(), inputs[0] * 2], fixed=[0])
    weight = torch.ones(2, 3)
    held = [graphed([weight])[0] for _ in range(6)]
    assert recorder.recorded == 1
    assert all(view.data_ptr() == weight.data_ptr() for view in held)


def test_copied_inputs_keep_their_layout() -> None:
    seen: list[tuple[int, ...]] = []

    def note(inputs: list[Any]) -> list[Any]:
        seen.extend(x.stride() for x in inputs)
        return [x * 1 for x in inputs]

    graphed, _, _ = make(note)
    for step in range(3):
        wide = torch.arange(24.0).reshape(4, 6) + step
        inputs = [wide.t(), wide[:, ::2], wide[0].expand(3, 6), wide.unfold(1, 3, 1), wide[:0]]
        strides = [x.stride() for x in inputs]
        wanted = [x * 1 for x in inputs]
        found = graphed(inputs)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert seen[-5:] == strides


def test_gradients_are_not_recorded() -> None:
    graphed, _, _ = make(double)
    for _ in range(3):
        x = torch.ones(2, requires_grad=True)
        assert not graphed([x * 1])[0].requires_grad


def test_special_inputs_run_as_they_are() -> None:
    graphed, _, remarks = make(lambda inputs: [inputs[0] * 1])
    for x in (torch._neg_view(torch.ones(2)), torch.ones(2, dtype=torch.cfloat).conj()):
        for _ in range(3):
            assert torch.equal(graphed([x])[0], x * 1)
    assert remarks == ["runs without a CUDA graph: inputs that are no plain tensors or numbers"]


def test_checks_are_looked_at_before_a_replay() -> None:
    def fail() -> None:
        raise IndexError("index out of range")

    graphed = GraphedFunction(double, [], FakeRecorder(), pytest.fail, fail)
    graphed([torch.ones(1)])
    with pytest.raises(IndexError, match="out of range"):
        graphed([torch.ones(1)])


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
