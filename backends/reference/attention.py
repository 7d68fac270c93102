"""Attention in plain torch, some rows of the scores at a time: memory grows with one sequence.

For some queries all scores are there at once, so that softmax and its gradient are exact; those of
other queries are computed afterwards, in the same memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lynx.ir.call import Call
from lynx.ir.dims import symbol
from lynx.ir.ops.attention import Attention, AttentionBackward
from lynx.ir.ops.fusion import Region
from lynx.ir.score import is_plain, symbols_of
from lynx.passes.attention.derivative import derivative_of

from .registry import means
from .score import RowProgram, derivative_rows, evaluate_region, rows_of

BLOCK_BYTES = 16 << 20
"""Memory for the scores of the queries that are worked on at a time."""

_ALL = slice(None)


@dataclass(frozen=True)
class AttentionForm:
    """What is computed of the products of queries and keys.

    `score` is a function of the products and of operands (None: the products themselves). Weights
    that are kept are multiplied by `keep_scale`. Queries that see no key give zeros with
    `zero_empty`, NaN without.
    """

    score: Region | None = None
    keep_scale: float = 1.0
    zero_empty: bool = False


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which scores of such operands are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def empty_output(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return memory for an output, `[batch, heads, queries, depth]` with heads inside queries."""
    shape = (q.shape[0], q.shape[2], q.shape[1], v.shape[3])
    return v.new_empty(shape).transpose(1, 2)


Optional = torch.Tensor | None


@torch.no_grad()
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: Sequence[torch.Tensor],
    sink: Optional,
    keep: Optional,
    form: AttentionForm,
    symbols: Mapping[str, int] | None = None,
    out: Optional = None,
    lse: Optional = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention, and the logarithm of the sum of exponentials of each query's scores."""
    work = RowsOfScores(q, k, v, operands, sink, keep, form, symbols or {})
    out = empty_output(q, v) if out is None else out
    lse = q.new_empty(q.shape[:3], dtype=work.dtype) if lse is None else lse
    for rows, _, found in work.by_rows():
        lse[:, :, rows] = found.logarithms
        out[:, :, rows] = work.times_values(work.kept(found.weights, rows)).to(out.dtype)
    return out, lse


@torch.no_grad()
def attend_backward(
    grad_out: torch.Tensor,
    grad_lse: Optional,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: Sequence[torch.Tensor],
    sink: Optional,
    keep: Optional,
    form: AttentionForm,
    wanted: Sequence[bool],
    symbols: Mapping[str, int] | None = None,
) -> list[torch.Tensor]:
    """Return the gradients of q, k, v, the sink and operands that are wanted, in this order."""
    work = RowsOfScores(q, k, v, operands, sink, keep, form, symbols or {})
    of_q, of_k, of_v, of_sink, *of_operands = work.memory(wanted)
    for rows, dot, (weights, of_logit, _) in work.by_rows():
        incoming = grad_out[:, :, rows].to(work.dtype)
        if of_v is not None:
            work.add_to_keys(work.kept(weights, rows), incoming, of_v)
        of_weights = work.kept(work.by_values(incoming), rows)
        of_rows = -(of_weights * weights).sum(3, keepdim=True)
        if grad_lse is not None:
            of_rows += grad_lse[:, :, rows, None].to(work.dtype)
        if of_sink is not None:
            assert of_logit is not None
            of_sink[:, :, rows] = (of_logit * of_rows)[..., 0]
        of_scores = of_weights.add_(of_rows).mul_(weights)
        of_dot = work.of_dot(dot, of_scores, rows, of_operands)
        if of_q is not None:
            of_q[:, :, rows] = work.by_keys(of_dot)
        if of_k is not None:
            work.add_to_keys(of_dot, work.q[:, :, rows].to(work.dtype), of_k)
    return work.finished(of_q, of_k, of_v, of_sink, of_operands)


class Softmax(NamedTuple):
    """The shares of some rows' keys, those of their sinks, and the logarithms of denominators."""

    weights: torch.Tensor
    sink: Optional
    logarithms: torch.Tensor


