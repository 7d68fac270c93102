"""Which steps of a program kernels run, and the segments between two calls of torch they form."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, free_symbols
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Kernel, Load
from lynx.ir.location import Location
from lynx.ir.native import (
    AttentionBackwardCall,
    AttentionCall,
    FusedLayout,
    KernelCall,
    LaunchRequest,
    NativeCall,
    Pointer,
    ProductCall,
    Segment,
    Tenancy,
    kernels_in,
)
from lynx.ir.ops.aten import Resource, Symbolic
from lynx.ir.ops.attention import Attending
from lynx.ir.ops.fusion import Fused, Region
from lynx.ir.ops.layout import Reshape
from lynx.ir.ops.linear import AddMatmul, AddProduct, MatrixProduct
from lynx.ir.program import InPlace, Program, Step, Target
from lynx.ir.types import DType, TensorType
from lynx.passes.base import Remark
from lynx.passes.fusion import KernelFactory
from lynx.passes.kernel_reads import reads_in_step
from lynx.passes.plan_memory import groups_of
from lynx.passes.products import LIBRARY, PRODUCTS, product_call
from lynx.passes.rewrite import NoMatch

from .attention import AttentionStep, ScoreKernels, attention_step, dims_of_attention
from .places import Place, Places

_NOWHERE = Pointer(0)


@dataclass(frozen=True)
class KernelStep:
    """A step that runs as a kernel over the memory of these values, one for each buffer.

    Values of no dimensions may lie on the CPU, wherever the kernel runs.
    """

    layout: FusedLayout
    kernel: Kernel
    values: tuple[Value, ...]
    device: str
    loc: Location

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel."""
        return (self.kernel,)

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.kernel.name

    @property
    def request(self) -> LaunchRequest:
        """What a launcher is asked for."""
        parts = self.layout.op.body.ops
        multiplies = any(isinstance(part, MatrixProduct | AddProduct) for part in parts)
        return LaunchRequest(self.kernel, self.device, self.layout if multiplies else None)

    def call(self, pointers: tuple[Pointer, ...]) -> NativeCall:
        """Return the call with the addresses of the values."""
        return KernelCall(self.kernel, pointers, self.loc)


@dataclass(frozen=True)
class ProductStep:
    """A step that runs as a native product: of `a` and `b` into the result.

    `strides` are those of both and of the result, then that of an added term.
    """

    op: MatrixProduct | AddMatmul
    strides: tuple[tuple[Dim, ...], ...]
    dtypes: frozenset[DType]

    @property
    def values(self) -> tuple[Value, ...]:
        """The two factors, the result, and a term that is added."""
        added = (self.op.bias,) if isinstance(self.op, AddMatmul) else ()
        return (self.op.a, self.op.b, self.op.out, *added)

    def attempt(self, pointers: tuple[Pointer, ...]) -> ProductCall | NoMatch:
        """Return the call with the addresses of the values, or why there is none."""
        return product_call(self.op, self.strides, pointers, self.dtypes)

    def call(self, pointers: tuple[Pointer, ...]) -> NativeCall:
        """Return the call with the addresses of the values."""
        call = self.attempt(pointers)
        assert isinstance(call, ProductCall), call
        return call


NativeStep: TypeAlias = KernelStep | ProductStep | AttentionStep


