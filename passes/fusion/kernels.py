"""The kernel of a fused group, for given layouts of its inputs and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, is_static
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Buffer, Index, Kernel, KernelAxis, KernelBuilder, Scalar, Store
from lynx.ir.ops.fusion import Fused
from lynx.ir.program import extent
from lynx.ir.types import DType, TensorType
from lynx.ir.writing import is_write, written_into, written_shape

# They register rules.
from . import (  # noqa: F401
    emit_elementwise,
    emit_layout,
    emit_products,
    emit_reduction,
    emit_writes,
)
from .coalesce import coalesced, reordered
from .coordinates import ZERO, Coordinates, along, position_of
from .emit import Emitter, Write, axes_in, why_not
from .emit_layout import all_of
from .naming import AxisList, AxisNames

Strides = tuple[Dim, ...]


def kernel_of(
    fused: Fused,
    input_strides: Sequence[Strides | None],
    result_strides: Sequence[Strides],
    in_place: Mapping[int, int],
) -> Kernel:
    """Return the kernel of a fused op.

    Strides are in elements, None for an input that is no tensor. `in_place` maps the index of a
    result to that of the input over which it is written, with equal strides. Buffers come in the
    order of inputs, named `x<index>`, then of results, named `y<index>`; inputs that are not read
    have none, and a result that is written over an input has that of the input.

    `CompileError` if an op has no kernel rule.
    """
    region = fused.body
    for op in region.ops:
        reason = why_not(op)
        if reason:
            raise CompileError("no-kernel", f"'{op.name}' {reason}", op.loc)
    return _KernelMaker(fused, input_strides, in_place).make(result_strides)


class _KernelMaker:
    """Makes the kernel of one group."""

    def __init__(
        self,
        fused: Fused,
        input_strides: Sequence[Strides | None],
        in_place: Mapping[int, int],
    ) -> None:
        self.fused = fused
        self.in_place = in_place
        self.builder = KernelBuilder()
        self.names = AxisNames(fused.body)
        self.inputs: dict[int, Buffer] = {}
        sources: dict[Value, tuple[Buffer, Strides]] = {}
        pairs = zip(fused.body.parameters, input_strides, strict=True)
        for index, (parameter, strides) in enumerate(pairs):
            if isinstance(parameter.type, TensorType):
                assert strides is not None, parameter
                type_ = parameter.type
                is_written = index in in_place.values()
                reach = extent(type_.shape, strides)
                self.inputs[index] = Buffer(f"x{index}", type_.dtype, reach, is_written)
                sources[parameter] = (self.inputs[index], strides)
        self.emitter = Emitter(self.builder, self.names, sources)

    def make(self, strides: Sequence[Strides]) -> Kernel:
        """Emit what each result is computed by, and store it."""
        results = self.fused.body.results
        outputs: dict[int, Buffer] = {}
        for index in _widest_first(results):
            buffer = self._output(index, strides[index])
            if index not in self.in_place:
                outputs[index] = buffer
            op = results[index].op
            if op is not None and is_write(op):
                self._write(op, index, buffer, strides[index])
            else:
                self._store(op, results[index], results[index], buffer, strides[index])
        used = {getattr(instruction, "buffer", None) for instruction in self.builder.body}
        read = [buffer for buffer in self.inputs.values() if buffer in used]
        self.builder.buffers = read + [outputs[index] for index in sorted(outputs)]
        return _ordered(coalesced(self.builder.build(_name_of(self.fused))))

    def _store(
        self, op: Op | None, result: Value, source: Value | None, buffer: Buffer, strides: Strides
    ) -> None:
        """Store every element of a result, which is that of the source; without one it is 0."""
        at = self._coordinates(
            result.shape, [self.names.of(result, dim) for dim in range(len(result.shape))]
        )
        if source is not None:
            scalar = self.emitter.element(source, at)
        else:
            scalar = self.builder.constant(0, buffer.dtype)
        self.builder.loc = op.loc if op is not None else self.fused.loc
        self.builder.store(buffer, position_of(at, strides), scalar)

    def _write(self, op: Op, index: int, buffer: Buffer, strides: Strides) -> None:
        """Store what an op writes; all else is copied first, unless it lies there already."""
        result, into = op.results[0], written_into(op)
        if index not in self.in_place:
            self._store(op, result, into, buffer, strides)
        elif into is not self.fused.body.parameters[self.in_place[index]]:
            raise CompileError("no-kernel", f"'{op.name}' writes into another tensor", op.loc)
        shape = written_shape(op)
        at = self._coordinates(shape, [self.names.of_write(op, dim) for dim in range(len(shape))])
        write = self.emitter.write(op, at)
        self.builder.loc = op.loc
        position = position_of(write.at, strides)
        mask = self._each_point(at, position, write) if write.combine == "add" else write.mask
        self.builder.store(buffer, position, write.value, mask, write.combine)

    def _each_point(self, at: Coordinates, position: Index, write: Write) -> Scalar | None:
        """Return the mask of a write, made to depend on all axes: each point adds, equal or not."""
        builder, mask = self.builder, write.mask
        seen = {*axes_in((position,)), *write.value.axes, *(mask.axes if mask is not None else ())}
        zero = builder.constant(0, DType.I64)
        for coordinate in at:
            if axes_in((coordinate,)) <= seen:
                continue
            is_point = builder.apply("ge", builder.position(coordinate), zero, dtype=DType.BOOL)
            conditions = [is_point] if mask is None else [mask, is_point]
            mask = all_of(builder, conditions)
        return mask

    def _coordinates(self, shape: Sequence[Dim], names: Sequence[AxisList]) -> Coordinates:
        """Return the coordinates of elements, along axes that are all different."""
        at = []
        taken: set[str] = set()
        for size, axes in zip(shape, names, strict=True):
            if any(name in taken for name, _ in axes):
                axes = self.names.fresh(size)
            taken.update(name for name, _ in axes)
            self.emitter.enter(axes)
            at.append(along(axes) if axes else ZERO)
        return tuple(at)

    def _output(self, index: int, strides: Strides) -> Buffer:
        if index in self.in_place:
            return self.inputs[self.in_place[index]]
        type_ = self.fused.body.results[index].tensor_type
        reach = extent(type_.shape, strides)
        return Buffer(f"y{index}", type_.dtype, reach, is_written=True)


def _widest_first(results: tuple[Value, ...]) -> list[int]:
    """Return the order of emission: the result with most dimensions names the axes."""
    return sorted(range(len(results)), key=lambda index: -len(results[index].shape))


def _name_of(fused: Fused) -> str:
    """Return a name that says what the kernel does."""
    quiet = ("reshape", "permute", "broadcast", "unsqueeze", "squeeze", "cast", "full", "slice")
    words = [op.name for op in fused.body.ops if op.name not in quiet]
    distinct = list(dict.fromkeys(words or [op.name for op in fused.body.ops]))
    return "_".join(distinct[:5])


def _ordered(kernel: Kernel) -> Kernel:
    """Return the kernel with its axes in the order in which its largest result lies in memory."""
    stores = [instruction for instruction in kernel.body if isinstance(instruction, Store)]
    main = max(stores, key=lambda store: len(store.domain), default=None)
    if main is None:
        return kernel
    strides = {term.of: term.stride for term in main.index.terms if isinstance(term.of, str)}
    if not is_static(strides.values()):
        return kernel

    def rank(entry: tuple[int, KernelAxis]) -> tuple[int, int]:
        place, axis = entry
        stride = strides.get(axis.name)
        return (1, place) if stride is None else (0, -int(stride))

    axes = tuple(axis for _, axis in sorted(enumerate(kernel.axes), key=rank))
    if axes == kernel.axes:
        return kernel
    return reordered(kernel, axes)
