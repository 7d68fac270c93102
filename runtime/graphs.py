"""Replay a compiled function as a recorded graph of launches: what `reduce-overhead` asks for.

A recording holds addresses. Inputs that keep their place, such as parameters, are read there: a
recording serves calls with the same ones. Others are copied into memory of the recording. Outputs
lie in memory of the recording too, which the next replay writes over: as long as any of them is
alive, another recording of the same signature is used.

The first call of a signature runs as it is, so that kernels are compiled and libraries set up; the
second one records. What cannot be recorded runs as it is, and a remark says why, once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from .arena import recording
from .torch_internals import storage_use_count

Signature: TypeAlias = tuple[Hashable, ...]
Function: TypeAlias = Callable[[list[Any]], Sequence[Any]]
MOST_SIGNATURES = 16
MOST_RECORDINGS = 4
MOST_MOVES = 8


@dataclass(frozen=True)
class Recorded:
    """What was recorded: how to run it again, its outputs, and what must stay alive for that."""

    replay: Callable[[], None]
    outputs: list[Any]
    kept: object = None


class Recorder(Protocol):
    """Records launches; replaying runs them again on the same memory."""

    def place(self, device: torch.device) -> Hashable:
        """Return where launches would go now: a recording serves calls from one place."""
        ...

    def record(self, function: Function, inputs: list[Any], device: torch.device) -> Recorded:
        """Record what a call launches, without running it."""
        ...

    def wait(self) -> None:
        """Wait for all replays, so that recordings may be dropped."""
        ...


class CudaRecorder:
    """Records CUDA graphs.

    Temporary tensors lie in the arenas of the stream that replays them. Each graph has its own pool
    for what torch allocates, outputs among it: graphs replay in any order.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def place(self, device: torch.device) -> Hashable:
        """Return the current stream: launches on it wait for each other."""
        stream = torch.cuda.current_stream(device)
        return stream.device_index, stream.stream_id

    def record(self, function: Function, inputs: list[Any], device: torch.device) -> Recorded:
        """Record on a stream of its own; what other threads launch does not matter."""
        with torch.cuda.device(device), recording(str(device)) as memory:
            graph = torch.cuda.CUDAGraph()
            # The stream that torch would take belongs to the device of the first recording of all.
            own = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream = self._streams.setdefault(device, own)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                outputs = list(function(inputs))
        return Recorded(graph.replay, outputs, (graph, memory))

    def wait(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()


class _Held:
    """Memory of a recording for an input, in the layout of the input."""

    def __init__(self, x: torch.Tensor) -> None:
        self.tensor = x.new_empty(0)
        self.flat: torch.Tensor | None = None
        if _may_overlap(x):
            self.flat = x.new_empty(_extent(x))
            self.tensor = self.flat.as_strided(x.shape, x.stride())
        else:
            self.tensor = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        self.fill(x)

    def fill(self, x: torch.Tensor) -> None:
        """Copy an input."""
        if self.flat is None:
            self.tensor.copy_(x, non_blocking=True)
        else:
            self.flat.copy_(x.as_strided((self.flat.numel(),), (1,)), non_blocking=True)


def _extent(x: torch.Tensor) -> int:
    if x.numel() == 0:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))


def _may_overlap(x: torch.Tensor) -> bool:
    """Whether elements may share memory, so that writing them one by one is refused."""
    reach = 0
    for step, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and step <= reach:
            return True
        reach += step * (size - 1)
    return False


@dataclass(eq=False)
class _Recording:
    """One recorded graph with the memory of its inputs and outputs.

    `same` maps the index of an output to that of the input that it is.
    """

    recorded: Recorded
    held: dict[int, _Held]
    addresses: dict[int, int]
    same: dict[int, int]
    own: list[torch.Tensor]
    idle_users: list[int]

    def is_free(self) -> bool:
        """Whether nobody holds an output of the last replay any more."""
        return self.idle_users == list(map(_users, self.own))

    def is_in_place(self, inputs: Sequence[Any]) -> bool:
        """Whether the inputs that are read where they are have not moved."""
        return all(inputs[index].data_ptr() == at for index, at in self.addresses.items())

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Replay on new values, and return tensors over the outputs' memory."""
        for index, held in self.held.items():
            held.fill(inputs[index])
        self.recorded.replay()
        return [
            inputs[self.same[index]]
            if index in self.same
            else output.data
            if isinstance(output, torch.Tensor)
            else output
            for index, output in enumerate(self.recorded.outputs)
        ]


@dataclass(eq=False)
class _Known:
    """What is known of a signature: its recordings, or why there are none."""

    recordings: list[_Recording] = field(default_factory=list)
    moves: int = 0
    refused: str = ""


