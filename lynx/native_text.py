"""Describe what back ends compiled of a program: segments, launches, and what fell back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lynx.ir.core import Op
from lynx.ir.dims import Dim, format_dim, product
from lynx.ir.kernel import Kernel, Load
from lynx.ir.native import (
    AttentionBackwardCall,
    AttentionCall,
    KernelCall,
    NativeCall,
    ProductCall,
)
from lynx.ir.ops.fusion import Fused
from lynx.passes.plan_memory import format_bytes, format_count
from lynx.runtime import NativeProgram

_PLACES = 3
"""Places in the model that are named for one kernel."""


def describe_native(native: NativeProgram) -> Iterator[str]:
    """Yield a line for each segment, and below it one for each kernel or product that it runs.

    Kernels that the host launches come below one line.
    """
    for placed in native.segments:
        calls = placed.segment.calls
        kernels = sum(isinstance(call, KernelCall) for call in calls)
        products = sum(isinstance(call, ProductCall) for call in calls)
        rest = len(calls) - kernels - products
        counts = [format_count(kernels, "kernel"), format_count(products, "product")]
        if rest:
            counts.append(format_count(rest, "attention"))
        yield f"{placed.segment.name}: {', '.join(counts)}"
        for index, call in zip(placed.steps, calls, strict=True):
            op = native.program.steps[index].op
            yield f"  {_describe(call)}{_place(op)}"
    if native.launched:
        launches = format_count(len(native.launched), "launch")
        yield f"{launches} of {format_count(len(native.kernels), 'kernel')}"
    for index, (step, _) in native.launched.items():
        attention = step.request.attention
        kernel = step.kernels[0]
        text = _describe_kernel(kernel) if attention is None else _describe(attention)
        yield f"  {text}{_place(native.program.steps[index].op)}"
    for failure in native.failures:
        yield f"did not build: {failure.splitlines()[0]}"


def _describe(call: NativeCall) -> str:
    if isinstance(call, ProductCall):
        sizes = _sizes((call.m, call.k, call.n))
        batch = "" if call.batch == 1 else f"{format_dim(call.batch)} times "
        return f"product of {call.dtype}, {batch}{sizes}"
    if isinstance(call, AttentionBackwardCall):
        return f"gradients of {_describe(call.forward)}"
    if isinstance(call, AttentionCall):
        all_ = call.sizes
        heads = _sizes((all_.batch, all_.heads, all_.queries, all_.keys))
        return f"attention of {call.q.dtype} over {heads}, depth {format_dim(all_.depth)}"
    return _describe_kernel(call.kernel)


def _describe_kernel(kernel: Kernel) -> str:
    sizes = _sizes(axis.size for axis in kernel.axes) or "one element"
    return f"{kernel.name} over {sizes}, {_traffic(kernel)}"


def _sizes(dims: Iterable[Dim]) -> str:
    return " x ".join(map(format_dim, dims))


def _traffic(kernel: Kernel) -> str:
    """Return the bytes of the memory that a kernel reads, and of that which it writes."""
    read = [i.buffer for i in kernel.body if isinstance(i, Load)]
    written = [buffer for buffer in kernel.buffers if buffer.is_written]
    total: Dim = 0
    for buffer in (*dict.fromkeys(read), *written):
        total = total + product((buffer.extent, buffer.dtype.itemsize))
    return format_bytes(total) if isinstance(total, int) else f"{format_dim(total)} bytes"


def _place(op: Op) -> str:
    """Return the places in the model that a step comes from."""
    inner = op.body.ops if isinstance(op, Fused) else ()
    locations = dict.fromkeys((*(part.loc for part in inner), op.loc))
    known = list(dict.fromkeys(str(loc) for loc in locations if loc.is_known))
    more = f" and {len(known) - _PLACES} more" if len(known) > _PLACES else ""
    return f"  ({', '.join(known[:_PLACES])}{more})" if known else ""
