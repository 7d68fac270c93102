"""Gradients of score functions as regions of ordinary ops, in reverse mode, for any sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import sympy

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, simplify
from lynx.ir.errors import CompileError
from lynx.ir.ops import indexing, layout, layout_slicing, reduction, scan, scatter, softmax
from lynx.ir.ops.elementwise import Elementwise
from lynx.ir.ops.elementwise_arithmetic import Add, Cast, Divide, Where
from lynx.ir.ops.elementwise_compare import Equal
from lynx.ir.ops.factory import Full
from lynx.ir.ops.fusion import Region
from lynx.ir.traversal import producers
from lynx.ir.types import DType, TensorType
from lynx.passes.decompose_build import Number, constant

from .derivative_elementwise import RULES as ELEMENTWISE_RULES

Pairs: TypeAlias = Iterator[tuple[Value, Value]]
"""Operands of an op, each with its gradient."""


def derivative_of(region: Region, wanted: tuple[int, ...]) -> Region:
    """Return the gradients of the first parameter and of some of those after it.

    The region has one result. That returned takes the parameters and the gradient of the result;
    `wanted` counts the parameters after the first. Gradients of low-precision parameters may come
    in a wider type, for whoever adds more to them. `CompileError` (`no-derivative`) where an op has
    no rule.
    """
    (result,) = region.results
    sources = [region.parameters[0], *(region.parameters[1 + n] for n in wanted)]
    incoming = Value(result.type, name="grad")
    gradients = _Reverse(region, sources).run(result, incoming)
    needed = [op for op in producers(gradients) if op.results]
    return Region((*region.parameters, incoming), tuple(needed), tuple(gradients))


def why_no_derivative(region: Region, wanted: tuple[int, ...]) -> str:
    """Return why a region has no gradients, or the empty text."""
    try:
        derivative_of(region, wanted)
    except CompileError as error:
        return error.message
    return ""


class _Reverse:
    """Follows the ops from the last to the first, adding up the gradients of each value."""

    def __init__(self, region: Region, sources: list[Value]) -> None:
        self.region, self.sources = region, sources
        self.found: dict[Value, Value] = {}
        self.active: set[Value] = set(sources)
        for op in region.ops:
            if not self.active.isdisjoint(op.operands):
                self.active.update(filter(_is_floating, op.results))

    def run(self, result: Value, incoming: Value) -> list[Value]:
        """Return the gradients of the sources."""
        self.found[result] = incoming
        for op in reversed(self.region.ops):
            given = [self.found.get(value) for value in op.results]
            if any(gradient is not None for gradient in given):
                self._follow(op, given)
        return [self._final(source) for source in self.sources]

    def _follow(self, op: Op, given: list[Value | None]) -> None:
        if self.active.isdisjoint(op.operands):
            return
        gradient = given[0]
        if (len(given) > 1 and any(g is not None for g in given[1:])) or gradient is None:
            raise op.error("no-derivative", "has no gradient of its second result")
        gradient = _converted(gradient, op.results[0].tensor_type.dtype)
        for operand, found in _pairs(op, gradient):
            if operand in self.active:
                self._add(operand, found)

    def _add(self, value: Value, gradient: Value) -> None:
        type_ = value.tensor_type
        gradient = _summed(gradient, type_.shape)
        known = self.found.get(value)
        if known is None:
            self.found[value] = gradient
            return
        dtype = max((known, gradient), key=_width).tensor_type.dtype
        both = (_converted(known, dtype), _converted(gradient, dtype))
        self.found[value] = Add(*both).out

    def _final(self, source: Value) -> Value:
        found, type_ = self.found.get(source), source.tensor_type
        if found is None:
            return Full(0.0, type_.shape, type_.dtype, type_.device).out
        return _converted(found, type_.dtype) if _width(found) < _width(source) else found


def _is_floating(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_floating


def _width(value: Value) -> int:
    return value.tensor_type.dtype.itemsize


def _converted(value: Value, dtype: DType) -> Value:
    return value if value.tensor_type.dtype is dtype else Cast(value, dtype).out


def _summed(gradient: Value, shape: tuple[Dim, ...]) -> Value:
    """Return the gradient of an operand that was broadcast."""
    full = gradient.shape
    first = len(full) - len(shape)
    dims = [n for n in range(len(full)) if n < first or (shape[n - first] == 1 and full[n] != 1)]
    if not dims:
        return gradient
    total = reduction.Sum(gradient, tuple(dims), True).out
    return layout.Squeeze(total, tuple(range(first))).out if first else total


def _pairs(op: Op, gradient: Value) -> Pairs:
    """Yield the operands of an op with their gradients."""
    if isinstance(op, Elementwise):
        elementwise = ELEMENTWISE_RULES.get(type(op))
        if elementwise is not None:
            for name, found in elementwise(op, Number(gradient)).items():
                operand = getattr(op, name)
                if isinstance(operand, Value):
                    yield operand, found
            return
    rule = _RULES.get(type(op))
    if rule is None:
        raise op.error("no-derivative", "has no gradient that is known here")
    yield from rule(op, gradient)


def _zeros(value: Value) -> Value:
    type_ = value.tensor_type
    return Full(0.0, type_.shape, type_.dtype, type_.device).out


def _reshape(op: Any, g: Value) -> Pairs:
    yield op.x, layout.Reshape(g, op.x.shape).out


def _permute(op: layout.Permute, g: Value) -> Pairs:
    back = tuple(op.dims.index(dim) for dim in range(len(op.dims)))
    yield op.x, layout.Permute(g, back).out


def _broadcast(op: layout.Broadcast, g: Value) -> Pairs:
    yield op.x, g  # which is summed where it is added


def _slice(op: layout_slicing.Slice, g: Value) -> Pairs:
    into = _zeros_like(op.x, g)
    yield op.x, layout_slicing.SliceScatter(into, g, op.dim, op.start, op.stop, op.step).out


def _select(op: layout_slicing.Select, g: Value) -> Pairs:
    part = layout.Unsqueeze(g, op.dim).out
    stop = simplify(sympy.sympify(op.index + 1))
    into = _zeros_like(op.x, g)
    yield op.x, layout_slicing.SliceScatter(into, part, op.dim, op.index, stop).out


def _zeros_like(x: Value, gradient: Value) -> Value:
    return _converted(_zeros(x), gradient.tensor_type.dtype)


def _concatenate(op: layout_slicing.Concatenate, g: Value) -> Pairs:
    start: Dim = 0
    for part in op.parts:
        stop = simplify(sympy.sympify(start + part.shape[op.dim]))
        yield part, layout_slicing.Slice(g, op.dim, start, stop).out
        start = stop


def _pad(op: layout_slicing.Pad, g: Value) -> Pairs:
    low = tuple(simplify(sympy.sympify(-size)) for size in op.low)
    high = tuple(simplify(sympy.sympify(-size)) for size in op.high)
    yield op.x, layout_slicing.Pad(g, 0.0, low, high).out


def _flip(op: layout_slicing.Flip, g: Value) -> Pairs:
    yield op.x, layout_slicing.Flip(g, op.dims).out


def _roll(op: layout_slicing.Roll, g: Value) -> Pairs:
    shifts = tuple(simplify(sympy.sympify(-shift)) for shift in op.shifts)
    yield op.x, layout_slicing.Roll(g, shifts, op.dims).out


def _triangle(op: Any, g: Value) -> Pairs:
    yield op.x, type(op)(g, op.diagonal).out


def _embedding(op: indexing.Embedding, g: Value) -> Pairs:
    yield op.weight, indexing.EmbeddingBackward(g, op.indices, op.weight.shape[0]).out


def _gather(op: indexing.Gather, g: Value) -> Pairs:
    yield op.x, scatter.ScatterAdd(_zeros(op.x), op.index, g, op.dim).out


def _index_select(op: indexing.IndexSelect, g: Value) -> Pairs:
    if not op.x.shape or not op.index.shape:
        raise op.error("no-derivative", "has no gradient of a single slice")
    yield op.x, scatter.IndexAdd(_zeros(op.x), op.index, g, op.dim).out


def _index(op: indexing.Index, g: Value) -> Pairs:
    yield op.x, scatter.IndexPut(_zeros(op.x), op.indices, g, accumulate=True).out


def _take(op: indexing.Take, g: Value) -> Pairs:
    yield op.x, scatter.Put(_zeros(op.x), op.index, g, accumulate=True).out


def _kept(op: reduction.Reduction, value: Value) -> Value:
    """Return a result with the reduced dimensions kept."""
    if op.keepdim or not op.x.shape:
        return value
    for dim in op.dims:
        value = layout.Unsqueeze(value, dim).out
    return value


def _sum(op: reduction.Sum, g: Value) -> Pairs:
    spread = layout.Broadcast(_kept(op, g), op.x.shape).out
    yield op.x, _converted(spread, op.x.tensor_type.dtype)


def _mean(op: reduction.Mean, g: Value) -> Pairs:
    count: Dim = 1
    for dim in op.dims:
        count = count * op.x.shape[dim]
    spread = layout.Broadcast(_kept(op, g), op.x.shape).out
    divided = Divide(spread, simplify(sympy.sympify(count))).out
    yield op.x, _converted(divided, op.x.tensor_type.dtype)


def _extreme(op: Any, g: Value) -> Pairs:
    """Share the gradient among all elements that equal the extreme, as torch does."""
    hit = Equal(op.x, _kept(op, op.out)).out
    dtype = op.x.tensor_type.dtype
    count = reduction.Sum(Cast(hit, dtype).out, op.dims, True).out
    each = Divide(_kept(op, g), count).out
    zero = constant(0.0, g).value
    yield op.x, Where(hit, layout.Broadcast(each, op.x.shape).out, zero).out


def _cumulative(op: scan.CumulativeSum, g: Value) -> Pairs:
    backwards = layout_slicing.Flip(g, (op.dim,)).out
    summed = scan.CumulativeSum(backwards, op.dim).out
    back = layout_slicing.Flip(summed, (op.dim,)).out
    yield op.x, _converted(back, op.x.tensor_type.dtype)


def _softmax(op: Any, g: Value) -> Pairs:
    yield op.x, softmax.SoftmaxBackward(g, op.out, op.dim).out


def _log_softmax(op: softmax.LogSoftmax, g: Value) -> Pairs:
    yield op.x, softmax.LogSoftmaxBackward(g, op.out, op.dim).out


_RULES: Mapping[type[Op], Callable[[Any, Value], Pairs]] = {
    layout.Reshape: _reshape,
    layout.Permute: _permute,
    layout.Broadcast: _broadcast,
    layout.Unsqueeze: _reshape,
    layout.Squeeze: _reshape,
    layout_slicing.Slice: _slice,
    layout_slicing.Select: _select,
    layout_slicing.Concatenate: _concatenate,
    layout_slicing.Pad: _pad,
    layout_slicing.Flip: _flip,
    layout_slicing.Roll: _roll,
    layout_slicing.LowerTriangle: _triangle,
    layout_slicing.UpperTriangle: _triangle,
    indexing.Embedding: _embedding,
    indexing.Gather: _gather,
    indexing.IndexSelect: _index_select,
    indexing.Index: _index,
    indexing.Take: _take,
    reduction.Sum: _sum,
    reduction.Mean: _mean,
    reduction.Amax: _extreme,
    reduction.Amin: _extreme,
    scan.CumulativeSum: _cumulative,
    softmax.Softmax: _softmax,
    softmax.LogSoftmax: _log_softmax,
}
