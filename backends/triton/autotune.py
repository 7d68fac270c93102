"""Measure schedules where that is asked for, and remember what was fastest.

A measurement picks among schedules of one kernel, or between a kernel and the library: it never
changes what is computed where, so ranks that measure differently still run the same program.
Results are kept in the artifact store, by kernel and device.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.testing

from lynx.ir.kernel import Kernel
from lynx.ir.store import ArtifactStore

from .launch import TritonKernel, launchable, load_module
from .matmul import contraction_of, product_candidates
from .module import PrintedModule, print_product_module, print_staged
from .schedule import Schedule, candidates, choose
from .stages import stage

Measure = Callable[[Callable[[], None]], float]
"""Returns how long a call takes, in any unit."""

KIND = "triton-schedule"


def device_time(call: Callable[[], None]) -> float:
    """Return the median time of a call on the device, in milliseconds."""
    return float(triton.testing.do_bench(call, warmup=5, rep=20, return_mode="median"))


def fastest(
    calls: Sequence[Callable[[], None]],
    key: str,
    store: ArtifactStore | None,
    measure: Measure = device_time,
) -> int:
    """Return the index of the fastest call: the remembered one, or else by measurement.

    A call that raises, as one whose tile needs more memory than there is, is out. The first one is
    taken where all raise.
    """
    path = store.find(KIND, key) if store is not None else None
    if path is not None:
        remembered = _read(path.read_bytes(), len(calls))
        if remembered is not None:
            return remembered
    times = [_time(call, measure) for call in calls]
    best = min(range(len(calls)), key=lambda index: (times[index], index))
    if store is not None:
        store.put(KIND, key, json.dumps({"fastest": best, "of": len(calls)}).encode())
    return best


def _read(data: bytes, count: int) -> int | None:
    """Return the remembered index if it was among as many."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    valid = isinstance(found, dict) and found.get("of") == count
    index = found.get("fastest") if valid else None
    return index if isinstance(index, int) and 0 <= index < count else None


def _time(call: Callable[[], None], measure: Measure) -> float:
    try:
        return measure(call)
    except (triton.TritonError, RuntimeError):
        return float("inf")


def measurement_key(printed: PrintedModule, device: str, sizes: Sequence[int]) -> str:
    """Return the key of a measurement: of the text without comments, versions and device.

    Sizes count by their magnitude only, so that a new batch size is rarely measured anew.
    """
    text = re.sub(r"^\s*#.*\n", "", printed.text, flags=re.MULTILINE)
    magnitudes = [size.bit_length() for size in sizes]
    parts = (text, device, triton.__version__, magnitudes)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def autotune(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    sizes: Mapping[str, int],
    store: ArtifactStore | None = None,
    *,
    is_deterministic: bool = False,
    measure: Measure = device_time,
    device: str = "",
) -> TritonKernel:
    """Return a kernel with the schedules that are fastest on tensors like these, stage by stage.

    What is written is written to copies. `device` is the name under which results are kept.
    """
    staged = stage(kernel, is_deterministic=is_deterministic)
    chosen = [choose(part) for part in staged.stages]
    scratch = _copies(kernel, tensors)
    values = [sizes[symbol] for symbol in kernel.symbols]

    def printed_with(place: int, schedule: Schedule) -> PrintedModule:
        schedules = tuple(schedule if i == place else s for i, s in enumerate(chosen))
        return print_staged(kernel, staged, is_deterministic=is_deterministic, schedules=schedules)

    name = device or _device_name(tensors)
    for place, part in enumerate(staged.stages):
        options = candidates(part)
        modules = [printed_with(place, schedule) for schedule in options]
        calls = [_call(module, scratch, values) for module in modules]
        key = measurement_key(modules[0], f"{name} stage {place}", values)
        chosen[place] = options[fastest(calls, key, store, measure)]
    return launchable(kernel, is_deterministic=is_deterministic, schedules=tuple(chosen))


def autotune_product(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    sizes: Mapping[str, int],
    library: Callable[[Sequence[torch.Tensor]], None],
    store: ArtifactStore | None = None,
    *,
    allow_tf32: bool = False,
    measure: Measure = device_time,
    device: str = "",
) -> TritonKernel | None:
    """Return the fastest tiled product for a kernel, None where the library is not slower.

    `library` computes the same into the same tensors. None too if the kernel is no matrix product.
    """
    contraction = contraction_of(kernel)
    if isinstance(contraction, str):
        return None
    options = [replace(one, tf32=allow_tf32) for one in product_candidates(contraction)]
    modules = [print_product_module(contraction, schedule) for schedule in options]
    scratch = _copies(kernel, tensors)
    values = [sizes[symbol] for symbol in kernel.symbols]
    calls: list[Callable[[], None]] = [lambda: library(scratch)]
    calls.extend(_call(module, scratch, values) for module in modules)
    key = measurement_key(modules[0], f"{device or _device_name(tensors)} product", values)
    best = fastest(calls, key, store, measure)
    if best == 0:
        return None
    printed = modules[best - 1]
    return TritonKernel(printed, kernel.symbols, load_module(printed.text, printed.name))


def _call(
    printed: PrintedModule, tensors: Sequence[torch.Tensor], values: Sequence[int]
) -> Callable[[], None]:
    def call() -> None:
        failures: Any = None
        if printed.messages:
            failures = torch.zeros(
                len(printed.messages), dtype=torch.int32, device=tensors[0].device
            )
        load_module(printed.text, printed.name)["run"](*tensors, failures, *values)

    return call


def _copies(kernel: Kernel, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    pairs = zip(kernel.buffers, tensors, strict=True)
    return [tensor.clone() if buffer.is_written else tensor for buffer, tensor in pairs]


def _device_name(tensors: Sequence[torch.Tensor]) -> str:
    device = tensors[0].device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
