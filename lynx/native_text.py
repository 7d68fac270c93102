"""Describe the native part of a program: its segments, the calls in them, and what fell back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lynx.ir.dims import Dim, format_dim, product
from lynx.ir.kernel import Kernel
from lynx.ir.location import Location
from lynx.ir.native import KernelCall, NativeCall, ProductCall
from lynx.passes.plan_memory import format_bytes
from lynx.runtime import NativeProgram

_PLACES = 3
"""Places in the model that are named for one kernel."""


def describe_native(native: NativeProgram) -> Iterator[str]:
    """Yield a line for each segment, and below it one for each kernel or product that it runs."""
    for placed in native.segments:
        calls = placed.segment.calls
        kernels = sum(isinstance(call, KernelCall) for call in calls)
        yield f"{placed.segment.name}: {kernels} kernels, {len(calls) - kernels} products"
        for call in calls:
            yield f"  {_describe(call)}"
    for failure in native.failures:
        yield f"did not build: {failure.splitlines()[0]}"


def _describe(call: NativeCall) -> str:
    if isinstance(call, ProductCall):
        sizes = _sizes((call.m, call.k, call.n))
        batch = "" if call.batch == 1 else f"{format_dim(call.batch)} times "
        return f"product of {call.dtype}, {batch}{sizes}{_place([call.loc])}"
    kernel = call.kernel
    sizes = _sizes(axis.size for axis in kernel.axes) or "one element"
    locations = dict.fromkeys((*(instruction.loc for instruction in kernel.body), call.loc))
    return f"{kernel.name} over {sizes}, {_traffic(kernel)}{_place(locations)}"


def _sizes(dims: Iterable[Dim]) -> str:
    return " x ".join(map(format_dim, dims))


def _traffic(kernel: Kernel) -> str:
    """Return the bytes of the memory that a kernel reads and writes, each counted once."""
    total: Dim = 0
    for buffer in kernel.buffers:
        total = total + product((buffer.extent, buffer.dtype.itemsize))
    return format_bytes(total) if isinstance(total, int) else f"{format_dim(total)} bytes"


def _place(locations: Iterable[Location]) -> str:
    known = [str(loc) for loc in locations if loc.is_known]
    more = f" and {len(known) - _PLACES} more" if len(known) > _PLACES else ""
    return f"  ({', '.join(known[:_PLACES])}{more})" if known else ""
