"""Rewrites products so that generated kernels do what the library does badly, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import Dim, is_equal
from lynx.ir.dims import product as size_of
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
    Geometry,
)
from lynx.ir.ops.elementwise_arithmetic import Cast, Multiply
from lynx.ir.ops.layout import Broadcast, Permute, Reshape, Squeeze, Unsqueeze
from lynx.ir.ops.layout_slicing import Select, Slice
from lynx.ir.ops.linear import (
    BatchMatmul,
    Dot,
    Matmul,
    MatrixProduct,
    MatrixVector,
)
from lynx.ir.ops.reduction import Sum
from lynx.ir.types import DType

from .base import PassContext, Requirement, register_pass
from .decompose_build import Number, wide
from .decompose_linear import expand_addmm
from .layout_convolutions import Channels
from .requirements import IS_GRAPH
from .rewrite import NoMatch, Rewritten, Rule, rewrite, rule

_FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
"""The types of generated kernels that the library multiplies too."""


@register_pass
@dataclass(frozen=True)
class ExpandProducts:
    """Split products into what the library multiplies fast and what fuses with its neighbours.

    Added terms become sums after the product; products with a vector along contiguous rows, which
    the library computes at half the speed of memory, become sums of products, and so do products
    without a sum; convolutions with windows of one element become products of matrices. Nothing
    happens on a target that generates no code.
    """

    name: ClassVar[str] = "expand-products"
    requires: ClassVar[tuple[Requirement, ...]] = (IS_GRAPH,)

    def run(self, module: Graph, context: PassContext) -> Graph:
        """Return the graph with products taken apart."""
        target = context.target
        if not target.generates_code or not target.is_cpu:
            return module

        def is_chosen(op: Op) -> bool:
            type_ = op.results[0].tensor_type
            if type_.device != "cpu" or type_.dtype not in _FLOATS:
                return False
            if isinstance(op, MatrixProduct) and not _have_equal_terms(op):
                return False
            # Rounding once takes a wide product, which is not what a native type is for.
            is_native = type_.dtype in target.native_products
            return not is_native or isinstance(op, MatrixProduct)

        rules = (
            expand_addmm,
            *vector_rules(_Rows(module).are_contiguous),
            *convolution_rules(Channels(module).are_last),
        )
        return rewrite(module, rules, context, is_chosen)


def _have_equal_terms(op: MatrixProduct) -> bool:
    """Whether the sizes that a product sums over are written alike.

    Where they are not, one may turn out to be 1, and an elementwise product would then repeat it.
    """
    b = op.b.shape
    return is_equal(op.a.shape[-1], b[-2] if len(b) > 1 else b[0])


class _Rows:
    """Guesses which dimension of a value is contiguous in memory; a wrong guess costs only time."""

    def __init__(self, graph: Graph) -> None:
        specs = zip(graph.inputs, graph.input_specs, strict=True)
        self.strides = {value: spec.strides for value, spec in specs}

    def are_contiguous(self, value: Value, dim: int) -> bool:
        """Whether neighbours along a dimension are neighbours in memory."""
        while value.op is not None and (isinstance(value.op, Cast) or value.op.is_view):
            inner = _inner_dim(value.op, dim)
            if inner is None:
                return False
            value, dim = value.op.operands[0], inner
        strides = self.strides.get(value) if value.op is None else None
        return strides[dim] == 1 if strides is not None else dim == len(value.shape) - 1


def _inner_dim(op: Op, dim: int) -> int | None:
    """Return the dimension of a view's operand that a dimension of its result runs along."""
    if isinstance(op, Permute):
        return op.dims[dim]
    if isinstance(op, Unsqueeze):
        return None if dim == op.dim else dim - (dim > op.dim)
    if isinstance(op, Squeeze):
        return [d for d in range(len(op.x.shape)) if d not in op.dims][dim]
    if isinstance(op, Select):
        return dim + (dim >= op.dim)
    if isinstance(op, Slice):
        return dim if dim != op.dim or op.step == 1 else None
    if isinstance(op, Broadcast):
        inner = dim - (len(op.shape) - len(op.x.shape))
        return inner if inner >= 0 and op.x.shape[inner] == op.shape[dim] else None
    if isinstance(op, Reshape):
        is_last = dim == len(op.shape) - 1
        return len(op.x.shape) - 1 if is_last and op.x.shape else None
    return dim if len(op.operands[0].shape) == len(op.results[0].shape) else None


