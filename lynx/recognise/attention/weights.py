"""Find the softmax in what lies between the products of attention, however it is written."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any

from lynx.ir.core import Value
from lynx.ir.dims import is_equal
from lynx.ir.errors import LynxError
from lynx.ir.ops import elementwise_arithmetic as arithmetic
from lynx.ir.ops import elementwise_compare as compare
from lynx.ir.ops import elementwise_math as math_ops
from lynx.ir.ops import layout, reduction
from lynx.ir.ops import layout_slicing as slicing
from lynx.ir.ops.softmax import LogSoftmax, SafeSoftmax, Softmax
from lynx.ir.types import TensorType
from lynx.recognise.nodes import Refusal

from .facts import Empty, Fact, LogTotal, LogWeight, Raw, Row, Total, Weight
from .tracing import Trace
from .walk import Walk, apply, fact_rule, refusal

TINY = 1e-6
"""What may be added to a sum of exponentials, to keep zeros from being divided by, and no more."""

FARTHEST = 1000.0
"""How far scores are from a row's maximum that make no difference, in any element type."""


def _is_number(item: Any, value: float) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool) and item == value


# layout


@fact_rule(layout.Reshape, layout.Permute, layout.Unsqueeze, layout.Squeeze, layout.Broadcast,
       slicing.Slice, slicing.Select, arithmetic.Cast, arithmetic.Copy)  # fmt: skip
def _moved(walk: Walk, op: Any) -> Fact:
    fact = walk.facts[op.x]
    becomes_integer = isinstance(op, arithmetic.Cast) and not op.dtype.is_floating
    if becomes_integer and not isinstance(fact, Empty):
        raise Refusal("its weights become integers")
    if isinstance(fact, Raw):
        return _moved_raw(op, fact)
    if isinstance(fact, Weight):
        return _moved_weight(op, fact)
    if isinstance(fact, LogWeight):
        raise refusal(op, [fact])
    return fact


def _moved_raw(op: Any, fact: Raw) -> Raw:
    if fact.sink is None:
        return replace(fact, value=apply(op, {op.x: fact.value}))
    if isinstance(op, arithmetic.Cast | arithmetic.Copy):
        return replace(fact, value=apply(op, {op.x: fact.value}))
    raise refusal(op, [fact])


def _moved_weight(op: Any, fact: Weight) -> Weight:
    if fact.raw.sink is not None:
        return _without_sink(op, fact)
    if fact.is_normalized:
        is_same = isinstance(op, arithmetic.Cast | arithmetic.Copy)
        return replace(fact, value=op.out) if is_same else fact.moved(op.out)
    if isinstance(op, arithmetic.Cast | arithmetic.Copy):
        return replace(fact, value=op.out)
    raw = _moved_raw(op, fact.raw)
    return Weight(raw, raw, op.out)


def _without_sink(op: Any, fact: Weight) -> Weight:
    """Take the weights of all keys, of weights of which one column is that of a sink."""
    raw = fact.raw
    if isinstance(op, arithmetic.Cast | arithmetic.Copy):
        return replace(fact, value=op.out)
    if not isinstance(op, slicing.Slice) or op.dim != raw.sink_dim or not fact.is_normalized:
        raise refusal(op, [fact])
    size = raw.value.shape[raw.sink_dim]
    start = 1 if raw.sink_first else 0
    if not (is_equal(op.start, start) and is_equal(op.step, 1)
            and is_equal(op.out.shape[op.dim], size)):  # fmt: skip
        raise Refusal("only some of the weights are used")
    plain = replace(raw, sink=None)
    return replace(fact, raw=plain, masked=plain, value=op.out, origin=op.out, sink=raw.sink)


# from scores to weights


@fact_rule(Softmax, SafeSoftmax)
def _softmax(walk: Walk, op: Any) -> Fact:
    fact = walk.facts[op.x]
    if not isinstance(fact, Raw):
        raise Refusal("it is normalized twice" if isinstance(fact, Weight) else
                      f"'{op.name}' is not of scores")  # fmt: skip
    if fact.sink is not None and fact.sink_dim != op.dim:
        raise Refusal("a column of scores is added along another axis than the softmax")
    safe = isinstance(op, SafeSoftmax)
    return Weight(fact, fact, op.out, op.dim, op.out, zero_empty=safe)


