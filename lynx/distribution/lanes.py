"""Lanes: each group communicates in its own order, at the same time as the program computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from .failures import CommunicationError

Job = Callable[[], None]


@dataclass
class _Ticket:
    """One job, and what became of it.

    Modes of torch belong to threads: what fills inference tensors runs as who made them.
    """

    job: Job
    infers: bool = field(default_factory=torch.is_inference_mode_enabled)
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def run(self) -> None:
        try:
            with torch.inference_mode(self.infers), torch.no_grad():
                self.job()
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()

    def wait(self) -> None:
        self.done.wait()
        if self.error is not None:
            raise self.error


class Lane:
    """Runs jobs one after the other: of the CPU on a thread, of a GPU on a stream.

    The transport gives up after its own time limit, so that no job runs forever; jobs that are
    behind one that failed so fail at once.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[_Ticket] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def submit(self, job: Job, given: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Run a job after those before it; return what waits for it and raises its error."""
        device = given[0].device
        if device.type == "cuda":
            return self._on_stream(job, given, device)
        ticket = _Ticket(job)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"lynx lane {self.name}", daemon=True
            )
            self._thread.start()
        self._jobs.put(ticket)
        return ticket.wait

    def _work(self) -> None:
        """Run jobs; once members did not get together they are out of step, and no other runs."""
        broken: BaseException | None = None
        while True:
            ticket = self._jobs.get()
            if broken is None:
                ticket.run()
                broken = ticket.error if isinstance(ticket.error, CommunicationError) else None
            else:
                ticket.error = broken
                ticket.done.set()

    def _on_stream(
        self, job: Job, given: Sequence[torch.Tensor], device: torch.device
    ) -> Callable[[], None]:
        """Launch a job on the lane's stream, behind what computes its operands.

        Launches do not wait, and are made here, in the order of the program on all ranks.
        """
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), torch.no_grad():
            job()
        for tensor in given:
            tensor.record_stream(stream)
        landed = stream.record_event()
        return lambda: torch.cuda.current_stream(device).wait_event(landed)
