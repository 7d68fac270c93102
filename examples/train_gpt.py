"""Train a small GPT on the source of Python's standard library, with eager and Lynx side by side.

    python examples/train_gpt.py
    python examples/train_gpt.py --steps 100 --width 384 --compare eager,lynx,inductor

Every contestant starts from the same weights and sees the same batches. They take turns step by
step, in alternating order, so that whatever else the machine does hits all of them alike; times are
compared as the median of the ratios of neighbouring steps. Memory is measured in one process each.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import profile

VOCABULARY = 256  # a token is a byte


class Attention(nn.Module):
    """Causal self-attention, written out."""

    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.register_buffer("visible", torch.ones(context, context, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.view(split).transpose(1, 2) for part in self.project_in(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-2, -1) / split[-1] ** 0.5
        scores = scores.masked_fill(~self.visible[:length, :length], float("-inf"))
        weights = functional.dropout(scores.softmax(dim=-1), self.dropout, self.training)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        return functional.dropout(self.project_out(mixed), self.dropout, self.training)


class Block(nn.Module):
    """Attention, then a two-layer network, each added to what came in."""

    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, context, dropout)
        self.norm_network = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.network(self.norm_network(x))


class GPT(nn.Module):
    """Predict the next byte; given the right answers, return the loss."""

    def __init__(self, layers: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, context, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def read_text(limit: int = 8_000_000) -> Tensor:
    """Return the standard library's own source files as one long row of bytes."""
    files = sorted(Path(os.path.dirname(os.__file__)).glob("*.py"))
    text = b"\n".join(path.read_bytes() for path in files)[:limit]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batches(text: Tensor, options: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    """Cut random windows out of the text: what to read, and the same one byte further on."""
    generator = torch.Generator().manual_seed(options.seed)
    shape = (options.steps, options.batch)
    starts = torch.randint(len(text) - options.context, shape, generator=generator)
    windows = text[starts[..., None] + torch.arange(options.context + 1)].long()
    return [(window[:, :-1], window[:, 1:]) for window in windows]


@dataclass
class Contestant:
    """One way to run the model, with what was measured of it."""

    name: str
    model: nn.Module
    run: Callable[..., Tensor]
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def step(self, batch: tuple[Tensor, Tensor], seed: int) -> None:
        """Take one training step."""
        torch.manual_seed(seed)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.run(*batch)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)


def make_model(options: argparse.Namespace) -> GPT:
    """Build the model; every call gives the same weights."""
    torch.manual_seed(options.seed)
    o = options
    return GPT(o.layers, o.width, o.heads, o.context, o.dropout).train()


def enter(name: str, model: nn.Module, options: argparse.Namespace) -> Contestant:
    """Make a contestant: `eager`, `lynx`, or any other backend of `torch.compile`."""
    run: Callable[..., Tensor] = model
    if name == "lynx":
        run = torch.compile(model, backend="lynx", options={"dump_dir": options.dumps})
    elif name != "eager":
        run = torch.compile(model, backend=name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, foreach=False)
    return Contestant(name, model, run, optimizer)


def race(options: argparse.Namespace, names: Sequence[str]) -> list[Contestant]:
    """Train all contestants, step by step in turn."""
    model = make_model(options)
    contestants = [enter(name, copy.deepcopy(model), options) for name in names]
    for step, batch in enumerate(batches(read_text(), options)):
        order = contestants if step % 2 else contestants[::-1]
        for contestant in order:
            contestant.step(batch, seed=step)
        show_progress(step + 1, options.steps, contestants)
    return contestants


