"""Attention and its gradients as products, softmax, and the ops of the score function."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lynx.ir.core import Value
from lynx.ir.dims import Dim, product
from lynx.ir.ops.attention import Attending, Attention, AttentionBackward
from lynx.ir.ops.elementwise_arithmetic import Cast
from lynx.ir.ops.fusion import Region
from lynx.ir.ops.layout import Broadcast, Permute, Reshape
from lynx.ir.ops.linear import BatchMatmul
from lynx.passes.decompose_build import (
    Number,
    absolute,
    amax,
    choose,
    exp,
    log,
    maximum,
    refuse_empty,
    total,
)
from lynx.passes.rewrite import NoMatch
from lynx.passes.target import Target

from .derivative import derivative_of, why_no_derivative

_TO_KEYS = (0, 1, 3, 2)
"""Exchanges the last two dimensions."""


def expand_attention(op: Attention, target: Target) -> tuple[Value, ...] | NoMatch:
    """Return output and logarithms by way of all scores.

    attention(q, k, v)  ==>  softmax(score(q @ k.T)) @ v
    """
    if (refusal := _refuse(op)) is not None:
        return refusal
    work = _Expansion(op, target)
    shares, _, logarithms = work.softmax(zero_empty=op.zero_empty)
    out = work.times(work.kept(shares).value, op.v)
    return Number(out).to(op.out_type.dtype), logarithms.value


def expand_attention_backward(op: AttentionBackward, target: Target) -> tuple[Value, ...] | NoMatch:
    """Return the gradients by way of all scores, which are computed once more."""
    if (refusal := _refuse(op)) is not None:
        return refusal
    chosen = tuple(n for n, want in enumerate(op.wanted[4:]) if want)
    if op.score is not None and (reason := why_no_derivative(op.score, chosen)):
        return NoMatch(reason)
    return _Backward(op, target, chosen).gradients()


def _refuse(op: Attending) -> NoMatch | None:
    if op.group is None:
        return NoMatch("it is not known how many heads share one")
    return refuse_empty(*op.operands)


def inlined(region: Region, given: Sequence[Value]) -> tuple[Value, ...]:
    """Return the results of a region over values."""
    values: dict[Value, Value] = dict(zip(region.parameters, given, strict=True))
    for op in region.ops:
        made = op.replace_operands(values)
        values.update(zip(op.results, made.results, strict=True))
    return tuple(values[result] for result in region.results)


class _Expansion:
    """The products of one attention, in which heads that share one lie behind each other."""

    def __init__(self, op: Attending, target: Target) -> None:
        self.op = op
        self.dtype = op.computing_dtype
        given = op.q.tensor_type.dtype
        # Products of low precision are rounded where the machine multiplies it well, as eager's.
        is_fast = given.is_low_precision and target.multiplies(given)
        self.product_dtype = given if is_fast else self.dtype
        (self.batch, _, self.queries, _), self.shared = op.q.shape, op.k.shape[1]
        group = op.group
        assert group is not None
        self.group: Dim = group
        self.dot = self.times(op.q, Permute(op.k, _TO_KEYS).out)

    def times(self, rows: Value, matrix: Value) -> Value:
        """Return products of the rows of each head with the matrix that it shares."""
        made = BatchMatmul(self.grouped(rows), self._factor(matrix)).out
        shape = (*rows.shape[:3], matrix.shape[3])
        return Number(made).reshaped(shape).to(self.dtype)

    def summed(self, factors: Value, rows: Value) -> Value:
        """Return sums of rows for each key, over the heads that share one."""
        turned = Permute(self.grouped(factors), _TO_KEYS).out
        return Number(BatchMatmul(turned, self.grouped(rows)).out).to(self.dtype)

    def grouped(self, rows: Value) -> Value:
        """Return the rows of all heads that share one behind each other."""
        count = product((self.group, self.queries))
        shape = (self.batch, self.shared, count, rows.shape[3])
        return Number(self._factor(rows)).reshaped(shape).value

    def _factor(self, value: Value) -> Value:
        return Number(value).to(self.product_dtype)

    def scores(self) -> Value:
        """Return all scores."""
        score = self.op.scoring()
        if score is None:
            return self.dot
        (scores,) = inlined(score, (self.dot, *self.op.inputs))
        return scores

    def softmax(self, *, zero_empty: bool) -> tuple[Number, Number | None, Number]:
        """Return the shares of keys and of the sink, and the logarithms of denominators."""
        scores = Number(self.scores())
        largest = amax(scores, (3,))
        sink = None if self.op.sink is None else self.sink()
        if sink is not None:
            largest = maximum(largest, sink)
        is_empty = largest.equals(-math.inf)
        # Subtracting it would make NaN of a row of negative infinities, as eager does.
        shift = choose(is_empty, 0.0, largest) if zero_empty else largest
        powers = exp(scores - shift)
        denominator = total(powers, (3,))
        of_sink = None if sink is None else exp(sink - shift)
        if of_sink is not None:
            denominator = denominator + of_sink
        is_infinite = absolute(largest).equals(math.inf)
        logarithms = choose(is_infinite, largest, log(denominator) + largest).squeezed((3,))
        if zero_empty:
            denominator = choose(is_empty, 1.0, denominator)
        share = None if of_sink is None else of_sink / denominator
        return powers / denominator, share, logarithms

    def sink(self) -> Number:
        """Return the sink's logits, with a dimension for keys."""
        sink = self.op.sink
        assert sink is not None
        wide = Number(Number(sink).to(self.dtype))
        rank = len(sink.shape)
        return wide.reshaped((*(1,) * (3 - rank), *sink.shape, 1))

    def kept(self, weights: Number) -> Number:
        """Return weights, or their gradients, after dropout."""
        if self.op.keep is None:
            return weights
        scale: float = self.op.keep_scale  # type: ignore[attr-defined]  # both ops have it
        return weights * Number(Cast(self.op.keep, self.dtype).out) * scale


