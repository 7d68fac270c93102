"""Write a program as one straight-line Python function, without a table look-up for any op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lynx.ir.call import Call
from lynx.ir.core import Op, Value
from lynx.ir.dims import free_symbols, python_source
from lynx.ir.errors import InternalError
from lynx.ir.native import Launch
from lynx.ir.ops.aten import Aten, Resource, Symbolic
from lynx.ir.program import (
    Fresh,
    InPlace,
    Placement,
    Program,
    Step,
    Target,
    equal_strides,
)
from lynx.ir.types import TensorType

from .arena_source import ArenaSource, packer
from .attention import AttentionStep
from .border import write_border
from .dtypes import torch_dtype
from .lines import Lines
from .native import NativeProgram
from .places import Place
from .segments import KernelStep, PlacedSegment
from .tensors import flat, raise_failure, restrided
from .torch_internals import direct_call, empty_on_cpu, reinterpreted

CallOf = Callable[[Op], Call]


@dataclass
class Source:
    """The text of a program, the objects that it refers to, and the arenas that it needs."""

    text: str
    entry: str
    globals: dict[str, Any]
    arenas: list[ArenaSource]


def write_source(
    program: Program, call_of: CallOf, resources: Mapping[str, Any], native: NativeProgram
) -> Source:
    """Return the Python source of a program.

    `InternalError` if the back end does not do what the program was lowered for; `CompileError` if
    a symbol is needed before any value tells it.
    """
    return _Writer(program, call_of, resources, native).write()


class _Writer:
    def __init__(
        self,
        program: Program,
        call_of: CallOf,
        resources: Mapping[str, Any],
        native: NativeProgram,
    ) -> None:
        self.program = program
        self.call_of = call_of
        self.native = native
        self.lines = Lines(program, resources)
        self.spelled: dict[Value, Any] = {}
        self.flats: dict[Value, str] = {}
        self.buffers: dict[Value, tuple[ArenaSource, int]] = {}

    def write(self) -> Source:
        lines = self.lines
        lines.bind_inputs()
        for arena in lines.arenas:
            lines.require(arena.symbols, arena.group.buffers[0].value.op)
            for index, buffer in enumerate(arena.group.buffers):
                self.buffers[buffer.value] = (arena, index)
                if buffer.value in self.native.needed:
                    assert buffer.placement.strides is not None, buffer
                    self._place(buffer.value, Place(buffer.value, 0, buffer.placement.strides))
        for index, step in enumerate(self.program.steps):
            self._step(index, step)
        write_border(lines, self.native.places)
        text = lines.text(self.flats.values())
        return Source(text, lines.entry, lines.constants.globals, lines.arenas)

    def _place(self, value: Value, place: Place) -> bool:
        """Let the arena hold the tensor of a value that lies in it, if it can be made there."""
        found = self.buffers.get(place.root)
        if found is None:
            return False
        arena, index = found
        symbols = free_symbols((*value.shape, *place.strides, place.offset))
        if not set(symbols) <= set(arena.symbols):
            return False
        offset = arena.group.buffers[index].placement.offset
        start = f"offsets[{index}]" if offset is None else str(offset)
        dtype = value.tensor_type.dtype
        if offset is not None and isinstance(place.offset, int):
            skipped = str((offset + place.offset) // dtype.itemsize)
        elif place.offset == 0:
            skipped = f"{start} // {dtype.itemsize}"
        else:
            skipped = f"({start} + {python_source(place.offset)}) // {dtype.itemsize}"
        base = arena.base(dtype, self.lines.names)
        self.lines.make_ready(arena, value, self._reinterpreted(base, value, place, skipped))
        return True

    def _reinterpreted(self, base: str, value: Value, place: Place, skipped: str) -> str:
        shape, strides = map(self.lines.expressions.dims, (value.shape, place.strides))
        function = self.lines.constants.name(reinterpreted, "reinterpreted")
        return f"{function}({base}, {shape}, {strides}, {skipped})"

    def _anchored(self, op: Op, value: Value) -> bool:
        """Make the tensor of a value that lies in memory which the program allocates."""
        place = self.native.places.anchor(value)
        if place is None:
            return False
        if self._place(value, place):
            return True
        self.lines.require(free_symbols((*value.shape, *place.strides, place.offset)), op)
        itemsize = value.tensor_type.dtype.itemsize
        if isinstance(place.offset, int):
            skipped = str(place.offset // itemsize)
        else:
            skipped = f"({python_source(place.offset)}) // {itemsize}"
        source = self._reinterpreted(self.lines.use(place.root), value, place, skipped)
        self.lines.add(op, f"{self.lines.locals[value]} = {source}")
        return True

    def _step(self, index: int, step: Step) -> None:
        op = step.op
        if index in self.native.steps:
            self._native(index, step)
            return
        is_view = self.native.places.is_view(op)
        if is_view and op.out not in self.native.needed:
            return  # only native code looks at it, by its address
        if isinstance(op, Resource):
            tensor = self.lines.constants.resource(op.key)
            self.lines.locals[op.out] = self.lines.constants.name(tensor, f"constant_{op.key}")
        elif isinstance(op, Symbolic):
            self.lines.require(free_symbols([op.expr]), op)
            self.lines.add(op, f"{self.lines.locals[op.out]} = {python_source(op.expr)}")
        elif step.is_written:
            self._written(index, step)
        elif not (is_view and self._anchored(op, op.out)):
            self._called(step)
        for result in op.results:
            if result not in self.lines.owner:
                self.lines.bind(result)

    # native steps

    def _native(self, index: int, step: Step) -> None:
        """Prepare the memory of a step's results; run the segment that ends with this step."""
        for result, placement in zip(step.op.results, step.placements, strict=True):
            is_needed = isinstance(placement, Fresh) or result in self.native.needed
            if is_needed and not self._anchored(step.op, result):
                self._destination(step.op, result, placement)
        number = self.native.last.get(index)
        if number is not None:
            self._run(step.op, number)

    def _run(self, op: Op, number: int) -> None:
        placed, function = self.native.segments[number], self.native.functions[number]
        segment = placed.segment
        self.lines.require(segment.symbols, op)
        name = self.lines.constants.name(function.run, segment.name)
        call = f"{name}({self._packed(op, placed)})"
        if not function.messages:
            self.lines.lines.append(call)
            return
        messages = self.lines.constants.name(function.messages, f"{segment.name}_messages")
        fail = self.lines.helper(raise_failure)
        self.lines.lines.append(f"error = {call}")
        self.lines.lines.append(f"if error: {fail}({messages}, error)")

    def _packed(self, op: Op, placed: PlacedSegment) -> str:
        """Return the source of the bytes that a segment is called with."""
        lines = self.lines
        parts = []
        for number, chosen in placed.arenas:
            arena = lines.arenas[number]
            parts.append(arena.address(chosen, lines.names, lines.constants))
        values = [f"{self._flat(op, value)}.data_ptr()" for value in placed.tensors]
        values += placed.segment.symbols
        if values:
            counts = (len(placed.tensors), len(placed.segment.symbols))
            pack = lines.constants.name(packer(*counts), "pack_{}_{}".format(*counts))
            parts.append(f"{pack}({', '.join(values)})")
        return " + ".join(parts) or "b''"

    def _flat(self, op: Op, value: Value) -> str:
        """Return the local variable of a tensor that lies as native code expects."""
        if not self._is_flattened(value):
            return self.lines.use(value)
        if value not in self.flats:
            self.flats[value] = self.lines.names.unique(f"{self.lines.locals[value]}_flat")
            dtype = torch_dtype(value.tensor_type.dtype)
            made = f"{self.lines.helper(flat)}({self.lines.use(value)}, {dtype})"
            self.lines.add(op, f"{self.flats[value]} = {made}")
        return self.flats[value]

    # steps over tensors: kernels that the host launches, and what torch runs

    def _written(self, index: int, step: Step) -> None:
        op = step.op
        for result, placement in zip(op.results, step.placements, strict=True):
            self._destination(op, result, placement)
        line = self._copied_view(op) if op.is_view else self._called_into(op)
        launched = self.native.launched.get(index)
        if launched is not None:
            line = f"{self._launch(op, *launched)} or {line}"
        self.lines.add(op, line)

    def _launch(self, op: Op, step: KernelStep | AttentionStep, launch: Launch) -> str:
        self.lines.require(launch.symbols, op)
        tensors = "".join(f"{self._memory(op, value, step.device)}, " for value in step.values)
        name = self.lines.constants.name(launch.run, f"launch_{step.name}")
        return f"{name}({', '.join((f'({tensors})', *launch.symbols))})"

    def _memory(self, op: Op, value: Value, device: str) -> str:
        """Return the source of a tensor on a device whose elements lie as kernels expect."""
        place = self.native.places.find(value)
        assert place is not None, value
        name = self._flat(op, place.root if self._is_flattened(place.root) else value)
        if place.root is not value and self._is_flattened(place.root):
            dtype = value.tensor_type.dtype
            if dtype is not place.root.tensor_type.dtype:
                name = f"{name}.view({torch_dtype(dtype)})"
            self.lines.require(free_symbols((*value.shape, *place.strides, place.offset)), op)
            skipped = f"({python_source(place.offset)}) // {dtype.itemsize}"
            name = self._reinterpreted(name, value, place, skipped)
        return name if value.tensor_type.device == device else f"{name}.to({device!r})"

    def _is_flattened(self, value: Value) -> bool:
        return value in self.native.places.flattened

    def _called_into(self, op: Op) -> str:
        """Return the call by which torch computes an op into the memory of its results."""
        call = self.call_of(op)
        if call.out is None or len(call.out_names) != len(op.results):
            message = f"'{op.name}' was lowered to write its results, but has no form that does"
            raise InternalError("no-out-form", message, op.loc)
        outs = {
            name: self.lines.use(result)
            for name, result in zip(call.out_names, op.results, strict=True)
        }
        return self._call(op, call, call.out, outs)

    def _destination(self, op: Op, result: Value, placement: Placement) -> None:
        """Make sure that the local variable of a result holds the tensor to write to."""
        name = self.lines.locals[result]
        if isinstance(placement, Fresh):
            assert placement.strides is not None, placement
            type_ = result.tensor_type
            self.lines.require(free_symbols((*type_.shape, *placement.strides)), op)
            shape, strides = map(self.lines.expressions.dims, (type_.shape, placement.strides))
            dtype = torch_dtype(type_.dtype)
            if type_.device == "cpu":
                function = self.lines.constants.name(empty_on_cpu, "empty_on_cpu")
                self.lines.add(op, f"{name} = {function}({shape}, {strides}, {dtype})")
            else:
                more = f"dtype={dtype}, device={type_.device!r}"
                self.lines.add(op, f"{name} = torch.empty_strided({shape}, {strides}, {more})")
        elif isinstance(placement, InPlace | Target):
            assert placement.of is not None, placement
            arena = self.lines.owner.get(placement.of)
            # The very tensor: torch looks at strides of size 1 to find out what overlaps.
            if arena is not None:
                self.lines.make_ready(arena, result, self.lines.locals[placement.of])
            else:
                self.lines.add(op, f"{name} = {self.lines.use(placement.of)}")

    def _copied_view(self, op: Op) -> str:
        """Return what writes a reshape that no view can express: in the old shape."""
        source, result = op.operands[0], op.out
        shape = self.lines.expressions.dims(source.shape)
        arena = self.lines.owner.get(result)
        if arena is not None and set(free_symbols(source.shape)) <= set(arena.symbols):
            name = self.lines.names.unique(f"{self.lines.locals[result]}_unshaped")
            arena.lines.append(f"{name} = {self.lines.locals[result]}.view({shape})")
            arena.used[name] = None
            return f"{name}.copy_({self.lines.use(source)})"
        self.lines.require(free_symbols(source.shape), op)
        return f"{self.lines.use(result)}.view({shape}).copy_({self.lines.use(source)})"

    def _called(self, step: Step) -> None:
        op = step.op
        call = self.call_of(op)
        source = self._call(op, call, call.function, {})
        results = [self.lines.locals[result] for result in op.results]
        target = f"{', '.join(results)} = " if results else ""
        self.lines.add(op, f"{target}{source}")

    def _call(
        self, op: Op, call: Call, function: Callable[..., Any], outs: Mapping[str, str]
    ) -> str:
        operands = dict.fromkeys(op.operands)
        self.lines.require(_symbols_in((call.arguments, tuple(call.keywords.values()))), op)
        self.spelled = {value: self._operand(op, value) for value in operands}
        parts = [self._argument(item) for item in call.arguments]
        parts += [f"{name}={self._argument(item)}" for name, item in call.keywords.items()]
        parts += [f"{name}={value}" for name, value in outs.items()]
        name = self.lines.constants.function(function)
        self.lines.constants.globals[name] = direct_call(function)
        return f"{name}({', '.join(parts)})"

    def _argument(self, item: Any) -> str:
        if isinstance(item, Value):
            return str(self.spelled.get(item) or self.lines.locals[item])
        if isinstance(item, tuple | list):
            return f"[{', '.join(map(self._argument, item))}]"
        return self.lines.expressions.argument(item)

    def _operand(self, op: Op, value: Value) -> str:
        """Return the source of an operand, with the strides that an `aten` op expects."""
        name = self.lines.use(value)
        if not isinstance(op, Aten) or not isinstance(value.type, TensorType):
            return name
        strides = dict(zip(op.operands, op.operand_strides, strict=False)).get(value)
        if strides is None or equal_strides(strides, self.program.strides(value)):
            return name
        self.lines.require(free_symbols(strides), op)
        return f"{self.lines.helper(restrided)}({name}, {self.lines.expressions.dims(strides)})"


def _symbols_in(item: Any) -> set[str]:
    if isinstance(item, tuple | list):
        return {name for part in item for name in _symbols_in(part)}
    if hasattr(item, "free_symbols"):
        return set(free_symbols([item]))
    return set()
