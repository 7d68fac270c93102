"""Attention as a step of a segment: the call that computes it, over the memory of its values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lynx.ir.core import Value
from lynx.ir.dims import Dim
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Kernel
from lynx.ir.kernel_printer import kernel_key
from lynx.ir.location import UNKNOWN
from lynx.ir.native import (
    AttentionBackwardCall,
    AttentionCall,
    AttentionSizes,
    LaunchRequest,
    NativeCall,
    Pointer,
    Strided,
    kernels_in,
)
from lynx.ir.ops.attention import Attending, Attention, AttentionBackward
from lynx.ir.score import is_plain
from lynx.passes.attention.differentiate import derivative_kernel, plain_derivative
from lynx.passes.attention.score import plain_score, score_kernel

from .places import Place

FindPlace = Callable[[Value], Place | None]
"""Gives the place of a value on the CPU, None if it is not known."""


@dataclass(frozen=True)
class AttentionStep:
    """A step that runs as an attention of its own over the memory of these values.

    In the call that is kept, the slot of a pointer is the place of its value among them.
    """

    values: tuple[Value, ...]
    template: AttentionCall | AttentionBackwardCall
    device: str = "cpu"

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of the score function and of its derivative."""
        return kernels_in(self.template)

    @property
    def name(self) -> str:
        """A word for what runs."""
        is_forward = isinstance(self.template, AttentionCall)
        return "attention" if is_forward else "attention_backward"

    @property
    def request(self) -> LaunchRequest:
        """What a launcher is asked for."""
        call = self.template
        if isinstance(call, AttentionBackwardCall):
            forward = dataclasses.replace(call.forward, loc=UNKNOWN)
            call = dataclasses.replace(call, forward=forward)
        else:
            call = dataclasses.replace(call, loc=UNKNOWN)
        return LaunchRequest(self.kernels[-1], self.device, attention=call)

    def call(self, pointers: tuple[Pointer, ...]) -> NativeCall:
        """Return the call with the addresses of the values."""
        call: NativeCall = _placed(self.template, pointers)
        return call


def dims_of_attention(call: AttentionCall | AttentionBackwardCall) -> Iterable[Dim]:
    """Yield all dimensions in a call but for those of its kernels."""
    pending: list[Any] = [call]
    while pending:
        item = pending.pop()
        if isinstance(item, Kernel):
            continue
        if isinstance(item, Strided):
            yield from (item.pointer.offset, *item.strides, *item.shape)
        elif isinstance(item, Pointer):
            yield item.offset
        elif isinstance(item, AttentionSizes):
            yield from dataclasses.astuple(item)
        elif isinstance(item, AttentionCall | AttentionBackwardCall):
            pending += (getattr(item, field.name) for field in dataclasses.fields(item))
        elif isinstance(item, tuple):
            pending += item


