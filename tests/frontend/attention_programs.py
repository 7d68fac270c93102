"""Random ways to attend: sizes, layouts, groups, masks, what is done to scores, and softmaxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use
from hypothesis import strategies as st

Tensor = torch.Tensor
More = dict[str, Tensor]
LEAST = {dtype: float(torch.finfo(dtype).min) for dtype in (torch.float32, torch.bfloat16)}


@dataclass(frozen=True)
class Sizes:
    """Sizes of operands: heads of queries are `groups` times those of keys."""

    batch: int
    shared: int
    groups: int
    queries: int
    keys: int
    depth: int
    value_depth: int

    @property
    def heads(self) -> int:
        return self.shared * self.groups


@dataclass(frozen=True)
class Program:
    """A way to attend; calling it computes it as a model would."""

    sizes: Sizes
    dtype: torch.dtype
    layout: str
    steps: tuple[str, ...]
    masks: tuple[tuple[str, int, bool], ...]
    union: bool
    fill: str
    additive: bool
    softmax: str
    result: str
    dropout: bool

    @property
    def needs_groups_repeated(self) -> bool:
        return self.layout != "five" and self.sizes.groups > 1

    @property
    def dynamic_dims(self) -> tuple[int, ...]:
        """Dimensions of queries, keys and values whose sizes may be symbolic: batch and length."""
        return {"rows": (1,), "sequences": (0, 1)}.get(self.layout, (0, 2))

    def operands(self) -> tuple[Tensor, ...]:
        """Return queries, keys, values, and all that masks and biases need."""
        s = self.sizes
        shapes = (
            (s.batch, s.heads, s.queries, s.depth),
            (s.batch, s.shared, s.keys, s.depth),
            (s.batch, s.shared, s.keys, s.value_depth),
        )
        if self.layout == "sequences":
            shapes = tuple((b, n, h, d) for b, h, n, d in shapes)  # type: ignore[assignment]
        if self.layout == "rows":
            shapes = tuple((b * h, n, d) for b, h, n, d in shapes)  # type: ignore[assignment]
        q, k, v = (torch.randn(shape).to(self.dtype).requires_grad_() for shape in shapes)
        pad = torch.ones(s.batch, s.keys, dtype=torch.int64)
        pad[-1, -max(s.keys // 3, 1) :] = 0
        ids = torch.arange(max(s.keys, s.queries)).div(3, rounding_mode="floor")
        mask = torch.rand(s.batch, 1, s.queries, s.keys) < 0.7
        bias = torch.randn(1, s.heads, s.queries, s.keys).to(self.dtype).requires_grad_()
        lengths = torch.arange(s.batch) + max(s.keys // 2, 1)
        sinks = torch.randn(s.heads).to(self.dtype).requires_grad_()
        return (q, k, v, pad, ids.repeat(s.batch, 1), mask, bias, lengths, sinks)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        names = ("padding", "documents", "dense", "bias", "lengths", "sinks")
        more = dict(zip(names, rest, strict=True))
        scores = self.product(q, k)
        for step in self.steps:
            scores = STEPS[step](scores, more)
        if self.masks:
            scores = self.masked(scores, more)
        weights = SOFTMAXES[self.softmax](scores, more)
        if self.dropout:
            weights = F.dropout(weights, 0.0)
        return self.applied(weights.to(v.dtype), v)

    def heads_of(self, x: Tensor) -> Tensor:
        """Return keys or values as `[batch, heads, keys, depth]`."""
        s = self.sizes
        if self.layout == "sequences":
            x = x.transpose(1, 2)
        elif self.layout == "rows":
            x = x.unflatten(0, (s.batch, -1))
        if self.needs_groups_repeated:
            x = x[:, :, None].expand(-1, -1, s.groups, -1, -1).flatten(1, 2)
        return x

    def product(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the scores as `[batch, heads, queries, keys]`."""
        s, k = self.sizes, self.heads_of(k)
        if self.layout == "sequences":
            return torch.einsum("bqhd,bhkd->bhqk", q, k)
        if self.layout == "rows":
            return torch.bmm(q, k.flatten(0, 1).transpose(1, 2)).unflatten(0, (s.batch, -1))
        if self.layout == "five":
            q = q.unflatten(1, (s.shared, s.groups))
            return (q @ k.unsqueeze(2).mT).flatten(1, 2)
        if self.layout == "keys first":
            return (k @ q.mT).mT
        return q @ k.mT

    def masked(self, scores: Tensor, more: More) -> Tensor:
        """Hide what masks do not keep."""
        keep: Tensor | None = None
        for name, number, inverted in self.masks:
            one = MASKS[name](scores, more, number)
            one = ~one if inverted else one
            if keep is None:
                keep = one
            else:
                keep = keep | one if self.union else keep & one
        assert keep is not None
        fill = {"infinity": -math.inf, "least": LEAST[self.dtype], "finite": -1e4}[self.fill]
        if self.additive:
            return scores + torch.where(keep, 0.0, fill).to(scores.dtype)
        return scores.masked_fill(~keep, fill)

    def applied(self, weights: Tensor, v: Tensor) -> Tensor:
        """Return the weighted values, as the layout has them."""
        s, v = self.sizes, self.heads_of(v)
        if self.layout == "five":
            weights = weights.unflatten(1, (s.shared, s.groups))
            return (weights @ v.unsqueeze(2)).flatten(1, 2)
        if self.result == "einsum":
            return torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2)
        if self.result == "rows":
            return torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).unflatten(0, (s.batch, -1))
        return (weights @ v).transpose(1, 2)


