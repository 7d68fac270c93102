"""Lays images out with their channels innermost where convolutions gain by it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, InputSpec, Op, Value
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
    Geometry,
)
from lynx.ir.ops.elementwise_arithmetic import Copy
from lynx.ir.ops.layout import Permute
from lynx.ir.traversal import users
from lynx.ir.types import DType

from .base import PassContext, Remark, Requirement, register_pass
from .layouts import is_channels_last
from .requirements import IS_GRAPH

_MULTIPLICATIONS = 64
"""How often a convolution must use an element of its input for a copy of the input to pay."""

_REACH = 4
"""Elementwise operations after a convolution among which a reader of its rows is looked for."""


class Channels:
    """Tells which images are channels last, by the rules that the lowering follows.

    A wrong answer costs time only. Linear in the size of the graph for all values together.
    """

    def __init__(self, graph: Graph) -> None:
        self.specs: dict[Value, InputSpec] = dict(zip(graph.inputs, graph.input_specs, strict=True))
        self.known: dict[Value, bool] = {}

    def are_last(self, value: Value) -> bool:
        """Whether the channels of images, dimension 1, are innermost."""
        path = []
        current: Value | None = value
        answer: bool | None = None
        while answer is None and current is not None:
            answer = self.known.get(current)
            if answer is None:
                path.append(current)
                answer, current = self._step(current)
        self.known.update(dict.fromkeys(path, bool(answer)))
        return bool(answer)

    def _step(self, value: Value) -> tuple[bool | None, Value | None]:
        """Return the answer, or None and the value that has the same one."""
        op = value.op
        if op is None:
            spec = self.specs.get(value)
            return is_channels_last(value.shape, spec.strides if spec else None), None
        if isinstance(op, Convolution):
            return (True, None) if self._is_input_last(op.weight) else (None, op.x)
        if isinstance(op, ConvolutionBackwardInput):
            return (True, None) if self._is_input_last(op.weight) else (None, op.x)
        if isinstance(op, Permute):
            # Rows of channels, which a product has computed, seen as images again.
            rank = len(op.dims)
            return rank in (4, 5) and op.dims == (0, rank - 1, *range(1, rank - 1)), None
        if isinstance(op, Copy) and op.memory_format != "preserve_format":
            return op.memory_format.startswith("channels_last"), None
        if op.is_elementwise:
            return None, next((v for v in op.operands if v.shape == value.shape), None)
        return False, None

    def _is_input_last(self, value: Value) -> bool:
        spec = self.specs.get(value)
        return is_channels_last(value.shape, spec.strides if spec else None)


@register_pass
@dataclass(frozen=True)
class LayoutConvolutions:
    """Copy row-major inputs of large convolutions to channels last; what follows stays so.

    oneDNN computes channels last without rearranging the images in each call, and a window of one
    element is one plain product. Graphs that keep values for a backward pass, whose layouts are
    agreed on already, stay as they are, and so do graphs of backward passes.
    """

    name: ClassVar[str] = "layout-convolutions"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with copies; a kernel that computes an image writes it so at once."""
        if not context.target.is_cpu or not context.target.generates_code:
            return module
        if any(spec.saved for spec in module.output_specs) or any(map(_is_backward, module.ops)):
            return module
        channels = Channels(module)
        readers = users(module)
        ops: list[Op] = []
        mapping: dict[Value, Value] = {}
        copies: dict[Value, Value] = {}
        for op in module.ops:
            current = op.replace_operands(mapping)
            if isinstance(current, Convolution) and not channels.are_last(current.x):
                reason = _kept(current, is_by_rows=_meets_rows(op.results[0], readers))
                if reason:
                    context.remarks.append(Remark(self.name, reason, op.loc))
                else:
                    if current.x not in copies:
                        copy = Copy(current.x, memory_format="channels_last", loc=op.loc)
                        copies[current.x] = copy.out
                        ops.append(copy)
                    current = dataclasses.replace(current, x=copies[current.x])
            ops.append(current)
            if current is not op:
                mapping.update(zip(op.results, current.results, strict=True))
        return module.with_ops(tuple(ops), mapping) if copies else module


def _is_backward(op: Op) -> bool:
    return isinstance(op, ConvolutionBackwardInput | ConvolutionBackwardWeight)


def _meets_rows(image: Value, readers: Mapping[Value, Sequence[Op]]) -> bool:
    """Whether what follows reads rows of channels, so that the image is moved in any case."""
    after = (0, *range(2, image.tensor_type.rank), 1)
    current: Value | None = image
    for _ in range(_REACH):
        if current is None:
            break
        found = readers.get(current, ())
        if any(isinstance(user, Permute) and user.dims == after for user in found):
            return True
        current = next(
            (u.results[0] for u in found if u.is_elementwise and len(u.results) == 1), None
        )
    return False


def _kept(op: Convolution, is_by_rows: bool) -> str:
    """Return why the input of a convolution stays as it is; nothing if it is to be copied."""
    x = op.x.tensor_type
    if x.rank != 4 or x.device != "cpu":
        return f"expects images on a CPU, got {x}"
    if op.transposed or x.dtype not in (DType.F32, DType.BF16, DType.F16):
        return "is not one of the library's convolutions"
    geometry = Geometry.of(op)
    sizes = (*geometry.weight.shape, *geometry.stride, *x.shape[1:])
    if not all(isinstance(size, int) for size in sizes):
        return "has symbolic sizes"
    if x.shape[2] == 1 == x.shape[3]:
        return "has images of one element"
    outputs = geometry.weight.shape[0]
    uses = math.prod((*geometry.weight.shape[2:], outputs)) / math.prod(geometry.stride)
    if uses / op.groups < _MULTIPLICATIONS and not is_by_rows:
        return "does too little work with each element"
    return ""
