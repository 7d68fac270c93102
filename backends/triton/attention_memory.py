"""The tensors that a call of attention is given, by what they are for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

from lynx.ir.dims import Dim, free_symbols, product, symbol
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Buffer, Kernel, KernelAxis, Store
from lynx.ir.native import AttentionBackwardCall, AttentionCall, Pointer, Strided
from lynx.ir.program import extent
from lynx.ir.types import DType
from lynx.passes.attention.device import is_apart
from lynx.passes.attention.differentiate import GRAD_DOT
from lynx.passes.attention.score import DOT, SCORE


@dataclass
class AttentionMemory:
    """The buffers of a call: one a tensor, in the order of slots, and which role each has.

    Several roles may share one tensor.
    """

    call: AttentionCall | AttentionBackwardCall
    slots: dict[int, Buffer] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    operands: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        forward = self.forward
        for name, tensor, shape in shapes_of(self.call):
            self._enter(name, tensor, shape)
        read = [buffer for buffer in forward.score.buffers if buffer.name not in (DOT, SCORE)]
        for buffer, pointer in zip(read, forward.operands, strict=True):
            self.operands.append(buffer.name)
            self._place(buffer.name, pointer, buffer.dtype, buffer.extent)

    @property
    def forward(self) -> AttentionCall:
        """The call, or the forward call whose gradients it computes."""
        return self.call if isinstance(self.call, AttentionCall) else self.call.forward

    @property
    def is_backward(self) -> bool:
        """Whether gradients are computed."""
        return isinstance(self.call, AttentionBackwardCall)

    def role(self, name: str) -> Buffer:
        """Return the buffer that has a role."""
        return self.slots[self.roles[name]]

    @functools.cached_property
    def rows(self) -> dict[str, Buffer]:
        """Scratch memory with a number for each query of each head."""
        sizes = self.forward.sizes
        count = product((sizes.batch, sizes.heads, sizes.queries))
        names = ["shifts", "scales", "deltas"]
        if isinstance(self.call, AttentionBackwardCall) and self.call.sink is not None:
            names.append("of_sinks")
        return {name: Buffer(name, DType.F32, count, is_written=True) for name in names}

    @functools.cached_property
    def lows(self) -> Buffer:
        """Scratch memory with a flag for each head: whether some row counts what is hidden."""
        sizes = self.forward.sizes
        return Buffer("lows", DType.I32, product((sizes.batch, sizes.heads)), is_written=True)

    @functools.cached_property
    def added(self) -> dict[str, Buffer]:
        """Memory of the gradients of operands, dense and of the type of scores, by name."""
        if not isinstance(self.call, AttentionBackwardCall):
            return {}
        buffers = (one for one in self.call.derivative.buffers if one.is_written)
        return {
            one.name: Buffer(f"sum_{one.name}", one.dtype, one.extent, is_written=True)
            for one in buffers
            if one.name != GRAD_DOT
        }

    def is_apart(self, store: Store) -> bool:
        """Whether each pair of a query and a key stores to a place of its own."""
        assert isinstance(self.call, AttentionBackwardCall), self.call
        return is_apart(store, self.call.derivative)

    def kernel(self, name: str) -> Kernel:
        """Return a kernel without instructions, with these buffers and all symbols of the call."""
        kernels = [self.forward.score]
        if isinstance(self.call, AttentionBackwardCall):
            kernels.append(self.call.derivative)
        names = {*free_symbols(self.dims()), *(s for kernel in kernels for s in kernel.symbols)}
        axes = tuple(KernelAxis(f"d{n}", symbol(s)) for n, s in enumerate(sorted(names)))
        buffers = tuple(self.slots[slot] for slot in range(len(self.slots)))
        return Kernel(name, axes, buffers, ())

    def dims(self) -> list[Dim]:
        """Return the dimensions of the call, but for those inside of its kernels."""
        found: list[Dim] = [buffer.extent for buffer in self.slots.values()]
        found += dataclasses.astuple(self.forward.sizes)
        for tensor in self.tensors():
            found += [*tensor.strides, *tensor.shape]
        return found

    def tensors(self) -> Iterator[Strided]:
        """Yield all tensors with strides."""
        calls: list[AttentionCall | AttentionBackwardCall] = [self.forward]
        if isinstance(self.call, AttentionBackwardCall):
            calls.append(self.call)
        for call in calls:
            values = (getattr(call, one.name) for one in dataclasses.fields(call))
            yield from (value for value in values if isinstance(value, Strided))
        if isinstance(self.call, AttentionBackwardCall):
            yield from self.call.operands

    def _enter(self, name: str, tensor: Strided | None, shape: tuple[Dim, ...]) -> None:
        if tensor is not None:
            reach = extent(tensor.shape or shape, tensor.strides)
            self._place(name, tensor.pointer, tensor.dtype, reach)

    def _place(self, name: str, pointer: Pointer, dtype: DType, reach: Dim) -> None:
        if pointer.offset != 0:
            raise CompileError("kernel-unsupported", "an attention reads from within a tensor")
        is_written = name in _WRITTEN or name.startswith("grad_x")
        if name in ("output", "logarithms"):
            is_written = not self.is_backward
        known = self.slots.get(pointer.slot)
        if known is None:
            self.slots[pointer.slot] = Buffer(name, dtype, reach, is_written)
        self.roles[name] = pointer.slot


Shaped = tuple[str, Strided | None, tuple[Dim, ...]]
"""A role, the tensor that has it, and the shape of that unless it tells another."""


def shapes_of(call: AttentionCall | AttentionBackwardCall) -> Iterator[Shaped]:
    """Yield the tensors of a call that have strides."""
    if isinstance(call, AttentionBackwardCall):
        yield from _forward(call.forward)
        yield from _backward(call)
    else:
        yield from _forward(call)


def _forward(call: AttentionCall) -> Iterator[Shaped]:
    s = call.sizes
    yield "queries", call.q, (s.batch, s.heads, s.queries, s.depth)
    yield "keys", call.k, (s.batch, s.kv_heads, s.keys, s.depth)
    yield "values", call.v, (s.batch, s.kv_heads, s.keys, s.value_depth)
    yield "output", call.out, (s.batch, s.heads, s.queries, s.value_depth)
    yield "logarithms", call.lse, (s.batch, s.heads, s.queries)
    yield "sinks", call.sink, (s.batch, s.heads, s.queries)
    yield "keeps", call.keep, (s.batch, s.heads, s.queries, s.keys)


def _backward(call: AttentionBackwardCall) -> Iterator[Shaped]:
    s = call.forward.sizes
    yield "grad_output", call.grad_out, (s.batch, s.heads, s.queries, s.value_depth)
    yield "grad_logarithms", call.grad_lse, (s.batch, s.heads, s.queries)
    yield "grad_queries", call.q, (s.batch, s.heads, s.queries, s.depth)
    yield "grad_keys", call.k, (s.batch, s.kv_heads, s.keys, s.depth)
    yield "grad_values", call.v, (s.batch, s.kv_heads, s.keys, s.value_depth)
    yield "grad_sinks", call.sink, (s.batch, s.heads, s.queries)
    written = [b.name for b in call.derivative.buffers if b.is_written and b.name != GRAD_DOT]
    for name, tensor in zip(written, call.operands, strict=True):
        yield name, tensor, tensor.shape


_WRITTEN = ("grad_queries", "grad_keys", "grad_values", "grad_sinks")