@fact_rule(LogSoftmax)
def _log_softmax(walk: Walk, op: LogSoftmax) -> Fact:
    fact = walk.facts[op.x]
    if not isinstance(fact, Raw) or fact.sink is not None:
        raise refusal(op, [fact])
    return LogWeight(fact, op.dim)


@fact_rule(reduction.Amax, reduction.MaxWithIndex, reduction.MaxOfAll, reduction.Mean)
def _row(walk: Walk, op: Any) -> Fact:
    fact = walk.facts[op.x]
    if isinstance(fact, Raw):
        return Row(-1.0)
    raise refusal(op, [fact])


@fact_rule(reduction.LogSumExp)
def _log_total(walk: Walk, op: reduction.LogSumExp) -> Fact:
    fact = walk.facts[op.x]
    if not isinstance(fact, Raw) or len(op.dims) != 1:
        raise refusal(op, [fact])
    if fact.sink is not None:
        return LogTotal(replace(fact, sink=None), op.dims[0], fact.sink)
    return LogTotal(fact, op.dims[0])


@fact_rule(math_ops.Exp)
def _exp(walk: Walk, op: math_ops.Exp) -> Fact:
    fact = walk.facts[op.x]
    if isinstance(fact, Raw) and fact.sink is None:
        return Weight(fact, fact, op.out)
    if isinstance(fact, LogWeight):
        return Weight(fact.raw, fact.raw, op.out, fact.axis, op.out, sink=fact.sink)
    if isinstance(fact, Row) and fact.logit is not None:
        return replace(fact, is_exponential=True)
    raise refusal(op, [fact])


@fact_rule(math_ops.Negate)
def _negate(walk: Walk, op: math_ops.Negate) -> Fact:
    fact = walk.facts[op.x]
    if isinstance(fact, Row) and not fact.is_exponential:
        return Row(0.0)
    if isinstance(fact, Raw) and not fact.is_shifted:
        return walk.rebuilt(op)
    raise refusal(op, [fact])


@fact_rule(math_ops.Log)
def _log(walk: Walk, op: math_ops.Log) -> Fact:
    fact = walk.facts[op.x]
    if isinstance(fact, Total) and not fact.is_inverse:
        return LogTotal(fact.of.masked, fact.axis, fact.sink)
    if isinstance(fact, Raw):
        return walk.rebuilt(op)
    raise refusal(op, [fact])


@fact_rule(arithmetic.Subtract)
def _subtract(walk: Walk, op: Any) -> Fact:
    a, b = walk.of(op.x), walk.of(op.y)
    if isinstance(a, Raw) and isinstance(b, Row) and not b.is_exponential:
        return replace(a, is_shifted=True)
    if isinstance(a, Raw) and isinstance(b, LogTotal) and a.value is b.raw.value:
        return LogWeight(b.raw, b.axis, b.sink)
    if a is None and isinstance(b, Row) and not b.is_exponential:
        return Row(op.x)
    if isinstance(a, Row) and isinstance(b, Raw) and not a.is_exponential and not b.is_shifted:
        negated = apply(math_ops.Negate(op.y), {op.y: b.value})
        return replace(b, value=negated, is_shifted=True)
    if all(fact is None or isinstance(fact, Raw) for fact in (a, b)) and not (
        isinstance(b, Raw) and b.is_shifted
    ):
        return walk.rebuilt(op)
    raise refusal(op, [fact for fact in (a, b) if fact is not None])


@fact_rule(slicing.Concatenate)
def _concatenate(walk: Walk, op: slicing.Concatenate) -> Fact:
    """Add one column to scores: a sink."""
    facts = [walk.of(part) for part in op.parts]
    if len(facts) != 2 or facts.count(None) != 1:
        raise refusal(op, [fact for fact in facts if fact is not None])
    place = 1 if facts[0] is None else 0
    raw, other = facts[place], op.parts[1 - place]
    if not isinstance(raw, Raw) or raw.sink is not None or raw.is_shifted:
        raise refusal(op, [raw])
    if not is_equal(other.shape[op.dim], 1):
        raise Refusal("several columns are added to the scores")
    return Raw(raw.value, other, op.dim, place == 1)


