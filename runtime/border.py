"""The end of a generated program: the contract of its outputs, and the inputs that it changes."""

from __future__ import annotations

from collections import Counter

from lynx.ir.core import Value
from lynx.ir.dims import free_symbols
from lynx.ir.program import Return, Write
from lynx.ir.types import TensorType

from .lines import Lines
from .tensors import copied, restrided, unshared


def write_border(lines: Lines) -> None:
    """Append what hands out the outputs and writes the mutated inputs."""
    _Border(lines).write()


class _Border:
    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.program = lines.program
        self.owners: Counter[Value] | None = None

    def write(self) -> None:
        graph = self.program.graph
        outputs = []
        entries = zip(graph.outputs, graph.output_specs, self.program.returns, strict=True)
        for index, (value, spec, place) in enumerate(entries):
            if value is None:
                outputs.append("None")
            elif not isinstance(value.type, TensorType):
                outputs.append(self.lines.locals[value])
            else:
                wanted = None
                if spec.strides is not None and (place.copy or place.restride or place.unshare):
                    self.lines.require(free_symbols(spec.strides), value.op)
                    wanted = self.lines.expressions.dims(spec.strides)
                outputs.append(self._output(index, value, place, wanted))
        self._writes()
        end = "," if len(outputs) == 1 else ""
        self.lines.lines.append(f"return ({', '.join(outputs)}{end})")

    def _output(self, index: int, value: Value, place: Return, wanted: str | None) -> str:
        lines = self.lines
        name = lines.use(value)
        if place.copy:
            source = f"{lines.helper(copied)}({name}, {wanted})"
        elif place.unshare:
            others = ", ".join(lines.use(other) for other in place.unshare)
            source = f"{lines.helper(unshared)}({name}, {wanted}, ({others},))"
        elif place.restride:
            source = f"{lines.helper(restrided)}({name}, {wanted})"
        elif self._is_lonely_view(value):
            source = f"{name}.data"  # a view would carry a note that it was made without autograd
        else:
            return name
        output = lines.names.unique(f"output{index}")
        lines.lines.append(f"{output} = {source}")
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
                sources[index] = self.lines.names.unique(f"snapshot{index}")
                value = self.lines.use(write.mutation.value)
                self.lines.lines.append(f"{sources[index]} = {value}.clone()")
        for index, write in enumerate(self.program.writes):
            self._write(write, sources.get(index))

    def _write(self, write: Write, source: str | None) -> None:
        if write.kind in ("copy", "snapshot"):
            target = self.lines.use(write.mutation.target)
            source = source or self.lines.use(write.mutation.value)
            self.lines.lines.append(f"{target}.copy_({source})")
