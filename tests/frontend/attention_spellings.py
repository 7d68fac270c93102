"""The same products, softmaxes and masks in other words: all of them are found."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use

from tests.frontend.attention_idioms import (
    DEPTH,
    HEADS,
    Idiom,
    Tensor,
    drawn,
    extra,
    forms_in,
    rows,
    with_padding,
)

WIDTH = HEADS * DEPTH
SPELLINGS: list[Idiom] = []


form = forms_in(SPELLINGS)


@form()
def shifted_by_detached_scores(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = q @ k.mT * 0.25
    e = (s - s.detach().amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


@form()
def divided_after(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = q @ k.mT * 0.25
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


@form()
def divided_after_mul_recip(q: Tensor, k: Tensor, v: Tensor) -> Any:
    e = torch.exp(q @ k.mT * 0.1)
    return torch.einsum("bhqk,bhkd->bhqd", e, v) * (1 / e.sum(-1, keepdim=True))


@form(lambda b, n, d: tuple(drawn(d, n, DEPTH) for _ in range(3)))
def tensordot(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = torch.tensordot(q, k, dims=([1], [1])) * 0.25
    return torch.tensordot(s.softmax(-1), v, dims=1)


@form(lambda b, n, d: (drawn(d, b, n, DEPTH), drawn(d, n, DEPTH), drawn(d, n, DEPTH)))
def inner(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return torch.inner(q, k).mul(0.25).softmax(-1) @ v


@form()
def mulsum(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) * 0.25
    return s.softmax(-1) @ v


@form()
def mulsum_both(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = (q[:, :, :, None] * k[:, :, None]).sum(-1) / 4
    w = F.softmax(s, -1)
    return (w[..., None] * v[:, :, None]).sum(-2)


@form(lambda b, n, d: (drawn(d, b, n, DEPTH), drawn(d, b, DEPTH), drawn(d, b, n, DEPTH)))
def pooling_mulsum(h: Tensor, q: Tensor, v: Tensor) -> Any:
    s = (h * q[:, None]).sum(-1) * 0.25
    w = s.softmax(-1)
    return (w[..., None] * v).sum(1)


@form(lambda b, n, d: (drawn(d, n, DEPTH), drawn(d, n, DEPTH), drawn(d, n, DEPTH)))
def linear(q: Tensor, k: Tensor, v: Tensor) -> Any:
    q, k, v = q * 1.0, k * 1.0, v * 1.0
    return F.linear(F.linear(q, k).mul(0.25).softmax(-1), v.t())


@form(
    lambda b, n, d: (
        drawn(d, b, HEADS, n, DEPTH),
        drawn(d, HEADS, n, DEPTH),
        drawn(d, HEADS, n, DEPTH),
    )
)
def broadcast_batch(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return (q @ k.mT * 0.25).softmax(-1) @ v


@form(
    lambda b, n, d: (
        drawn(d, HEADS, n, DEPTH),
        drawn(d, b, HEADS, n, DEPTH),
        drawn(d, b, HEADS, n, DEPTH),
    )
)
def broadcast_query(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return (q @ k.mT * 0.25).softmax(-1) @ v


@form(
    lambda b, n, d: (
        drawn(d, b, HEADS, n, DEPTH),
        drawn(d, b, 1, n, DEPTH),
        drawn(d, b, 1, n, DEPTH),
    )
)
def broadcast_heads(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return (q @ k.mT * 0.25).softmax(-1) @ v


@form(lambda b, n, d: (drawn(d, b, HEADS, n, DEPTH), drawn(d, b, n, DEPTH), drawn(d, b, n, DEPTH)))
def mqa_rows(q: Tensor, k: Tensor, v: Tensor) -> Any:
    b, h, n, dd = q.shape
    s = (q.reshape(b, h * n, dd) @ k.mT) * 0.25
    return (s.softmax(-1) @ v).reshape(b, h, n, dd)


@form(lambda b, n, d: (drawn(d, b, HEADS, n, DEPTH), drawn(d, b, n, DEPTH), drawn(d, b, n, DEPTH)))
def mqa_rows_causal(q: Tensor, k: Tensor, v: Tensor) -> Any:
    b, h, n, dd = q.shape
    s = (q.reshape(b, h * n, dd) @ k.mT) * 0.25
    m = torch.ones(n, n, dtype=torch.bool).tril()
    s = s.view(b, h, n, n).masked_fill(~m, -math.inf).view(b, h * n, n)
    return (s.softmax(-1) @ v).reshape(b, h, n, dd)


@form(with_padding)
def float_mask_after(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Any:
    w = (q @ k.mT * 0.25).softmax(-1)
    return (w * m[:, None, None, :].to(w.dtype)) @ v


@form(with_padding)
def float_mask_after_queries(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Any:
    w = (q @ k.mT * 0.25).softmax(-1)
    return (w * m[:, None, :, None].to(w.dtype)) @ v


@form(lambda b, n, d: tuple(drawn(d, n, DEPTH) for _ in range(3)))
def sdpa_2d(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@form(lambda b, n, d: tuple(drawn(d, HEADS, n, DEPTH) for _ in range(3)))
def sdpa_3d_mask(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(n, n, dtype=torch.bool).tril()
    )


@form(lambda b, n, d: tuple(drawn(d, b, 2, HEADS, n, DEPTH) for _ in range(3)))
def sdpa_5d(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


@form(lambda b, n, d: (*(drawn(d, n, DEPTH) for _ in range(3)), drawn(d, n, n)))
def addmm(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    s = torch.addmm(bias, q, k.t(), beta=0.5, alpha=0.25)
    return s.softmax(-1) @ v


@form(lambda b, n, d: (*rows(b, n, d), drawn(d, 1, n, n)))
def baddbmm(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    s = torch.baddbmm(bias, q, k.transpose(1, 2), beta=2.0, alpha=0.25)
    return torch.bmm(s.softmax(-1), v)


@form(lambda b, n, d: (*rows(b, n, d), drawn(d, b * HEADS, n, n)))
def baddbmm_method(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    return torch.bmm(bias.baddbmm(q, k.transpose(1, 2), alpha=0.25).softmax(-1), v)


@form(lambda b, n, d: (*rows(b, n, d), drawn(d, b * HEADS, n, DEPTH)))
def baddbmm_residual(q: Tensor, k: Tensor, v: Tensor, res: Tensor) -> Any:
    return torch.baddbmm(res, (q @ k.mT * 0.25).softmax(-1), v)


@form(lambda b, n, d: (*rows(b, n, d), drawn(d, b * HEADS, n, DEPTH)))
def baddbmm_scaled_out(q: Tensor, k: Tensor, v: Tensor, res: Tensor) -> Any:
    return torch.baddbmm(res, (q @ k.mT * 0.25).softmax(-1), v, beta=0.5, alpha=2.0)


@form(lambda b, n, d: (*rows(b, n, d), drawn(d, n, n)))
def addbmm(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    s = torch.addbmm(bias, q, k.mT, alpha=0.25)
    return s.softmax(-1) @ v


@form()
def special_softmax(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return torch.special.softmax(q @ k.mT * 0.25, -1) @ v


@form()
def safe_softmax(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[-2]
    s = (q @ k.mT * 0.25).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(), -math.inf)
    return torch.ops.aten._safe_softmax(s, -1) @ v


@form(extra(lambda b, n, d: drawn(d, HEADS, 1, 1)))
def sigmoid_temperature(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Any:
    return ((q @ k.mT) * torch.sigmoid(t)).softmax(-1) @ v


@form(extra(lambda b, n, d: drawn(d, HEADS, 1, 1)))
def cosine_swin(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Any:
    s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
    s = s * torch.clamp(t, max=math.log(100.0)).exp()
    return s.softmax(-1) @ v


@form(extra(lambda b, n, d: drawn(d, HEADS, 1, 1)))
def cosine_similarity(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Any:
    s = F.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
    return (s * t).softmax(-1) @ v


@form()
def einsum_list(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = torch.einsum("... q d, ... k d -> ... q k", [q, k]) * 0.25
    return torch.einsum("...qk,...kd->...qd", s.softmax(-1), v)


@form()
def einsum_implicit(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = torch.einsum("abid,abjd->abij", q, k) * 0.25
    return torch.einsum("abij,abjd->abid", s.softmax(-1), v)


@form(
    lambda b, n, d: (
        drawn(d, b, n, HEADS, DEPTH),
        drawn(d, b, n, HEADS, DEPTH),
        drawn(d, b, n, HEADS, DEPTH),
    )
)
def einsum_bnhd(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = torch.einsum("bqhc,bkhc->bqhk", q, k) * 0.25
    return torch.einsum("bqhk,bkhc->bqhc", s.softmax(-1), v)


@form()
def einsum_scalar_third(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = torch.einsum("bhqd,bhkd,->bhqk", q, k, torch.tensor(0.25, dtype=q.dtype))
    return s.softmax(-1) @ v


@form()
def einsum_sublist(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = torch.einsum(q, [0, 1, 2, 4], k, [0, 1, 3, 4], [0, 1, 2, 3]) * 0.25
    return s.softmax(-1) @ v


@form()
def matmul_out_transposed(q: Tensor, k: Tensor, v: Tensor) -> Any:
    w = (k @ q.mT * 0.25).softmax(-2)
    return (v.mT @ w).mT


@form()
def vecdot(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = torch.linalg.vecdot(q.unsqueeze(-2), k.unsqueeze(-3)) * 0.25
    return s.softmax(-1) @ v


@form()
def linalg_matmul(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return torch.linalg.matmul(torch.linalg.matmul(q, k.mT).mul(0.25).softmax(-1), v)


@form(extra(lambda b, n, d: drawn(d, b, n)))
def weights_times_key_gate(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
    w = (q @ k.mT * 0.25).softmax(-1)
    return (w * g.sigmoid()[:, None, None, :]) @ v


@form()
def weights_times_tril(q: Tensor, k: Tensor, v: Tensor) -> Any:
    n = q.shape[-2]
    w = (q @ k.mT * 0.25).softmax(-1)
    return (w * torch.tril(torch.ones(n, n)).to(w.dtype)) @ v


@form(lambda b, n, d: (drawn(d, b, n, HEADS * DEPTH), drawn(d, HEADS), drawn(d, b, n)))
def einsum_scale_third(x: Tensor, s: Tensor, m: Tensor) -> Any:
    x = x.view(*x.shape[:2], HEADS, DEPTH)
    w = torch.einsum("bqhd,bkhd,h->bhqk", x, x, s).softmax(-1)
    return torch.einsum("bhqk,bkhd,bk->bqhd", w, x, m)