@fact_rule(slicing.Pad)
def _pad(walk: Walk, op: slicing.Pad) -> Fact:
    """Add one column of a number to scores."""
    fact = walk.facts[op.x]
    padded = [n for n, (a, b) in enumerate(zip(op.low, op.high, strict=True)) if (a, b) != (0, 0)]
    if not isinstance(fact, Raw) or fact.sink is not None or len(padded) != 1 or fact.is_shifted:
        raise refusal(op, [fact])
    (dim,) = padded
    if sorted((op.low[dim], op.high[dim]), key=str) != [0, 1] or isinstance(op.value, Value):
        raise Refusal("several columns are added to the scores")
    return Raw(fact.value, float(op.value), dim, op.low[dim] == 1)  # type: ignore[arg-type]


# totals


@fact_rule(reduction.Sum)
def _sum(walk: Walk, op: reduction.Sum) -> Fact:
    fact = walk.facts[op.x]
    if not isinstance(fact, Weight) or len(op.dims) != 1 or fact.is_uneven:
        raise refusal(op, [fact])
    return Total(fact, op.dims[0])


@fact_rule(arithmetic.Clamp)
def _clamp(walk: Walk, op: Any) -> Fact:
    fact = walk.of(op.x)
    is_tiny = isinstance(op.min, int | float) and 0 <= op.min <= TINY and op.max is None
    if isinstance(fact, Total) and is_tiny:
        return replace(fact, zero_empty=True)
    if isinstance(fact, Raw) and not fact.is_shifted:
        return walk.rebuilt(op)
    if isinstance(fact, Raw) and fact.sink is None and _leaves_exponentials(op.min, op.max):
        return fact
    raise refusal(op, [fact])


def _leaves_exponentials(least: Any, most: Any) -> bool:
    """Whether limits of shifted scores change nothing that is not zero or infinite anyway."""
    is_low = least is None or (isinstance(least, int | float) and least <= -FARTHEST)
    return is_low and (most is None or (isinstance(most, int | float) and most >= FARTHEST))


@fact_rule(math_ops.Reciprocal)
def _reciprocal(walk: Walk, op: Any) -> Fact:
    fact = walk.facts[op.x]
    if isinstance(fact, Total):
        return replace(fact, is_inverse=not fact.is_inverse)
    if isinstance(fact, Raw):
        return walk.rebuilt(op)
    raise refusal(op, [fact])


@fact_rule(arithmetic.Add)
def _add(walk: Walk, op: Any) -> Fact:
    a, b = walk.of(op.x), walk.of(op.y)
    if all(fact is None or isinstance(fact, Raw) for fact in (a, b)):
        return walk.rebuilt(op)
    total, other, item = (a, b, op.y) if isinstance(a, Total) else (b, a, op.x)
    if (
        not isinstance(total, Total)
        or total.is_inverse
        or not _is_number(getattr(op, "alpha", 1), 1)
    ):
        raise refusal(op, [fact for fact in (a, b) if fact is not None])
    if isinstance(other, Row) and other.is_exponential and other.logit != -1.0:
        return replace(total, sink=other.logit)
    if other is not None or isinstance(item, Value):
        raise Refusal("something is added to the sum of the weights")
    if not isinstance(item, int | float):
        raise refusal(op, [total])
    if 0 <= item <= TINY:
        return replace(total, zero_empty=True)
    if item > 0 and not total.of.raw.is_shifted:
        return replace(total, sink=math.log(item))
    raise Refusal("something is added to the sum of the weights")


# what is done to weights


@fact_rule(arithmetic.Multiply)
def _multiply(walk: Walk, op: Any) -> Fact:
    a, b = walk.of(op.x), walk.of(op.y)
    if all(fact is None or isinstance(fact, Raw) for fact in (a, b)):
        return walk.rebuilt(op)
    weight, other, item = (a, b, op.y) if isinstance(a, Weight) else (b, a, op.x)
    if not isinstance(weight, Weight):
        raise refusal(op, [fact for fact in (a, b) if fact is not None])
    if isinstance(other, Total) and other.is_inverse:
        return _normalized(weight, other, op.out)
    if other is not None or weight.raw.sink is not None:
        raise refusal(op, [weight])
    return _scaled(weight, item, op.out, item in walk.trace.dropped)


def _scaled(weight: Weight, item: Any, result: Value, is_dropout: bool) -> Weight:
    if not weight.is_normalized:
        if not isinstance(item, Value) or is_dropout:
            raise Refusal("weights are scaled before they are normalized")
        raw = _masked_by_number(weight.raw, item)
        return Weight(raw, raw, result)
    scaled = replace(weight, value=result, factors=(*weight.factors, item))
    if not isinstance(item, Value) or _is_even(weight, item):
        return scaled
    if is_dropout or weight.is_moved:
        return replace(scaled, is_uneven=True)
    try:
        return replace(scaled, masked=_masked_by_number(weight.masked, item))
    except Refusal:
        return replace(scaled, is_uneven=True)


