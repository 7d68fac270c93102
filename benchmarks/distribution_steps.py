"""Time training steps on several processes: Lynx next to DDP, FSDP2 and DTensor's own propagation.

    python -m benchmarks.distribution_steps
    python -m benchmarks.distribution_steps --processes 4 --rounds 20

Each recipe trains the GPT of the examples twice from the same weights on the same batches: by a
plan of Lynx, and by what torch has for it, eager. They take turns step by step in the same
processes. A step is forward, backward and AdamW, and lasts until the last process is done.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import lynx
from benchmarks.launch import is_launched, launched

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

from train_distributed import RECIPES as PLANS
from train_gpt import GPT, VOCABULARY, Attention

FOLDER = Path(__file__).parent / "results"
WARMUP = 3


class PartAttention(nn.Module):
    """The example's attention, where projections give a process some of the heads."""

    def __init__(self, whole: Attention, processes: int) -> None:
        super().__init__()
        self.project_in, self.project_out = whole.project_in, whole.project_out
        self.depth = self.project_out.in_features // whole.heads
        self.register_buffer("visible", whole.visible)
        # Each process holds queries, keys and values of its heads one after the other.
        rows = torch.arange(len(self.project_in.weight)).view(3, processes, -1)
        rows = rows.transpose(0, 1).reshape(-1)
        with torch.no_grad():
            self.project_in.weight.copy_(self.project_in.weight[rows])
            self.project_in.bias.copy_(self.project_in.bias[rows])

    def forward(self, x: Tensor) -> Tensor:
        """Return what the heads of this process see, projected and summed."""
        batch, length, _ = x.shape
        query, key, value = (
            part.view(batch, length, -1, self.depth).transpose(1, 2)
            for part in self.project_in(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-2, -1) / self.depth**0.5
        scores = scores.masked_fill(~self.visible[:length, :length], float("-inf"))
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch, length, -1)
        return self.project_out(mixed)  # type: ignore[no-any-return]


@dataclass
class Contestant:
    """One way to train the model: `rows` says which part of a batch a process takes."""

    name: str
    model: nn.Module
    rows: Callable[[Tensor], Tensor]
    averages: bool = False
    seconds: list[float] = field(default_factory=list)
    optimizing: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The fused optimizer takes distributed and plain tensors, but not at once.
        groups: dict[bool, list[nn.Parameter]] = {}
        for parameter in self.model.parameters():
            groups.setdefault(isinstance(parameter, DTensor), []).append(parameter)
        each = [{"params": group} for group in groups.values()]
        self.optimizer = torch.optim.AdamW(each, lr=1e-3, fused=True)

    def step(self, tokens: Tensor, targets: Tensor) -> None:
        """Take a step, which begins and ends for all processes at once."""
        dist.barrier()
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.model(self.rows(tokens), self.rows(targets))
        loss.backward()
        middle = time.perf_counter()
        self.optimizer.step()
        end = time.perf_counter()
        took = torch.tensor([end - start, end - middle])
        dist.all_reduce(took, dist.ReduceOp.MAX)
        self.seconds.append(float(took[0]))
        self.optimizing.append(float(took[1]))
        whole = loss.detach()
        whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
        if self.averages:
            dist.all_reduce(whole)
            whole = whole / dist.get_world_size()
        self.losses.append(float(whole))


def whole_batch(x: Tensor) -> Tensor:
    """Take all rows: the model cuts them, or nothing does."""
    return x


def own_rows(x: Tensor) -> Tensor:
    """Take the rows of this process."""
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def by_lynx(model: GPT, recipe: str) -> Contestant:
    """Train by the plan of the example."""
    chosen = PLANS[recipe]
    axes = chosen.axes(dist.get_world_size())
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    names = {"tokens": chosen.inputs, "targets": chosen.inputs}
    options = {"strict": True}
    parallel = lynx.parallelize(model, mesh, chosen.plan, inputs=names, options=options)
    return Contestant("lynx", parallel, whole_batch)


def by_ddp(model: GPT, mesh: DeviceMesh) -> Contestant:
    """Train replicas, whose gradients are averaged in buckets while backward runs."""
    return Contestant("DDP", DistributedDataParallel(model), own_rows, averages=True)


