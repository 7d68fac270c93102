"""Run something in a process of its own, where it can crash, hang or write into memory.

The process is a fork, as those of torch's data loaders are, so that it knows all operators of the
user; it uses one thread and the CPU alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

try:
    import resource
except ImportError:  # where there are no forks either
    resource = None  # type: ignore[assignment]

Send = Callable[[Any], None]
_END = b""
_LENGTH = 8
_MILLISECONDS = 50
_MOST_FILES = 1 << 16


@dataclass
class Finished:
    """What a process has sent, and how it ended: by itself, or else by what."""

    sent: list[Any] = field(default_factory=list)
    failure: str = ""


@dataclass
class _Child:
    """A process that was forked."""

    number: int
    has_ended: bool = False

    def is_over(self) -> bool:
        """Whether it has ended; then nothing is left of it."""
        if not self.has_ended:
            try:
                self.has_ended = os.waitpid(self.number, os.WNOHANG)[0] != 0
            except ChildProcessError:  # somebody else has waited for it
                self.has_ended = True
        return self.has_ended

    def stop(self) -> None:
        """End it, if it has not ended."""
        if not self.is_over():
            os.kill(self.number, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.number, 0)


def run_apart(work: Callable[[Send], None], limit: float) -> Finished:
    """Run a function in a fork of this process, and return what it sends, within `limit` seconds.

    What it raises ends it like a crash.
    """
    if not hasattr(os, "fork"):
        return Finished(failure="it cannot run in a process of its own")
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads do not come along
        number = os.fork()
    if number == 0:
        _be_child(work, writing, limit)
    os.close(writing)
    child = _Child(number)
    try:
        return _listen(reading, child, time.monotonic() + limit)
    finally:
        os.close(reading)
        child.stop()


def _be_child(work: Callable[[Send], None], writing: int, limit: float) -> None:
    """Do the work and end the process, whatever happens, without leaving anything behind.

    Connections are closed, so that peers learn of it if the process that was forked dies; then an
    alarm ends this one.
    """
    try:
        faulthandler.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit + 1)
        if resource is not None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.closerange(3, writing)
        os.closerange(writing + 1, min(os.sysconf("SC_OPEN_MAX"), _MOST_FILES))
        torch.set_num_threads(1)
        work(lambda message: _send(writing, pickle.dumps(message)))
        _send(writing, _END)
    finally:
        os._exit(0)


def _send(writing: int, data: bytes) -> None:
    left = memoryview(len(data).to_bytes(_LENGTH, "big") + data)
    while left:
        left = left[os.write(writing, left) :]


def _listen(reading: int, child: _Child, end: float) -> Finished:
    """Read messages until the last one, the end of the process, or the time limit."""
    finished, data = Finished(), bytearray()
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    while time.monotonic() < end:
        is_over = child.is_over()
        ready = poller.poll(0 if is_over else _MILLISECONDS)
        chunk = os.read(reading, 1 << 16) if ready else b""
        data += chunk
        for message in _complete(data):
            if message == _END:
                return finished
            finished.sent.append(pickle.loads(message))
        if is_over and not chunk:
            finished.failure = "it crashed"
            return finished
    finished.failure = "it took too long"
    return finished


def _complete(data: bytearray) -> Iterator[bytes]:
    """Take the messages off the data that have come as a whole."""
    while len(data) >= _LENGTH:
        stop = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
        if len(data) < stop:
            return
        message = bytes(data[_LENGTH:stop])
        del data[:stop]
        yield message
