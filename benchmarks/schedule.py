"""Train a GPT over a slow link, scheduled and not, and compare the gain with the simulator's.

    python -m benchmarks.schedule
    python -m benchmarks.schedule --recipes fsdp,2d --processes 4 --delay 0.005

The GPT of the examples runs forward and backward by each recipe, compiled once for each schedule,
in turns, from the same weights on the same batch. Every message takes `delay` seconds longer: an
algorithm whose steps wait for each other pays it in each step. Lynx is told so by a description of
the machine, as a user would, with a speed of computation measured while all processes work.
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
from torch.distributed.tensor import DTensor

import lynx
from benchmarks.launch import is_launched, launched
from lynx.distribution.groups import Group
from lynx.passes import Pipeline, parse_pipeline
from lynx.passes.distribution.machine import read_target
from lynx.passes.distribution.simulate import simulate
from lynx.records import RECORDS

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

from train_distributed import RECIPES, Recipe, cut_sequences
from train_gpt import GPT, VOCABULARY

WITHOUT = {
    "as written": ("start-buckets", "schedule-overlap"),
    "no buckets": ("start-buckets",),
    "default": (),
}
"""The passes that each schedule leaves out of the default pipeline."""
WARMUP = 2


def pipeline_without(names: Sequence[str]) -> str:
    """Return the text of the default pipeline without some of its passes."""
    passes = parse_pipeline("default").passes
    return str(Pipeline(tuple(one for one in passes if one.name not in names)))


@dataclass
class Link:
    """What is between the processes: each message takes `delay` seconds longer.

    `waited` are the seconds for which this process has waited for communication.
    """

    delay: float
    waited: float = 0.0

    def steps(self, collective: str, size: int) -> int:
        """Return how many messages wait for each other in a collective of a group."""
        return 2 if collective == "all_reduce" and size == 2 else size - 1

    def slow_down(self) -> None:
        """Put the link between all processes from now on."""
        transfer, submit = Group._wait, Group.submit

        def delayed(group: Group, collective: str, where: str, start: Callable[[], Any]) -> None:
            time.sleep(self.delay * self.steps(collective, group.size))
            transfer(group, collective, where, start)

        def timed(group: Group, job: Any, given: Any) -> Callable[[], None]:
            finish = submit(group, job, given)

            def wait() -> None:
                begin = time.perf_counter()
                finish()
                self.waited += time.perf_counter() - begin

            return wait

        Group._wait = delayed  # type: ignore[method-assign]  # a slow link
        Group.submit = timed  # type: ignore[method-assign]  # a stop watch


@dataclass
class Contestant:
    """A model with one schedule: what its steps take, and what they give."""

    name: str
    model: nn.Module
    predicted: tuple[float, float] = (0.0, 0.0)
    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)

    def step(self, tokens: Tensor, targets: Tensor, link: Link) -> None:
        """Run forward and backward, which begin for all processes at once."""
        self.model.zero_grad()
        dist.barrier()
        link.waited, start = 0.0, time.perf_counter()
        loss = self.model(tokens, targets)
        loss.backward()
        self.seconds.append(time.perf_counter() - start)
        self.waited.append(link.waited)
        given = (loss, *(parameter.grad for parameter in self.model.parameters()))
        self.results = [_local(one).clone() for one in given if one is not None]


def _local(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def measure(options: argparse.Namespace) -> None:
    """Run as one of several processes; the first writes JSON."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    file = f"{options.out}.toml"
    calibrate(file, options)
    link = Link(options.delay)
    link.slow_down()
    found = {name: _measured(name, file, link, options) for name in options.recipes.split(",")}
    if dist.get_rank() == 0:
        Path(options.out).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _measured(
    name: str, machine: str, link: Link, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Return for each schedule of a recipe what was simulated and measured."""
    recipe = RECIPES[name]
    axes = recipe.axes(dist.get_world_size())
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    torch.manual_seed(0)
    model = GPT(options.layers, options.width, options.heads, options.context, 0.0)
    shape = (options.batch, options.context + 1)
    batch = torch.randint(VOCABULARY, shape)
    tokens, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    delay, link.delay = link.delay, 0.0
    all_ = [_contestant(copy.deepcopy(model), one, recipe, mesh, machine) for one in WITHOUT]
    for one in all_:
        before = len(RECORDS.graphs)
        one.step(tokens, targets, link)
        target = read_target(machine)
        plays = [simulate(record.program, target) for record in RECORDS.graphs[before:]]
        one.predicted = (sum(p.step_time for p in plays), sum(p.exposed for p in plays))
    link.delay = delay
    for _ in range(WARMUP + options.rounds):
        for one in all_:
            one.step(tokens, targets, link)
    return {one.name: _numbers(one, all_[0]) for one in all_}


def _contestant(
    model: GPT, name: str, recipe: Recipe, mesh: DeviceMesh, machine: str
) -> Contestant:
    if recipe.sequence:
        cut_sequences(model, recipe.sequence)
    names = {"tokens": recipe.inputs, "targets": recipe.inputs}
    pipeline = pipeline_without(WITHOUT[name])
    options = {"strict": True, "pipeline": pipeline, "machine": machine}
    return Contestant(
        name, lynx.parallelize(model, mesh, recipe.plan, inputs=names, options=options)
    )


def _numbers(one: Contestant, first: Contestant) -> dict[str, Any]:
    same = torch.tensor([all(map(torch.equal, one.results, first.results))], dtype=torch.int32)
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return {
        "step": statistics.median(one.seconds[1 + WARMUP :]),
        "exposed": statistics.median(one.waited[1 + WARMUP :]),
        "predicted step": one.predicted[0],
        "predicted exposed": one.predicted[1],
        "same": bool(same),
    }


def calibrate(file: str, options: argparse.Namespace) -> None:
    """Write the description of this machine with all processes at work, and of the slow link."""
    usual = read_target("cpu-gloo")
    rows = options.batch * options.context // 2
    a, b = torch.randn(rows, options.width), torch.randn(options.width, 4 * options.width)
    flops = 2 * a.shape[0] * b.numel() / _seconds(lambda: torch.mm(a, b))
    x = torch.randn(rows * 4 * options.width)
    y = torch.empty_like(x)
    moved = 2 * x.numel() * x.element_size() / _seconds(lambda: torch.mul(x, 2.0, out=y))
    rates = torch.tensor([flops, moved])
    dist.all_reduce(rates)
    flops, moved = (rates / dist.get_world_size()).tolist()
    latency = options.delay + usual.links[0].latency
    if dist.get_rank() == 0:
        Path(file).write_text(
            f'name = "slow"\nefficiency = 1.0\nmemory_bandwidth = {moved}\n'
            f"launch = {usual.launch}\n[flops]\nf32 = {flops}\n"
            f'[[links]]\nname = "slow"\nlatency = {latency}\n'
            f"bandwidth = {usual.links[0].bandwidth}\n"
        )
    dist.barrier()


def _seconds(run: Callable[[], Any]) -> float:
    """Return how long something takes while all processes do it."""
    dist.barrier()
    seconds = []
    for _ in range(20):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return statistics.mean(seconds[4:])


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Return a table in Markdown, times in milliseconds."""
    lines = [
        "| recipe | schedule | step | simulated | exposed | simulated | gain | simulated | bits |",
        "| :-- | :-- | --: | --: | --: | --: | --: | --: | :-- |",
    ]
    for recipe, rows in results.items():
        plain = rows["as written"]
        for name, row in rows.items():
            gain = 1 - row["step"] / plain["step"]
            predicted = 1 - row["predicted step"] / plain["predicted step"]
            keys = ("step", "predicted step", "exposed", "predicted exposed")
            times = " | ".join(f"{row[key] * 1e3:.1f}" for key in keys)
            bits = "the same" if row["same"] else "OTHER"
            lines.append(f"| {recipe} | {name} | {times} | {gain:.1%} | {predicted:.1%} | {bits} |")
    return "\n".join(lines)


def report(results: dict[str, Any], options: argparse.Namespace) -> str:
    """Return the page of results."""
    return (
        "# Schedules over a slow link\n\n"
        f"{options.processes} processes of one thread each on {os.cpu_count()} cores, which "
        f"communicate by Gloo, torch {torch.__version__}; every message takes\n"
        f"{options.delay * 1e3:g} ms longer. The GPT of the examples with {options.layers} layers "
        f"of width {options.width}, {options.batch} sequences of {options.context} bytes a step, "
        "forward and backward.\n\nTimes are medians in milliseconds. `exposed` is how long the "
        "program waits for communication; `as written` starts each\ncollective where it stands and "
        "waits for it there; `no buckets` moves starts and waits; `default` has buckets too.\n"
        "`gain` is the part of the step that is saved. `bits` compares loss and all gradients.\n\n"
        f"{table(results)}\n"
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--recipes", default="fsdp,2d")
    parser.add_argument("--delay", type=float, default=0.005, help="seconds for each message")
    parser.add_argument("--rounds", type=int, default=7)
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
    code, results = launched("benchmarks.schedule", arguments, options.processes)
    if code == 0:
        print(report(results, options))
        if options.folder:
            page = Path(options.folder) / "distribution-schedule.md"
            page.write_text(report(results, options), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
