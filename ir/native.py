"""What a back end is asked to compile: native segments between calls of torch, or single launches.

A CPU runs all kernels and products between two calls of torch as one function over addresses, a
*segment*. On a GPU the host launches each kernel on tensors, and the library has the products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .dims import Dim
from .kernel import Kernel
from .location import UNKNOWN, Location
from .ops.fusion import Fused
from .types import DType


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address `slots[slot] + offset`, in bytes; the caller passes the slots in each call."""

    slot: int
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Run a kernel on these addresses, one for each of its buffers."""

    kernel: Kernel
    buffers: tuple[Pointer, ...]
    loc: Location = UNKNOWN


@dataclass(frozen=True, slots=True)
class Matrix:
    """A batch of matrices in memory; strides in elements: of the batch, of rows, of columns.

    `outer` is the stride from one batch to the next, where there are several.
    """

    pointer: Pointer
    strides: tuple[Dim, Dim, Dim]
    outer: Dim = 0


@dataclass(frozen=True, slots=True)
class ProductCall:
    """Multiply matrices: `out = a @ b`, or `out += a @ b` with `accumulate`.

    `a` is (batch, m, k), `b` (batch, k, n), `out` (batch, m, n); the type is `f32`, `f64` or
    `bf16`. Along rows or along columns the stride of each matrix is 1, or its size is. All that is
    done `outer` times over. Sums of `bf16` are `f32`; `added` (batch, m, n), of any strides, is
    added to them before they are rounded, and `accumulate` is not for them.
    """

    dtype: DType
    batch: Dim
    m: Dim
    n: Dim
    k: Dim
    a: Matrix
    b: Matrix
    out: Matrix
    accumulate: bool = False
    outer: Dim = 1
    added: Matrix | None = None
    loc: Location = UNKNOWN


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor in memory; the strides of its dimensions are in elements.

    The shape is given where the sizes of the call do not tell it.
    """

    pointer: Pointer
    dtype: DType
    strides: tuple[Dim, ...]
    shape: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The sizes of an attention; `kv_heads` divides `heads`."""

    batch: Dim
    heads: Dim
    kv_heads: Dim
    queries: Dim
    keys: Dim
    depth: Dim
    value_depth: Dim


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Attention forward: `out = softmax(score(q k^T)) v`, and `lse`, the log of the denominators.

    `q`, `k`, `v` and `out` have the dimensions batch, head, position, depth and one type; `lse` and
    `sink` have the first three; `keep` (bool, or none) has batch, head, query, key. `score` is a
    kernel of `lynx.passes.attention.score`; `operands` are the addresses of its buffers, but for
    the first if that is the product, and the last, the score.
    """

    sizes: AttentionSizes
    q: Strided
    k: Strided
    v: Strided
    out: Strided
    lse: Strided
    score: Kernel
    operands: tuple[Pointer, ...] = ()
    sink: Strided | None = None
    keep: Strided | None = None
    keep_scale: float = 1.0
    zero_empty: bool = False
    loc: Location = UNKNOWN


@dataclass(frozen=True, slots=True)
class AttentionBackwardCall:
    """The gradients of an attention: `forward` has been run, and `grad_out` is that of its result.

    `grad_lse` is that of `lse`, if it has one. `derivative` is a kernel of
    `lynx.passes.attention.differentiate`; `operands` are the gradients that it adds to, in the
    order of its buffers, with their shapes; `sink` has a shape of three dimensions. What is None is
    not wanted.
    """

    forward: AttentionCall
    grad_out: Strided
    derivative: Kernel
    grad_lse: Strided | None = None
    q: Strided | None = None
    k: Strided | None = None
    v: Strided | None = None
    sink: Strided | None = None
    operands: tuple[Strided, ...] = ()


NativeCall: TypeAlias = KernelCall | ProductCall | AttentionCall | AttentionBackwardCall


def kernels_in(call: NativeCall) -> tuple[Kernel, ...]:
    """Return the kernels that a call runs, whole or inlined."""
    if isinstance(call, KernelCall):
        return (call.kernel,)
    if isinstance(call, AttentionCall):
        return (call.score,)
    if isinstance(call, AttentionBackwardCall):
        return (call.forward.score, call.derivative)
    return ()


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A part of an arena that is chosen when sizes are known, taken from one step to another.

    Others in the same `arena` may have the same memory before `start` and after `end`.
    """

    arena: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Calls that run one after the other as one native function.

    The function is called with one bytes object: `slots` addresses, then the values of `symbols` as
    64-bit integers. It returns 0, or 1 + the index into `messages` of the check that failed.
    `tenancies` says which slots share memory with others; the rest are apart from each other.
    """

    name: str
    calls: tuple[NativeCall, ...]
    slots: int
    symbols: tuple[str, ...]
    tenancies: Mapping[int, Tenancy] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class NativeFunction:
    """A compiled segment: `run(packed)` as `Segment` says; `messages` tells what failed.

    `source` is the text that was compiled.
    """

    run: Callable[[bytes], int]
    messages: tuple[str, ...]
    source: str


SegmentCompiler: TypeAlias = Callable[[tuple[Segment, ...]], tuple[NativeFunction, ...]]
"""Compiles the segments of a program together; raises `CompileError` with the kernels at fault."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedLayout:
    """A fused op and how its tensors lie in memory.

    Strides are in elements, None for inputs that are no tensors. `in_place` maps the index of a
    result to that of the input over which it is written.
    """

    op: Fused
    inputs: tuple[tuple[Dim, ...] | None, ...]
    results: tuple[tuple[Dim, ...], ...]
    in_place: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A kernel to be launched on a device.

    If the kernel multiplies matrices, `product` is what it was made from: the library can do that
    part. With `attention` that is run instead, on a tensor for each of its slots, and the kernel is
    the one of its score function, or of the derivative, by which it is known.
    """

    kernel: Kernel
    device: str
    product: FusedLayout | None = field(default=None, compare=False)
    attention: AttentionCall | AttentionBackwardCall | None = None

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels in what is run."""
        return (self.kernel,) if self.attention is None else kernels_in(self.attention)


@dataclass(frozen=True, slots=True)
class Launch:
    """A compiled kernel that the host launches.

    `run(tensors, *sizes)` takes a tensor for each buffer, which stands for the memory from its
    first element on, and the values of `symbols`. It returns False if the device does not take the
    kernel, with all tensors as they were. A failed check raises `IndexError`, on a GPU later than
    the call. `source` is the text that was compiled.
    """

    run: Callable[..., bool]
    symbols: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Launcher:
    """Compiles kernels for devices of one type, together.

    `compile` raises `CompileError` with the kernels at fault.
    """

    device: str
    compile: Callable[[tuple[LaunchRequest, ...]], tuple[Launch, ...]]