def _is_even(weight: Weight, item: Value) -> bool:
    """Whether a factor is the same for all keys."""
    if weight.is_moved or not isinstance(item.type, TensorType):
        return not isinstance(item.type, TensorType) or not item.shape
    place = weight.axis - (len(weight.value.shape) - len(item.shape))
    return place < 0 or is_equal(item.shape[place], 1)


def _masked_by_number(raw: Raw, item: Value) -> Raw:
    """Return scores whose exponentials are multiplied by a number that is not negative."""
    source = item.defined_by(arithmetic.Cast)
    if source is not None and source.x.tensor_type.dtype.value == "bool":
        return _masked(raw, source.x, keeps=True)
    logarithm = math_ops.Log(item).out
    return replace(raw, value=_built(arithmetic.Add, raw.value, logarithm))


def _masked(raw: Raw, condition: Value, *, keeps: bool) -> Raw:
    """Return scores that are negative infinity where a condition does not hold, or does."""
    infinity = -math.inf
    shape = raw.value.shape
    if len(condition.shape) > len(shape):
        raise Refusal("a mask has more dimensions than the scores")
    if len(condition.shape) < len(shape):
        condition = layout.Broadcast(condition, (*shape[: len(shape) - len(condition.shape)],
                                                 *condition.shape)).out  # fmt: skip
    pair = (raw.value, infinity) if keeps else (infinity, raw.value)
    return replace(raw, value=_built(arithmetic.Where, condition, *pair))


def _built(kind: Any, *operands: Any) -> Value:
    try:
        result: Value = kind(*operands).out
    except LynxError as error:
        raise Refusal(f"a mask of the weights is not understood: {error.message}") from error
    return result


@fact_rule(arithmetic.Divide)
def _divide(walk: Walk, op: Any) -> Fact:
    a, b = walk.of(op.x), walk.of(op.y)
    if all(fact is None or isinstance(fact, Raw) for fact in (a, b)) and not (
        isinstance(b, Raw) and b.is_shifted
    ):
        return walk.rebuilt(op)
    if isinstance(a, Weight) and isinstance(b, Total) and not b.is_inverse:
        return _normalized(a, b, op.out)
    if isinstance(a, Weight) and b is None and a.is_normalized:
        inverse = op.y if not isinstance(op.y, Value) else math_ops.Reciprocal(op.y).out
        if not isinstance(inverse, Value):
            inverse = math.inf if inverse == 0 else 1.0 / inverse
        return replace(a, value=op.out, factors=(*a.factors, inverse))
    if a is None and isinstance(b, Total) and _is_number(op.x, 1):
        return replace(b, is_inverse=True)
    raise refusal(op, [fact for fact in (a, b) if fact is not None])


def _normalized(weight: Weight, total: Total, result: Value) -> Weight:
    if total.of.value is not weight.value:
        raise Refusal("weights are divided by the sum of others")
    sink = weight.sink if total.sink is None else total.sink
    if weight.is_normalized and sink is not None:
        raise Refusal("weights are normalized again without the sink")
    return Weight(
        weight.masked, weight.masked, result, total.axis, result,
        zero_empty=total.zero_empty, hides_nan=weight.hides_nan and total.zero_empty, sink=sink,
    )  # fmt: skip


@fact_rule(arithmetic.Where)
def _where(walk: Walk, op: Any) -> Fact:
    fields = [getattr(op, name) for name in op.operand_fields]
    condition, a, b = fields
    given, first, second = (walk.of(item) for item in fields)
    if isinstance(given, Empty) and given.is_row:
        kept, zero = (second, a) if not given.is_inverted else (first, b)
        if isinstance(kept, Weight) and _is_zero(zero):
            return _without_empty(walk, kept, op.out, hides_nan=given.is_nan)
    if given is not None:
        raise Refusal("a mask depends on the scores")
    if isinstance(first, Weight) != isinstance(second, Weight):
        weight, other, keeps = (first, b, True) if isinstance(first, Weight) else (second, a, False)
        assert isinstance(weight, Weight)
        if not _is_zero(other):
            raise Refusal("weights are replaced by numbers other than zero")
        if weight.is_moved:
            masks = (*weight.masks, (condition, keeps))
            return replace(weight, value=op.out, masks=masks, is_uneven=True)
        masked = _masked(weight.masked, condition, keeps=keeps)
        if not weight.is_normalized:
            return Weight(masked, masked, op.out)
        masks = (*weight.masks, (condition, keeps))
        return replace(weight, value=op.out, masked=masked, masks=masks)
    if all(fact is None or isinstance(fact, Raw) for fact in (first, second)):
        return walk.rebuilt(op)
    raise refusal(op, [fact for fact in (first, second) if fact is not None])


