"""One measurement in a process of its own: speed, compile time, memory. Used by the suite.

    python -m benchmarks.measure '{"task": "speed", "workload": "tiny", "backends": ["lynx"]}'

The last line of what it prints is the result in JSON.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.devices import memory as device_memory
from benchmarks.devices import name_of, on_device, wait
from benchmarks.memory import HighWater, peak_of_tensors, resident
from benchmarks.workloads import WORKLOADS, Inputs, Workload

Result = dict[str, Any]
NUDGES = 3
"""Runs of eager, moved by roundings, that tell how large an error it makes."""

SLICE_SECONDS = 0.05
"""A contestant's turn takes about so long: steps that are shorter are repeated."""


class Contestant:
    """One way to run a workload, with a model of its own.

    `backend` is the name of a back end, with a mode of `torch.compile` after a colon or without.
    """

    def __init__(self, backend: str, workload: Workload, module: nn.Module, inputs: Inputs) -> None:
        self.backend = backend
        self.trains = workload.trains
        self.module = module
        self.inputs = inputs
        self.run: Callable[..., Tensor] = _compiled(module, backend)

    def step(self) -> Tensor:
        """Run forward, and backward if it trains."""
        if not self.trains:
            with torch.no_grad():
                return self.run(*self.inputs)
        self.module.zero_grad(set_to_none=True)
        result = self.run(*self.inputs)
        result.backward()
        return result

    def results(self) -> dict[str, Tensor]:
        """Run a step and return its result and all gradients by name."""
        found = {"output": self.step().detach().clone()}
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                found[name] = parameter.grad.clone()
        return found

    def turn(self, repeats: int) -> float:
        """Return the seconds of one step, as the mean of a few, until the device is done."""
        wait(self.inputs)
        start = time.perf_counter()
        for _ in range(repeats):
            self.step()
        wait(self.inputs)
        return (time.perf_counter() - start) / repeats


def _compiled(module: nn.Module, backend: str) -> Callable[..., Any]:
    if backend == "eager":
        return module
    name, _, mode = backend.partition(":")
    return torch.compile(module, backend=name, mode=mode or None)


def exact(workload: Workload, is_quick: bool) -> dict[str, Tensor]:
    """Return what a step gives in double precision."""
    module, inputs = workload.build(is_quick)
    buffers = list(getattr(getattr(module, "cache", None), "layers", ()))
    for layer in buffers:  # caches of keys and values are no part of the module
        layer.keys, layer.values = layer.keys.double(), layer.values.double()
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    return Contestant("eager", workload, module.double(), wide).results()


def nudged(workload: Workload, is_quick: bool, seed: int) -> dict[str, Tensor]:
    """Return what eager gives if each number of model and inputs is off by a unit or by none.

    Where an activation is close to its edge, as some of thousands are, any rounding moves it across
    and changes gradients by far more than the rounding.
    """
    module, inputs = workload.build(is_quick)
    generator = torch.Generator().manual_seed(seed)
    floats = [x for x in inputs if x.is_floating_point()]
    with torch.no_grad():
        for x in (*module.parameters(), *floats):
            step = torch.randint(-1, 2, x.shape, generator=generator).to(x.device)
            x.mul_(1 + step * torch.finfo(x.dtype).eps)
    return Contestant("eager", workload, module, inputs).results()


def errors(
    given: dict[str, Tensor], eager: Sequence[dict[str, Tensor]], reference: dict[str, Tensor]
) -> Result:
    """Compare with double precision and with runs of eager.

    `error` is the largest difference relative to the largest number of its tensor, `times_eager`
    the largest ratio of that and the largest of eager's own errors plus one unit in the last place.
    Gradients that are zero but for rounding, such as those of the bias of keys, count relative to
    the others.
    """
    worst = ratio = 0.0
    least = 1e-3 * max(right.abs().max().item() for right in reference.values())
    missing = sorted(set(eager[0]) ^ set(given))
    for name, right in reference.items():
        if name not in given or name not in eager[0]:
            continue
        scale = max(right.abs().max().item(), least) or 1.0
        ours, *theirs = (
            ((x[name].double() - right).abs().max() / scale).item() for x in (given, *eager)
        )
        worst = max(worst, ours)
        ratio = max(ratio, ours / (max(theirs) + torch.finfo(eager[0][name].dtype).eps))
    return {"error": worst, "times_eager": ratio, "missing": missing}


