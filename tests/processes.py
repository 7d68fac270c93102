"""Run a function in several processes that communicate by Gloo, and collect what it returns."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 120


def run_in_processes(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what `function(rank, *arguments)` returns in each process of a Gloo group.

    `RuntimeError` with the traceback of the first process that fails or does not answer.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe() for _ in range(count)]
        processes = [
            context.Process(
                target=_run, args=(rank, count, folder, ends[rank][1], function, arguments)
            )
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        try:
            answers = [_answer(receiver, rank) for rank, (receiver, _) in enumerate(ends)]
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
    return answers


def _answer(receiver: Any, rank: int) -> Any:
    if not receiver.poll(SECONDS):
        raise RuntimeError(f"process {rank} does not answer")
    ok, answer = receiver.recv()
    if not ok:
        raise RuntimeError(f"process {rank} failed:\n{answer}")
    return answer


def _run(
    rank: int,
    count: int,
    folder: str,
    sender: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(str(Path(folder) / "store"), count)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
        sender.send((True, function(rank, *arguments)))
        dist.barrier()
    except BaseException:
        sender.send((False, traceback.format_exc()))
    finally:
        sender.close()
        os._exit(0)
