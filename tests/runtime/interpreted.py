"""A compiler of segments that needs no compiler: it interprets kernels at the addresses given."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import torch

from lynx.backends.reference import run_kernel
from lynx.ir import DType
from lynx.ir.dims import Dim, evaluate
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Check, Kernel
from lynx.ir.native import (
    AttentionBackwardCall,
    AttentionCall,
    KernelCall,
    Matrix,
    NativeCall,
    NativeFunction,
    Pointer,
    ProductCall,
    Segment,
    kernels_in,
)
from lynx.runtime.dtypes import torch_dtype
from tests.runtime.interpreted_attention import attend


def tensor_at(address: int, count: int, dtype: DType) -> torch.Tensor:
    """Return a flat tensor over memory of this process."""
    if count == 0:
        return torch.empty(0, dtype=torch_dtype(dtype))
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=torch_dtype(dtype), count=count)


class Frame:
    """The addresses and numbers of one call of a segment."""

    def __init__(self, segment: Segment, packed: bytes) -> None:
        counts = segment.slots, len(segment.symbols)
        numbers = struct.unpack(f"={counts[0]}Q{counts[1]}q", packed)
        self.slots = numbers[: segment.slots]
        self.symbols = dict(zip(segment.symbols, numbers[segment.slots :], strict=True))

    def dim(self, dim: Dim) -> int:
        return evaluate(dim, self.symbols)

    def address(self, pointer: Pointer) -> int:
        return self.slots[pointer.slot] + self.dim(pointer.offset)

    def kernel(self, call: KernelCall) -> None:
        buffers = []
        ranges = []
        for buffer, pointer in zip(call.kernel.buffers, call.buffers, strict=True):
            start, count = self.address(pointer), self.dim(buffer.extent)
            buffers.append(tensor_at(start, count, buffer.dtype))
            ranges.append((start, start + count * buffer.dtype.itemsize, buffer.is_written))
        check_apart(ranges)
        run_kernel(call.kernel, buffers, self.symbols)

    def matrix(self, matrix: Matrix, dtype: DType, shape: tuple[int, ...]) -> torch.Tensor:
        strides = tuple(self.dim(stride) for stride in matrix.strides)
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        flat = tensor_at(self.address(matrix.pointer), reach, dtype)
        return flat.as_strided(shape, strides)

    def product(self, call: ProductCall) -> None:
        batch, m, n, k = (self.dim(dim) for dim in (call.batch, call.m, call.n, call.k))
        if 0 in (batch, m, n):
            return
        out = self.matrix(call.out, call.dtype, (batch, m, n))
        if k == 0:
            out.zero_()
            return
        a = self.matrix(call.a, call.dtype, (batch, m, k))
        b = self.matrix(call.b, call.dtype, (batch, k, n))
        out.copy_(out + a @ b if call.accumulate else a @ b)

    def attention(self, call: AttentionCall | AttentionBackwardCall) -> None:
        def flat(pointer: Pointer, count: int, dtype: DType) -> torch.Tensor:
            return tensor_at(self.address(pointer), count, dtype)

        attend(call, flat, self.dim, self.symbols)

    def run(self, call: NativeCall) -> None:
        if isinstance(call, ProductCall):
            self.product(call)
        elif isinstance(call, KernelCall):
            self.kernel(call)
        else:
            self.attention(call)


def check_apart(ranges: list[tuple[int, int, bool]]) -> None:
    """Assert that no buffer that is written overlaps another."""
    for index, (start, end, written) in enumerate(ranges):
        for other, (low, high, other_written) in enumerate(ranges):
            if index != other and (written or other_written):
                assert end <= low or high <= start, (ranges[index], ranges[other])


def messages_of(kernels: list[Kernel]) -> tuple[str, ...]:
    checks = (i.message for kernel in kernels for i in kernel.body if isinstance(i, Check))
    return tuple(dict.fromkeys(checks))


def interpret(segment: Segment) -> NativeFunction:
    messages = messages_of([kernel for call in segment.calls for kernel in kernels_in(call)])

    def run(packed: bytes) -> int:
        frame = Frame(segment, packed)
        for call in segment.calls:
            try:
                frame.run(call)
            except IndexError as error:
                return 1 + messages.index(str(error))
        return 0

    return NativeFunction(run, messages, f"// {segment.name}")


class Interpreter:
    """Compiles segments and remembers them; `fails` says which kernels do not build."""

    def __init__(self, fails: Callable[[Kernel], bool] = lambda kernel: False) -> None:
        self.fails = fails
        self.segments: tuple[Segment, ...] = ()
        self.attempts = 0

    def __call__(self, segments: tuple[Segment, ...]) -> tuple[NativeFunction, ...]:
        self.attempts += 1
        self.segments = segments
        kernels = [kernel for s in segments for call in s.calls for kernel in kernels_in(call)]
        failed = [kernel for kernel in kernels if self.fails(kernel)]
        if failed:
            error = CompileError("build-failed", f"{len(failed)} kernels do not build")
            error.kernels = tuple(failed)  # type: ignore[attr-defined]  # as real compilers do
            raise error
        return tuple(interpret(segment) for segment in segments)

    @property
    def sizes(self) -> list[int]:
        """The number of calls of each segment."""
        return [len(segment.calls) for segment in self.segments]
