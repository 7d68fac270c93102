"""Fused ops as calls for the runtime: Triton kernels for the layouts that tensors turn out to have.

The kernel for the layouts that are known when a program is compiled, with symbolic sizes, serves
all sizes. Tensors that lie otherwise in memory get a kernel for their strides, made when they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lynx.ir.call import Call
from lynx.ir.dims import Dim, contiguous_strides, evaluate, free_symbols, symbol
from lynx.ir.kernel import Kernel
from lynx.ir.ops.fusion import Fused
from lynx.ir.types import TensorType
from lynx.passes.fusion import kernel_of

from .dtypes import torch_type
from .launch import TritonKernel, launchable

Strides = tuple[Dim, ...]


def call_of(
    op: Fused,
    input_strides: Sequence[Strides | None] | None = None,
    result_strides: Sequence[Strides] | None = None,
) -> Call:
    """Return how a fused op runs on a GPU: `function(inputs, sizes)`, and its `out` form.

    Strides are those expected, row-major where not given. `CompileError` if the op has no kernel,
    or Triton cannot do what it needs.
    """
    program = FusedCall(op, input_strides, result_strides)
    outs = tuple(f"out{index}" for index in range(len(op.results)))
    sizes = tuple(symbol(name) for name in program.symbols)
    return Call(program.run, (op.inputs, sizes), {}, program.run_out, outs)


class FusedCall:
    """Runs a fused op on tensors; `symbols` are those whose values come with them, in order."""

    def __init__(
        self,
        op: Fused,
        input_strides: Sequence[Strides | None] | None = None,
        result_strides: Sequence[Strides] | None = None,
    ) -> None:
        self.op = op
        self.input_strides = tuple(input_strides or map(_row_major, op.inputs))
        rows = (contiguous_strides(value.shape) for value in op.results)
        self.result_strides: tuple[Strides, ...] = tuple(result_strides or rows)
        kernel = kernel_of(op, self.input_strides, self.result_strides, {})
        strides = [dim for s in (*self.input_strides, *self.result_strides) for dim in s or ()]
        shapes = [dim for value in op.results for dim in value.shape]
        self.symbols = tuple(sorted({*kernel.symbols, *free_symbols([*shapes, *strides])}))
        self.expected = _Variant(kernel)
        self.others: dict[tuple[Any, ...], _Variant] = {}

    def run(self, inputs: Sequence[Any], sizes: Sequence[int]) -> Any:
        """Return the results in fresh row-major memory."""
        values = dict(zip(self.symbols, sizes, strict=True))
        outs = [self._empty(index, values) for index in range(len(self.op.results))]
        self._run(inputs, outs, values)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def run_out(self, inputs: Sequence[Any], sizes: Sequence[int], **outs: torch.Tensor) -> None:
        """Write the results to `out0`, `out1`, ... in any dense layout."""
        given = [outs[f"out{index}"] for index in range(len(self.op.results))]
        self._run(inputs, given, dict(zip(self.symbols, sizes, strict=True)))

    def _empty(self, index: int, values: Mapping[str, int]) -> torch.Tensor:
        type_ = self.op.results[index].tensor_type
        shape = [evaluate(dim, values) for dim in type_.shape]
        return torch.empty(shape, dtype=torch_type(type_.dtype), device=type_.device)

    def _run(
        self, inputs: Sequence[Any], outs: Sequence[torch.Tensor], values: Mapping[str, int]
    ) -> None:
        given = tuple(x.stride() if isinstance(x, torch.Tensor) else None for x in inputs)
        made = tuple(out.stride() for out in outs)
        variant = self.expected
        if not self._is_expected(given, inputs, self.input_strides, values) or not (
            self._is_expected(made, outs, self.result_strides, values)
        ):
            variant = self._variant(given, made)
        variant.launch(inputs, outs, values)

    def _is_expected(
        self,
        given: Sequence[tuple[int, ...] | None],
        tensors: Sequence[Any],
        wanted: Sequence[Strides | None],
        values: Mapping[str, int],
    ) -> bool:
        """Whether strides are the expected ones; that of a dimension of size 1 is free."""
        for strides, tensor, dims in zip(given, tensors, wanted, strict=True):
            if strides is None or dims is None:
                continue
            pairs = zip(strides, dims, tensor.shape, strict=True)
            if any(s != evaluate(dim, values) for s, dim, size in pairs if size > 1):
                return False
        return True

    def _variant(
        self, given: tuple[tuple[int, ...] | None, ...], made: tuple[tuple[int, ...], ...]
    ) -> _Variant:
        key = (given, made)
        if key not in self.others:
            self.others[key] = _Variant(kernel_of(self.op, given, made, {}))
        return self.others[key]


class _Variant:
    """The kernels of one layout: as fast as possible, and in a fixed order where torch wants it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.places = [(buffer.name[0] == "x", int(buffer.name[1:])) for buffer in kernel.buffers]
        self.launchers: dict[bool, TritonKernel] = {False: launchable(kernel)}

    def launch(
        self, inputs: Sequence[Any], outs: Sequence[torch.Tensor], values: Mapping[str, int]
    ) -> None:
        """Launch on tensors, in the order of the kernel's buffers."""
        tensors = [(inputs if is_input else outs)[index] for is_input, index in self.places]
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        launcher = self.launchers.get(is_deterministic)
        if launcher is None:
            launcher = launchable(self.kernel, is_deterministic=is_deterministic)
            self.launchers[is_deterministic] = launcher
        launcher(tensors, values)


def _row_major(value: Any) -> Strides | None:
    return contiguous_strides(value.shape) if isinstance(value.type, TensorType) else None
