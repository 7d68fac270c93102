"""Train whole models by plans on real processes, and print for each case what was wrong.

python -m tests.distribution.sweep --processes 2 --only llama
"""

from __future__ import annotations

import argparse
import sys

from tests.distribution.processes import Processes
from tests.distribution.training import Case, Outcome, run

WHOLE = ("gpt", "llama", "llama 9/3", "bert", "t5", "vit", "mixtral", "conv net")
SEQUENCES = ("gpt", "llama", "llama 9/3", "bert", "t5", "vit", "mixtral")
DROPOUT = ("dropout gpt", "dropout bert")
SECONDS = 3600.0


def cases(count: int) -> list[Case]:
    """Return all cases for so many processes."""
    dp, tp = (("dp", count),), (("tp", count),)
    if count not in (2, 4):
        return [Case("vocabulary", "tp", tp)]
    found = [Case(name, "fsdp", dp) for name in WHOLE]
    found += [Case(name, "tp", tp) for name in WHOLE]
    found += [Case(name, "tp+sp", tp) for name in SEQUENCES]
    found += [Case(name, "tp", tp, mode="eval") for name in WHOLE]
    found += [Case(name, "tp", tp) for name in (*DROPOUT, "six heads", "vocabulary")]
    found += [Case(name, "dp", dp) for name in ("dropout gpt", "conv net")]
    found += [Case("conv net", "rows", tp)]
    # Models that make plain tensors inside are none for DTensor's own propagation.
    found += [
        Case("perceptron", plan, axes, "dtensor") for plan, axes in (("fsdp", dp), ("tp", tp))
    ]
    if count == 4:
        grid = (("dp", 2), ("tp", 2))
        found += [Case(name, "dp+tp", grid) for name in (*WHOLE, *DROPOUT, "six heads")]
        found += [Case(name, "fsdp+tp", grid) for name in WHOLE]
        found += [Case("conv net", "dp+rows", grid)]
    return found


def trained(processes: Processes, chosen: list[Case]) -> list[Outcome]:
    """Return what came of cases: on the first process on which something was wrong."""
    by_rank = processes.run(run, chosen, limit=SECONDS)
    return [
        max(outcomes, key=lambda one: bool(one.wrong)) for outcomes in zip(*by_rank, strict=True)
    ]


def line(outcome: Outcome) -> str:
    """Return an outcome in words."""
    calls = ", ".join(f"{count} {kind}" for kind, count in outcome.calls.items())
    return f"{outcome.case}: {outcome.wrong or 'equal'} ({outcome.seconds:.1f} s; {calls})"


def main(arguments: list[str]) -> int:
    """Run the cases of the command line, and say how many were wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name has this text in it")
    options = parser.parse_args(arguments)
    chosen = [one for one in cases(options.processes) if options.only in str(one)]
    wrong = 0
    with Processes(options.processes) as processes:
        for case in chosen:
            (outcome,) = trained(processes, [case])
            wrong += bool(outcome.wrong)
            print(line(outcome), flush=True)
    print(f"{wrong} of {len(chosen)} cases are wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
