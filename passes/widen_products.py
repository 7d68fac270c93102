"""Multiplies low precision in `f32` on machines that have no fast products of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.ops.elementwise_arithmetic import Cast
from lynx.ir.ops.linear import AddOuter, AddProduct, MatrixProduct
from lynx.ir.types import DType, TensorType

from .base import PassContext, Requirement, register_pass
from .requirements import IS_GRAPH
from .rewrite import NoMatch, Rewritten, rewrite, rule
from .target import Target

_SMALLEST = 1 << 17
"""Multiplications below which conversions that torch runs one by one cost more than they save."""


@register_pass
@dataclass(frozen=True)
class WidenProducts:
    """Convert operands of low-precision products to `f32`, multiply, and round once.

    Eager adds up in `f32` and rounds once too, so no accuracy is lost; the library multiplies `f32`
    many times faster than types that it has to emulate. Types that the target multiplies natively
    stay, and so do small products where no kernels are generated that convert cheaply.
    """

    name: ClassVar[str] = "widen-products"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with wide products."""
        target = context.target

        @rule
        def widen_product(
            op: MatrixProduct
            | AddProduct
            | Convolution
            | ConvolutionBackwardInput
            | ConvolutionBackwardWeight,
        ) -> Rewritten:
            """Compute in `f32` and round the result.

            matmul(a: bf16, b: bf16)  ==>  cast(matmul(cast(a, f32), cast(b, f32)), bf16)
            """
            reason = _kept(op, target)
            return NoMatch(reason) if reason else _widened(op)

        return rewrite(module, (widen_product,), context)


def _kept(op: Op, target: Target) -> str:
    """Return why an op stays in its type; nothing if it does not."""
    type_ = op.results[0].tensor_type
    if not type_.dtype.is_low_precision:
        return f"{type_.dtype} is no low-precision type"
    if type_.device.partition(":")[0] != target.device or not target.is_cpu:
        return f"runs on {type_.device}, whose library has products of {type_.dtype}"
    if target.multiplies(type_.dtype):
        return f"the machine multiplies {type_.dtype} natively"
    if isinstance(op, AddOuter):
        return "adds up nothing"
    if isinstance(op, Convolution) and op.transposed:
        return "eager rounds each of the products that it adds up"
    if not target.generates_code and isinstance(op, MatrixProduct | AddProduct):
        return _too_small(op)
    return ""


def _too_small(op: MatrixProduct | AddProduct) -> str:
    """Return why converting costs more than it saves, if torch converts in calls of their own."""
    sizes = (*op.results[0].shape, op.a.shape[-1])
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes) and math.prod(known) < _SMALLEST:
        return "is too small to convert the operands"
    if op.results[0].shape[-2:-1] == (1,):
        return "reads the second operand once, which is no more work than to convert it"
    return ""


def _widened(op: Op) -> tuple[Value, ...]:
    """Return the results of the op over operands in `f32`, converted back."""
    wide: dict[Value, Value] = {}
    for value in dict.fromkeys(op.operands):
        type_ = value.type
        if isinstance(type_, TensorType) and type_.dtype.is_low_precision:
            wide[value] = Cast(value, DType.F32, loc=op.loc).out
    product = op.replace_operands(wide)
    return tuple(
        Cast(new, old.tensor_type.dtype, loc=op.loc).out
        for new, old in zip(product.results, op.results, strict=True)
    )
