"""Whether and how a compiled graph is replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lynx.compat import is_unsafe_to_record
from lynx.ir.core import Op
from lynx.ir.ops.aten import Aten
from lynx.ir.program import Program
from lynx.ir.types import TensorType
from lynx.passes import Remark
from lynx.runtime import CudaRecorder, GraphedFunction, Recorder

from .generators import raise_arrived
from .records import CompiledGraph

Runner = Callable[[list[Any]], Any]


def replayed(record: CompiledGraph, recorder: Recorder | None = None) -> Runner:
    """Return the executable of a record, replayed from CUDA graphs where that is possible.

    The record gets a remark for each reason why it is not. Without a `recorder` it is torch's.
    """
    executable: Runner = record.executable
    program: Program = record.program
    reason = why_not(program)
    if reason:
        _remark(record, f"runs without a CUDA graph: {reason}")
        return executable

    def remark(message: str) -> None:
        _remark(record, message)

    fixed = fixed_inputs(program, record.kind)
    return GraphedFunction(executable, fixed, recorder or CudaRecorder(), remark, raise_arrived)


def _remark(record: CompiledGraph, message: str) -> None:
    record.remarks = [*record.remarks, Remark("cuda-graph", message)]


def why_not(program: Program) -> str:
    """Return why a program must not be recorded, empty if it may be.

    What a recording does on the host it does once, so nothing may be computed there.
    """
    for step in program.steps:
        for value in (*step.op.operands, *step.op.results):
            if isinstance(value.type, TensorType) and not value.type.device.startswith("cuda"):
                return f"'{_name(step.op)}' works on a tensor on {value.type.device}"
        if isinstance(step.op, Aten):
            if step.op.effect:
                return f"'{step.op.target}' has an effect on something else than its results"
            if is_unsafe_to_record(step.op.target):
                return f"'{step.op.target}' is not safe in a CUDA graph"
    return ""


def _name(op: Op) -> str:
    return op.target if isinstance(op, Aten) else op.name


def fixed_inputs(program: Program, kind: str) -> list[int]:
    """Return the inputs that keep their place from call to call, or are written to.

    These are parameters and buffers, and in a backward graph what its forward graph kept.
    """
    graph = program.graph
    written = {mutation.target for mutation in graph.mutations}
    return [
        index
        for index, (value, spec) in enumerate(zip(graph.inputs, graph.input_specs, strict=True))
        if spec.is_static
        or value in written
        or (kind == "backward" and not (value.name or "").startswith("tangents"))
    ]