class NativeSteps:
    """The steps of a program that kernels can run, by index; `refused` says why others cannot.

    Kernels run on devices of one type; `products` are the types of the matrices that segments
    multiply, and these compute attention too unless `attends` says otherwise.
    `empty` are steps whose results have no elements, so that nothing has to run.
    """

    def __init__(
        self,
        program: Program,
        places: Places,
        *,
        device: str = "cpu",
        products: frozenset[DType] = LIBRARY,
        attends: bool | None = None,
    ) -> None:
        self.program = program
        self.places = places
        self.device = device
        self.products = products
        self.attends = bool(products) if attends is None else attends
        self.factory = KernelFactory()
        self.scores = ScoreKernels()
        self.found: dict[int, NativeStep] = {}
        self.empty: set[int] = set()
        self.refused: list[Remark] = []
        for index, step in enumerate(program.steps):
            if _is_empty(step):
                self.empty.add(index)
                continue
            native = self._native(step)
            if native is not None:
                self.found[index] = native

    def exclude(self, kernels: Iterable[Kernel]) -> list[Op]:
        """Give up on some kernels; return the ops that would have run as these."""
        names = set(kernels)
        dropped = [
            index
            for index, native in self.found.items()
            if not names.isdisjoint(_kernels_of(native))
        ]
        for index in dropped:
            del self.found[index]
        return [self.program.steps[index].op for index in dropped]

    def _native(self, step: Step) -> NativeStep | None:
        op = step.op
        if not step.is_written or not all(placement.is_written for placement in step.placements):
            return None
        if isinstance(op, Fused):
            return self._kernel(op, op, step)
        if isinstance(op, Reshape):
            parameter = Value(op.x.type)
            inner = Reshape(parameter, op.shape, loc=op.loc)
            fused = Fused((op.x,), Region((parameter,), (inner,), (inner.out,)), loc=op.loc)
            return self._kernel(op, fused, step)
        if isinstance(op, Attending) and self.attends:
            return self._attention(op)
        if isinstance(op, MatrixProduct | AddMatmul) and self.products:
            return self._product(op)
        return None

    def _attention(self, op: Attending) -> NativeStep | None:
        device = op.results[0].tensor_type.device
        if device.partition(":")[0] != self.device:
            return None
        try:
            find = functools.partial(self.places.on, device)
            return attention_step(op, find, device, self.scores)
        except CompileError as error:
            message = f"{error.message}: '{op.name}' runs through torch"
            self.refused.append(Remark("attention", message, op.loc))
            return None

    def _kernel(self, op: Op, fused: Fused, step: Step) -> NativeStep | None:
        """Return the kernel of an op, which is `fused` or means the same."""
        device = op.results[0].tensor_type.device
        if device.partition(":")[0] != self.device:
            return None
        inputs = [self._place_of(value, device) for value in fused.inputs]
        results = [self.places.on(device, value) for value in op.results]
        if any(_is_elsewhere(*pair) for pair in zip(fused.inputs, inputs, strict=True)):
            return None
        if not all(results):
            return None
        in_place = {
            index: fused.inputs.index(placement.of)
            for index, placement in enumerate(step.placements)
            if isinstance(placement, InPlace | Target) and placement.of in fused.inputs
        }
        layout = FusedLayout(
            fused,
            tuple(None if place is None else place.strides for place in inputs),
            tuple(place.strides for place in results if place is not None),
            in_place,
        )
        try:
            kernel = self.factory.kernel_of(fused, layout.inputs, layout.results, in_place)
        except CompileError as error:
            self.refused.append(Remark("kernel", f"{error.message}: runs through torch", op.loc))
            return None
        reason = _why_unsafe(kernel, [f"x{index}" for index in in_place.values()])
        if reason:
            self.refused.append(Remark("kernel", f"{reason}: runs through torch", op.loc))
            return None
        named = {f"x{index}": value for index, value in enumerate(fused.inputs)}
        named |= {f"y{index}": value for index, value in enumerate(op.results)}
        values = tuple(named[buffer.name] for buffer in kernel.buffers)
        return KernelStep(layout, kernel, values, device, op.loc)

    def _place_of(self, value: Value, device: str) -> Place | None:
        """Return the place of an input: on the device, or a number in a tensor on the CPU."""
        if not isinstance(value.type, TensorType) or value.shape:
            return self.places.on(device, value)
        return self.places.on(device, value) or self.places.on("cpu", value)

    def _product(self, op: MatrixProduct | AddMatmul) -> NativeStep | None:
        if not isinstance(op, PRODUCTS):
            return None
        values = ProductStep(op, (), self.products).values
        places = [self.places.on("cpu", value) for value in values]
        strides = tuple(place.strides for place in places if place is not None)
        if len(strides) < len(values):
            return None
        step = ProductStep(op, strides, self.products)
        call = step.attempt((_NOWHERE,) * len(values))
        if isinstance(call, NoMatch):
            message = f"{call.reason}: '{op.name}' runs through torch"
            self.refused.append(Remark("product", message, op.loc))
            return None
        return step


def _kernels_of(native: NativeStep) -> tuple[Kernel, ...]:
    """Return the kernels that a step depends on."""
    return native.kernels if isinstance(native, KernelStep | AttentionStep) else ()


def _is_elsewhere(value: Value, place: Place | None) -> bool:
    return place is None and isinstance(value.type, TensorType)


def _is_empty(step: Step) -> bool:
    """Whether a step only writes tensors without elements."""
    is_written = step.is_written and all(placement.is_written for placement in step.placements)
    return (
        is_written
        and step.op.is_removable  # draws no numbers, and no other device takes part
        and all(0 in result.shape for result in step.op.results)
    )


def _why_unsafe(kernel: Kernel, in_place: list[str]) -> str:
    """Return why a kernel must not run, empty if it may; these buffers are written in place."""
    if not reads_in_step(kernel, in_place):
        return "reads what it writes at another place"
    loads = [i for i in kernel.body if isinstance(i, Load) and i.buffer.extent == 0]
    if any(all(kernel.sizes[axis] != 0 for axis in load.domain) for load in loads):
        return "reads a tensor without elements"
    return ""


