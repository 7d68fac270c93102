"""The end of a generated program: the contract of its outputs, and the inputs that it changes."""

from __future__ import annotations

from lynx.ir.core import Value
from lynx.ir.dims import free_symbols
from lynx.ir.program import Return, Write
from lynx.ir.types import TensorType

from .lines import Lines
from .places import Places
from .tensors import copied, restrided, unshared


def write_border(lines: Lines, places: Places) -> None:
    """Append what hands out the outputs and writes the mutated inputs."""
    _Border(lines, places).write()


class _Border:
    def __init__(self, lines: Lines, places: Places) -> None:
        self.lines = lines
        self.places = places
        self.program = lines.program

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
        elif self.program.bases[value] is not value and self._is_noted(value):
            source = f"{name}.data"  # a view would carry a note that it was made without autograd
        else:
            return name
        output = lines.names.unique(f"output{index}")
        lines.lines.append(f"{output} = {source}")
        return output

    def _is_noted(self, value: Value) -> bool:
        """Whether an output was made as a view, and no other output is to be one with it."""
        is_separate = self.places.anchor(value) is not None
        return not is_separate and self.places.is_lonely(value)

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
