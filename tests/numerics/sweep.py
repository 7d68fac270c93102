"""Run many random programs with Lynx and eager, and print the smallest form of each that differs.

python -m tests.numerics.sweep --seeds 0:1000
python -m tests.numerics.sweep --seeds 17:18 --keep
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lynx.records import RECORDS
from tests.numerics.judge import check, run
from tests.numerics.programs import (
    DRAWN,
    LAYOUTS,
    SHAPES,
    Input,
    Program,
    Writer,
)

WEIGHTS = {
    "exact": 5, "discrete": 2, "inexact": 4, "reducing": 4, "moving": 6, "adding": 1, "writing": 2,
}  # fmt: skip


def program_of(seed: int) -> Program:
    """Return the program of a seed."""
    source = random.Random(seed)
    trains, special = source.random() < 0.4, source.random() < 0.15
    shape = source.choice(SHAPES)
    inputs = []
    for _ in range(source.randint(1, 3)):
        dtype = source.choice(["f32", "bf16"] if trains else DRAWN)
        other = source.choice([shape, shape, shape[-1:], source.choice(SHAPES)])
        grad = trains and source.random() < 0.8
        inputs.append(Input(other, dtype, source.choice(LAYOUTS), grad, special and not grad))
    writer = Writer(tuple(inputs))
    for _ in range(source.randint(3, 14)):
        kind = source.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        writer.add((kind, tuple(source.randrange(1 << 16) for _ in range(7))))
    return writer.finish(tuple(source.randrange(1 << 16) for _ in range(3)))


@dataclass(frozen=True)
class Trial:
    """How programs are run: with dynamic sizes or not, with kernels in C or interpreted Triton."""

    dynamic: bool = False
    kernels: str = "c"

    def verdict(self, program: Program, backend: str = "lynx") -> str:
        """Return how a program differs from eager, or what it raises; empty if all is well."""
        ours = {"strict": True, "cache": False, "cpu_kernels": self.kernels}
        keywords = {"options": ours} if backend == "lynx" else {}

        def compiler(function: Any) -> Any:
            return torch.compile(
                function, backend=backend, dynamic=self.dynamic or None, **keywords
            )

        try:
            return check(program, compiler, (1, 3, 1) if self.dynamic else (1, 1))
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:600]}"

    def fails(self, program: Program) -> bool:
        """Tell whether a program differs with Lynx, and not already in what torch captures."""
        return self.verdict(program) != "" and self.verdict(program, "aot_eager") == ""


def runs_in_eager(program: Program) -> bool:
    """Tell whether eager takes a program, with backward, for all of its data."""
    try:
        for seed in (0, 1):
            run(program, program.function(), seed)
            run(program, program.function(exact=True), seed, exact=True)
    except Exception:
        return False
    return True


def smaller(program: Program, still_fails: Callable[[Program], bool]) -> Program:
    """Leave out lines and results for as long as the program still fails."""
    changed = True
    while changed:
        changed = False
        for candidate in _parts(program):
            if runs_in_eager(candidate) and still_fails(candidate):
                program, changed = candidate, True
                break
    return program


def _parts(program: Program) -> list[Program]:
    parts = []
    for name in program.returned if len(program.returned) > 1 else ():
        rest = tuple(n for n in program.returned if n != name)
        parts.append(replace(program, returned=rest))
    for index in reversed(range(len(program.lines))):
        lines = program.lines[:index] + program.lines[index + 1 :]
        gone = program.lines[index].partition(" = ")[0]
        returned = tuple(n for n in program.returned if n != gone)
        for name in (n.partition(" = ")[0] for n in lines[::-1] if re.match(r"t\d+ = ", n)):
            if not returned:
                returned = (name,)
        if returned:
            parts.append(replace(program, lines=lines, returned=returned))
    return parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, and return 1 if any program differs with Lynx but not with `aot_eager`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="0:100")
    parser.add_argument("--kernels", default="c", choices=("c", "triton"))
    options: Any = parser.parse_args(arguments)
    first, last = map(int, options.seeds.split(":"))
    warnings.simplefilter("ignore")
    counts = dict.fromkeys(("programs", "skipped", "failed", "kernels", "training"), 0)
    start = time.perf_counter()
    for seed in range(first, last):
        one(seed, counts, options.kernels)
        if (seed + 1) % 50 == 0:
            print(f"-- {seed + 1}: {counts}, {time.perf_counter() - start:.0f} s", flush=True)
    print(counts)
    return int(counts["failed"] > 0)


def one(seed: int, counts: dict[str, int], kernels: str) -> None:
    """Check the program of a seed, and print the smallest form of it if it fails."""
    program, trial = program_of(seed), Trial(seed % 4 == 3, kernels)
    if not program.lines or not runs_in_eager(program):
        counts["skipped"] += 1
        return
    counts["programs"] += 1
    counts["training"] += any(spec.requires_grad for spec in program.inputs)
    RECORDS.reset()
    found = trial.verdict(program)
    for record in RECORDS.graphs:
        if record.executable is not None:
            counts["kernels"] += len(record.executable.native.kernels)
    if not found or not trial.fails(program):
        return
    counts["failed"] += 1
    program = smaller(program, trial.fails)
    note = " with dynamic sizes" if trial.dynamic else ""
    print(f"== seed {seed}{note}: {trial.verdict(program)}\n{program}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
