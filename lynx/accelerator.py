"""Find out what a GPU can do, for the passes and back ends that decide by it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from lynx.ir.core import Graph
from lynx.ir.types import DType, TensorType
from lynx.passes import Target

_OLDEST = 7
"""The compute capability from which on Triton has code for NVIDIA's devices."""

_CLOCK = 1.5e9
_LANES = 128
"""Units of multiply and add in one multiprocessor; AMD's have as many, two for each of 64 lanes."""


def accelerator_of(graph: Graph) -> str:
    """Return the first device in the order of the graph that is no CPU, empty if there is none."""
    values = (*graph.inputs, *(result for op in graph.ops for result in op.results))
    for value in values:
        if isinstance(value.type, TensorType) and value.type.device not in ("cpu", "meta"):
            return value.type.device
    return ""


def accelerator(device: str, *, has_triton: bool) -> Target:
    """Return the target of a device; kernels are generated for those that Triton knows.

    Never raises: of a device that is not there, as in a graph read from a file, nothing is known.
    """
    kind = device.partition(":")[0]
    if kind != "cuda":
        return Target(device=kind)
    if not torch.cuda.is_available() or _number(device) >= torch.cuda.device_count():
        return Target(
            device=kind, launches=True, generates_code=has_triton, has_attention=has_triton
        )
    return _described(_number(device), has_triton)


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)


@functools.cache
def _described(number: int, has_triton: bool) -> Target:
    properties = torch.cuda.get_device_properties(number)
    is_amd = torch.version.hip is not None
    low = {DType.F16} if is_amd or properties.major >= _OLDEST else set()
    with torch.cuda.device(number):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            low.add(DType.BF16)
    return describe(properties, is_amd=is_amd, native=frozenset(low), has_triton=has_triton)


def describe(
    properties: Any, *, is_amd: bool, native: frozenset[DType], has_triton: bool
) -> Target:
    """Return the target of a device with these properties, as torch names them."""
    cores = properties.multi_processor_count
    second = getattr(properties, "L2_cache_size", 0) or Target().caches[2]
    shared = getattr(properties, "shared_memory_per_multiprocessor", 0) or 64 << 10
    clock = getattr(properties, "clock_rate", 0) * 1e3 or _CLOCK
    width = getattr(properties, "memory_bus_width", 0) / 8
    bandwidth = 2 * width * getattr(properties, "memory_clock_rate", 0) * 1e3
    if is_amd:
        architecture = properties.gcnArchName.partition(":")[0]
    else:
        architecture = f"sm_{properties.major}{properties.minor}"
    return Target(
        device="cuda",
        architecture=architecture,
        cores=cores,
        caches=(shared, second, second),
        bandwidth=bandwidth or 1e12,
        flops=cores * _LANES * 2 * clock,
        native_products=native,
        generates_code=has_triton and (is_amd or properties.major >= _OLDEST),
        has_attention=has_triton and (is_amd or properties.major >= _OLDEST),
        launches=True,
    )