@dataclass(frozen=True)
class PlacedSegment:
    """A segment, and where its slots come from.

    The first slots are addresses in arenas: `arenas` lists for each arena by its index the buffers
    whose addresses are needed, None for the start of the arena. Then come the addresses of
    `tensors`. `steps` are the indices of the steps that the segment runs.
    """

    segment: Segment
    steps: tuple[int, ...]
    arenas: tuple[tuple[int, tuple[int | None, ...]], ...]
    tensors: tuple[Value, ...]


def form_segments(steps: NativeSteps) -> tuple[PlacedSegment, ...]:
    """Return the longest runs of native steps that nothing of torch has to come between."""
    runs: list[list[int]] = [[]]
    for index in range(len(steps.program.steps)):
        if index in steps.found:
            runs[-1].append(index)
        elif runs[-1] and not _is_transparent(index, steps):
            runs.append([])
    slots = _Slots(steps.program, steps.places)
    return tuple(
        _placed(f"segment_{number}", run, steps, slots)
        for number, run in enumerate(run for run in runs if run)
    )


def _is_transparent(index: int, steps: NativeSteps) -> bool:
    """Whether a step reads no memory, so that native steps after it may begin before it."""
    op = steps.program.steps[index].op
    return isinstance(op, Resource | Symbolic) or index in steps.empty or steps.places.is_view(op)


_Key: TypeAlias = tuple[int, int | None] | Value
"""Where a slot comes from: an arena and a buffer in it, or a tensor."""


class _Slots:
    """Finds the slot and offset of a place."""

    def __init__(self, program: Program, places: Places) -> None:
        self.places = places
        self.arenas: dict[Value, tuple[int, int | None, int]] = {}
        self.tenancies: dict[_Key, Tenancy] = {}
        for number, group in enumerate(groups_of(program)):
            for index, buffer in enumerate(group.buffers):
                offset = buffer.placement.offset
                entry = (number, index, 0) if offset is None else (number, None, offset)
                self.arenas[buffer.value] = entry
                if offset is None:
                    self.tenancies[number, index] = Tenancy(number, buffer.start, buffer.end)

    def locate(self, value: Value) -> tuple[_Key, Dim]:
        """Return where the address of a value starts from, and the bytes to add."""
        place = self.places.find(value)
        assert place is not None, value
        known = self.arenas.get(place.root)
        if known is None:
            return place.root, place.offset
        number, index, start = known
        return (number, index), start + place.offset


def _placed(name: str, run: list[int], steps: NativeSteps, slots: _Slots) -> PlacedSegment:
    natives = [steps.found[index] for index in run]
    located = {v: slots.locate(v) for native in natives for v in native.values}
    keys = dict.fromkeys(key for key, _ in located.values())
    in_arenas: dict[int, list[int | None]] = {}
    for key in keys:
        if isinstance(key, tuple):
            in_arenas.setdefault(key[0], []).append(key[1])
    arenas = tuple((number, tuple(in_arenas[number])) for number in sorted(in_arenas))
    tensors = tuple(key for key in keys if isinstance(key, Value))
    order: list[_Key] = [(number, index) for number, chosen in arenas for index in chosen]
    position: Mapping[_Key, int] = {key: n for n, key in enumerate([*order, *tensors])}
    pointers = {v: Pointer(position[key], offset) for v, (key, offset) in located.items()}
    calls = tuple(native.call(tuple(pointers[v] for v in native.values)) for native in natives)
    symbols = tuple(sorted({name for call in calls for name in _symbols_of(call)}))
    tenancies = {at: slots.tenancies[key] for key, at in position.items() if key in slots.tenancies}
    segment = Segment(name, calls, len(position), symbols, tenancies)
    return PlacedSegment(segment, tuple(run), arenas, tensors)


def _symbols_of(call: NativeCall) -> Iterable[str]:
    """Return the symbols whose values the caller of a segment has to pass."""
    if isinstance(call, KernelCall):
        return (*call.kernel.symbols, *free_symbols(pointer.offset for pointer in call.buffers))
    if isinstance(call, AttentionCall | AttentionBackwardCall):
        own = free_symbols(dims_of_attention(call))
        return (*own, *(name for kernel in kernels_in(call) for name in kernel.symbols))
    dims: list[Dim] = [call.outer, call.batch, call.m, call.n, call.k]
    added = () if call.added is None else (call.added,)
    for matrix in (call.a, call.b, call.out, *added):
        dims += [matrix.pointer.offset, matrix.outer, *matrix.strides]
    return free_symbols(dims)
