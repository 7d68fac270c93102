"""Replay a compiled function as a recorded graph of launches: what `reduce-overhead` asks for.

A recording holds addresses. Inputs that stay where they are, such as parameters, are read there;
if one moved, the recording is of no use. Others are copied into memory of the recording. Outputs
lie in memory of the recording too, which the next replay writes over: as long as any of them is
alive, another recording of the same signature is used.

The first call of a signature runs as it is, so that kernels are compiled and libraries set up; the
second one records. What cannot be recorded runs as it is, and a remark says why, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from lynx.backends.reference.torch_internals import storage_users

Signature: TypeAlias = tuple[Any, ...]
MOST_SIGNATURES = 16
MOST_RECORDINGS = 4
MOST_MOVES = 16


class Recorder(Protocol):
    """Records launches; replaying runs them again on the same memory."""

    def record(self, function: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], list[Any]]:
        """Record what a call launches, without running it; return the replay and the outputs."""
        ...


class CudaRecorder:
    """Records CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], Sequence[Any]]) -> tuple[Callable[[], None], list[Any]]:
        """Record on a stream of its own; what other threads launch does not matter."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            outputs = list(function())
        return graph.replay, outputs


@dataclass(eq=False)
class _Recording:
    """One recorded graph with the memory of its inputs and outputs."""

    replay: Callable[[], None]
    inputs: list[Any]
    copied: list[int]
    addresses: list[tuple[int, int]]
    outputs: list[Any]
    idle_users: list[int] = field(default_factory=list)

    def is_free(self) -> bool:
        """Whether nobody holds an output of the last replay any more."""
        return self.idle_users == list(map(storage_users, _tensors(self.outputs)))

    def is_in_place(self, inputs: Sequence[Any]) -> bool:
        """Whether the inputs that are read where they are have not moved."""
        return all(inputs[index].data_ptr() == address for index, address in self.addresses)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Replay on new values, and return tensors over the outputs' memory."""
        for index in self.copied:
            self.inputs[index].copy_(inputs[index], non_blocking=True)
        self.replay()
        return [o.detach() if isinstance(o, torch.Tensor) else o for o in self.outputs]


class GraphedFunction:
    """A function of a flat list of inputs, replayed from recordings where that is possible.

    `fixed` are the inputs that keep their place, among them all that the function writes to; the
    outputs must not be views of inputs. `remark` hears why something is not recorded.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], Sequence[Any]],
        fixed: Sequence[int],
        recorder: Recorder,
        remark: Callable[[str], None],
    ) -> None:
        self.function = function
        self.fixed = frozenset(fixed)
        self.recorder = recorder
        self.remark = remark
        self.recordings: dict[Signature, list[_Recording]] = {}
        self.moves = 0
        self.said: set[str] = set()

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs for these inputs."""
        reason = self._why_not(inputs)
        if reason:
            return self._plain(inputs, reason)
        signature = tuple(map(_signature, inputs))
        known = self.recordings.get(signature)
        if known is None:
            if len(self.recordings) >= MOST_SIGNATURES:
                return self._plain(inputs, f"more than {MOST_SIGNATURES} signatures of inputs")
            self.recordings[signature] = []
            return list(self.function(list(inputs)))
        living = [recording for recording in known if recording.is_in_place(inputs)]
        self.moves += len(known) - len(living)
        if self.moves > MOST_MOVES:
            return self._plain(inputs, "inputs that should keep their place move")
        known[:] = living
        for recording in known:
            if recording.is_free():
                return recording.run(inputs)
        if len(known) >= MOST_RECORDINGS:
            return self._plain(inputs, f"outputs of {MOST_RECORDINGS} calls are still alive")
        made = self._record(inputs)
        if isinstance(made, str):
            return self._plain(inputs, made)
        known.append(made)
        return made.run(inputs)

    def _plain(self, inputs: Sequence[Any], reason: str) -> list[Any]:
        if reason not in self.said:
            self.said.add(reason)
            self.remark(f"runs without a CUDA graph: {reason}")
        return list(self.function(list(inputs)))

    def _why_not(self, inputs: Sequence[Any]) -> str:
        devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
        if len(devices) > 1:
            return f"inputs on {', '.join(sorted(map(str, devices)))}"
        if not devices:
            return "no tensors among the inputs"
        return ""

    def _record(self, inputs: Sequence[Any]) -> _Recording | str:
        """Record one call, or tell why that does not work."""
        held = [
            x.clone() if isinstance(x, torch.Tensor) and index not in self.fixed else x
            for index, x in enumerate(inputs)
        ]
        try:
            replay, outputs = self.recorder.record(lambda: self.function(list(held)))
        except RuntimeError as error:
            # Nothing was launched. What does not record now will not do so later either.
            return f"cannot be recorded: {str(error).splitlines()[0]}"
        tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        copied = [index for index in tensors if index not in self.fixed]
        addresses = [(index, held[index].data_ptr()) for index in tensors if index in self.fixed]
        recording = _Recording(replay, held, copied, addresses, outputs)
        recording.idle_users = list(map(storage_users, _tensors(outputs)))
        return recording


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device)
    return (type(value), value)


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]