def show_progress(done: int, steps: int, contestants: Sequence[Contestant]) -> None:
    """Draw a bar on a terminal; in a log, write ten lines."""
    losses = "  ".join(f"{c.name} {c.losses[-1]:.3f}" for c in contestants)
    if not sys.stdout.isatty():
        if done == 1 or done * 10 // steps > (done - 1) * 10 // steps:
            print(f"step {done}/{steps}  loss: {losses}", flush=True)
        return
    bar = "#" * (30 * done // steps)
    end = "\n" if done == steps else ""
    print(f"\r[{bar:<30}] {done}/{steps}  loss: {losses}\033[K", end=end, flush=True)


def measure_memory(options: argparse.Namespace, name: str, way: str) -> float:
    """Measure one contestant's memory in a process of its own, in MB; see `measured`."""
    arguments = [f"--{key}={value}" for key, value in vars(options).items() if key in SHARED]
    command = [sys.executable, __file__, *arguments, "--steps=4", f"--measure={way}:{name}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(result.stderr)
    return float(json.loads(result.stdout.splitlines()[-1])[way])


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Train for a few steps and return MB of memory.

    `process` is the peak of the process as the system counts it, with all code and compiling;
    `tensors` is the peak of what torch's allocator handed out once the model was there: gradients,
    optimizer state, activations, arenas.
    """
    way, _, name = options.measure.partition(":")
    contestant = enter(name, make_model(options), options)
    with profile(profile_memory=True) if way == "tensors" else nullcontext() as profiler:
        for step, batch in enumerate(batches(read_text(), options)):
            contestant.step(batch, seed=step)
    return {way: peak_of_process() if profiler is None else peak_of_tensors(profiler)}


def peak_of_tensors(profiler: Any) -> float:
    """Return the highest total of the allocator's records, in MB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e["name"] == "[memory]"]
    return max(totals, default=0) / 1e6


def peak_of_process() -> float:
    """Return the most memory that this process ever had, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, `ru_maxrss` starts at what the parent process had
        kilobytes = next(line for line in status.read_text().splitlines() if "VmHWM" in line)
        return int(kilobytes.split()[1]) / 1e3
    unit = 1e6 if sys.platform == "darwin" else 1e3  # macOS counts bytes, others kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def chart(contestants: Sequence[Contestant], columns: int = 60, rows: int = 10) -> str:
    """Draw the loss curves with letters; `*` is where all contestants meet."""
    losses = [c.losses for c in contestants]
    low, high = min(map(min, losses)), max(map(max, losses))
    grid = [[" "] * columns for _ in range(rows)]
    for column in range(columns):
        step = column * (len(losses[0]) - 1) // (columns - 1)
        places = [
            round((high - curve[step]) / ((high - low) or 1) * (rows - 1)) for curve in losses
        ]
        for contestant, row in zip(contestants, places, strict=True):
            grid[row][column] = "*" if len(set(places)) == 1 else contestant.name[0]
    heights = [high - (high - low) * row / (rows - 1) for row in range(rows)]
    return "\n".join(f"{h:7.3f} |{''.join(line)}" for h, line in zip(heights, grid, strict=True))


LEGEND = """
first step: with compilation; step: median; speed: median of the ratios of neighbouring steps;
tensors: peak of gradients, optimizer state and activations; process: peak resident memory, with
all code, and what compiling took"""


def report(options: argparse.Namespace, contestants: Sequence[Contestant]) -> None:
    """Print what came out."""
    first, warm = contestants[0], min(3, options.steps - 1)
    print(f"\nloss over {options.steps} steps ('*': all the same)\n{chart(contestants)}\n")
    titles = zip(("loss", "first step", "step", "speed", "tensors", "process"), WIDTHS, strict=True)
    print(" " * 10 + "".join(f"{title:>{width}}" for title, width in titles), flush=True)
    for contestant in contestants:
        pairs = zip(first.seconds[warm:], contestant.seconds[warm:], strict=True)
        cells = (
            f"{contestant.losses[-1]:.4f}",
            f"{contestant.seconds[0]:.2f} s",
            f"{statistics.median(contestant.seconds[warm:]) * 1e3:.0f} ms",
            f"{statistics.median(theirs / ours for theirs, ours in pairs):.2f}x",
            f"{measure_memory(options, contestant.name, 'tensors'):.0f} MB",
            f"{measure_memory(options, contestant.name, 'process'):.0f} MB",
        )
        row = "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))
        print(f"{contestant.name:<10}{row}", flush=True)
    print(LEGEND)
    for contestant in contestants[1:]:
        off = max(abs(a - b) for a, b in zip(first.losses, contestant.losses, strict=True))
        print(f"\nthe loss of {contestant.name} is off from {first.name}'s by at most {off:.2g}")
    if any(contestant.name == "lynx" for contestant in contestants):
        print(f"the program after every pass lies in {Path(options.dumps).resolve()}")


WIDTHS = (9, 12, 10, 9, 10, 10)
SHARED = ("layers", "width", "heads", "context", "batch", "dropout", "rate", "seed", "dumps")
QUICK = {"steps": 6, "layers": 2, "width": 32, "heads": 2, "context": 16, "batch": 2}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", default="eager,lynx", help="eager or backends, with commas")
    parser.add_argument("--dumps", default=os.environ.get("LYNX_DUMP_DIR", "dumps"))
    parser.add_argument("--quick", action="store_true", help="a tiny model for a few steps")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison, or one measurement in a process of its own."""
    options = parse(arguments)
    if options.measure:
        print(json.dumps(measured(options)))
        return
    names = options.compare.split(",")
    size = sum(p.numel() for p in make_model(options).parameters())
    print(f"a GPT of {size:,} parameters on the standard library's source", flush=True)
    report(options, race(options, names))


if __name__ == "__main__":
    main()