class RowsOfScores:
    """The operands of one call, and the products that some rows of scores take part in."""

    def __init__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        operands: Sequence[torch.Tensor],
        sink: Optional,
        keep: Optional,
        form: AttentionForm,
        symbols: Mapping[str, int],
    ) -> None:
        self.dtype = computing_dtype(q.dtype)
        self.q, self.keep, self.form, self.operands = q, keep, form, operands
        self.k, self.v = k.to(self.dtype), v.to(self.dtype)
        self.batch, self.heads, self.queries, _ = q.shape
        self.shared, self.keys = k.shape[1], k.shape[2]
        self.given_sink = sink
        self.sink = None if sink is None else sink.to(self.dtype).expand(q.shape[:3])
        self.symbols = symbols
        self.score = None if is_plain(form.score) else rows_of(form.score)
        self.derivative: RowProgram | None = None

    def blocks(self) -> Iterator[slice]:
        """Yield the rows that are worked on at a time."""
        nbytes = self.batch * self.heads * self.keys * self.dtype.itemsize
        fitting = max(1, BLOCK_BYTES // max(1, nbytes))
        programs = (self.score, self.derivative)
        if not all(program is None or program.part is not None for program in programs):
            fitting = max(1, self.queries)
        for start in range(0, self.queries, fitting):
            yield slice(start, min(start + fitting, self.queries))

    def by_rows(self) -> Iterator[tuple[slice, torch.Tensor, Softmax]]:
        """Yield some rows at a time, with their products and the softmax of their scores."""
        for rows in self.blocks():
            dot, scores = self.scores(rows)
            yield rows, dot, self.softmax(scores, rows)

    def whole(self) -> tuple[slice, torch.Tensor, Softmax]:
        """Return the same of all rows at once, in operators that autograd knows."""
        rows = slice(0, self.queries)
        dot = self._grouped_product(self.q.to(self.dtype), self.k.transpose(2, 3))
        score = self.form.score
        scores = dot if score is None else evaluate_region(score, (dot, *self.operands))[0]
        return rows, dot, self.softmax(scores, rows)

    def _is_all(self, rows: slice) -> bool:
        return bool(rows.start == 0 and rows.stop == self.queries)

    def scores(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the products of some queries with all keys, and their scores."""
        dot = self._grouped_product(self.q[:, :, rows].to(self.dtype), self.k.transpose(2, 3))
        if self.score is None:
            return dot, dot
        inputs = (dot, *self.operands)
        (scores,) = self.score.run(inputs, rows, self.symbols, all_rows=self._is_all(rows))
        return dot, scores

    def softmax(self, scores: torch.Tensor, rows: slice) -> Softmax:
        """Return the shares of keys and sink, and the logarithms of the denominators.

        The shares come from no logarithm, which would lose what large scores leave of the number
        of keys: a row of equal scores, however low, has equal shares.
        """
        sink = None if self.sink is None else self.sink[:, :, rows, None]
        if self.keys == 0:
            largest = scores.new_full((*scores.shape[:3], 1), -math.inf)
        else:
            largest = scores.amax(3, keepdim=True)
        largest = largest if sink is None else torch.maximum(largest, sink)
        is_empty = largest == -math.inf
        shift = largest.masked_fill(is_empty, 0) if self.form.zero_empty else largest
        powers = torch.exp(scores - shift)
        total = powers.sum(3, keepdim=True)
        of_sink = None if sink is None else torch.exp(sink - shift)
        total = total if of_sink is None else total + of_sink
        logarithms = torch.where(largest.isinf(), largest, torch.log(total) + largest)
        if self.form.zero_empty:
            total = total.masked_fill(is_empty, 1)
        share = None if of_sink is None else of_sink / total
        return Softmax(powers / total, share, logarithms[..., 0])

    def kept(self, weights: torch.Tensor, rows: slice, keys: slice = _ALL) -> torch.Tensor:
        """Return weights of some keys, or their gradients, after dropout."""
        if self.keep is None:
            return weights
        return weights * self.keep[:, :, rows, keys] * self.form.keep_scale

    def times_values(self, weights: torch.Tensor, keys: slice = _ALL) -> torch.Tensor:
        """Return sums of values of some keys."""
        return self._grouped_product(weights, self.v[:, :, keys])

    def by_values(self, incoming: torch.Tensor) -> torch.Tensor:
        """Return products of gradients with values."""
        return self._grouped_product(incoming, self.v.transpose(2, 3))

    def by_keys(self, of_dot: torch.Tensor) -> torch.Tensor:
        """Return sums of keys."""
        return self._grouped_product(of_dot, self.k)

    def add_to_keys(self, factors: torch.Tensor, rows: torch.Tensor, total: torch.Tensor) -> None:
        """Add sums of rows, one for each key, over all heads that share it."""
        total += self.over_rows(factors, rows)

    def over_rows(self, factors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return sums of rows, one for each key, over all heads that share it."""
        return self._grouped(factors).transpose(2, 3) @ self._grouped(rows)

    def of_dot(
        self,
        dot: torch.Tensor,
        of_scores: torch.Tensor,
        rows: slice,
        of_operands: Sequence[Optional],
    ) -> torch.Tensor:
        """Return the gradient of the products, and add to those of operands."""
        if self.derivative is None:
            return of_scores
        inputs, whole = (dot, *self.operands, of_scores), self._is_all(rows)
        found = self.derivative.run(inputs, rows, self.symbols, all_rows=whole)
        wanted = [total for total in of_operands if total is not None]
        hows = self.derivative.results[1:]
        for gradient, total, how in zip(found[1:], wanted, hows, strict=True):
            if whole or not isinstance(how, int):
                total += gradient
            else:
                total.narrow(how, rows.start, rows.stop - rows.start).add_(gradient)
        return found[0]

    def memory(self, wanted: Sequence[bool]) -> list[Optional]:
        """Return memory for sums of gradients, and find out how those of operands are computed."""
        shapes = (self.q.shape, self.k.shape, self.v.shape, self.q.shape[:3])
        memory: list[Optional] = [
            self.q.new_zeros(shape, dtype=self.dtype) if want else None
            for shape, want in zip(shapes, wanted[:4], strict=True)
        ]
        chosen = tuple(n for n, want in enumerate(wanted[4:]) if want)
        if not is_plain(self.form.score):
            assert self.form.score is not None
            self.derivative = derivative_rows(self.form.score, chosen)
        for operand, want in zip(self.operands, wanted[4:], strict=True):
            memory.append(operand.new_zeros(operand.shape, dtype=self.dtype) if want else None)
        return memory

    def finished(
        self,
        of_q: Optional,
        of_k: Optional,
        of_v: Optional,
        of_sink: Optional,
        others: Sequence[Optional],
    ) -> list[torch.Tensor]:
        """Return the gradients that there are, in the types of the operands."""
        found: list[torch.Tensor] = []
        for gradient in (of_q, of_k, of_v):
            if gradient is not None:
                target = empty_output(gradient, gradient).to(self.q.dtype)
                found.append(target.copy_(gradient))
        if of_sink is not None:
            assert self.given_sink is not None
            found.append(of_sink.sum_to_size(self.given_sink.shape).to(self.given_sink.dtype))
        for gradient, operand in zip(others, self.operands, strict=True):
            if gradient is not None:
                found.append(gradient.to(operand.dtype))
        return found

    def _grouped_product(self, rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """Return products of rows of each head with the matrix of the head that it shares."""
        product = self._grouped(rows) @ matrix
        return product.reshape(*rows.shape[:3], matrix.shape[3])

    def _grouped(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of all heads that share one behind each other."""
        group = self.heads // self.shared if self.shared else 1
        return rows.reshape(self.batch, self.shared, group * rows.shape[2], rows.shape[3])


def composite(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: Sequence[torch.Tensor],
    sink: Optional,
    keep: Optional,
    form: AttentionForm,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same by way of all weights, in operators that autograd knows."""
    work = RowsOfScores(q, k, v, operands, sink, keep, form, {})
    rows, _, found = work.whole()
    out = work.times_values(work.kept(found.weights, rows)).to(v.dtype)
    return out, found.logarithms


def composite_backward(
    grad_out: torch.Tensor,
    grad_lse: Optional,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    operands: Sequence[torch.Tensor],
    sink: Optional,
    keep: Optional,
    form: AttentionForm,
    wanted: Sequence[bool],
) -> list[torch.Tensor]:
    """Return the gradients that are wanted, by way of all weights, so that autograd sees them."""
    work = RowsOfScores(q, k, v, operands, sink, keep, form, {})
    rows, dot, (weights, of_logit, _) = work.whole()
    incoming = grad_out.to(work.dtype)
    of_weights = work.kept(work.by_values(incoming), rows)
    of_rows = -(of_weights * weights).sum(3, keepdim=True)
    if grad_lse is not None:
        of_rows = of_rows + grad_lse[..., None].to(work.dtype)
    of_dot, others = (of_weights + of_rows) * weights, []
    if form.score is not None:
        derivative = derivative_of(form.score, tuple(n for n, w in enumerate(wanted[4:]) if w))
        of_dot, *others = evaluate_region(derivative, (dot, *operands, of_dot))
    found: list[torch.Tensor] = []
    if wanted[0]:
        found.append(work.by_keys(of_dot))
    if wanted[1]:
        found.append(work.over_rows(of_dot, q.to(work.dtype)))
    if wanted[2]:
        found.append(work.over_rows(work.kept(weights, rows), incoming))
    if wanted[3]:
        assert sink is not None
        assert of_logit is not None
        found.append((of_logit * of_rows)[..., 0].sum_to_size(sink.shape))
    given = (q, k, v, sink, *operands)
    sources = [x for x, want in zip(given, wanted, strict=True) if want and x is not None]
    return [g.to(x.dtype) for g, x in zip((*found, *others), sources, strict=True)]


@means(Attention)
def attention(op: Attention) -> Call:
    """Attend to some rows at a time."""
    names = () if op.score is None else symbols_of(op.score)
    form = AttentionForm(op.score, op.keep_scale, op.zero_empty)
    sizes = tuple(symbol(name) for name in names)
    arguments = (op.q, op.k, op.v, op.inputs, op.sink, op.keep, sizes)
    function = functools.partial(_attend, form, names)
    return Call(function, arguments, {}, function, ("out", "lse"))


@means(AttentionBackward)
def attention_backward(op: AttentionBackward) -> Call:
    """Differentiate some rows at a time."""
    names = () if op.score is None else symbols_of(op.score)
    form = AttentionForm(op.score, op.keep_scale, op.zero_empty)
    sizes = tuple(symbol(name) for name in names)
    incoming = (op.grad_out, op.grad_lse)
    arguments = (*incoming, op.q, op.k, op.v, op.inputs, op.sink, op.keep, sizes)
    function = functools.partial(_attend_backward, form, op.wanted, names)
    outs = tuple(f"out{index}" for index in range(len(op.results)))
    return Call(function, arguments, {}, function, outs)


def _attend(
    form: AttentionForm, names: tuple[str, ...], *arguments: Any, **out: torch.Tensor
) -> Any:
    q, k, v, inputs, sink, keep, sizes = arguments
    symbols = dict(zip(names, sizes, strict=True))
    return attend(q, k, v, inputs, sink, keep, form, symbols, out.get("out"), out.get("lse"))


def _attend_backward(
    form: AttentionForm,
    wanted: tuple[bool, ...],
    names: tuple[str, ...],
    *arguments: Any,
    **outs: torch.Tensor,
) -> Any:
    grad_out, grad_lse, q, k, v, inputs, sink, keep, sizes = arguments
    symbols = dict(zip(names, sizes, strict=True))
    operands = (q, k, v, inputs, sink, keep)
    found = attend_backward(grad_out, grad_lse, *operands, form, wanted, symbols)
    if outs:
        found = [out.copy_(item) for out, item in zip(outs.values(), found, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)