def vector_rules(are_contiguous: Callable[[Value, int], bool]) -> tuple[Rule, ...]:
    """Return the rules for products that read one operand only once.

    `are_contiguous` tells whether a value is contiguous along a dimension.
    """

    @rule
    def multiply_row(op: Matmul) -> Rewritten:
        """Multiply a row by a matrix that is stored by columns: it is read once, in order.

        matmul(a: [1, k], b: [k, n])  ==>  sum(permute(b) * a, over k)
        """
        if op.a.shape[0] != 1:
            return NoMatch("has several rows")
        if not are_contiguous(op.b, 0):
            return NoMatch("the second operand is not stored by columns")
        rows = Permute(op.b, (1, 0)).out
        return Unsqueeze(_sum_of_products(rows, op.a, 1), 0).out

    @rule
    def multiply_column(op: Matmul) -> Rewritten:
        """Multiply a matrix that is stored by rows by a column.

        matmul(a: [m, k], b: [k, 1])  ==>  sum(a * permute(b), over k)
        """
        if op.b.shape[1] != 1:
            return NoMatch("has several columns")
        if not are_contiguous(op.a, 1):
            return NoMatch("the first operand is not stored by rows")
        column = Permute(op.b, (1, 0)).out
        return Unsqueeze(_sum_of_products(op.a, column, 1), 1).out

    @rule
    def multiply_vector(op: MatrixVector) -> Rewritten:
        """Multiply a matrix that is stored by rows by a vector.

        matrix_vector(a: [m, k], b: [k])  ==>  sum(a * b, over k)
        """
        if not are_contiguous(op.a, 1):
            return NoMatch("the matrix is not stored by rows")
        return _sum_of_products(op.a, op.b, 1)

    return (multiply_row, multiply_column, multiply_vector, multiply_vectors, multiply_outer)


@rule
def multiply_vectors(op: Dot) -> Rewritten:
    """Multiply vectors elementwise and add up.

    dot(a, b)  ==>  sum(a * b)
    """
    return _sum_of_products(op.a, op.b, 0)


@rule
def multiply_outer(op: Matmul | BatchMatmul) -> Rewritten:
    """Multiply each row by each column, where these have one element.

    matmul(a: [m, 1], b: [1, n])  ==>  a * b
    """
    if op.a.shape[-1] != 1:
        return NoMatch("adds up products")
    return Multiply(op.a, op.b).out


def _sum_of_products(a: Value, b: Value, dim: int) -> Value:
    """Return the sum along a dimension, in `f32` for low precision, rounded once."""
    dtype = a.tensor_type.dtype
    products = wide(a) * wide(b)
    return Number(Sum(products.value, (dim,)).out).to(dtype)