class GraphedFunction:
    """A function of a list of inputs, which it clears, replayed from recordings if possible.

    `fixed` are the inputs that keep their place, among them all that the function writes to.
    `remark` hears why something is not recorded; `check` is called before each replay.
    """

    _boxed_call = True

    def __init__(
        self,
        function: Function,
        fixed: Sequence[int],
        recorder: Recorder,
        remark: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.function = function
        self.fixed = frozenset(fixed)
        self.recorder = recorder
        self.remark = remark
        self.check = check
        self.known: dict[Signature, _Known] = {}
        self.said: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Return the outputs for these inputs."""
        with torch.no_grad():
            reason = _why_not(inputs)
            if not reason:
                with self._lock:
                    made = self._replayed(inputs)
                if not isinstance(made, str):
                    inputs.clear()
                    return made
                reason = made
            if reason and reason not in self.said:
                self.said.add(reason)
                self.remark(f"runs without a CUDA graph: {reason}")
            return self.function(inputs)

    def _replayed(self, inputs: Sequence[Any]) -> list[Any] | str:
        """Return the outputs of a replay, or why there is none, empty for the first call."""
        device = next(x.device for x in inputs if isinstance(x, torch.Tensor))
        place = (self.recorder.place(device), torch.is_inference_mode_enabled())
        signature = (*place, *map(_signature, inputs))
        known = self.known.get(signature)
        if known is None:
            if len(self.known) >= MOST_SIGNATURES:
                return f"more than {MOST_SIGNATURES} signatures of inputs"
            self.known[signature] = _Known()
            return ""
        if known.refused:
            return known.refused
        recording = self._ready(known, inputs, device)
        if isinstance(recording, str):
            return recording
        self.check()
        return recording.run(inputs)

    def _ready(
        self, known: _Known, inputs: Sequence[Any], device: torch.device
    ) -> _Recording | str:
        """Return a recording that may run now."""
        fitting = [one for one in known.recordings if one.is_in_place(inputs)]
        free = next((one for one in fitting if one.is_free()), None)
        if free is not None:
            return free
        if len(known.recordings) >= MOST_RECORDINGS:
            stale = next((one for one in known.recordings if one not in fitting), None)
            if stale is None:
                return f"outputs of {MOST_RECORDINGS} calls are still alive"
            known.moves += 1
            self.recorder.wait()
            known.recordings.remove(stale)
        if known.moves > MOST_MOVES:
            known.recordings.clear()
            known.refused = "inputs that should keep their place move"
            return known.refused
        made = self._record(inputs, device)
        if isinstance(made, str):
            known.refused = made  # what cannot be recorded now cannot be later either
        else:
            known.recordings.append(made)
        return made

    def _record(self, inputs: Sequence[Any], device: torch.device) -> _Recording | str:
        """Record one call, or tell why that does not work."""
        tensors = {i: x for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
        held = {i: _Held(x) for i, x in tensors.items() if i not in self.fixed}
        given = [held[i].tensor if i in held else x for i, x in enumerate(inputs)]
        try:
            recorded = self.recorder.record(self.function, list(given), device)
        except RuntimeError as error:
            return f"cannot be recorded: {str(error).splitlines()[0]}"
        places = {id(x): i for i, x in enumerate(given) if isinstance(x, torch.Tensor)}
        same = {n: places[id(o)] for n, o in enumerate(recorded.outputs) if id(o) in places}
        # Who else holds the memory of an input that stays where it is does not matter.
        memory = {_memory(x) for i, x in tensors.items() if i in self.fixed}
        outputs = [o for o in recorded.outputs if isinstance(o, torch.Tensor)]
        own = [o for o in outputs if id(o) not in places and _memory(o) not in memory]
        addresses = {i: x.data_ptr() for i, x in tensors.items() if i in self.fixed}
        return _Recording(recorded, held, addresses, same, own, list(map(_users, own)))


def _why_not(inputs: Sequence[Any]) -> str:
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    devices = {x.device for x in tensors}
    if len(devices) > 1:
        return f"inputs on {', '.join(sorted(map(str, devices)))}"
    if not devices:
        return "no tensors among the inputs"
    if any(type(x) not in _PLAIN for x in inputs) or any(map(_is_special, tensors)):
        return "inputs that are no plain tensors or numbers"
    return ""


_PLAIN = (torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None))


def _is_special(x: torch.Tensor) -> bool:
    return x.layout is not torch.strided or x.is_neg() or x.is_conj()


def _users(tensor: torch.Tensor) -> int:
    """Return how many tensors and others hold the memory of a tensor.

    The storage's own Python object counts or not, the same way at each call.
    """
    return storage_use_count(tensor.untyped_storage())


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _signature(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device)
    return (type(value), value)
