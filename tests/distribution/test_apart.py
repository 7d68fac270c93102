"""Processes for trials: what they send comes back, and nothing that they do reaches this one."""

from __future__ import annotations

import os
import signal
import time

import torch

from lynx.distribution.apart import Finished, Send, run_apart


def test_messages_come_back_in_order() -> None:
    def work(send: Send) -> None:
        for number in range(100):
            send((number, "x" * 5000))

    finished = run_apart(work, 20.0)
    assert [number for number, _ in finished.sent] == list(range(100))
    assert finished.failure == ""


def test_crashes_are_told() -> None:
    def work(send: Send) -> None:
        send("first")
        os.kill(os.getpid(), signal.SIGSEGV)

    assert run_apart(work, 20.0) == Finished(["first"], "it crashed")


def test_exceptions_are_crashes() -> None:
    def work(send: Send) -> None:
        del send
        raise KeyboardInterrupt

    assert run_apart(work, 20.0) == Finished([], "it crashed")


def test_what_never_ends_is_ended() -> None:
    def work(send: Send) -> None:
        send(os.getpid())
        while True:
            time.sleep(1)

    start = time.monotonic()
    finished = run_apart(work, 0.4)
    assert time.monotonic() - start < 5
    assert finished.failure == "it took too long"
    (number,) = finished.sent
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return
    raise AssertionError("it goes on")


def test_nothing_reaches_this_process() -> None:
    reading, writing = os.pipe()
    state = torch.get_rng_state()

    def work(send: Send) -> None:
        torch.rand(3)
        try:
            os.write(writing, b"x")
        except OSError:
            send("connections are closed")

    assert run_apart(work, 20.0).sent == ["connections are closed"]
    assert torch.equal(torch.get_rng_state(), state)
    os.close(reading)
    os.close(writing)
