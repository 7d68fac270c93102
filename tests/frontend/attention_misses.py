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


@miss("every query has keys of its own", lambda b, n, d: (*heads(b, n, d), drawn(d, 4, 4)))
def scores_of_heads_are_mixed(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
    return torch.einsum("bhqk,hg->bgqk", q @ k.mT * 0.25, mix).softmax(-1) @ v


@miss("no product of queries and keys", lambda b, n, d: (*heads(b, n, d), drawn(d, 4, 4)))
def scores_of_heads_are_projected(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
    scores = F.linear((q @ k.mT * 0.25).permute(0, 2, 3, 1), mix).permute(0, 3, 1, 2)
    return scores.softmax(-1) @ v


@miss("no product of queries and keys")
def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


@miss("")
def linear_attention_of_features(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


@miss("multiplied by numbers", lambda b, n, d: (*heads(b, n, d), torch.ones(n, n).tril().to(d)))
def weights_times_numbers(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) * mask) @ v


@miss(
    "no products of queries with keys",
    lambda b, n, d: (drawn(d, n, 16), drawn(d, 16), drawn(d, 16), torch.ones(n, n).bool().tril()),
)
def graph_attention(x: Tensor, a: Tensor, b: Tensor, edges: Tensor) -> Tensor:
    scores = F.leaky_relu((x @ a)[:, None] + (x @ b)[None, :], 0.2)
    return scores.masked_fill(~edges, -9e15).softmax(-1) @ x


@miss("every query has keys of its own", lambda b, n, d: (*rows(b, n, d)[:2], drawn(d, 16)))
def additive_attention(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    return (torch.tanh(q[:, :, None] + k[:, None]) @ w).softmax(-1) @ k


@miss("no product of queries and keys", lambda b, n, d: (rows(b, n, d)[0], drawn(d, n, n)))
def learned_weights(x: Tensor, weights: Tensor) -> Tensor:
    return weights.softmax(-1) @ x


@miss("not one of two tensors", lambda b, n, d: (*heads(b, n, d), drawn(d, 16, 16)))
def three_factors(q: Tensor, k: Tensor, v: Tensor, form: Tensor) -> Tensor:
    return torch.einsum("bhqd,de,bhke->bhqk", q, form, k).softmax(-1) @ v


@miss("")
def retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(q.shape[-2])
    distance = place[:, None] - place
    weights = (q @ k.mT) * torch.where(distance >= 0, 0.9 ** distance.clamp_min(0), 0.0)
    return (weights / weights.detach().abs().sum(-1, keepdim=True).clamp(min=1)) @ v


@miss("", lambda b, n, d: (*heads(b, n, d), drawn(d, b, 4, n, 1)))
def gated_memory(q: Tensor, k: Tensor, v: Tensor, forget: Tensor) -> Tensor:
    total = F.logsigmoid(forget).cumsum(-2)
    decay = (total - total.mT).masked_fill(torch.ones(9, 9).bool().triu(1), float("-inf"))
    most = decay.amax(-1, keepdim=True)
    weights = (q @ k.mT * 0.25) * (decay - most).exp()
    norm = torch.maximum(weights.sum(-1, keepdim=True).abs(), (-most).exp())
    return (weights / (norm + 1e-6)) @ v


@miss("")
def softmax_in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    most = q.new_full((*q.shape[:3], 1), float("-inf"))
    total, out = torch.zeros_like(most), torch.zeros_like(q)
    for start in range(0, 9, 3):
        scores = q @ k[:, :, start : start + 3].mT * 0.25
        larger = torch.maximum(most, scores.amax(-1, keepdim=True))
        weights, decay = (scores - larger).exp(), (most - larger).exp()
        total = total * decay + weights.sum(-1, keepdim=True)
        out, most = out * decay + weights @ v[:, :, start : start + 3], larger
    return out / total


@miss("transform of torch.func")
def mapped_over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * 0.25).softmax(-1) @ v

    return torch.vmap(torch.vmap(attend))(q, k, v)