class ScoreKernels:
    """Finds for a kernel the first one that is equal to it, so that equal calls are equal."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Kernel] = {}

    def of(self, kernel: Kernel) -> Kernel:
        """Return the first kernel that is equal, with buffers of the same names."""
        names = (buffer.name for buffer in kernel.buffers)
        return self._known.setdefault((kernel_key(kernel), *names), kernel)


def attention_step(
    op: Attending, find: FindPlace, device: str = "cpu", kernels: ScoreKernels | None = None
) -> AttentionStep | None:
    """Return the step of an attention; None where the place of a value is not known.

    `CompileError` if the score function has no kernel, or none of its derivative.
    """
    maker = _Maker(find, kernels or ScoreKernels())
    try:
        if isinstance(op, Attention):
            call: AttentionCall | AttentionBackwardCall = maker.forward(op, op.results)
        else:
            assert isinstance(op, AttentionBackward), op
            call = maker.backward(op)
    except _UnknownPlaceError:
        return None
    return AttentionStep(tuple(maker.values), call, device)


class _UnknownPlaceError(Exception):
    """A value lies nobody knows where."""


class _Maker:
    """Makes the call of one attention, and collects the values in it."""

    def __init__(self, find: FindPlace, kernels: ScoreKernels) -> None:
        self.find = find
        self.kernels = kernels
        self.values: dict[Value, int] = {}

    def pointer(self, value: Value) -> Pointer:
        return Pointer(self.values.setdefault(value, len(self.values)))

    def strides(self, value: Value) -> tuple[Dim, ...]:
        place = self.find(value)
        if place is None:
            raise _UnknownPlaceError
        return place.strides

    def strided(self, value: Value) -> Strided:
        strides = self.strides(value)
        return Strided(self.pointer(value), value.tensor_type.dtype, strides)

    def spread(self, value: Value | None, rank: int) -> Strided | None:
        """Return a value with leading dimensions, and strides of 0 along all of size 1."""
        if value is None:
            return None
        strides = self.strides(value)
        own = tuple(
            0 if isinstance(size, int) and size == 1 else stride
            for size, stride in zip(value.shape, strides, strict=True)
        )
        missing = rank - len(own)
        full = (0,) * missing + own
        shape = (1,) * missing + value.shape
        return Strided(self.pointer(value), value.tensor_type.dtype, full, shape)

    def forward(self, op: Any, results: Sequence[Value]) -> AttentionCall:
        """Return the call of an attention, or of the forward part of its gradients."""
        batch, heads, queries, depth = op.q.shape
        keys = op.k.shape
        sizes = AttentionSizes(batch, heads, keys[1], queries, keys[2], depth, op.v.shape[3])
        score = self._score(op)
        read = [buffer.name for buffer in score.buffers]
        q, k, v, out, lse = map(self.strided, (op.q, op.k, op.v, *results))
        operands = tuple(
            self.pointer(value) for n, value in enumerate(op.inputs) if f"x{n}" in read
        )
        return AttentionCall(
            sizes, q, k, v, out, lse, score, operands,
            self.spread(op.sink, 3), self.spread(op.keep, 4),
            op.keep_scale, op.zero_empty, op.loc,
        )  # fmt: skip

    def backward(self, op: AttentionBackward) -> AttentionBackwardCall:
        """Return the call of the gradients."""
        forward = self.forward(op, (op.output, op.lse))
        results = iter(op.results)
        q, k, v, sink, *inputs = (next(results) if want else None for want in op.wanted)
        wanted = [n for n, value in enumerate(inputs) if value is not None]
        return AttentionBackwardCall(
            forward,
            self.strided(op.grad_out),
            self._derivative(op, forward.score, wanted),
            self._optional(op.grad_lse),
            self._optional(q),
            self._optional(k),
            self._optional(v),
            self.spread(sink, 3),
            tuple(self._shaped(value) for value in inputs if value is not None),
        )

    def _optional(self, value: Value | None) -> Strided | None:
        return None if value is None else self.strided(value)

    def _shaped(self, value: Value) -> Strided:
        return dataclasses.replace(self.strided(value), shape=value.shape)

    def _input_strides(self, op: Attending) -> list[tuple[Dim, ...]]:
        return [self.strides(value) for value in op.inputs]

    def _score(self, op: Attending) -> Kernel:
        region = op.scoring()
        if region is None or is_plain(region):
            return self.kernels.of(plain_score(op.computing_dtype, op.dot_type.shape))
        return self.kernels.of(score_kernel(region, self._input_strides(op)))

    def _derivative(self, op: AttentionBackward, score: Kernel, wanted: list[int]) -> Kernel:
        region = op.scoring()
        if region is None or is_plain(region):
            if wanted:
                raise CompileError("no-kernel", "an operand is not used", op.loc)
            return self.kernels.of(plain_derivative(score))
        return self.kernels.of(derivative_kernel(region, self._input_strides(op), wanted))


def _placed(item: Any, pointers: tuple[Pointer, ...]) -> Any:
    """Return a call with other pointers; its parts are few and not deep."""
    if isinstance(item, Pointer):
        return pointers[item.slot]
    if isinstance(item, Kernel) or item is None:
        return item
    if isinstance(item, tuple):
        return tuple(_placed(part, pointers) for part in item)
    if isinstance(item, Strided | AttentionCall | AttentionBackwardCall):
        fields = {
            f.name: _placed(getattr(item, f.name), pointers) for f in dataclasses.fields(item)
        }
        return dataclasses.replace(item, **fields)
    return item
