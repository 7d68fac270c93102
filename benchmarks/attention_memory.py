"""The peak of memory of attention with its gradients over the length, each in its own process.

python -m benchmarks.attention_memory --results benchmarks/results/x86-64-2-threads

Ways that are measured take the place of those of earlier runs in the folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.attention import causal, step, torch_attention
from benchmarks.lines import line_chart
from benchmarks.memory import HighWater, resident

HEADS, DEPTH = 8, 64
WAYS = ("lynx", "sdpa", "eager")
LONGEST = {"eager": 4096}
"""Eager attention needs several tensors of all scores."""

Peaks = Mapping[str, Mapping[str, int]]


def peak(way: str, length: int) -> int:
    """Return the bytes that a step takes beyond what is there before, its operands included.

    What runs is loaded or compiled before, at a length that takes next to nothing.
    """
    function = causal if way != "sdpa" else torch_attention(is_causal=True)
    if way == "lynx":
        function = torch.compile(function, backend="lynx", dynamic=True)
    for warm_up in (64, 96):
        run(function, warm_up)
    before, mark = resident(), HighWater()
    run(function, length)
    return mark.peak() - before


def run(function: object, length: int) -> None:
    """Compute attention and its gradients once."""
    tensors = [torch.randn(1, HEADS, length, DEPTH).requires_grad_() for _ in range(3)]
    step(function, tensors, torch.randn(1, HEADS, length, DEPTH))  # type: ignore[arg-type]


def measured(ways: Sequence[str], lengths: Sequence[int]) -> dict[str, dict[str, int]]:
    """Return bytes by way and length, each measured in a process of its own."""
    found: dict[str, dict[str, int]] = {}
    for way in ways:
        for length in lengths:
            if length > LONGEST.get(way, length):
                continue
            command = [sys.executable, "-m", "benchmarks.attention_memory", "--one", way]
            text = subprocess.run(
                [*command, "--lengths", str(length)], check=True, capture_output=True, text=True
            ).stdout
            found.setdefault(way, {})[str(length)] = int(text.split()[-1])
            print(f"{way:<8} {length:>6} {found[way][str(length)] / 1e6:10.1f} MB", flush=True)
    return found


def earlier(folder: Path) -> dict[str, dict[str, int]]:
    """Return what a folder has of earlier runs."""
    path = folder / "attention-memory.json"
    if not path.exists():
        return {}
    found: dict[str, dict[str, int]] = json.loads(path.read_text(encoding="utf-8"))["bytes"]
    return found


def plot(peaks: Peaks) -> str:
    """Return the text of an SVG file."""
    lines = {
        way: [(float(length), max(nbytes, 1) / 1e6) for length, nbytes in by_length.items()]
        for way, by_length in peaks.items()
    }
    title = f"Peak memory of causal attention with gradients, {HEADS} heads of {DEPTH}"
    return line_chart(lines, title, "sequence length", "MB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the numbers and the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--results", type=Path, help="the folder to write numbers and plot to")
    parser.add_argument("--one", default="", help="measure one way in this process")
    options = parser.parse_args(arguments)
    lengths = [int(length) for length in options.lengths.split(",")]
    torch.set_num_threads(2)
    if options.one:
        print(peak(options.one, lengths[0]))
        return
    peaks = measured(options.ways.split(","), lengths)
    if options.results:
        peaks = {**earlier(options.results), **peaks}
        text = json.dumps({"heads": HEADS, "depth": DEPTH, "bytes": peaks}, indent=1)
        (options.results / "attention-memory.json").write_text(text + "\n", encoding="utf-8")
        (options.results / "attention-memory.svg").write_text(plot(peaks), encoding="utf-8")


if __name__ == "__main__":
    main()
