"""Compare Lynx with eager and Inductor on the workloads, and write a table, a plot and all numbers.

    python -m benchmarks.suite
    python -m benchmarks.suite --only gpt,tiny --tasks speed --rounds 40
    python -m benchmarks.suite --backends eager,inductor --name baseline
    python -m benchmarks.suite --device cuda --backends eager,inductor,lynx,lynx:reduce-overhead

Each measurement runs in a process of its own, and what it found is kept in `benchmarks/results`: a
run that was stopped goes on where it was; `--again` measures anew. The tasks are

    speed    all backends in one process, in turn, round by round, once they compute the same
    cold     the first step in a new process with empty caches
    warm     the same with the caches that the cold one left
    trace    the same with a back end that does nothing, which is torch's own part of both
    memory   peak memory in a process each
    split    where the time of a step goes, and what the hardware would allow (on a CPU)

A mode of `torch.compile` stands behind a colon after the name of a back end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.names import NAMES
from benchmarks.report import write_report

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TASKS = ("speed", "cold", "warm", "trace", "memory", "split")
NOTHING = "aot_eager"
"""The back end that compiles nothing, but has torch trace forward and backward."""


@dataclass(frozen=True)
class Job:
    """One measurement: a task of a workload, of one backend or (`speed`) of all."""

    workload: str
    task: str
    backends: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name under which the result is kept."""
        return f"{self.task}:{'+'.join(self.backends)}"


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yield what is to be measured, in order."""
    compiled = [name for name in options.backends if name != "eager"]
    for workload in options.only:
        for task in options.tasks:
            if task == "speed":
                yield Job(workload, task, tuple(options.backends))
            elif task == "trace":
                yield Job(workload, task, (NOTHING,))
            elif task == "split":
                if options.device != "cpu":
                    continue
                yield from (Job(workload, task, (name,)) for name in compiled if name == "lynx")
            else:
                names = options.backends if task == "memory" else compiled
                yield from (Job(workload, task, (name,)) for name in names)


class Run:
    """A run of the suite: where results lie, and the folders of caches."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(options.results) / (options.name or _folder(options.device))
        self.scratch = Path(options.scratch)
        self.failed: list[str] = []

    def all(self) -> None:
        """Measure everything that is not known yet."""
        listed = list(jobs(self.options))
        for number, job in enumerate(listed):
            known = self.known(job.workload)
            if job.key in known and not self.options.again:
                continue
            label = f"[{number + 1}/{len(listed)}] {job.workload} {job.key}"
            print(label, end="", flush=True)
            begin = time.perf_counter()
            result = self.measure(job)
            result["at"] = time.strftime("%Y-%m-%d %H:%M")
            result["threads"] = self.options.threads
            known = self.known(job.workload) | {job.key: result}
            self.write(job.workload, known)
            seconds = f"{time.perf_counter() - begin:.0f} s"
            print(f"  {'FAILED' if 'failure' in result else seconds}", flush=True)

    def known(self, workload: str) -> dict[str, Any]:
        """Return the results of a workload that are kept."""
        path = self.folder / f"{workload}.json"
        known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return known

    def write(self, workload: str, known: dict[str, Any]) -> None:
        """Keep results, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{workload}.json"
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(known, indent=1) + "\n")
        unfinished.replace(path)

    def measure(self, job: Job) -> dict[str, Any]:
        """Run one measurement in a process of its own."""
        caches = self.caches(job)
        task = "start" if job.task in ("cold", "warm", "trace") else job.task
        arguments = {
            "task": task,
            "workload": job.workload,
            "backend": job.backends[0],
            "backends": job.backends,
            "threads": self.options.threads,
            "rounds": self.options.rounds,
            "quick": self.options.quick,
            "device": self.options.device,
        }
        module = "benchmarks.split" if task == "split" else "benchmarks.measure"
        command = [sys.executable, "-m", module, json.dumps(arguments)]
        process = subprocess.run(
            command, env=self.environment(caches), cwd=ROOT, stdout=subprocess.PIPE, text=True,
            stderr=None if self.options.verbose else subprocess.PIPE, check=False,
        )  # fmt: skip
        if process.returncode:
            lines = (process.stderr or "").strip().splitlines() or ["no message"]
            self.failed.append(f"{job.workload} {job.key}: {lines[-1]}")
            return {"failure": "\n".join(lines[-20:]), "status": process.returncode}
        result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return result

    def caches(self, job: Job) -> Path:
        """Return the folder of caches, emptied for a cold start."""
        shared = job.task in ("speed", "memory", "split", "trace")
        name = "shared" if shared else f"{job.workload}-{job.backends[0]}"
        folder = self.scratch / name
        if job.task == "cold":
            shutil.rmtree(folder, ignore_errors=True)
        elif job.task == "warm" and not folder.exists():
            self.measure(Job(job.workload, "cold", job.backends))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def environment(self, caches: Path) -> dict[str, str]:
        """Return the environment of a measurement."""
        return {
            **os.environ,
            "OMP_NUM_THREADS": str(self.options.threads),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "LYNX_CACHE_DIR": str(caches / "lynx"),
            "HF_HUB_OFFLINE": "1",
        }

    def report(self) -> None:
        """Write the table and the plot of all that is known."""
        found = {name: self.known(name) for name in NAMES}
        devices = [row.get("device", "") for known in found.values() for row in known.values()]
        device = next((f"{name}, " for name in devices if name), "")
        host = f"{_processor()}, {self.options.threads} threads"
        machine = f"{device}{host}, torch {metadata.version('torch')}"
        print(write_report(self.folder, {k: v for k, v in found.items() if v}, machine))


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _folder(device: str) -> str:
    return "suite" if device == "cpu" else f"suite-{device.replace(':', '')}"


def _names(text: str, known: Sequence[str] | None) -> list[str]:
    names = [name for name in text.split(",") if name]
    wrong = [name for name in names if known is not None and name not in known]
    if wrong or not names:
        listed = ", ".join(known or ())
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(wrong)}; known are {listed}")
    return names


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", type=lambda text: _names(text, NAMES), default=list(NAMES), help="workloads"
    )
    parser.add_argument(
        "--tasks",
        type=lambda text: _names(text, TASKS),
        default=list(TASKS),
        help="what to measure",
    )
    parser.add_argument(
        "--backends", type=lambda text: _names(text, None), default=["eager", "inductor", "lynx"]
    )
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the suite itself")
    parser.add_argument("--again", action="store_true", help="measure what is known already too")
    parser.add_argument("--verbose", action="store_true", help="let measurements print")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--name", default="", help="the folder within the results (default: suite, suite-cuda, ...)"
    )
    parser.add_argument("--results", default=str(RESULTS))
    parser.add_argument(
        "--scratch", default=os.path.join(tempfile.gettempdir(), "lynx-benchmarks"), help="caches"
    )
    parser.add_argument("--report", action="store_true", help="only write table and plot anew")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; return 1 if a measurement failed."""
    run = Run(parse(arguments))
    if not run.options.report:
        run.all()
    run.report()
    for failure in run.failed:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
