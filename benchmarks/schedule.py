"""Time steps over a slow link, scheduled and not, and compare the gain with the simulator's.

python -m benchmarks.schedule --recipe fsdp --delay 0.02
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from lynx.backends.reference import call_of, communicators
from lynx.distribution.groups import Group, Groups
from lynx.generators import generator_of, target_of
from lynx.pass_context import pass_context
from lynx.passes import parse_pipeline
from lynx.passes.distribution.machine import Link, MeshTarget, read_target
from lynx.passes.distribution.simulate import simulate
from lynx.runtime import Executable, build
from lynx.settings import read_settings
from tests.processes import run_in_processes
from tests.schedules import RECIPES, local_inputs, local_step

LOWER = "lower,reinplace,plan-memory"
SCHEDULES = {
    "unscheduled": f"split-collectives,{LOWER}",
    "conservative": f"split-collectives,schedule-overlap,{LOWER}",
    "buckets": f"split-collectives,bucket-collectives,prefetch-gathers,schedule-overlap,{LOWER}",
}
REPEATS = 5


class Waiting:
    """Seconds for which the program waited for communication."""

    seconds = 0.0


def slow(group: Group, delay: float, waiting: Waiting) -> None:
    """Let each transfer of a group take longer, and note how long the program waits for it."""
    transfer, submit = group._wait, group.submit

    def delayed(collective: str, where: str, start: Callable[[], Any]) -> None:
        time.sleep(delay)
        transfer(collective, where, start)

    def timed(job: Callable[[], None], given: Any) -> Callable[[], None]:
        finish = submit(job, given)

        def wait() -> None:
            begin = time.perf_counter()
            finish()
            waiting.seconds += time.perf_counter() - begin

        return wait

    group._wait = delayed  # type: ignore[method-assign]  # a slow link
    group.submit = timed  # type: ignore[method-assign]  # a stop watch


def measure(rank: int, recipe: str, delay: float, sizes: dict[str, int]) -> dict[str, Any]:
    """Return the median step, the time of waiting and the simulated step of each schedule."""
    mesh = RECIPES[recipe][1]
    shape = tuple(size for _, size in mesh.axes)
    groups = Groups(init_device_mesh("cpu", shape, mesh_dim_names=mesh.names))
    waiting = Waiting()
    for axes in [(name,) for name in mesh.names]:
        communicators[axes] = groups.group(axes)
    graph = local_step(recipe, rank, 4, **sizes)
    target = calibrated(delay, sizes)
    for axes in [(name,) for name in mesh.names]:
        slow(groups.group(axes), delay, waiting)
    settings = read_settings()
    inputs = local_inputs(graph, rank)
    found: dict[str, Any] = {}
    programs = {}
    for name, passes in SCHEDULES.items():
        machine = target_of(graph, settings.cpu_kernels)
        program: Any = parse_pipeline(passes).run(graph, pass_context(graph, machine))
        programs[name] = build(
            program, call_of, resources={}, native=generator_of(machine, settings)
        )
        result = simulate(program, target)
        found[name] = {"predicted": result.step_time, "hidden": result.exposed}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in SCHEDULES}
    outputs: dict[str, list[torch.Tensor]] = {}
    for _ in range(REPEATS + 1):
        for name, executable in programs.items():
            times[name].append(_timed(executable, inputs, waiting, outputs, name))
    for name, entries in times.items():
        entries = sorted(entries[1:])
        found[name]["step"], found[name]["waited"] = entries[len(entries) // 2]
        found[name]["same"] = all(map(torch.equal, outputs[name], outputs["unscheduled"]))
    return found


def _timed(
    executable: Executable,
    inputs: list[torch.Tensor],
    waiting: Waiting,
    outputs: dict[str, list[torch.Tensor]],
    name: str,
) -> tuple[float, float]:
    waiting.seconds = 0.0
    dist.barrier()
    begin = time.perf_counter()
    results = executable(list(inputs))
    took = time.perf_counter() - begin
    outputs[name] = [tensor.clone() for tensor in results]
    return took, waiting.seconds


def calibrated(delay: float, sizes: dict[str, int]) -> MeshTarget:
    """Return this machine, with all processes at work, and the slow link."""
    target = read_target("cpu-gloo")
    a = torch.randn(sizes["batch"] // 2, sizes["width"])
    b = torch.randn(sizes["width"], sizes["hidden"])
    dist.barrier()
    seconds = []
    for _ in range(12):
        begin = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - begin)
    flops = 2 * a.shape[0] * a.shape[1] * b.shape[1] / sorted(seconds)[len(seconds) // 2]
    together = torch.tensor([flops])
    dist.all_reduce(together)
    flops = float(together) / dist.get_world_size()
    link = Link("slow", delay + target.links[0].latency, target.links[0].bandwidth)
    return dataclasses.replace(target, flops={"f32": flops}, efficiency=1.0, links=(link,))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recipe", default="fsdp", choices=RECIPES)
    parser.add_argument("--delay", type=float, default=0.02, help="seconds for each transfer")
    parser.add_argument("--size", type=int, default=512)
    options = parser.parse_args()
    sizes = {"batch": 2 * options.size, "width": options.size, "hidden": 2 * options.size}
    count = RECIPES[options.recipe][1].device_count
    for rank in range(count):
        local_step(options.recipe, rank, 4, **sizes)
    answers = run_in_processes(count, measure, options.recipe, options.delay, sizes)
    rows = answers[0]
    plain = rows["unscheduled"]
    print(f"{options.recipe}, {count} processes, {options.delay * 1e3:.0f} ms more a transfer")
    print("schedule       step ms  simulated  exposed ms  simulated   gain  simulated  same bits")
    for name, row in rows.items():
        gain = 1 - row["step"] / plain["step"]
        predicted = 1 - row["predicted"] / plain["predicted"]
        same = all(answer[name]["same"] for answer in answers)
        print(
            f"{name:13} {row['step'] * 1e3:8.1f} {row['predicted'] * 1e3:10.1f} "
            f"{row['waited'] * 1e3:11.1f} {row['hidden'] * 1e3:10.1f} "
            f"{gain:6.1%} {predicted:10.1%}  {same}"
        )


if __name__ == "__main__":
    main()
