"""Memory kept across calls: blocks shared by all programs, and arenas of what backward needs.

A call takes a block for its temporary tensors and gives it back at its end, so that programs that
run one after the other use the same memory, and calls at the same time (threads, recursion) never
share. The tensors that a program has in a block are made once and live in the block: when it is
replaced by a larger one, they go with it. On accelerators there are blocks for each stream, since
work on one stream is ordered and work on two is not.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .tensors import Memory

Views = tuple[torch.Tensor, ...]

MAX_IDLE_BLOCKS = 4
"""Blocks kept for each device and stream while nobody uses them."""

MAX_IDLE_SAVED = 2
"""Pieces of memory kept for what backward needs, for each program, while nobody uses them."""

MAX_TRACKED_SAVED = 8
"""Pieces in use that are looked at again; further ones are freed when their tensors are."""

MAX_SIZES = 8
"""For how many combinations of sizes a block keeps the tensors of one program."""


class Block:
    """A piece of memory of one device, with the tensors that each program has in it."""

    __slots__ = ("key", "memory", "size", "views")

    def __init__(self, key: Any, size: int, device: str) -> None:
        self.key = key
        self.size = size
        self.memory = Memory(size, device)
        self.views: dict[int, dict[tuple[int, ...], Views]] = {}


class _Recording(threading.local):
    """What is recorded in this thread: for which device and stream, and the memory that it uses."""

    device: str | None = None
    stream: Any = None
    memory: list[Memory] | None = None


_RECORDING = _Recording()


@contextlib.contextmanager
def recording(device: str) -> Iterator[list[Memory]]:
    """Use the memory of the current stream of a device for what is recorded within.

    Launches are recorded on another stream than the one on which they will be replayed. The list
    that is yielded holds the memory that was used: as long as it lives, the memory does.
    """
    before = _RECORDING.device, _RECORDING.stream, _RECORDING.memory
    memory: list[Memory] = []
    _RECORDING.stream, _RECORDING.device = stream_of(device), device
    _RECORDING.memory = memory
    try:
        yield memory
    finally:
        _RECORDING.device, _RECORDING.stream, _RECORDING.memory = before


def _used(memory: Memory) -> None:
    if _RECORDING.memory is not None:
        _RECORDING.memory.append(memory)


def stream_of(device: str) -> Any:
    """Return what orders work on a device: its current stream, nothing on a CPU."""
    if device == _RECORDING.device:
        return _RECORDING.stream
    if device.startswith("cpu"):
        return device
    stream = torch.get_device_module(device).current_stream(device)
    return device, stream.device_index, stream.stream_id


class BlockPool:
    """The idle blocks of all devices, and which blocks are in use."""

    def __init__(self) -> None:
        self._idle: dict[Any, list[Block]] = {}
        self._used: set[Block] = set()
        self._lock = threading.RLock()  # a finalizer may call `forget` within `take`

    def take(self, device: str, size: int) -> Block:
        """Return the smallest idle block that is large enough, or a new one instead of another."""
        key = stream_of(device)
        with self._lock:
            idle = self._idle.get(key)
            if idle:
                for index, block in enumerate(idle):
                    if block.size >= size:
                        self._used.add(block)
                        return idle.pop(index)
                idle.pop()  # the largest: free it before its successor is allocated
        block = Block(key, size, device)
        with self._lock:
            self._used.add(block)
        return block

    def give(self, block: Block) -> None:
        """Take a block back; idle blocks are kept in order of size."""
        with self._lock:
            self._used.discard(block)
            idle = self._idle.setdefault(block.key, [])
            idle.append(block)
            idle.sort(key=lambda other: other.size)
            if len(idle) > MAX_IDLE_BLOCKS:
                del idle[0]

    def forget(self, program: int) -> None:
        """Drop the tensors of a program that is gone."""
        with self._lock:
            for block in itertools.chain(self._used, *self._idle.values()):
                block.views.pop(program, None)

    def release(self) -> None:
        """Free all idle blocks."""
        with self._lock:
            self._idle.clear()

    @property
    def idle_bytes(self) -> int:
        """Bytes of all idle blocks."""
        with self._lock:
            return sum(block.size for idle in self._idle.values() for block in idle)


SHARED_BLOCKS = BlockPool()
"""The blocks that all programs of the process share."""

_PROGRAMS = itertools.count()

Plan = Callable[[tuple[int, ...]], tuple[tuple[int, ...], int]]
"""From the values of the symbols to the offsets of the buffers and the size of the arena."""

Maker = Callable[..., Views]
"""From memory, the offsets and the values of the symbols to the tensors of a program."""


class TemporaryArena:
    """The arena of one program on one device for tensors that do not outlive the call."""

    def __init__(self, device: str, plan: Plan, make: Maker, pool: BlockPool) -> None:
        self.device = device
        self.pool = pool
        self.program = next(_PROGRAMS)
        self._plan = plan
        self._make = make
        self.give = pool.give

    def take(self, *symbols: int) -> tuple[Block, Views]:
        """Return a block that nobody else uses, and the tensors of the program in it."""
        offsets, size = self._plan(symbols)
        block = self.pool.take(self.device, size)
        try:
            by_sizes = block.views.setdefault(self.program, {})
            _used(block.memory)
            views = by_sizes.get(symbols)
            if views is None:
                if len(by_sizes) >= MAX_SIZES:
                    del by_sizes[next(iter(by_sizes))]
                views = by_sizes[symbols] = self._made(block.memory, offsets, symbols)
        except BaseException:
            self.pool.give(block)
            raise
        return block, views

    def _made(self, memory: Memory, offsets: tuple[int, ...], symbols: tuple[int, ...]) -> Views:
        with torch.inference_mode(False), torch.no_grad():
            return self._make(memory, offsets, *symbols)


class SavedArena:
    """The arena of one program on one device for what is kept for backward.

    Each call gets memory in which no tensor of an earlier call is alive that could be overwritten.
    """

    def __init__(self, device: str, plan: Plan, make: Maker) -> None:
        self.device = device
        self._plan = plan
        self._make = make
        self._kept: dict[Any, list[Memory]] = {}
        self._lock = threading.Lock()

    def take(self, *symbols: int) -> Views:
        """Return new tensors in memory that no living tensor uses."""
        offsets, size = self._plan(symbols)
        key = stream_of(self.device)
        memory = self._idle(key, size)
        if memory is None:
            memory = Memory(size, self.device)
        _used(memory)
        views = self._make(memory, offsets, *symbols)
        with self._lock:
            tracked = self._kept.setdefault(key, [])
            if len(tracked) < MAX_TRACKED_SAVED:
                tracked.append(memory)
        return views

    def _idle(self, key: Any, size: int) -> Memory | None:
        """Take idle memory that is large enough; drop what is too small or too much."""
        with self._lock:
            found: Memory | None = None
            idle = 0
            kept = []
            for memory in self._kept.get(key, ()):
                if not memory.is_idle:
                    kept.append(memory)
                elif found is None and memory.size >= size:
                    found = memory
                elif memory.size >= size and idle + 1 < MAX_IDLE_SAVED:
                    idle += 1
                    kept.append(memory)
            if kept or found is not None:
                self._kept[key] = kept
            return found

    def release(self) -> None:
        """Let go of all memory; what is in use is freed when its tensors are."""
        with self._lock:
            self._kept.clear()