def by_fsdp(model: GPT, mesh: DeviceMesh) -> Contestant:
    """Shard each block, and what is around them."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Contestant("FSDP2", model, own_rows, averages=True)


def by_dtensor(model: GPT, mesh: DeviceMesh) -> Contestant:
    """Cut projections by heads and hidden units, as Megatron does."""
    for block in model.blocks:
        block.attention = PartAttention(block.attention, mesh.size())
        plan = {
            "attention.project_in": ColwiseParallel(),
            "attention.project_out": RowwiseParallel(),
            "network.0": ColwiseParallel(),
            "network.2": RowwiseParallel(),
        }
        parallelize_module(block, mesh, plan)
    return Contestant("DTensor", model, whole_batch)


RIVALS: dict[str, Callable[[GPT, DeviceMesh], Contestant]] = {
    "ddp": by_ddp,
    "fsdp": by_fsdp,
    "tp": by_dtensor,
}


def measure(options: argparse.Namespace) -> None:
    """Run as one of several processes; the first writes JSON."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for recipe in options.recipes.split(","):
        torch.manual_seed(0)
        model = GPT(options.layers, options.width, options.heads, options.context, 0.0)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        rival = RIVALS[recipe](copy.deepcopy(model), mesh)
        ours = by_lynx(copy.deepcopy(model), recipe)
        both = (ours, rival)
        batches = torch.randint(
            VOCABULARY, (WARMUP + options.rounds, options.batch, options.context + 1)
        )
        for number, batch in enumerate(batches):
            for contestant in both if number % 2 else both[::-1]:
                contestant.step(batch[:, :-1], batch[:, 1:])
        results[recipe] = {one.name: _measured(one) for one in both}
    if dist.get_rank() == 0:
        Path(options.out).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def _measured(one: Contestant) -> dict[str, list[float]]:
    return {
        "seconds": one.seconds[WARMUP:],
        "optimizing": one.optimizing[WARMUP:],
        "losses": one.losses,
    }


def table(results: dict[str, Any]) -> str:
    """Return a table in Markdown: medians, and of the ratio the quartiles too."""
    lines = [
        "| recipe | Lynx ms | optimizer | other | ms | optimizer | other / Lynx | losses apart |",
        "| :-- | --: | --: | :-- | --: | --: | --: | --: |",
    ]
    for recipe, measured in results.items():
        (ours, (name, theirs)) = (
            measured["lynx"],
            next(pair for pair in measured.items() if pair[0] != "lynx"),
        )
        ratios = [b / a for a, b in zip(ours["seconds"], theirs["seconds"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        pairs = zip(ours["losses"], theirs["losses"], strict=True)
        apart = max(abs(a - b) / abs(b) for a, b in pairs)
        cells = [
            f"{statistics.median(one[key]) * 1e3:.1f}"
            for one in (ours, theirs)
            for key in ("seconds", "optimizing")
        ]
        lines.append(
            f"| {recipe} | {cells[0]} | {cells[1]} | {name} | {cells[2]} | {cells[3]} "
            f"| {middle:.2f} ({low:.2f} to {high:.2f}) | {apart:.0e} |"
        )
    return "\n".join(lines)


def report(results: dict[str, Any], options: argparse.Namespace) -> str:
    """Return the page of results."""
    return (
        "# Steps on several processes\n\n"
        f"{options.processes} processes of one thread each on {os.cpu_count()} cores, which "
        f"communicate by Gloo, torch {torch.__version__}\n\n"
        f"The GPT of the examples with {options.layers} layers of width {options.width}, "
        f"{options.heads} heads, {options.batch} sequences of {options.context} bytes a step. Each "
        "row is one run, in which both take\nturns; `other / Lynx` is the median of the ratios of "
        "neighbouring steps, with its quartiles: more than 1 means that Lynx is faster. A step "
        "includes AdamW (`fused=True`), whose\nshare is given too. `losses apart` is the largest "
        "relative difference of losses.\n\n"
        f"{table(results)}\n"
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--recipes", default=",".join(RIVALS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--folder", default="", help="write the page there, not just to the screen")
    parser.add_argument("--out", default="", help="where the processes leave what they found")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Start the processes, and print what they found."""
    options = parse(arguments)
    if is_launched():
        measure(options)
        return 0
    code, results = launched("benchmarks.distribution_steps", arguments, options.processes)
    if code == 0:
        print(report(results, options))
        if options.folder:
            page = Path(options.folder) / "distribution-steps.md"
            page.write_text(report(results, options), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
