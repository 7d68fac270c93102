"""Import rules of operators that draw random numbers.

Eager draws in the order in which the result lies in memory, and Lynx in row-major order of the
result: a result with another layout is left to torch, which then draws the same numbers.
"""

from __future__ import annotations

from typing import Any

from lynx.ir.core import Op, Value
from lynx.ir.dims import contiguous_strides, is_equal
from lynx.ir.ops.random import (
    Bernoulli,
    Dropout,
    RandomBernoulli,
    RandomExponential,
    RandomInteger,
    RandomNormal,
    RandomPermutation,
    RandomUniform,
)
from lynx.ir.types import TensorType

from .elementwise import coefficient
from .factory import unusual
from .registry import Context, Decline, Imported, imports


def _is_row_major(context: Context) -> bool:
    """Whether all results lie in memory in row-major order; dimensions of size 1 do not matter."""
    for type_, strides in zip(context.types, context.strides, strict=True):
        if not isinstance(type_, TensorType) or strides is None:
            return False
        wanted = contiguous_strides(type_.shape)
        for size, given, stride in zip(type_.shape, strides, wanted, strict=True):
            if size != 1 and not is_equal(given, stride):
                return False
    return True


def _draw(
    context: Context,
    kind: type[Any],
    *numbers: Any,
    generator: Any = None,
    layout: Any = None,
    pin_memory: Any = None,
) -> Imported:
    if generator is not None:
        return Decline("draws from a generator of its own")
    if reason := unusual(layout, pin_memory):
        return reason
    if not _is_row_major(context):
        return Decline("fills a layout that is not row-major, which changes the order of drawing")
    type_ = context.type
    return context.emit(kind(*numbers, type_.shape, type_.dtype, type_.device))


def _options(keywords: dict[str, Any]) -> dict[str, Any]:
    return {name: keywords.get(name) for name in ("layout", "pin_memory", "generator")}


@imports("aten.rand.default", "aten.rand_like.default")
def rand(context: Context, like: Any, **keywords: Any) -> Imported:
    """Draw from 0 up to 1."""
    return _draw(context, RandomUniform, 0.0, 1.0, **_options(keywords))


@imports("aten.randn.default", "aten.randn_like.default")
def randn(context: Context, like: Any, **keywords: Any) -> Imported:
    """Draw from the standard normal distribution."""
    return _draw(context, RandomNormal, 0.0, 1.0, **_options(keywords))


@imports("aten.randint.default", "aten.randint_like.default")
def randint(context: Context, first: Any, second: Any, **keywords: Any) -> Imported:
    """Draw integers from 0; `randint` has the limit first, `randint_like` second."""
    high = second if "like" in context.target else first
    return _draw(context, RandomInteger, 0, high, **_options(keywords))


@imports("aten.randint.low")
def randint_low(context: Context, low: Any, high: Any, size: Any, **keywords: Any) -> Imported:
    """Draw integers from a limit on."""
    return _draw(context, RandomInteger, low, high, **_options(keywords))


@imports("aten.randint_like.low_dtype")
def randint_like_low(context: Context, x: Any, low: Any, high: Any, **keywords: Any) -> Imported:
    """Draw integers from a limit on."""
    return _draw(context, RandomInteger, low, high, **_options(keywords))


@imports("aten.uniform.default")
def uniform(
    context: Context, x: Value, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None
) -> Imported:
    """Draw as many as `x` has elements; its values do not matter."""
    return _draw(context, RandomUniform, low, high, generator=generator)


@imports("aten.normal_functional.default")
def normal(
    context: Context, x: Value, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None
) -> Imported:
    """Draw as many as `x` has elements; its values do not matter."""
    return _draw(context, RandomNormal, mean, std, generator=generator)


@imports("aten.exponential.default")
def exponential(context: Context, x: Value, lambd: Any = 1.0, *, generator: Any = None) -> Imported:
    """Draw as many as `x` has elements; its values do not matter."""
    return _draw(context, RandomExponential, lambd, generator=generator)


@imports("aten.bernoulli.p")
def bernoulli_p(context: Context, x: Value, p: Any = 0.5, *, generator: Any = None) -> Imported:
    """Draw as many as `x` has elements; its values do not matter."""
    return _draw(context, RandomBernoulli, p, generator=generator)


@imports("aten.bernoulli.default")
def bernoulli(context: Context, p: Value, *, generator: Any = None) -> Imported:
    """Draw with the probabilities that the operand holds."""
    if generator is not None:
        return Decline("draws from a generator of its own")
    return _of_operand(context, Bernoulli(p))


@imports("aten.native_dropout.default")
def dropout(context: Context, x: Value, p: Any, train: bool | None) -> Imported:
    """Drop elements, as in training."""
    probability = coefficient(p)
    if not train or probability is None:
        return Decline("drops nothing")
    return _of_operand(context, Dropout(x, probability))


def _of_operand(context: Context, op: Op) -> Imported:
    """Append the op if the layout of its results is the one in which Lynx draws."""
    if not _is_row_major(context):
        return Decline("fills a layout that is not row-major, which changes the order of drawing")
    return context.add(op)


@imports("aten.randperm.default")
def randperm(context: Context, n: Any, **keywords: Any) -> Imported:
    """Draw a permutation."""
    if reason := unusual(keywords.get("layout"), keywords.get("pin_memory")):
        return reason
    type_ = context.type
    return context.emit(RandomPermutation(n, type_.dtype, type_.device))
