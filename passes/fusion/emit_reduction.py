"""What reductions compute, and ops that make tensors from nothing."""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Value
from lynx.ir.dims import Dim, is_integer_literal, product
from lynx.ir.kernel import Scalar
from lynx.ir.ops import factory, reduction
from lynx.ir.types import DType

from .coordinates import ZERO, along
from .emit import Emission, Emitter, Want, axes_in, emits
from .emit_elementwise import computing_dtype, number, result_dtype


def _element(emitter: Emitter, op: Any, want: Want) -> tuple[Want, tuple[str, ...]]:
    """Return the request for the operand's element, and the axes to reduce over."""
    taken = axes_in(want.at)
    if want.mask is not None:
        taken.update(want.mask.axes)
    over: list[str] = []
    at = []
    position = 0
    for dim, size in enumerate(op.x.shape):
        if dim not in op.dims:
            at.append(want.at[position])
            position += 1
            continue
        position += op.keepdim
        if isinstance(size, int) and size == 1:
            at.append(ZERO)
            continue
        axes = emitter.reduction_axes(op.x, dim, taken)
        over += [name for name, _ in axes]
        taken.update(over)
        at.append(along(axes))
    return Want(op.x, tuple(at), want.mask), tuple(over)


def _combined(emitter: Emitter, combine: str, x: Scalar, over: tuple[str, ...]) -> Scalar:
    """Reduce, or do nothing where there is but one element."""
    return emitter.builder.reduce(combine, x, over)[0] if over else x


def _summand(emitter: Emitter, x: Scalar, dtype: DType) -> Scalar:
    """Return an element as it is added up: rounded to the type of the result, then wide."""
    builder = emitter.builder
    return builder.convert(builder.convert(x, dtype), computing_dtype(dtype))


@emits(reduction.Sum, reduction.Product)
def _total(emitter: Emitter, op: Any, want: Want) -> Emission:
    inner, over = _element(emitter, op, want)
    x = yield inner
    dtype = result_dtype(op)
    combine = "sum" if op.name == "sum" else "prod"
    if dtype is DType.BOOL:
        combine = "any" if op.name == "sum" else "all"
    result = _combined(emitter, combine, _summand(emitter, x, dtype), over)
    return (emitter.builder.convert(result, dtype),)


@emits(reduction.Mean)
def _mean(emitter: Emitter, op: reduction.Mean, want: Want) -> Emission:
    inner, over = _element(emitter, op, want)
    x = yield inner
    dtype = result_dtype(op)
    builder = emitter.builder
    result = _combined(emitter, "sum", _summand(emitter, x, dtype), over)
    count: Dim = product(op.x.shape[dim] for dim in op.dims)
    divisor = builder.constant(count, result.dtype)
    return (builder.convert(builder.apply("div", result, divisor, dtype=result.dtype), dtype),)


@emits(reduction.Amax, reduction.Amin, reduction.MaxOfAll, reduction.MinOfAll)
def _extreme(emitter: Emitter, op: Any, want: Want) -> Emission:
    inner, over = _element(emitter, op, want)
    x = yield inner
    builder = emitter.builder
    name = "max" if op.name in ("amax", "max_all") else "min"
    if x.dtype is DType.BOOL:
        name = "any" if name == "max" else "all"
    wide = builder.convert(x, computing_dtype(x.dtype))
    return (builder.convert(_combined(emitter, name, wide, over), result_dtype(op)),)


@emits(reduction.AnyNonzero, reduction.AllNonzero)
def _logical(emitter: Emitter, op: Any, want: Want) -> Emission:
    inner, over = _element(emitter, op, want)
    x = yield inner
    builder = emitter.builder
    truth = _combined(emitter, op.name, builder.convert(x, DType.BOOL), over)
    return (builder.convert(truth, result_dtype(op)),)


@emits(reduction.CountNonzero)
def _count(emitter: Emitter, op: Any, want: Want) -> Emission:
    inner, over = _element(emitter, op, want)
    x = yield inner
    builder = emitter.builder
    truth = builder.convert(x, DType.BOOL)
    return (_combined(emitter, "sum", builder.convert(truth, DType.I64), over),)


def _refuse_empty(op: Any) -> str:
    if any(isinstance(op.x.shape[d], int) and op.x.shape[d] == 0 for d in op.dims):
        return "has no element to choose"
    return "compares truth values" if op.x.tensor_type.dtype is DType.BOOL else ""


@emits(
    reduction.MaxWithIndex,
    reduction.MinWithIndex,
    reduction.ArgMax,
    reduction.ArgMin,
    unless=_refuse_empty,
)
def _place(emitter: Emitter, op: Any, want: Want) -> Emission:
    inner, over = _element(emitter, op, want)
    x = yield inner
    builder = emitter.builder
    wide = builder.convert(x, computing_dtype(x.dtype))
    if over:
        name = "argmax" if op.name in ("max", "argmax") else "argmin"
        value, index = builder.reduce(name, wide, over)
    else:
        value, index = wide, builder.constant(0, DType.I64)
    if len(op.results) == 1:
        return (index,)
    return builder.convert(value, result_dtype(op)), index


@emits(factory.Full)
def _full(emitter: Emitter, op: factory.Full, want: Want) -> Emission:
    del want
    value = op.value
    if isinstance(value, Value):
        expression = getattr(value.type, "expr", None)
        assert expression is not None, value
        value = expression
    return (number(emitter.builder, value, op.dtype, op.dtype),)
    yield  # a rule is a generator


def _refuse_iota(op: factory.Iota) -> str:
    if op.dtype.is_integer:
        return ""
    numbers = [part for part in (op.start, op.step) if not isinstance(part, Value)]
    whole = all(isinstance(n, int | float) and is_integer_literal(n) for n in numbers)
    return "" if whole and op.dtype is DType.F32 else "rounds a range of fractions"


@emits(factory.Iota, unless=_refuse_iota)
def _iota(emitter: Emitter, op: factory.Iota, want: Want) -> Emission:
    """`start + step * position`, in integers."""
    builder = emitter.builder
    place = builder.position(want.at[0])
    parts = []
    for part in (op.start, op.step):
        given: Any = part.type.expr if isinstance(part, Value) else part  # type: ignore[union-attr]
        parts.append(int(given) if isinstance(given, float) else given)
    start, step = parts
    if step != 1:
        place = builder.apply("mul", place, builder.constant(step, DType.I64), dtype=DType.I64)
    if start != 0:
        place = builder.apply("add", place, builder.constant(start, DType.I64), dtype=DType.I64)
    return (builder.convert(place, op.dtype),)
    yield  # a rule is a generator
