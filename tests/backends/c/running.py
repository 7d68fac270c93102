"""Compile kernels with the C back end and run them on flat tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

import torch

from lynx.backends.c import compile_segments
from lynx.ir import Kernel
from lynx.ir.kernel import Index, KernelBuilder, Term
from lynx.ir.native import KernelCall, NativeFunction, Pointer, Segment

Runner = Callable[[dict[str, torch.Tensor], Mapping[str, int]], None]


def segment_of(kernel: Kernel, name: str = "test") -> Segment:
    """A segment that runs one kernel, whose buffers are its slots."""
    pointers = tuple(Pointer(slot) for slot in range(len(kernel.buffers)))
    calls = (KernelCall(kernel, pointers),)
    return Segment(name, calls, len(kernel.buffers), kernel.symbols)


def call(function: NativeFunction, addresses: Sequence[int], symbols: Sequence[int] = ()) -> None:
    packed = struct.pack(f"{len(addresses) + len(symbols)}q", *addresses, *symbols)
    code = function.run(packed)
    if code:
        raise IndexError(function.messages[code - 1])


def compiled(kernels: Sequence[Kernel]) -> list[Runner]:
    """Compile kernels together; each returned function runs one on its buffers."""
    functions = compile_segments(tuple(segment_of(kernel) for kernel in kernels))
    return [_runner(k, f) for k, f in zip(kernels, functions, strict=True)]


def _runner(kernel: Kernel, function: NativeFunction) -> Runner:
    def run(buffers: dict[str, torch.Tensor], symbols: Mapping[str, int]) -> None:
        addresses = [buffers[buffer.name].data_ptr() for buffer in kernel.buffers]
        call(function, addresses, [symbols[name] for name in kernel.symbols])

    return run


def run(kernel: Kernel, buffers: dict[str, torch.Tensor], symbols: Mapping[str, int]) -> None:
    """Compile and run one kernel, as `tests.tools.kernels.Run` says."""
    (runner,) = compiled([kernel])
    runner(buffers, symbols)


def row_major(builder: KernelBuilder, *axes: str) -> Index:
    """The index of a contiguous tensor over these axes."""
    terms = []
    stride = 1
    for axis in reversed(axes):
        terms.append(Term(axis, stride))
        stride = stride * builder.axes[axis].size
    return Index(tuple(reversed(terms)))