def convolution_rules(are_last: Callable[[Value], bool]) -> tuple[Rule, ...]:
    """Return the rules for convolutions; `are_last` tells which images are channels last."""

    @rule
    def convolve_pointwise(op: Convolution) -> Rewritten:
        """Multiply the channels of every position by the weight, where windows have one element.

        convolution(x, weight: [o, c, 1, 1], bias)  ==>  batch_matmul(weight, x) + bias
        """
        if not _is_pointwise(op):
            return NoMatch("has windows, steps or groups")
        weight, x = _matrix(wide(op.weight).value), wide(op.x).value
        result = Number(_over_channels(weight, x, are_last(op.x)))
        if op.bias is not None:
            spread = wide(op.bias).reshaped((op.bias.shape[0], *(1,) * (len(op.x.shape) - 2)))
            result = result + spread
        return result.to(op.out.tensor_type.dtype)

    @rule
    def convolve_pointwise_backward(op: ConvolutionBackwardInput) -> Rewritten:
        """Multiply the gradients of every position by the transposed weight.

        convolution_backward_input(grad, x, weight)  ==>  batch_matmul(weight^T, grad)
        """
        if not _is_pointwise(op):
            return NoMatch("has windows, steps or groups")
        weight = Permute(_matrix(wide(op.weight).value), (1, 0)).out
        result = _over_channels(weight, wide(op.grad).value, are_last(op.grad))
        return Number(result).to(op.out.tensor_type.dtype)

    @rule
    def weigh_pointwise(op: ConvolutionBackwardWeight) -> Rewritten:
        """Multiply gradients and inputs of all positions, where both are rows of channels.

        convolution_backward_weight(grad, x, weight: [o, c, 1, 1])  ==>  matmul(grad^T, x)
        """
        if not _is_pointwise(op) or op.of_bias:
            return NoMatch("has windows, steps, groups or a bias")
        if not are_last(op.grad) or not are_last(op.x):
            return NoMatch("is not channels last")
        grad = Permute(_positions(wide(op.grad).value), (1, 0)).out
        result = Number(Matmul(grad, _positions(wide(op.x).value)).out)
        return result.reshaped(op.weight.shape).to(op.weight.tensor_type.dtype)

    return (convolve_pointwise, convolve_pointwise_backward, split_bias_gradient, weigh_pointwise)


@rule
def split_bias_gradient(op: ConvolutionBackwardWeight) -> Rewritten:
    """Add up the gradient of the bias apart, where it fuses with what computed the gradient.

    convolution_backward_weight(grad, x, weight) {of_bias}  ==>  ..., sum(grad, over all but dim 1)
    """
    if not op.of_bias:
        return NoMatch("computes no gradient of a bias")
    dtype = op.grad.tensor_type.dtype
    dims = (0, *range(2, len(op.grad.shape)))
    bias = Number(Sum(wide(op.grad).value, dims).out).to(dtype)
    if not op.of_weight:
        return bias
    fields = {name: getattr(op, name) for name in (*op.operand_fields, *op.attribute_fields)}
    weight = ConvolutionBackwardWeight(**{**fields, "of_bias": False})
    return (weight.results[0], bias)


def _is_pointwise(
    op: Convolution | ConvolutionBackwardInput | ConvolutionBackwardWeight,
) -> bool:
    geometry = Geometry.of(op)
    ones = (*geometry.weight.shape[2:], *geometry.stride, geometry.groups)
    zeros = (*geometry.padding, *geometry.end_padding)
    plain = all(size == 1 for size in ones) and all(size == 0 for size in zeros)
    return plain and not geometry.transposed


def _matrix(weight: Value) -> Value:
    """Return the weight of windows of one element without the dimensions of the window."""
    return Reshape(weight, weight.shape[:2]).out


def _positions(x: Value) -> Value:
    """Return the channels of each position as a row: a view of images that are channels last."""
    batch, channels, *spatial = x.shape
    rows = Permute(x, (0, *range(2, len(x.shape)), 1)).out
    return Reshape(rows, (size_of((batch, *spatial)), channels)).out


def _over_channels(weight: Value, x: Value, is_last: bool) -> Value:
    """Return `weight @ x` at every position: `[o, c]` by `[n, c, *spatial]`."""
    batch, channels, *spatial = x.shape
    outputs = weight.shape[0]
    positions: Dim = size_of(spatial)
    result_shape = (batch, outputs, *spatial)
    if positions == 1:
        vectors = Reshape(x, (batch, channels)).out
        return Reshape(Matmul(vectors, Permute(weight, (1, 0)).out).out, result_shape).out
    if is_last:
        products = Matmul(_positions(x), Permute(weight, (1, 0)).out)
        rows = Reshape(products.out, (batch, *spatial, outputs)).out
        return Permute(rows, (0, len(x.shape) - 1, *range(1, len(x.shape) - 1))).out
    shared = Broadcast(weight, (batch, outputs, channels)).out
    columns = BatchMatmul(shared, Reshape(x, (batch, channels, positions)).out)
    return Reshape(columns.out, result_shape).out
