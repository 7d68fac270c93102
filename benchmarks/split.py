"""Where the time of a step goes: every kernel, product and call of torch timed, next to its limit.

The segments of each program are compiled once more, every call a function of its own, and timed
where they run; what the generated Python calls besides is timed too, and attention that torch
computes counts as attention. The limit of a product, and of the products inside attention, is the
rate of a large matrix product, that of a kernel the rate at which memory of that size is copied,
both measured in the same process. Attention that may leave out keys is measured against the
products of all of them. What torch computes has no limit.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import lynx.compiler
from benchmarks.measure import Contestant, Result, main
from benchmarks.workloads import Workload
from lynx.backends.c import compile_segments
from lynx.ir.dims import Dim
from lynx.ir.kernel_cost import kernel_cost
from lynx.ir.native import (
    AttentionBackwardCall,
    AttentionCall,
    KernelCall,
    NativeCall,
    NativeFunction,
    ProductCall,
    Segment,
)
from lynx.records import RECORDS
from lynx.runtime.dtypes import torch_dtype

SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolve", "linear", "mkldnn")
ATTENTION = ("attention", "attend")
ALLOCATION = ("empty", "_take", "_give", "reinterpreted", "place", "restrided", "copied", "pack_")
KINDS = ("products", "attention", "kernels", "torch")
_LARGEST = 12
_ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Timed:
    """A function with the seconds that it took, and what it would take at the limit."""

    run: Callable[..., Any]
    kind: str
    label: str
    place: str = ""
    limit: float = 0.0
    seconds: float = 0.0
    calls: int = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call and count."""
        start = time.perf_counter()
        result = self.run(*arguments, **named)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return result