class _Backward(_Expansion):
    """The gradients of one attention."""

    op: AttentionBackward

    def __init__(self, op: AttentionBackward, target: Target, chosen: tuple[int, ...]) -> None:
        super().__init__(op, target)
        self.chosen = chosen
        self.weights, self.of_logit, _ = self.softmax(zero_empty=op.zero_empty)
        by_values = self.times(op.grad_out, Permute(op.v, _TO_KEYS).out)
        of_weights = self.kept(Number(by_values))
        self.of_rows = -total(of_weights * self.weights, (3,))
        if op.grad_lse is not None:
            self.of_rows = self.of_rows + Number(op.grad_lse).unsqueezed(3)
        of_scores = (of_weights + self.of_rows) * self.weights
        self.of_dot, self.of_inputs = self._through_score(of_scores.value)

    def _through_score(self, of_scores: Value) -> tuple[Value, tuple[Value, ...]]:
        if self.op.score is None:
            return of_scores, ()
        derivative = derivative_of(self.op.score, self.chosen)
        of_dot, *others = inlined(derivative, (self.dot, *self.op.inputs, of_scores))
        return of_dot, tuple(others)

    def gradients(self) -> tuple[Value, ...]:
        """Return the gradients that are wanted, in the types of their operands."""
        op = self.op
        found: list[Value] = []
        want_q, want_k, want_v, want_sink = op.wanted[:4]
        if want_q:
            found.append(self.times(self.of_dot, op.k))
        if want_k:
            found.append(self.summed(self.of_dot, op.q))
        if want_v:
            found.append(self.summed(self.kept(self.weights).value, op.grad_out))
        if want_sink:
            found.append(self._of_sink())
        found += self.of_inputs
        return tuple(
            Number(gradient).to(source.tensor_type.dtype)
            for gradient, source in zip(found, op.sources, strict=True)
        )

    def _of_sink(self) -> Value:
        op, row = self.op, self.op.lse_type.shape
        assert op.sink is not None
        assert self.of_logit is not None
        gradient = self.of_logit * self.of_rows
        spread = Number(Broadcast(gradient.value, (*row, 1)).out)
        first = 3 - len(op.sink.shape)
        shape = (*(1,) * first, *op.sink.shape)
        dims = tuple(n for n in range(3) if shape[n] == 1 and row[n] != 1)
        return Reshape(total(spread, dims).value, op.sink.shape).out
