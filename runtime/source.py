"""Write a program as one straight-line Python function, without a table look-up for any op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lynx.ir.call import Call
from lynx.ir.core import Op, Value
from lynx.ir.dims import free_symbols, python_source
from lynx.ir.errors import CompileError, InternalError
from lynx.ir.ops.aten import Aten, Resource, Symbolic
from lynx.ir.program import (
    Arena,
    Fresh,
    InPlace,
    Placement,
    Program,
    Return,
    Saved,
    Step,
    Target,
    View,
    Write,
    equal_strides,
)
from lynx.ir.types import ScalarType, TensorType, symbols_told
from lynx.passes.plan_memory import BufferGroup, groups_of

from .dtypes import torch_dtype
from .expressions import Constants, Expressions, Names
from .tensors import copied, place, restrided, unshared
from .torch_internals import direct_call

CallOf = Callable[[Op], Call]


@dataclass
class ArenaSource:
    """The part of a program that belongs to one arena.

    `maker` is the name of the generated function that makes its tensors, `sizes` of the one that
    gives the bytes of its buffers where they depend on `symbols`; `take` and `give` are the names
    under which the program finds the arena.
    """

    group: BufferGroup
    symbols: tuple[str, ...]
    block: str
    take: str
    give: str
    maker: str
    sizes: str
    lines: list[str] = field(default_factory=list)
    ready: dict[Value, str] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)


@dataclass
class Source:
    """The text of a program, the objects that it refers to, and the arenas that it needs."""

    text: str
    entry: str
    globals: dict[str, Any]
    arenas: list[ArenaSource]


def write_source(program: Program, call_of: CallOf, resources: Mapping[str, Any]) -> Source:
    """Return the Python source of a program.

    `InternalError` if the back end does not do what the program was lowered for; `CompileError` if
    a symbol is needed before any value tells it.
    """
    return _Writer(program, call_of, resources).write()


class _Writer:
    def __init__(self, program: Program, call_of: CallOf, resources: Mapping[str, Any]) -> None:
        self.program = program
        self.call_of = call_of
        self.names = Names(_all_symbols(program))
        self.constants = Constants(self.names, resources)
        self.locals: dict[Value, str] = {}
        self.expressions = Expressions(self.constants, self.locals)
        self.known: set[str] = set()
        self.lines: list[str] = []
        self.arenas: list[ArenaSource] = []
        self.owner: dict[Value, ArenaSource] = {}
        self.spelled: dict[Value, Any] = {}
        self.last_place = ""
        self.owners: Counter[Value] | None = None
        self.entry = self.names.unique(f"run_{program.name}")
        self.kept = {v for place_ in program.returns for v in place_.unshare}

    def write(self) -> Source:
        self._name_values()
        self._bind_inputs()
        self._make_arenas()
        for step in self.program.steps:
            self._step(step)
        self._border()
        return Source(self._text(), self.entry, self.constants.globals, self.arenas)

    # names, inputs and arenas

    def _name_values(self) -> None:
        for value in self.program.graph.inputs:
            self.locals[value] = self.names.unique(value.name or "input")
        count = 0
        for op in self.program.ops:
            for result in op.results:
                self.locals[result] = self.names.unique(f"v{count}")
                count += 1

    def _bind_inputs(self) -> None:
        inputs = self.program.graph.inputs
        names = ", ".join(self.locals[value] for value in inputs)
        if inputs:
            self.lines.append(f"({names},) = args")
        self.lines.append("args.clear()")
        for value in inputs:
            self._bind(value)
        for value, spec in zip(inputs, self.program.graph.input_specs, strict=True):
            for index, stride in enumerate(spec.strides or ()):
                for name in _bare((stride,)):
                    self._bind_symbol(name, f"{self.locals[value]}.stride({index})")

    def _bind(self, value: Value) -> None:
        """Give the symbols that a value tells their values."""
        if isinstance(value.type, ScalarType):
            for name in symbols_told(value.type):
                self._bind_symbol(name, self.locals[value])
        elif isinstance(value.type, TensorType):
            for index, dim in enumerate(value.type.shape):
                for name in _bare((dim,)):
                    self._bind_symbol(name, f"{self.locals[value]}.shape[{index}]")

    def _bind_symbol(self, name: str, source: str) -> None:
        if name not in self.known:
            self.known.add(name)
            self.lines.append(f"{name} = {source}")

    def _make_arenas(self) -> None:
        for group in groups_of(self.program):
            prefix = f"{'saved_' if group.saved else ''}{group.device.replace(':', '')}"
            symbols = tuple(free_symbols(_dims_of(group)))
            self._require(symbols, group.buffers[0].value.op)
            roles = ("block", "take", "give", "tensors", "sizes")
            block, take, give, maker, sizes = (
                self.names.unique(f"{prefix}_{role}") for role in roles
            )
            arena = ArenaSource(group, symbols, block, take, give, maker, sizes)
            self.arenas.append(arena)
            for index, buffer in enumerate(group.buffers):
                self._place(arena, index, buffer.value, buffer.placement)

    def _place(
        self, arena: ArenaSource, index: int, value: Value, placement: Arena | Saved
    ) -> None:
        assert placement.strides is not None, placement
        type_ = value.tensor_type
        offset = f"offsets[{index}]" if placement.offset is None else str(placement.offset)
        shape, strides = map(self.expressions.dims, (type_.shape, placement.strides))
        dtype = torch_dtype(type_.dtype)
        call = f"{self.helper(place)}(storage, {offset}, {shape}, {strides}, {dtype})"
        self._make_ready(arena, value, call)

    def _make_ready(self, arena: ArenaSource, value: Value, source: str) -> None:
        """Let the arena hold the tensor of a value, so that no call has to make it."""
        arena.lines.append(f"{self.locals[value]} = {source}")
        arena.ready[value] = self.locals[value]
        self.owner[value] = arena

    def helper(self, function: Callable[..., Any]) -> str:
        return self.constants.name(function, function.__name__)

    # steps

    def _step(self, step: Step) -> None:
        op = step.op
        if isinstance(op, Resource):
            tensor = self.constants.resource(op.key)
            self.locals[op.out] = self.constants.name(tensor, f"constant_{op.key}")
        elif isinstance(op, Symbolic):
            self._require(free_symbols([op.expr]), op)
            self._line(op, f"{self.locals[op.out]} = {python_source(op.expr)}")
        elif step.is_written:
            self._written(step)
        elif not self._is_ready_view(step):
            self._called(step)
        for result in op.results:
            if result not in self.owner:
                self._bind(result)
        self._free(step)

    def _line(self, op: Op, line: str) -> None:
        place_ = str(op.loc) if op.loc.is_known else ""
        if place_ and place_ != self.last_place:
            self.lines.append(f"# {place_}".replace("\n", " "))
            self.last_place = place_
        self.lines.append(line)

    def _written(self, step: Step) -> None:
        op = step.op
        for result, placement in zip(op.results, step.placements, strict=True):
            self._destination(op, result, placement)
        if op.is_view:
            self._copied_view(op)
            return
        call = self.call_of(op)
        if call.out is None or len(call.out_names) != len(op.results):
            message = f"'{op.name}' was lowered to write its results, but has no form that does"
            raise InternalError("no-out-form", message, op.loc)
        outs = {
            name: self._use(result) for name, result in zip(call.out_names, op.results, strict=True)
        }
        self._line(op, self._call(op, call, call.out, outs))

    def _destination(self, op: Op, result: Value, placement: Placement) -> None:
        """Make sure that the local variable of a result holds the tensor to write to."""
        name = self.locals[result]
        if isinstance(placement, Fresh):
            assert placement.strides is not None, placement
            type_ = result.tensor_type
            self._require(free_symbols((*type_.shape, *placement.strides)), op)
            shape, strides = map(self.expressions.dims, (type_.shape, placement.strides))
            self._line(
                op,
                f"{name} = torch.empty_strided({shape}, {strides}, "
                f"dtype={torch_dtype(type_.dtype)}, device={type_.device!r})",
            )
        elif isinstance(placement, InPlace | Target):
            assert placement.of is not None, placement
            arena = self.owner.get(placement.of)
            if arena is not None:
                self._make_ready(arena, result, self.locals[placement.of])
            else:
                self._line(op, f"{name} = {self._use(placement.of)}")

    def _copied_view(self, op: Op) -> None:
        """Write a reshape that no view can express, through the destination in the old shape."""
        source, result = op.operands[0], op.out
        shape = self.expressions.dims(source.shape)
        arena = self.owner.get(result)
        if arena is not None and set(free_symbols(source.shape)) <= set(arena.symbols):
            name = self.names.unique(f"{self.locals[result]}_unshaped")
            arena.lines.append(f"{name} = {self.locals[result]}.view({shape})")
            arena.used[name] = None
            self._line(op, f"{name}.copy_({self._use(source)})")
        else:
            self._require(free_symbols(source.shape), op)
            self._line(op, f"{self._use(result)}.view({shape}).copy_({self._use(source)})")

    def _is_ready_view(self, step: Step) -> bool:
        """Make a view of a tensor that an arena holds together with it, if that is possible."""
        op, placement = step.op, step.placements[0] if step.placements else None
        if not (op.is_view and isinstance(placement, View) and placement.strides is not None):
            return False
        arena = self.owner.get(op.operands[0])
        if arena is None or len(op.operands) != 1 or arena.group.saved:
            return False
        call = self.call_of(op)
        needed = _symbols_in((call.arguments, tuple(call.keywords.values())))
        if not needed <= set(arena.symbols):
            return False
        self._make_ready(arena, op.out, self._call(op, call, call.function, {}, ready=True))
        return True

    def _called(self, step: Step) -> None:
        op = step.op
        call = self.call_of(op)
        source = self._call(op, call, call.function, {})
        results = [self.locals[result] for result in op.results]
        target = f"{', '.join(results)} = " if results else ""
        self._line(op, f"{target}{source}")

    def _call(
        self,
        op: Op,
        call: Call,
        function: Callable[..., Any],
        outs: Mapping[str, str],
        *,
        ready: bool = False,
    ) -> str:
        """Return the source of a call; `ready` if it is made together with the arena."""
        operands = dict.fromkeys(op.operands)
        self._require(_symbols_in((call.arguments, tuple(call.keywords.values()))), op)
        self.spelled = {} if ready else {value: self._operand(op, value) for value in operands}
        parts = [self._argument(item) for item in call.arguments]
        parts += [f"{name}={self._argument(item)}" for name, item in call.keywords.items()]
        parts += [f"{name}={value}" for name, value in outs.items()]
        name = self.constants.function(function)
        self.constants.globals[name] = direct_call(function)
        return f"{name}({', '.join(parts)})"

    def _argument(self, item: Any) -> str:
        if isinstance(item, Value):
            return str(self.spelled.get(item) or self.locals[item])
        if isinstance(item, tuple | list):
            return f"[{', '.join(map(self._argument, item))}]"
        return self.expressions.argument(item)

    def _operand(self, op: Op, value: Value) -> str:
        """Return the source of an operand, with the strides that an `aten` op expects."""
        name = self._use(value)
        if not isinstance(op, Aten) or not isinstance(value.type, TensorType):
            return name
        strides = dict(zip(op.operands, op.operand_strides, strict=False)).get(value)
        if strides is None or equal_strides(strides, self.program.strides(value)):
            return name
        self._require(free_symbols(strides), op)
        return f"{self.helper(restrided)}({name}, {self.expressions.dims(strides)})"

    def _use(self, value: Value) -> str:
        """Return the local variable of a value, and let the program take it from its arena."""
        name = self.locals[value]
        arena = self.owner.get(value)
        if arena is not None:
            arena.used[name] = None
        return name

    def _require(self, symbols: Any, op: Op | None) -> None:
        missing = sorted(set(symbols) - self.known)
        if missing:
            message = f"no input or earlier result tells the value of {', '.join(missing)}"
            raise CompileError("unbound-symbol", message, *([op.loc] if op is not None else []))

    def _free(self, step: Step) -> None:
        names = [
            self.locals[value]
            for value in step.frees
            if value not in self.owner
            and value not in self.kept
            and not isinstance(value.type, ScalarType)
            and not (value.op is not None and isinstance(value.op, Resource))
        ]
        if names:
            self.lines.append(f"del {', '.join(names)}")

    # the end

    def _border(self) -> None:
        graph = self.program.graph
        outputs = []
        entries = zip(graph.outputs, graph.output_specs, self.program.returns, strict=True)
        for index, (value, spec, place_) in enumerate(entries):
            if value is None:
                outputs.append("None")
            elif not isinstance(value.type, TensorType):
                outputs.append(self.locals[value])
            else:
                wanted = None
                if spec.strides is not None and (place_.copy or place_.restride or place_.unshare):
                    self._require(free_symbols(spec.strides), value.op)
                    wanted = self.expressions.dims(spec.strides)
                outputs.append(self._output(index, value, place_, wanted))
        self._writes()
        self.lines.append(f"return ({', '.join(outputs)}{',' if len(outputs) == 1 else ''})")

    def _output(self, index: int, value: Value, place_: Return, wanted: str | None) -> str:
        name = self._use(value)
        if place_.copy:
            source = f"{self.helper(copied)}({name}, {wanted})"
        elif place_.unshare:
            others = ", ".join(self._use(other) for other in place_.unshare)
            source = f"{self.helper(unshared)}({name}, {wanted}, ({others},))"
        elif place_.restride:
            source = f"{self.helper(restrided)}({name}, {wanted})"
        elif self._is_lonely_view(value):
            source = f"{name}.data"  # a view would carry a note that it was made without autograd
        else:
            return name
        output = self.names.unique(f"output{index}")
        self.lines.append(f"{output} = {source}")
        return output

    def _is_lonely_view(self, value: Value) -> bool:
        """Whether an output is the only one in memory that the program allocated for it."""
        program = self.program
        base = program.bases[value]
        if base is None or base is value or base.op is None:
            return False
        if self.owners is None:
            roots = (program.roots_of(v) for v in program.graph.outputs if v is not None)
            self.owners = Counter(root for found in roots for root in found)
        return self.owners[base] == 1

    def _writes(self) -> None:
        sources: dict[int, str] = {}
        for index, write in enumerate(self.program.writes):
            if write.kind == "snapshot":
                sources[index] = self.names.unique(f"snapshot{index}")
                value = self._use(write.mutation.value)
                self.lines.append(f"{sources[index]} = {value}.clone()")
        for index, write in enumerate(self.program.writes):
            self._write(write, sources.get(index))

    def _write(self, write: Write, source: str | None) -> None:
        if write.kind in ("copy", "snapshot"):
            target = self._use(write.mutation.target)
            self.lines.append(f"{target}.copy_({source or self._use(write.mutation.value)})")

    def _text(self) -> str:
        functions = [line for arena in self.arenas for line in _arena_functions(arena)]
        start = self.lines.index("args.clear()") + 1
        while start < len(self.lines) and self.lines[start].split(" = ")[0] in self.known:
            start += 1
        head, body = self.lines[:start], self.lines[start:]
        for arena in reversed(self.arenas):
            body = _with_arena(arena, body)
        lines = [*functions, f"def {self.entry}(args):", *(f"    {line}" for line in head + body)]
        return "\n".join([*lines, ""])


def _arena_functions(arena: ArenaSource) -> list[str]:
    parameters = ", ".join(("storage", "offsets", *arena.symbols))
    lines = [f"def {arena.maker}({parameters}):"]
    lines += [f"    {line}" for line in arena.lines]
    lines += [f"    return ({''.join(f'{name}, ' for name in arena.used)})", ""]
    if any(buffer.placement.offset is None for buffer in arena.group.buffers):
        sizes = "".join(f"{python_source(size)}, " for size in arena.group.sizes)
        lines += [f"def {arena.sizes}({', '.join(arena.symbols)}):", f"    return ({sizes})", ""]
    return [*lines, ""]


def _with_arena(arena: ArenaSource, body: list[str]) -> list[str]:
    names = "".join(f"{name}, " for name in arena.used)
    take = f"{arena.take}({', '.join(arena.symbols)})"
    if arena.group.saved:
        return [f"({names}) = {take}", *body]
    return [
        f"{arena.block}, ({names}) = {take}",
        "try:",
        *(f"    {line}" for line in body),
        "finally:",
        f"    {arena.give}({arena.block})",
    ]


def _bare(dims: Any) -> list[str]:
    return [dim.name for dim in dims if getattr(dim, "is_Symbol", False)]


def _dims_of(group: BufferGroup) -> list[Any]:
    dims: list[Any] = []
    for buffer in group.buffers:
        dims += [*buffer.value.shape, *(buffer.placement.strides or ()), buffer.placement.size]
    return dims


def _all_symbols(program: Program) -> list[str]:
    """Return every name that may appear in a dimension of the program."""
    names = {entry.name for entry in program.graph.symbols}
    for value in (*program.graph.inputs, *(r for op in program.ops for r in op.results)):
        if isinstance(value.type, TensorType):
            names.update(free_symbols(value.type.shape))
        else:
            names.update(symbols_told(value.type))
    return sorted(names)


def _symbols_in(item: Any) -> set[str]:
    if isinstance(item, tuple | list):
        return {name for part in item for name in _symbols_in(part)}
    if hasattr(item, "free_symbols"):
        return set(free_symbols([item]))
    return set()