class Hardware:
    """What this machine does in this process: bytes and operations in a second."""

    def __init__(self) -> None:
        self.bandwidth = {size: self._copy(size) for size in SIZES}
        dtypes = (torch.float32, torch.float64, torch.bfloat16)
        self.flops = {dtype: self._multiply(dtype) for dtype in dtypes}

    @staticmethod
    def _copy(size: int) -> float:
        source, target = torch.ones(size // 8), torch.ones(size // 8)
        repeats = max(3, (1 << 24) // size)
        return size / _best(lambda: torch.add(source, 1.0, out=target), repeats)

    @staticmethod
    def _multiply(dtype: torch.dtype) -> float:
        n = 768
        a, b, c = (torch.ones(n, n, dtype=dtype) for _ in range(3))
        return 2 * n**3 / _best(lambda: torch.mm(a, b, out=c), 4)

    def move(self, size: float) -> float:
        """Return the seconds that it takes to move bytes that lie where data of this size does."""
        fitting = [known for known in SIZES if known >= size] or [SIZES[-1]]
        return size / self.bandwidth[fitting[0]]


def _best(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        times.append((time.perf_counter() - start) / repeats)
    return min(times)


class Splitter:
    """Compiles segments such that each call of them is timed."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.timed: list[Timed] = []

    def compile(self, segments: tuple[Segment, ...]) -> tuple[NativeFunction, ...]:
        """Return a function for each segment; what `SegmentCompiler` asks for."""
        parts = [
            dataclasses.replace(segment, name=f"{segment.name}_{index}", calls=(call,))
            for segment in segments
            for index, call in enumerate(segment.calls)
        ]
        compiled = iter(compile_segments(tuple(parts)))
        return tuple(self._joined([next(compiled) for _ in s.calls], s.calls) for s in segments)

    def _joined(
        self, functions: Sequence[NativeFunction], calls: Sequence[NativeCall]
    ) -> NativeFunction:
        timed = [self._timed(f, call) for f, call in zip(functions, calls, strict=True)]
        self.timed += timed

        def run(packed: bytes) -> int:
            return next((failed for part in timed if (failed := part(packed))), 0)

        source = functions[0].source if functions else ""
        return NativeFunction(run, functions[0].messages if functions else (), source)

    def _timed(self, function: NativeFunction, call: NativeCall) -> Timed:
        if isinstance(call, ProductCall):
            return self._timed_product(function, call)
        if not isinstance(call, KernelCall):
            return self._timed_attention(function, call)
        cost = kernel_cost(call.kernel)
        limit = self.hardware.move(_number(cost.read) + _number(cost.written))
        sizes = " x ".join(str(axis.size) for axis in call.kernel.axes)
        label = f"{call.kernel.name} over {sizes}"
        return Timed(function.run, "kernels", label, str(call.loc), limit)

    def _timed_product(self, function: NativeFunction, call: ProductCall) -> Timed:
        batch = _number(call.outer) * _number(call.batch)
        m, n, k = map(_number, (call.m, call.n, call.k))
        dtype = torch_dtype(call.dtype)
        moved = batch * (m * k + k * n + m * n) * call.dtype.itemsize
        limit = max(2 * batch * m * n * k / self.hardware.flops[dtype], self.hardware.move(moved))
        label = f"product {batch:g} x ({m:g}, {k:g}) @ ({k:g}, {n:g})"
        return Timed(function.run, "products", label, str(call.loc), limit)

    def _timed_attention(
        self, function: NativeFunction, call: AttentionCall | AttentionBackwardCall
    ) -> Timed:
        is_forward = isinstance(call, AttentionCall)
        forward = call if isinstance(call, AttentionCall) else call.forward
        sizes = forward.sizes
        batch, heads, queries, keys = map(
            _number, (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
        )
        shared, depth, values = map(_number, (sizes.kv_heads, sizes.depth, sizes.value_depth))
        # Scores and results; backward scores again, and the gradients of all four operands.
        depths = depth + values if is_forward else 3 * depth + 2 * values
        dtype = torch.float64 if forward.q.dtype.value == "f64" else torch.float32
        numbers = batch * (heads * queries + shared * keys) * (depth + values)
        moved = (1 if is_forward else 2) * numbers * forward.q.dtype.itemsize
        flops = 2 * batch * heads * queries * keys * depths
        limit = max(flops / self.hardware.flops[dtype], self.hardware.move(moved))
        name = "attention" if is_forward else "attention backward"
        label = f"{name} {batch:g} x {heads:g} x ({queries:g}, {keys:g}) of {depth:g}"
        return Timed(function.run, "attention", label, str(forward.loc), limit)


def _number(dim: Dim) -> float:
    """Return a size that is known; one that is not counts as nothing."""
    return float(dim) if isinstance(dim, int) else 0.0


def _short(place: str) -> str:
    """Return a place in a file without the folders that differ from machine to machine."""
    return place.rpartition("/site-packages/")[2].removeprefix(f"{_ROOT}/")


def where(options: Result, workload: Workload) -> Result:
    """Measure where the time of a step of Lynx goes."""

    def make() -> Callable[[], object]:
        contestant = Contestant("lynx", workload, *workload.build(options.get("quick", False)))
        contestant.step()
        return contestant.step

    return split(make)


def split(make: Callable[[], Callable[[], object]], steps: int = 10) -> dict[str, Any]:
    """Measure a step; `make` compiles it with Lynx and returns it."""
    step = make()
    whole = [_seconds(step) for _ in range(steps + 2)][2:]
    programs = _Programs()
    inside = programs.seconds(step, steps)
    hardware = Hardware()
    splitter = Splitter(hardware)
    torch._dynamo.reset()
    original = lynx.compiler.generator_of
    lynx.compiler.generator_of = lambda target, settings: splitter.compile
    try:
        step = make()
        step()
        step()
    finally:
        lynx.compiler.generator_of = original
    timed = [*splitter.timed, *_calls_of_torch()]
    programs = _Programs()
    step()
    for item in timed:
        item.seconds, item.calls = 0.0, 0
    split_inside = programs.seconds(step, steps)
    sums = {kind: _sum(timed, kind) / steps for kind in KINDS}
    allocation = _sum(timed, "allocation") / steps
    return {
        "step": min(whole),
        **sums,
        "allocation": allocation,
        "host": max(0.0, split_inside - sum(sums.values()) - allocation),
        "outside": max(0.0, min(whole) - inside),
        "products_limit": sum(t.limit * t.calls for t in timed if t.kind == "products") / steps,
        "attention_limit": sum(t.limit * t.calls for t in timed if t.kind == "attention") / steps,
        "kernels_limit": sum(t.limit * t.calls for t in timed if t.kind == "kernels") / steps,
        "bandwidth": {str(size): rate for size, rate in hardware.bandwidth.items()},
        "flops": hardware.flops[torch.float32],
        "largest": _largest(timed, steps),
    }


def _largest(timed: Sequence[Timed], steps: int) -> list[dict[str, Any]]:
    """Return what takes most time, equal calls together."""
    found: dict[tuple[str, str], list[Timed]] = {}
    for item in timed:
        found.setdefault((item.kind, item.label), []).append(item)
    rows = [
        {
            "kind": kind,
            "label": label,
            "calls": sum(item.calls for item in items) / steps,
            "seconds": sum(item.seconds for item in items) / steps,
            "limit": sum(item.limit * item.calls for item in items) / steps,
            "place": _short(items[0].place),
        }
        for (kind, label), items in found.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])[:_LARGEST]


def _sum(timed: Sequence[Timed], kind: str) -> float:
    return sum(item.seconds for item in timed if item.kind == kind)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class _Programs:
    """The programs that Lynx compiled, with the time that they take, all they call included."""

    def __init__(self) -> None:
        self.total = 0.0
        for record in RECORDS.graphs:
            if record.executable is not None:
                record.executable._run = self._wrapped(record.executable._run)

    def _wrapped(self, run: Callable[..., Any]) -> Callable[..., Any]:
        run = getattr(run, "inner", run)

        def wrapped(arguments: list[Any]) -> Any:
            start = time.perf_counter()
            try:
                return run(arguments)
            finally:
                self.total += time.perf_counter() - start

        wrapped.inner = run  # type: ignore[attr-defined]  # to take the wrapping off again
        return wrapped

    def seconds(self, step: Callable[[], object], steps: int) -> float:
        """Return the seconds of one step within programs."""
        self.total = 0.0
        for _ in range(steps):
            step()
        return self.total / steps


def _calls_of_torch() -> list[Timed]:
    """Time what the generated functions call besides segments."""
    found: list[Timed] = []
    for record in RECORDS.graphs:
        if record.executable is None:
            continue
        names = record.executable._run.__globals__
        for name, item in list(names.items()):
            if callable(item) and not isinstance(item, Timed | type) and _kind(name):
                label = _name_of(item, name)
                names[name] = Timed(item, _kind(label) or "torch", label)
                found.append(names[name])
    return found


def _name_of(function: Any, name: str) -> str:
    """Return the names of a partly applied function and of functions among its arguments.

    Of all others the name in the program, which is their own.
    """
    if not isinstance(function, functools.partial):
        return name
    parts = [function.func, *filter(callable, function.args)]
    return " ".join(getattr(part, "__name__", type(part).__name__) for part in parts)


def _kind(name: str) -> str:
    if name.startswith(("segment_", "run_", "__", "raise_")) or name.endswith("_tensors"):
        return ""
    if any(part in name for part in ALLOCATION):
        return "allocation"
    if any(part in name for part in ATTENTION):
        return "attention"
    return "products" if any(part in name for part in PRODUCTS) else "torch"


if __name__ == "__main__":
    main(sys.argv[1:], {"split": where})