def _without_empty(walk: Walk, weight: Weight, result: Value, *, hides_nan: bool) -> Weight:
    """Return weights that are zero in rows of which nothing is left, or that are NaN."""
    is_given = any(isinstance(f, Value) and f not in walk.trace.dropped for f in weight.factors)
    if hides_nan and is_given:
        raise Refusal("what weights are multiplied by is hidden where it is no number")
    hides_nan |= weight.hides_nan
    return replace(weight, value=result, zero_empty=True, hides_nan=hides_nan)


def _is_zero(item: Any) -> bool:
    if isinstance(item, Value):
        full = item.op
        value = getattr(full, "value", None) if full is not None and full.name == "full" else None
        return _is_number(value, 0)
    return _is_number(item, 0)


@fact_rule(math_ops.NanToNum)
def _nan_to_num(walk: Walk, op: Any) -> Fact:
    fact = walk.of(op.x)
    if isinstance(fact, Weight) and fact.is_normalized:
        nan = getattr(op, "nan", 0.0)
        if nan is None or _is_number(nan, 0):
            return _without_empty(walk, fact, op.out, hides_nan=True)
    if isinstance(fact, Raw):
        return walk.rebuilt(op)
    raise refusal(op, [fact])


# masks of scores


@fact_rule(*(kind for kind in vars(compare).values()
         if isinstance(kind, type) and issubclass(kind, compare.Comparison)))  # fmt: skip
def _compare(walk: Walk, op: Any) -> Fact:
    a, b = walk.of(op.x), walk.of(op.y)
    raw, number = (a, op.y) if isinstance(a, Raw) else (b, op.x)
    is_equality = isinstance(op, compare.Equal | compare.NotEqual)
    if isinstance(raw, Raw) and is_equality and _is_number(number, -math.inf):
        return Empty(raw, is_inverted=isinstance(op, compare.NotEqual))
    if isinstance(a, Weight) and a.is_normalized and is_equality and op.x is op.y:
        is_inverted = isinstance(op, compare.Equal)
        return Empty(a.raw, is_row=True, is_inverted=is_inverted, is_nan=True)
    raise Refusal("a mask depends on the scores")


@fact_rule(compare.IsInf)
def _is_inf(walk: Walk, op: Any) -> Fact:
    fact = walk.of(op.x)
    if isinstance(fact, Raw):
        return Empty(fact)
    raise Refusal("a mask depends on the scores")


@fact_rule(compare.IsNan)
def _is_nan(walk: Walk, op: Any) -> Fact:
    """Weights are no numbers in rows of which all scores are negative infinity."""
    fact = walk.of(op.x)
    if isinstance(fact, Weight) and fact.is_normalized:
        return Empty(fact.raw, is_row=True, is_nan=True)
    raise Refusal("a mask depends on the scores")


@fact_rule(reduction.AllNonzero, reduction.AnyNonzero)
def _all(walk: Walk, op: Any) -> Fact:
    fact = walk.of(op.x)
    is_all = isinstance(op, reduction.AllNonzero)
    if isinstance(fact, Empty) and not fact.is_row and is_all != fact.is_inverted:
        return replace(fact, is_row=True)
    raise Refusal("a mask depends on the scores")


@fact_rule(compare.LogicalNot, compare.BitwiseNot)
def _not(walk: Walk, op: Any) -> Fact:
    fact = walk.of(op.x)
    if isinstance(fact, Empty):
        return dataclasses.replace(fact, is_inverted=not fact.is_inverted)
    raise Refusal("a mask depends on the scores")


def facts_of(trace: Trace) -> dict[Value, Fact]:
    """Return what is known of each value of a trace that depends on the scores."""
    return Walk(trace).facts
