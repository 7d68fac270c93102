"""More ways to write attention, beside those that research has counted; they join the others."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use

from tests.frontend.attention_idioms import (
    DEPTH,
    HEADS,
    IDIOMS,
    SHARED,
    Tensor,
    drawn,
    grouped,
    grouped_with_bias,
    heads,
    idiom,
    repeat_kv,
    with_padding,
)

__all__ = ["IDIOMS"]


@idiom()
def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@idiom()
def sdpa_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


@idiom(grouped_with_bias)
def sdpa_masked_and_grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


@idiom(with_padding)
def sdpa_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :].bool())


@idiom(lambda b, n, d: tuple(drawn(d, b * HEADS, n, DEPTH) for _ in range(3)))
def sdpa_in_three_dimensions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


@idiom(lambda b, n, d: (*grouped(b, n, d), drawn(d, HEADS)))
def gpt_oss_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    k, v = repeat_kv(k, HEADS // SHARED), repeat_kv(v, HEADS // SHARED)
    n = q.shape[-2]
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25
    scores = scores + torch.full((n, n), -1e9, dtype=q.dtype).triu(1)
    column = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, n, -1)
    combined = torch.cat([scores, column], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    weights = F.softmax(combined, dim=-1, dtype=combined.dtype)[..., :-1]
    return torch.matmul(weights, v)


@idiom()
def softmax_plus_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    exponentials = torch.exp(q @ k.transpose(-2, -1) * 0.1)
    return (exponentials / (1.0 + exponentials.sum(-1, keepdim=True))) @ v


@idiom()
def softmax_plus_one_shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * 0.25
    most = scores.amax(-1, keepdim=True)
    exponentials = torch.exp(scores - most)
    return (exponentials / (torch.exp(-most) + exponentials.sum(-1, keepdim=True))) @ v


@idiom()
def by_logsumexp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * 0.25
    return torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True)) @ v


@idiom()
def by_log_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(F.log_softmax(q @ k.mT * 0.25, -1).exp(), v)


@idiom(lambda b, n, d: (drawn(d, b, n, SHARED, 2, DEPTH), drawn(d, b, n, SHARED, DEPTH),
                        drawn(d, b, n, SHARED, DEPTH)))  # fmt: skip
def grouped_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * 0.25
    n = q.shape[1]
    mask = torch.arange(n)[:, None] >= torch.arange(n)
    scores = torch.where(mask, scores, float("-inf"))
    return torch.einsum("bhgqk,bkhd->bqhgd", scores.softmax(-1), v).flatten(2)


@idiom(grouped)
def grouped_in_five_dimensions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, count, n, depth = q.shape
    q = q.view(batch, SHARED, count // SHARED, n, depth)
    scores = q @ k.unsqueeze(2).transpose(-1, -2) / math.sqrt(depth)
    return (scores.softmax(-1) @ v.unsqueeze(2)).reshape(batch, count, n, depth)


@idiom(grouped)
def repeat_interleaved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(HEADS // SHARED, dim=1) for x in (k, v))
    return (q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v


@idiom(lambda b, n, d: (drawn(d, b, n, HEADS * DEPTH), drawn(d, b, n, DEPTH),
                        drawn(d, b, n, DEPTH)))  # fmt: skip
def multi_query_merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, n, width = q.shape
    q = q.reshape(batch, n * HEADS, DEPTH)
    scores = torch.bmm(q, k.transpose(1, 2)) * 0.25
    mask = torch.ones(n, n, dtype=torch.bool).tril()[None, :, None, :]
    scores = scores.view(batch, n, HEADS, n).masked_fill(~mask, -1e9)
    weights = scores.softmax(-1).view(batch, n * HEADS, n)
    return torch.bmm(weights, v).view(batch, n, width)


@idiom()
def sliding_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    place = torch.arange(n)
    distance = place[:, None] - place[None, :]
    scores = q @ k.transpose(-2, -1) * 0.25
    scores = scores.masked_fill((distance < 0) | (distance >= 4), torch.finfo(q.dtype).min)
    return scores.softmax(-1) @ v


@idiom(lambda b, n, d: (*heads(b, n, d), torch.arange(n).div(3, rounding_mode="floor")[None]
                        .repeat(b, 1)))  # fmt: skip
def documents(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    same = ids[:, None, :, None] == ids[:, None, None, :]
    scores = torch.where(same, q @ k.transpose(-2, -1) * 0.25, -torch.inf)
    return scores.softmax(-1) @ v


@idiom()
def alibi_of_indices(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    slopes = 2.0 ** -torch.arange(1, HEADS + 1, dtype=torch.float32)
    distance = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    bias = slopes[:, None, None] * -distance.abs()
    scores = q @ k.transpose(-2, -1) * 0.25 + bias
    return scores.softmax(-1).to(v.dtype) @ v


@idiom(with_padding)
def masked_in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1))
    scores /= 4.0
    scores.masked_fill_(mask[:, None, None, :] == 0, torch.finfo(q.dtype).min)
    return F.softmax(scores, -1) @ v


@idiom(lambda b, n, d: (*with_padding(b, n, d), drawn(d, HEADS)))
def weights_masked_again(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, gate: Tensor) -> Tensor:
    hidden = (mask == 0)[:, None, None, :]
    scores = (q @ k.transpose(-2, -1) * 0.25).masked_fill(hidden, float("-inf"))
    weights = F.softmax(scores, -1).masked_fill(hidden, 0.0)
    return (weights * gate[None, :, None, None]) @ v


@idiom(with_padding)
def masked_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    mask = mask[:, None, None, :].to(q.dtype)
    weights = F.softmax(q @ k.transpose(-2, -1) * 0.25, -1) * mask
    return (weights / weights.sum(-1, keepdim=True)) @ v


@idiom(lambda b, n, d: (drawn(d, b, HEADS, 3, DEPTH), drawn(d, b, HEADS, n, DEPTH),
                        drawn(d, b, HEADS, n, 24)))  # fmt: skip
def cross_attention_of_other_depth(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    nothing = torch.zeros(1, dtype=q.dtype)
    return F.softmax(torch.baddbmm(nothing, q, k.mT, beta=0, alpha=0.25), -1) @ v


@idiom(lambda b, n, d: (drawn(d, b, HEADS, 1, DEPTH), drawn(d, b, HEADS, n, DEPTH),
                        drawn(d, b, HEADS, n, DEPTH)))  # fmt: skip
def one_token(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(-2, -1) * 0.25, -1) @ v


@idiom()
def keys_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = k @ q.transpose(-2, -1) * 0.25
    return scores.softmax(dim=-2).transpose(-2, -1) @ v


@idiom()
def over_the_first_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->kbhq", q, k) * 0.25
    return torch.einsum("kbhq,bhkd->bqhd", torch.softmax(scores, 0), v)


@idiom(lambda b, n, d: tuple(drawn(d, n, DEPTH) for _ in range(3)))
def without_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.mm(q, k.t()) / 4.0, 1).mm(v)


@idiom()
def safe_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    scores = (q @ k.mT * 0.25).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(), -math.inf)
    empty = torch.isneginf(scores).all(-1, keepdim=True) if False else (
        (scores == -math.inf).all(-1, keepdim=True))  # fmt: skip
    return torch.where(empty, 0.0, torch.softmax(scores, -1)) @ v


@idiom(lambda b, n, d: (*heads(b, n, d), drawn(d, b, n, HEADS), drawn(d, HEADS, n, n)))
def gated_with_trained_bias(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    scores = torch.add(q @ k.mT * 0.25, bias)
    out = scores.softmax(-1) @ v
    return out.transpose(1, 2) * gate.sigmoid()[..., None]
