"""Sweep torch's own operator database: what passes with Lynx, and what only with `aot_eager`.

    python -m tests.opdb.sweep --results sweep.jsonl
    python -m tests.opdb.sweep --sample 50 --seed 3
    python -m tests.opdb.sweep --ops topk,sort --dtypes float32

Each operator and element type is checked in a worker process, which is replaced if it crashes or
takes too long. The file of results grows by a line each; a second run with it goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch

from tests.opdb.check import DTYPES, Pair, all_pairs, check

BACKENDS = ["aot_eager", "lynx"]


class Worker:
    """A process that checks pairs one after the other, and can be replaced."""

    def __init__(self, samples: int, timeout: float) -> None:
        self.samples = samples
        self.timeout = timeout
        self.process = self._start()

    def check(self, pair: Pair) -> dict[str, str]:
        """Return the verdicts on a pair; the worker's death is one too."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{pair.operator}\t{pair.dtype}\n")
        self.process.stdin.flush()
        line = self._answer()
        if line:
            verdicts: dict[str, str] = json.loads(line)
            return verdicts
        died = self.process.poll() is not None
        self.stop()
        self.process = self._start()
        return dict.fromkeys(BACKENDS, "the process died" if died else "took too long")

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.opdb.sweep", "--worker", str(self.samples)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_pump, args=(process.stdout, self.answers), daemon=True).start()
        return process

    def _answer(self) -> str:
        try:
            return self.answers.get(timeout=self.timeout)
        except queue.Empty:
            return ""


def _pump(stream: IO[str], answers: queue.Queue[str]) -> None:
    for line in stream:
        answers.put(line)
    answers.put("")


def work(samples: int) -> None:
    """Answer pairs from standard input with verdicts on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print must not get among the answers
    torch.set_num_threads(1)
    for line in sys.stdin:
        operator, dtype = line.rstrip("\n").split("\t")
        try:
            verdicts = check(Pair(operator, dtype), BACKENDS, samples)
        except Exception as error:  # the database itself may fail to make samples
            verdicts = dict.fromkeys(BACKENDS, f"no samples: {type(error).__name__}: {error}")
        print(json.dumps(verdicts), file=answers, flush=True)


def read(path: Path) -> dict[Pair, dict[str, str]]:
    """Return the results that a file has."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {Pair(row["operator"], row["dtype"]): row["verdicts"] for row in rows}


def sweep(options: argparse.Namespace, pairs: Sequence[Pair]) -> dict[Pair, dict[str, str]]:
    """Check all pairs that the file has no result of; return the results of all."""
    results = read(options.results)
    pending: queue.SimpleQueue[Pair] = queue.SimpleQueue()
    missing = [pair for pair in pairs if pair not in results]
    for pair in missing:
        pending.put(pair)
    lock = threading.Lock()

    def serve() -> None:
        worker = Worker(options.samples, options.timeout)
        while True:
            try:
                pair = pending.get_nowait()
            except queue.Empty:
                break
            verdicts = worker.check(pair)
            with lock, options.results.open("a") as file:
                results[pair] = verdicts
                file.write(json.dumps({**vars(pair), "verdicts": verdicts}) + "\n")
                show(pair, verdicts, len(results), len(pairs))
        worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(options.workers if missing else 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {pair: results[pair] for pair in pairs if pair in results}


def show(pair: Pair, verdicts: dict[str, str], done: int, total: int) -> None:
    """Print a line for a regression; on a terminal, how far we are."""
    start, end = ("\r", "\033[K") if sys.stdout.isatty() else ("", "")
    if is_regression(verdicts):
        print(f"{start}{pair}: {verdicts['lynx'][:200]}{end}", flush=True)
    if sys.stdout.isatty():
        print(f"\r{done} of {total}: {pair}\033[K", end="", flush=True)


def is_regression(verdicts: dict[str, str]) -> bool:
    """Tell whether Lynx fails where `aot_eager` does not."""
    return verdicts["aot_eager"] == "pass" and verdicts["lynx"] != "pass"


def table(results: dict[Pair, dict[str, str]]) -> str:
    """Return counts by element type."""
    counts: Counter[tuple[str, str]] = Counter()
    for pair, verdicts in results.items():
        for row in (pair.dtype, "all"):
            counts[row, "pairs"] += 1
            counts[row, "regressions"] += is_regression(verdicts)
            for backend in BACKENDS:
                counts[row, backend] += verdicts[backend] == "pass"
    columns = ["pairs", *BACKENDS, "regressions"]
    lines = [f"{'':<10}" + "".join(f"{column:>13}" for column in columns)]
    for row in [*DTYPES, "all"]:
        lines.append(f"{row:<10}" + "".join(f"{counts[row, column]:>13}" for column in columns))
    return "\n".join(lines)


def choose(options: argparse.Namespace) -> list[Pair]:
    """Return the pairs asked for."""
    names = options.ops.split(",") if options.ops else []
    dtypes = options.dtypes.split(",")
    pairs = [
        pair
        for pair in all_pairs()
        if pair.dtype in dtypes and (not names or pair.operator in names)
    ]
    if options.sample:
        pairs = sorted(random.Random(options.seed).sample(pairs, min(options.sample, len(pairs))))
    return pairs


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep and print the table; the exit status is 1 if Lynx fails where `aot_eager` does not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("sweep.jsonl"))
    parser.add_argument("--ops", default="", help="names with commas; default: all")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--sample", type=int, default=0, help="so many pairs, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=2, help="inputs to try of each operator")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a pair")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    options: Any = parser.parse_args(arguments)
    if options.worker:
        work(options.worker)
        return 0
    results = sweep(options, choose(options))
    print(f"\n{table(results)}")
    return int(any(map(is_regression, results.values())))


if __name__ == "__main__":
    sys.exit(main())
