"""Workloads on another device than the CPU: what is moved there, waiting for it, and its memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.workloads import Inputs, Workload


def on_device(workload: Workload, device: str) -> Workload:
    """Return the workload with its module and inputs on a device, the same numbers everywhere."""
    if device == "cpu":
        return workload

    def make(is_quick: bool) -> tuple[nn.Module, Inputs]:
        module, inputs = workload.make(is_quick)
        for layer in getattr(getattr(module, "cache", None), "layers", ()):
            layer.keys, layer.values = layer.keys.to(device), layer.values.to(device)
        return module.to(device), tuple(x.to(device) for x in inputs)

    return dataclasses.replace(workload, make=make)


def wait(tensors: Inputs) -> None:
    """Wait until the device of these tensors has done what it was told."""
    if tensors and tensors[0].is_cuda:
        torch.cuda.synchronize(tensors[0].device)


def name_of(device: str) -> str:
    """Return what the device calls itself, empty for a CPU."""
    return "" if device == "cpu" else torch.cuda.get_device_name(device)


def memory(make: Callable[[], Any], device: str) -> dict[str, int]:
    """Measure memory of a GPU, in bytes: `make` gives something with a `step` and a `module`.

    `process` is the most that was taken from the device from the start on, `steps` the most that
    was in use in later steps, `tensors` the same beyond what the model takes.
    """
    torch.cuda.reset_peak_memory_stats(device)
    base = torch.cuda.memory_reserved(device)
    contestant = make()
    model = torch.cuda.memory_allocated(device)
    for _ in range(2):
        contestant.step()
    torch.cuda.synchronize(device)
    process = torch.cuda.max_memory_reserved(device) - base
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(3):
        contestant.step()
    torch.cuda.synchronize(device)
    steps = torch.cuda.max_memory_allocated(device)
    return {"process": process, "steps": steps, "model": model, "tensors": steps - model}
