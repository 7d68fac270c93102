"""The table and the plot of what the suite measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.names import kind_of
from benchmarks.plot import Bar, bar_chart

Results = Mapping[str, Mapping[str, Any]]
WARM_UP = 3
"""The first rounds of a race are not counted."""

LEGEND = """\
Speed is the median of the ratios of times in the same round, with its quartiles; more than 1 is
faster. `error` is the largest error of the loss and of any gradient against double precision,
relative to the largest number of the tensor, as a multiple of eager's own error plus one unit in
the last place; eager's is the largest of four runs, in three of which the numbers of model and
inputs are off by a unit in the last place. Compile times are those of the first step in a new
process, without what later steps take; `trace` is torch's own part, measured with a back end that
does nothing."""

MEMORY_LEGEND = """\
Peaks in a process with compiled caches. `process` and `steps` are beyond what the process takes
with all libraries loaded: `process` from making the model to the end of the second step, compiling
included, `steps` during the three steps after those. Two spans of time with a peak each, so either
can be the larger one: what is freed is not always given back to the system, and later steps can
need more. `tensors` is what torch's allocator handed out during one step more, without what was
there before it."""

SPLIT_LEGEND = """\
Three runs of one process. `step` is the least time of ten steps as they are. `outside` is what it
takes beyond Lynx's programs, whose time the second run tells: torch's guards and its autograd. In
the third run each kernel and product is compiled apart and timed, and so is each call of torch;
columns are means of ten steps: matrix products and convolutions (`products`), attention
(`attention`), all other generated kernels (`kernels`), other calls of torch (`torch`), making
tensors (`allocation`), and what the generated Python takes besides (`host`). Timing costs time, and
kernels lose what they share, so the parts need not add up to `step`. A limit is what generated
kernels, and products between them, would take at the speed of a large product and of a copy of
memory; calls of torch have none."""

OLD_SPLIT_LEGEND = """\
Rows without `attention` are older than its kernels: it is part of `products`, `kernels` and `torch`
there, and convolutions that write into planned memory are part of `torch`."""


@dataclass(frozen=True)
class Ratio:
    """A ratio with its quartiles."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(slow: Sequence[float], fast: Sequence[float]) -> Ratio:
    """Return how often the second fits into the first, round by round."""
    pairs = list(zip(slow, fast, strict=True))
    pairs = pairs[min(WARM_UP, len(pairs) - 1) :]
    ratios = [a / b for a, b in pairs]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    return Ratio(*statistics.quantiles(ratios, n=4, method="inclusive"))


def write_report(folder: Path, results: Results, machine: str) -> str:
    """Write `results.md` and `results.svg` to a folder and return the text."""
    parts = [f"# Benchmarks\n\n{machine}\n", LEGEND, ""]
    parts += _section("Speed of a step", _speed_rows(results))
    parts += _section("Geometric means of speed", _mean_rows(results))
    parts += _section("First step of a new process, seconds", _start_rows(results))
    parts += _section("Peak memory, MB", _memory_rows(results), MEMORY_LEGEND)
    rows = _split_rows(results)
    legend = (
        f"{SPLIT_LEGEND}\n{OLD_SPLIT_LEGEND}" if any("" in row for row in rows) else SPLIT_LEGEND
    )
    parts += _section("Where a step of Lynx goes, ms", rows, legend)
    parts += _section("Failures", _failure_rows(results))
    text = "\n".join(parts)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(text)
    bars = [
        Bar(name, backend, kind_of(name), found.middle) for name, backend, found in _speeds(results)
    ]
    (folder / "results.svg").write_text(bar_chart(bars, "Speed of a step, eager = 1"))
    return text


def _section(title: str, rows: list[list[str]], legend: str = "") -> list[str]:
    if len(rows) < 2:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for index, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
        if index == 0:
            rules = [f":{'-' * (widths[0] - 1)}", *(f"{'-' * (w - 1)}:" for w in widths[1:])]
            lines.append(f"| {' | '.join(rules)} |")
    return [f"## {title}", "", *([legend, ""] if legend else []), *lines, ""]


def _races(results: Results) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for name, found in results.items():
        races = [r for key, r in found.items() if key.startswith("speed:") and "seconds" in r]
        if races:
            yield name, max(races, key=lambda race: (len(race["seconds"]), race["at"]))


def _speeds(results: Results) -> Iterable[tuple[str, str, Ratio]]:
    """Yield the speed of each compiler on each workload, relative to eager."""
    for name, race in _races(results):
        for backend, seconds in race["seconds"].items():
            if backend != "eager":
                yield name, backend, ratio(race["seconds"]["eager"], seconds)


def _backends(results: Results) -> list[str]:
    found = dict.fromkeys(
        backend for _, race in _races(results) for backend in race["seconds"] if backend != "eager"
    )
    return list(found)


