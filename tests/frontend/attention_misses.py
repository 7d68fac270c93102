"""What looks like attention and is none, or none that may be replaced: all of it stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use

from tests.frontend.attention_idioms import Draw, drawn, heads, rows

Tensor = torch.Tensor
MISSES: list[tuple[Callable[..., Any], Draw, str]] = []


def miss(reason: str, draw: Draw = heads) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        MISSES.append((function, draw, reason))
        return function

    return register


def square(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(drawn(dtype, batch, 4, length, length) for _ in range(3))


@miss("not over the keys")
def softmax_over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


@miss("not over the keys")
def softmax_over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(1) @ v


@miss("mask depends on the scores")
def mask_of_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return scores.masked_fill(scores < 0, float("-inf")).softmax(-1) @ v


@miss("")
def only_the_best(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    least = scores.topk(3, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, float("-inf")).softmax(-1) @ v


@miss("normalized twice")
def normalized_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).softmax(-1) @ v


@miss("also used")
def scores_in_a_loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.square().mean()


@miss("also used")
def weights_in_a_loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v - (weights * weights.clamp_min(1e-9).log()).sum()


@miss("gradients do not flow")
def weights_without_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).detach() @ v


@miss("gradients do not flow")
def scores_without_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.25).detach().softmax(-1) @ v


@miss("")
def sigmoid_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).sigmoid() @ v


@miss("not normalized")
def exponentials_only(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.1).exp() @ v


@miss("no product of queries and keys")
def no_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.softmax(-1) @ v.mT


@miss("is not what attention does")
def something_is_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) + 0.1) @ v


@miss("is not what attention does")
def squared_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).square() @ v


@miss("", lambda b, n, d: (*heads(b, n, d), drawn(d, n, n)))
def weights_times_a_matrix(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) * gate) @ v


@miss("", lambda b, n, d: (*heads(b, n, d), drawn(d, 4, 4)))
def heads_are_mixed(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
    weights = torch.einsum("bhqk,hg->bgqk", (q @ k.mT).softmax(-1), mix)
    return weights @ v


@miss("sums over more than keys")
def summed_over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bqd", (q @ k.mT).softmax(-1), v)


@miss("only a part of the scores")
def some_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1)[..., :4] @ v[..., :4, :]


@miss("", square)
def diagonal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return (scores + scores.diagonal(dim1=-2, dim2=-1)[..., None]).softmax(-1) @ v


@miss("", square)
def scores_and_their_transpose(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return (scores + scores.mT).softmax(-1) @ v


@miss("sum of others")
def divided_by_the_sum_of_others(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * 0.1
    total = (scores * 2).exp().sum(-1, keepdim=True)
    return (scores.exp() / total) @ v


@miss("added to the sum")
def something_in_the_denominator(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return (weights / (weights.sum(-1, keepdim=True) + 0.5)) @ v


@miss("not over the keys")
def transposed_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).mT @ v


@miss("", rows)
def cumulative_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).cumsum(-1) @ v


def without_gradients(batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(x.detach() for x in heads(batch, length, dtype))


@miss("writes to memory", without_gradients)
def keys_change_before_the_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k = k * 1.0
    weights = (q @ k.mT).softmax(-1)
    k.view(-1).add_(1.0)
    return weights @ v + k.sum()


@miss("changes what others may look at", without_gradients)
def scores_change_under_a_view(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    first = scores[:, :1]
    scores.mul_(2.0)
    return scores.softmax(-1) @ v + first.sum()


@miss("")
def gumbel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.gumbel_softmax(q @ k.mT, dim=-1) @ v


@miss("")
def row_statistics(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return (scores / scores.std(-1, keepdim=True)).softmax(-1) @ v


@miss("")
def shifted_before_a_curve(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return torch.tanh(scores - scores.amax(-1, keepdim=True)).softmax(-1) @ v