def places(scores: Tensor) -> tuple[Tensor, Tensor]:
    q, k = scores.shape[-2:]
    return torch.arange(q)[:, None], torch.arange(k)[None, :]


def causal(scores: Tensor, _: More, number: int) -> Tensor:
    q, k = scores.shape[-2:]
    offset = k - q if number % 2 else number // 2
    return torch.ones(q, k, dtype=torch.bool).tril(offset)


def window(scores: Tensor, _: More, number: int) -> Tensor:
    q, k = places(scores)
    distance = q - k
    if number % 2:
        return distance.abs() <= number
    return (distance >= 0) & (distance < number + 1)


def prefix(scores: Tensor, more: More, number: int) -> Tensor:
    q, k = places(scores)
    if number % 2:
        return (k <= q) | (k < more["lengths"][:, None, None, None])
    return (k <= q) | (k < number)


def padding(_: Tensor, more: More, __: int) -> Tensor:
    return more["padding"][:, None, None, :] != 0


def lengths(scores: Tensor, more: More, _: int) -> Tensor:
    return places(scores)[1] < more["lengths"][:, None, None, None]


def documents(scores: Tensor, more: More, _: int) -> Tensor:
    q, k = scores.shape[-2:]
    ids = more["documents"]
    return ids[:, None, :q, None] == ids[:, None, None, :k]


def dense(_: Tensor, more: More, __: int) -> Tensor:
    return more["dense"]


def blocks(scores: Tensor, _: More, number: int) -> Tensor:
    q, k = places(scores)
    return q // (number + 1) >= k // (number + 1)


MASKS: dict[str, Callable[[Tensor, More, int], Tensor]] = {
    mask.__name__: mask
    for mask in (causal, window, prefix, padding, lengths, documents, dense, blocks)
}


def computing_dtype(scores: Tensor) -> torch.dtype:
    """Return `f32`, or `f64` where a program is computed to tell how exact others are."""
    return torch.float64 if scores.dtype is torch.float64 else torch.float32


def alibi(scores: Tensor, _: More) -> Tensor:
    q, k = places(scores)
    slopes = 2.0 ** -torch.arange(1, scores.shape[1] + 1)
    return scores - (slopes[:, None, None] * (q - k).abs()).to(scores.dtype)


STEPS: dict[str, Callable[[Tensor, More], Tensor]] = {
    "scale": lambda s, _: s * 0.3,
    "divide": lambda s, _: s / 2.5,
    "softcap": lambda s, _: torch.tanh(s / 3.0) * 3.0,
    "wide softcap": lambda s, _: 50.0 * torch.tanh(s * 0.02),
    "bias": lambda s, m: s + m["bias"],
    "alibi": alibi,
    "clamp": lambda s, _: s.clamp(-2.0, 2.0),
    "clamp below": lambda s, _: s.clamp(min=-1e4),
    "negate": lambda s, _: -s,
    "cast": lambda s, _: s.to(computing_dtype(s)),
}


def by_hand(scores: Tensor, _: More) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def with_sink(scores: Tensor, more: More) -> Tensor:
    b, h, q, _ = scores.shape
    column = more["sinks"].view(1, h, 1, 1).expand(b, h, q, 1).to(scores.dtype)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]


SOFTMAXES: dict[str, Callable[[Tensor, More], Tensor]] = {
    "softmax": lambda s, _: F.softmax(s, -1),
    "method": lambda s, _: s.softmax(-1, dtype=computing_dtype(s)),
    "by hand": by_hand,
    "logarithm": lambda s, _: (s - s.logsumexp(-1, keepdim=True)).exp(),
    "sink": with_sink,
    "safe": lambda s, _: torch.nan_to_num(s.softmax(-1), 0.0),
}


def sizes(most: int) -> st.SearchStrategy[Sizes]:
    """Return sizes of at most this many queries and keys, often one query or as many as keys."""
    lengths = st.integers(1, most)
    pairs = st.one_of(
        st.tuples(lengths, lengths), lengths.map(lambda n: (n, n)), lengths.map(lambda n: (1, n))
    )
    return st.builds(
        lambda b, h, g, n, d, e: Sizes(b, h, g, *n, d, e),
        st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 1, 2, 4]), pairs,
        st.sampled_from([1, 4, 8, 12, 16]), st.sampled_from([3, 8, 16]),
    )  # fmt: skip


def programs(most: int) -> st.SearchStrategy[Program]:
    """Return programs of at most this many queries and keys."""
    mask = st.tuples(st.sampled_from(sorted(MASKS)), st.integers(0, 6), st.booleans())
    return st.builds(
        Program,
        sizes(most),
        st.sampled_from([torch.float32, torch.float32, torch.bfloat16]),
        st.sampled_from(["plain", "sequences", "rows", "five", "keys first"]),
        st.lists(st.sampled_from(sorted(STEPS)), max_size=3, unique=True).map(tuple),
        st.lists(mask, max_size=3).map(tuple),
        st.booleans(),
        st.sampled_from(["infinity", "least", "finite"]),
        st.booleans(),
        st.sampled_from(sorted(SOFTMAXES)),
        st.sampled_from(["plain", "einsum", "rows"]),
        st.booleans(),
    )
