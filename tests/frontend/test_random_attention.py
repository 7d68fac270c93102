"""Random attention: layouts, grouping, masks, and what is done to scores, against eager."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.frontend.test_recognise_attention import Counter, evaluated

Tensor = torch.Tensor
Step = Callable[[Tensor, dict[str, Tensor]], Tensor]
PROGRAMS = int(os.environ.get("LYNX_TEST_PROGRAMS", "40"))
B, H, Q, K, D = 2, 4, 5, 7, 8


def _indices(scores: Tensor) -> tuple[Tensor, Tensor]:
    q, k = scores.shape[-2:]
    return torch.arange(q)[:, None], torch.arange(k)[None, :]


def causal(scores: Tensor, _: dict[str, Tensor]) -> Tensor:
    q, k = scores.shape[-2:]
    return torch.ones(q, k, dtype=torch.bool).tril(k - q)


def window(scores: Tensor, _: dict[str, Tensor]) -> Tensor:
    q, k = _indices(scores)
    return (q - k).abs() < 3


def prefix(scores: Tensor, _: dict[str, Tensor]) -> Tensor:
    q, k = _indices(scores)
    return (k <= q) | (k < 2)


def padding(scores: Tensor, more: dict[str, Tensor]) -> Tensor:
    return more["padding"][:, None, None, :] != 0


def documents(scores: Tensor, more: dict[str, Tensor]) -> Tensor:
    return (
        more["documents"][:, None, : scores.shape[-2], None]
        == more["documents"][:, None, None, : scores.shape[-1]]
    )


def dense(scores: Tensor, more: dict[str, Tensor]) -> Tensor:
    return more["dense"]


MASKS = (causal, window, prefix, padding, documents, dense)


@dataclass(frozen=True)
class Program:
    """A way to attend: how operands lie, what is done to scores, and how they are normalized."""

    layout: str
    groups: int
    steps: tuple[str, ...]
    mask: tuple[tuple[str, bool], ...]
    union: bool
    fill: float
    additive: bool
    softmax: str
    result: str

    @property
    def loses_digits(self) -> bool:
        """Whether eager's weights of rows that are all masked may be ones, whatever the precision.

        Next to the least number, the logarithm of the number of keys is nothing.
        """
        return self.softmax == "logarithm" and math.isfinite(self.fill) and self.fill < -1e30

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        more = dict(zip(("padding", "documents", "dense", "bias", "sinks"), rest, strict=True))
        if self.groups > 1:
            k, v = (x.repeat_interleave(self.groups, 1) for x in (k, v))
        scores = self.product(q, k)
        for step in self.steps:
            scores = STEPS[step](scores, more)
        if self.mask:
            scores = self.masked(scores, more)
        return self.applied(SOFTMAXES[self.softmax](scores, more), v)

    def product(self, q: Tensor, k: Tensor) -> Tensor:
        if self.layout == "einsum":
            return torch.einsum("bhqd,bhkd->bhqk", q, k)
        if self.layout == "rows":
            scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
            return scores.view(B, H, q.shape[2], -1)
        if self.layout == "keys first":
            return (k @ q.transpose(-2, -1)).transpose(-2, -1)
        return q @ k.mT

    def masked(self, scores: Tensor, more: dict[str, Tensor]) -> Tensor:
        keep: Tensor | None = None
        for name, inverted in self.mask:
            one = next(m for m in MASKS if m.__name__ == name)(scores, more)
            one = ~one if inverted else one
            if keep is None:
                keep = one
            else:
                keep = keep | one if self.union else keep & one
        assert keep is not None
        if self.additive:
            return scores + torch.where(keep, 0.0, self.fill)
        return scores.masked_fill(~keep, self.fill)

    def applied(self, weights: Tensor, v: Tensor) -> Tensor:
        if self.result == "einsum":
            return torch.einsum("bhqk,bhkd->bqhd", weights, v)
        if self.result == "rows":
            return torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).view(B, H, -1, D)
        return (weights @ v).transpose(1, 2)


STEPS: dict[str, Step] = {
    "scale": lambda s, _: s * 0.3,
    "divide": lambda s, _: s / 2.5,
    "softcap": lambda s, _: torch.tanh(s / 3.0) * 3.0,
    "bias": lambda s, m: s + m["bias"],
    "alibi": lambda s, _: s - 0.1 * (_indices(s)[0] - _indices(s)[1]).abs(),
    "clamp": lambda s, _: s.clamp(-2.0, 2.0),
    "negate": lambda s, _: -s,
    "cast": lambda s, _: s.double().float(),
}


def by_hand(scores: Tensor, _: dict[str, Tensor]) -> Tensor:
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def with_sink(scores: Tensor, more: dict[str, Tensor]) -> Tensor:
    column = more["sinks"].view(1, H, 1, 1).expand(B, H, scores.shape[2], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]


SOFTMAXES: dict[str, Callable[[Tensor, dict[str, Tensor]], Tensor]] = {
    "softmax": lambda s, _: F.softmax(s, -1),
    "method": lambda s, _: s.softmax(-1, dtype=torch.float32),
    "by hand": by_hand,
    "logarithm": lambda s, _: (s - s.logsumexp(-1, keepdim=True)).exp(),
    "sink": with_sink,
    "safe": lambda s, _: torch.nan_to_num(s.softmax(-1), 0.0),
}

programs = st.builds(
    Program,
    st.sampled_from(["plain", "einsum", "rows", "keys first"]),
    st.sampled_from([1, 1, 2, 4]),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=3, unique=True).map(tuple),
    st.lists(st.tuples(st.sampled_from([m.__name__ for m in MASKS]), st.booleans()),
             max_size=3).map(tuple),
    st.booleans(),
    st.sampled_from([-math.inf, float(torch.finfo(torch.float32).min), -1e4]),
    st.booleans(),
    st.sampled_from(sorted(SOFTMAXES)),
    st.sampled_from(["plain", "einsum", "rows"]),
)  # fmt: skip


def operands(groups: int) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    shapes = ((B, H, Q, D), (B, H // groups, K, D), (B, H // groups, K, D))
    q, k, v = (torch.randn(shape).requires_grad_() for shape in shapes)
    pad = torch.ones(B, K, dtype=torch.int64)
    pad[1, 4:] = 0
    ids = torch.tensor([0, 0, 0, 1, 1, 2, 2]).repeat(B, 1)
    mask = torch.rand(B, 1, Q, K) < 0.7
    bias = torch.randn(1, H, Q, K).requires_grad_()
    return (q, k, v, pad, ids, mask, bias, torch.randn(H).requires_grad_())


@given(programs, st.booleans())
@settings(max_examples=PROGRAMS, deadline=None, derandomize=True, database=None,
          phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
def test_random_attention(program: Program, dynamic: bool) -> None:
    torch._dynamo.reset()
    args: tuple[Any, ...] = operands(program.groups)
    expected = evaluated(program, args)
    if dynamic:
        torch._dynamo.maybe_mark_dynamic(args[0], 2)
        for x in args[1:3]:
            torch._dynamo.maybe_mark_dynamic(x, 2)
    counter = Counter()
    actual = evaluated(torch.compile(program.__call__, backend=counter), args)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    if program.loses_digits and counter.count == 0:
        (message,) = counter.messages
        assert "the same in rows of which masks leave nothing" in message
    else:
        assert counter.count == 1, counter.messages
