"""Compile kernels for the devices of this machine before they are launched, side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton.language as tl

from lynx.ir.kernel import Buffer

from .dtypes import torch_type
from .launch import current_device, load_module
from .module import PrintedModule
from .printer import PrintedStage
from .sizes import estimate
from .threads import parsed_again

MOST_THREADS = 16


def precompile(modules: Sequence[tuple[PrintedModule, str]]) -> list[Exception | None]:
    """Compile modules, each for a device, and load them there; return what went wrong with each.

    Triton compiles outside of Python's lock, so threads run side by side. What is compiled is what
    a launch on aligned tensors of common sizes will ask for.
    """
    jobs = [
        (place, printed, stage, device)
        for place, (printed, device) in enumerate(modules)
        for stage in printed.stages
    ]
    if not jobs:
        return [None for _ in modules]
    found: list[Exception | None] = [None for _ in modules]
    threads = min(len(jobs), os.cpu_count() or 1, MOST_THREADS)
    with ThreadPoolExecutor(threads, thread_name_prefix="lynx-triton") as pool:
        done = pool.map(lambda job: _compiled(*job[1:]), jobs)
        for (place, _, _, device), kernel in zip(jobs, done, strict=True):
            if isinstance(kernel, Exception):
                found[place] = found[place] or kernel
                continue
            try:
                with current_device(torch.device(device)):
                    kernel._init_handles()  # loads it, or tells that the device has too little
            except Exception as error:  # whatever the driver may raise
                found[place] = found[place] or error
    return found


def _compiled(printed: PrintedModule, stage: PrintedStage, device: str) -> Any:
    """Return a compiled kernel of Triton, or the error."""
    try:
        function = load_module(printed.text, printed.name)[stage.name]
        with current_device(torch.device(device)):
            given = [_stand_in(parameter.stands_for) for parameter in stage.parameters]
            constants = {k: tl.int32 if k == "INDEX" else v for k, v in stage.constants.items()}
            return parsed_again(
                lambda: function.warmup(*given, grid=(1,), **constants, **stage.options)
            )
    except Exception as error:  # the compiler of Triton raises what its passes do
        return error


def _stand_in(stands_for: Any) -> Any:
    """Return what Triton takes for a parameter: the type of a tensor, or a number."""
    if stands_for is None:
        return torch.int32
    if isinstance(stands_for, Buffer):
        return torch_type(stands_for.dtype)
    return estimate(stands_for)
