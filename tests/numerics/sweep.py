"""Run many random programs with Lynx and eager, and print the smallest form of each that differs.

python -m tests.numerics.sweep --seeds 0:1000
python -m tests.numerics.sweep --seeds 17:18 --keep
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
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


def compiler_of(backend: str, dynamic: bool) -> Callable[[Any], Any]:
    """Return what compiles a function."""
    options = {"strict": True, "cache": False} if backend == "lynx" else None
    return lambda f: torch.compile(f, backend=backend, options=options, dynamic=dynamic or None)


def verdict(program: Program, backend: str, dynamic: bool) -> str:
    """Return how a program differs from eager, or what it raises; empty if all is well."""
    try:
        return check(program, compiler_of(backend, dynamic), (1, 3, 1) if dynamic else (1, 1))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:600]}"


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
        for name in (n.partition(" = ")[0] for n in lines[::-1] if n.startswith("t")):
            if not returned:
                returned = (name,)
        if returned:
            parts.append(replace(program, lines=lines, returned=returned))
    return parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, and return 1 if any program differs with Lynx but not with `aot_eager`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="0:100")
    parser.add_argument("--keep", action="store_true", help="do not look for smaller programs")
    options: Any = parser.parse_args(arguments)
    first, last = map(int, options.seeds.split(":"))
    warnings.simplefilter("ignore")
    counts = dict.fromkeys(("programs", "skipped", "failed", "kernels", "grad"), 0)
    start = time.perf_counter()
    for seed in range(first, last):
        one(seed, counts, options.keep)
        if (seed + 1) % 50 == 0:
            print(f"-- {seed + 1}: {counts}, {time.perf_counter() - start:.0f} s", flush=True)
    print(counts)
    return int(counts["failed"] > 0)


def one(seed: int, counts: dict[str, int], keep: bool) -> None:
    """Check the program of a seed, and print it if it fails."""
    program, dynamic = program_of(seed), seed % 4 == 3
    if not program.lines or not runs_in_eager(program):
        counts["skipped"] += 1
        return
    counts["programs"] += 1
    RECORDS.reset()
    found = verdict(program, "lynx", dynamic)
    executables = [r.executable for r in RECORDS.graphs if r.executable is not None]
    counts["kernels"] += sum(len(e.native.kernels) for e in executables)
    counts["grad"] += any(spec.requires_grad for spec in program.inputs)
    if not found or verdict(program, "aot_eager", dynamic) != "":
        return
    counts["failed"] += 1
    if not keep:
        program = smaller(
            program,
            lambda p: verdict(p, "lynx", dynamic) != "" and verdict(p, "aot_eager", dynamic) == "",
        )
        found = verdict(program, "lynx", dynamic)
    print(f"== seed {seed}{' dynamic' if dynamic else ''}: {found}\n{program}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