def _speed_rows(results: Results) -> list[list[str]]:
    backends = _backends(results)
    both = {"lynx", "inductor"} <= set(backends)
    head = ["workload", "eager ms"]
    for backend in backends:
        head += [f"{backend} ms", f"{backend} / eager", "error"]
    rows = [head + (["lynx / inductor"] if both else [])]
    for name, race in _races(results):
        times = race["seconds"]
        row = [name, _ms(times["eager"])]
        for backend in backends:
            if backend not in times:
                row += ["", "", ""]
                continue
            check = race["checks"][backend]
            error = "missing" if check["missing"] else f"{check['times_eager']:.2f}"
            if backend == "lynx" and race.get("left_to_torch"):
                error += " left to torch"
            row += [_ms(times[backend]), str(ratio(times["eager"], times[backend])), error]
        if both:
            known = {"lynx", "inductor"} <= set(times)
            row.append(str(ratio(times["inductor"], times["lynx"])) if known else "")
        rows.append(row)
    return rows


def _ms(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.2f}"


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _mean_rows(results: Results) -> list[list[str]]:
    found: dict[tuple[str, str], list[float]] = {}
    for name, race in _races(results):
        kind = kind_of(name)
        times = race["seconds"]
        for backend in times:
            if backend != "eager":
                middle = ratio(times["eager"], times[backend]).middle
                found.setdefault((f"{backend} / eager", kind), []).append(middle)
        if {"lynx", "inductor"} <= set(times):
            middle = ratio(times["inductor"], times["lynx"]).middle
            found.setdefault(("lynx / inductor", kind), []).append(middle)
    rows = [["", "training", "inference"]]
    for pair in dict.fromkeys(pair for pair, _ in found):
        means = [found.get((pair, kind), []) for kind in rows[0][1:]]
        rows.append([pair, *(f"{geometric_mean(m):.2f}" if m else "" for m in means)])
    return rows


def _of(found: Mapping[str, Any], task: str, backend: str) -> Mapping[str, Any] | None:
    result = found.get(f"{task}:{backend}")
    return None if result is None or "failure" in result else result


def _compiled(results: Results, task: str) -> list[str]:
    """Return the backends of which there is a result of a task."""
    keys = dict.fromkeys(key for found in results.values() for key in found)
    return [key.partition(":")[2] for key in keys if key.startswith(f"{task}:")]


def _start_rows(results: Results) -> list[list[str]]:
    backends = _compiled(results, "cold")
    head = ["workload", "trace"]
    for backend in backends:
        head += [f"{backend} cold", f"{backend} warm", "warm beyond trace"]
    rows = [head]
    totals = [0.0] * (len(head) - 1)
    for name, found in results.items():
        trace = _of(found, "trace", "aot_eager")
        numbers = [_beyond_steady(trace)]
        for backend in backends:
            cold, warm = (_beyond_steady(_of(found, t, backend)) for t in ("cold", "warm"))
            numbers += [cold, warm, _difference(warm, numbers[0])]
        if any(number is not None for number in numbers):
            rows.append([name, *("" if n is None else f"{n:.2f}" for n in numbers)])
            totals = [total + (n or 0.0) for total, n in zip(totals, numbers, strict=True)]
    if len(rows) > 1:
        rows.append(["all", *(f"{total:.2f}" for total in totals)])
    return rows


def _beyond_steady(result: Mapping[str, Any] | None) -> float | None:
    return None if result is None else max(0.0, result["first"] - result["steady"])


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _memory_rows(results: Results) -> list[list[str]]:
    backends = _compiled(results, "memory")
    rows = [["workload", *(f"{b} {what}" for b in backends for what in MEMORY)]]
    for name, found in results.items():
        measured = [_of(found, "memory", backend) for backend in backends]
        cells = ["" if m is None else f"{m[what] / 1e6:.1f}" for m in measured for what in MEMORY]
        if any(cells):
            rows.append([name, *cells])
    return rows


MEMORY = ("process", "steps", "tensors")


def _split_rows(results: Results) -> list[list[str]]:
    rows = [["workload", *SPLIT]]
    for name, found in results.items():
        split = _of(found, "split", "lynx")
        if split is not None:
            cells = (f"{split[what] * 1e3:.2f}" if what in split else "" for what in SPLIT)
            rows.append([name, *cells])
    return rows


SPLIT = (
    "step", "products", "products_limit", "attention", "attention_limit", "kernels",
    "kernels_limit", "torch", "allocation", "host", "outside",
)  # fmt: skip


def _failure_rows(results: Results) -> list[list[str]]:
    rows = [["workload", "measurement", "why"]]
    for name, found in results.items():
        for key, result in found.items():
            if "failure" in result:
                rows.append([name, key, result["failure"].splitlines()[-1].replace("|", "/")])
    return rows
