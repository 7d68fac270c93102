"""Where values lie in memory: each at a known distance from the start of a tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, contiguous_strides, product, simplify
from lynx.ir.ops.aten import Resource
from lynx.ir.ops.layout import Reshape
from lynx.ir.program import Arena, Fresh, InPlace, Placement, Program, Saved, Target, View
from lynx.ir.types import TensorType
from lynx.passes.layouts import has_rule, view_offset, view_strides


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor whose first element lies `offset` bytes after that of `root`, with these strides.

    `root` is an input, or a result with memory of its own.
    """

    root: Value
    offset: Dim
    strides: tuple[Dim, ...]


class Places:
    """The places of a program's values, as far as they can be known.

    What torch lays out as it likes is made row-major before its address is taken: `flattened` holds
    the roots for which that must be done, nothing if torch has done so already.
    """

    def __init__(self, program: Program, resources: Mapping[str, Any]) -> None:
        self.program = program
        self.placements = program.placements
        self._owners: Counter[Value] | None = None
        self.flattened: dict[Value, None] = {}
        self._known: dict[Value, Place] = {}
        for value in program.graph.inputs:
            self._own(value, program.input_strides.get(value))
        for step in program.steps:
            for value, placement in zip(step.op.results, step.placements, strict=True):
                if isinstance(step.op, Resource):
                    self._constant(value, resources.get(step.op.key))
                else:
                    self._result(step.op, value, placement)

    def find(self, value: Value) -> Place | None:
        """Return the place of a value, None if that cannot be known."""
        return self._known.get(value)

    def on(self, device: str, value: Value) -> Place | None:
        """Return the place of a value in memory that kernels on a device can reach."""
        is_near = isinstance(value.type, TensorType) and value.type.device == device
        return self._known.get(value) if is_near else None

    def anchor(self, value: Value) -> Place | None:
        """Return the place of a value that lies in another for which the program allocates memory.

        Its tensor can be made without that of any view between them.
        """
        place = self._known.get(value)
        if place is None or place.root is value or place.root.op is None:
            return None
        if value.tensor_type.dtype is not place.root.tensor_type.dtype:
            return None
        placement = self.placements[place.root]
        if isinstance(placement, Fresh):
            return place if self.is_lonely(value) else None
        return place if isinstance(placement, Arena | Saved) else None

    def is_lonely(self, value: Value) -> bool:
        """Whether at most one output lies in the memory of the result that a value lies in.

        If there are more, they are views of each other, as in eager.
        """
        if self._owners is None:
            outputs = (output for output in self.program.graph.outputs if output is not None)
            roots = (self.program.roots_of(output) for output in outputs)
            self._owners = Counter(root for found in roots for root in found)
        base = self.program.bases[value]
        return base is not None and base.op is not None and self._owners[base] <= 1

    def is_view(self, op: Op) -> bool:
        """Whether the result of an op is only another way to look at its operand."""
        return op.is_view and has_rule(op) and self._view(op) is not None

    def _result(self, op: Op, value: Value, placement: Placement) -> None:
        if isinstance(placement, InPlace | Target):
            assert placement.of is not None, placement
            below = self._known.get(placement.of)
            if below is not None and placement.strides is not None:
                self._known[value] = Place(below.root, below.offset, placement.strides)
            return
        place = self._view(op) if isinstance(placement, View) and has_rule(op) else None
        if place is not None:
            self._known[value] = place
        else:
            self._own(value, placement.strides)

    def _own(self, value: Value, strides: tuple[Dim, ...] | None) -> None:
        if not isinstance(value.type, TensorType) or value.type.sharding is not None:
            return
        if strides is None:
            self.flattened[value] = None
            strides = contiguous_strides(value.shape)
        self._known[value] = Place(value, 0, strides)

    def _constant(self, value: Value, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor) or not isinstance(value.type, TensorType):
            return
        if tensor.layout is torch.strided and not (tensor.is_neg() or tensor.is_conj()):
            self._own(value, tuple(tensor.stride()))

    def _view(self, op: Op) -> Place | None:
        below = self._known.get(op.operands[0])
        if below is None:
            return None
        strides = view_strides(op, below.strides)
        if strides is None:
            return None
        if isinstance(op, Reshape):
            return Place(below.root, below.offset, strides)
        itemsize = op.operands[0].tensor_type.dtype.itemsize
        skipped = product((view_offset(op, below.strides), itemsize))
        return Place(below.root, simplify(below.offset + skipped), strides)
