"""Run graphs with fused ops both ways: by the ops of their regions, and by their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lynx.backends.reference import run
from lynx.backends.reference.dtypes import torch_dtype
from lynx.backends.reference.kernels import run_kernel
from lynx.ir.core import Graph, Value
from lynx.ir.dims import contiguous_strides
from lynx.ir.kernel import Kernel
from lynx.ir.ops.fusion import Fused
from lynx.passes.fusion import kernel_of


def kernels_of(graph: Graph) -> list[tuple[Fused, Kernel]]:
    """Return the kernel of each fused op, as for row-major inputs and results."""
    found = []
    for op in graph.ops:
        if isinstance(op, Fused):
            strides = [contiguous_strides(value.shape) for value in op.inputs]
            results = [contiguous_strides(value.shape) for value in op.results]
            found.append((op, kernel_of(op, strides, results, {})))
    return found


def values_by_kernels(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Return outputs and mutations of a static graph whose fused ops run as kernels do."""
    values: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for op in graph.ops:
        if isinstance(op, Fused):
            results = run_fused(op, [values[value] for value in op.inputs])
        else:
            results = list(run(op, values, {}, graph.resources))
        values.update(zip(op.results, results, strict=True))
    return [values[value] for value in graph.uses]


def run_fused(op: Fused, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run the kernel of a fused op in the interpreter, for the layouts that the inputs have."""
    results = [contiguous_strides(value.shape) for value in op.results]
    kernel = kernel_of(op, [tensor.stride() for tensor in inputs], results, {})
    made = [torch.empty(v.shape, dtype=torch_dtype(v.tensor_type.dtype)) for v in op.results]
    memory = {}
    for buffer in kernel.buffers:
        number = int(buffer.name[1:])
        tensor = (inputs if buffer.name.startswith("x") else made)[number]
        memory[buffer.name] = torch.as_strided(tensor, (buffer.extent,), (1,))
    run_kernel(kernel, memory)
    return made