def speed(options: Result, workload: Workload) -> Result:
    """Time all backends in turn, round by round, after a check of what they compute."""
    is_quick = options.get("quick", False)
    names = ["eager", *(name for name in options["backends"] if name != "eager")]
    contestants = [Contestant(name, workload, *workload.build(is_quick)) for name in names]
    reference = exact(workload, is_quick)
    given = {c.backend: c.results() for c in contestants}
    eager = [given["eager"], *(nudged(workload, is_quick, seed) for seed in range(NUDGES))]
    checks = {c.backend: errors(given[c.backend], eager, reference) for c in contestants}
    del given, reference, eager
    repeats = {}
    for contestant in contestants:
        contestant.turn(2)
        seconds = min(contestant.turn(1) for _ in range(2))
        repeats[contestant.backend] = max(1, min(200, round(SLICE_SECONDS / seconds)))
    rounds = _rounds(contestants, repeats, options["rounds"])
    found = {"checks": checks, "seconds": rounds, "repeats": repeats}
    device = name_of(options.get("device", "cpu"))
    return {**found, "left_to_torch": fallbacks(), "device": device}


def fallbacks() -> list[str]:
    """Return why Lynx left graphs to torch; this module must not load Lynx, which is measured."""
    records = sys.modules.get("lynx.records")
    if records is None:
        return []
    return [record.fallback for record in records.RECORDS.graphs if record.fallback]


def _rounds(
    contestants: Sequence[Contestant], repeats: dict[str, int], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of a step of each contestant in each round; the order rotates."""
    seconds: dict[str, list[float]] = {c.backend: [] for c in contestants}
    gc.collect()
    gc.disable()
    for index in range(rounds):
        first = index % len(contestants)
        order = [*contestants[first:], *contestants[:first]]
        for contestant in order if index % 2 else order[::-1]:
            seconds[contestant.backend].append(contestant.turn(repeats[contestant.backend]))
        show(f"{contestants[0].backend} and others, round {index + 1} of {rounds}")
        gc.collect()
    gc.enable()
    return seconds


def start(options: Result, workload: Workload) -> Result:
    """Time the first step of a process, with whatever caches there are, and the next ones."""
    contestant = Contestant(options["backend"], workload, *workload.build(options.get("quick", 0)))
    begin = time.perf_counter()
    contestant.step()
    wait(contestant.inputs)
    first = time.perf_counter() - begin
    second = contestant.turn(1)
    steady = min(contestant.turn(1) for _ in range(3))
    left = fallbacks()
    return {"first": first, "second": second, "steady": steady, "left_to_torch": left}


def memory(options: Result, workload: Workload) -> Result:
    """Measure the memory of a process beyond what it takes with all libraries, in bytes.

    `process` is the peak from there on with model and compiling, `steps` the peak of later steps
    over the same base, `tensors` that of what torch's allocator handed out after the model was
    made.
    """
    backend, is_quick = options["backend"], options.get("quick", False)
    _import_everything(backend)
    device = options.get("device", "cpu")
    if device != "cpu":
        return device_memory(
            lambda: Contestant(backend, workload, *workload.build(is_quick)), device
        )
    base = resident()
    whole = HighWater()
    contestant = Contestant(backend, workload, *workload.build(is_quick))
    model = resident() - base
    contestant.step()
    contestant.step()
    gc.collect()
    process = whole.peak()
    later = HighWater()
    for _ in range(3):
        contestant.step()
    steps = later.peak()
    contestant.module.zero_grad(set_to_none=True)
    tensors = peak_of_tensors(contestant.step)
    return {
        "process": process - base,
        "steps": steps - base,
        "model": model,
        "tensors": tensors,
    }


def _import_everything(backend: str) -> None:
    """Compile and run something small, so that what is loaded for it counts as a library."""
    layer = nn.Linear(4, 4)
    function = _compiled(layer, backend)
    function(torch.randn(2, 4)).sum().backward()
    torch._dynamo.reset()
    gc.collect()


Task = Callable[[Result, Workload], Result]
TASKS: Mapping[str, Task] = {
    "speed": speed,
    "start": start,
    "memory": memory,
}


def show(text: str) -> None:
    """Show a line on a terminal in place of the one before."""
    if sys.stderr.isatty():
        print(f"\r  {text}\033[K", end="", file=sys.stderr, flush=True)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def main(arguments: Sequence[str], tasks: Mapping[str, Task] = TASKS) -> None:
    """Run the task that the argument describes and print its result."""
    options = json.loads(arguments[0])
    torch.set_num_threads(options.get("threads", 2))
    torch.manual_seed(0)
    workload = on_device(WORKLOADS[options["workload"]], options.get("device", "cpu"))
    print(json.dumps(tasks[options["task"]](options, workload)))


if __name__ == "__main__":
    main(sys.argv[1:])
