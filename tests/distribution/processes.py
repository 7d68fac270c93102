"""Run functions on several Gloo processes, which are started once for a whole module of tests.

A server that has imported everything is forked for each rank, so starting four takes a second. A
function that is to run must be importable by name; what it returns on each rank comes back, and
what it raises is raised with the text of its traceback.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 150.0


def _serve(rank: int, count: int, store: str, tasks: Any, results: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch  # noqa: PLC0415 - the server has it already
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count)
    while (task := tasks.get()) is not None:
        function, arguments = pickle.loads(task)
        try:
            torch.compiler.reset()
            outcome: Any = (True, function(*arguments))
        except BaseException:
            outcome = (False, traceback.format_exc())
        results.put((rank, *outcome))
    os._exit(0)  # not to wait for peers that may be gone


class Processes:
    """A world of processes; use as a context."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> Processes:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.distribution.preload"])
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self.tasks = [context.Queue() for _ in range(self.count)]
        self.results = context.Queue()
        self.processes = [
            context.Process(
                target=_serve,
                args=(rank, self.count, store, self.tasks[rank], self.results),
                daemon=True,
            )
            for rank in range(self.count)
        ]
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for tasks in self.tasks:
            tasks.put(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        alive: int | None = None,
        limit: float = LIMIT,
    ) -> Any:
        """Return what the function returns on each rank; of `alive` ranks if some are to die.

        All answer within `limit` seconds.
        """
        task = pickle.dumps((function, arguments))
        for tasks in self.tasks:
            tasks.put(task)
        found: dict[int, Any] = {}
        failures: dict[int, str] = {}
        for _ in range(self.count if alive is None else alive):
            try:
                rank, worked, outcome = self.results.get(timeout=limit)
            except queue.Empty:
                raise AssertionError(f"only ranks {sorted(found | failures)} answered") from None
            (found if worked else failures)[rank] = outcome
        if failures:
            rank = min(failures)
            raise AssertionError(f"rank {rank} of {sorted(failures)} failed:\n{failures[rank]}")
        return [found[rank] for rank in sorted(found)]
