"""Attention as published models of language and speech compute it: all of it is found."""

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
    forms_in,
    heads,
    rows,
)

WIDTH = HEADS * DEPTH
LANGUAGE: list[Idiom] = []


form = forms_in(LANGUAGE)


@form(
    lambda b, n, d: (
        drawn(d, b, n, HEADS, 24),
        drawn(d, b, n, 32),
        drawn(d, b, n, 8),
        drawn(d, HEADS * 32, 32),
    )
)
def mla(q: Tensor, c: Tensor, kr: Tensor, wkv: Tensor) -> Any:
    b, n, _ = c.shape
    qn, qr = q.split([16, 8], -1)
    kv = (c @ wkv.t() * 0.2).view(b, n, HEADS, 32)
    kn, v = kv.split([16, 16], -1)
    k = torch.cat([kn, kr[:, :, None, :].expand(-1, -1, HEADS, -1)], -1)
    q = torch.cat([qn, qr], -1)
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(24)
    s = s + torch.full((n, n), float("-inf"), dtype=s.dtype).triu(1)
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1, dtype=torch.float32).type_as(v), v)


@form(
    lambda b, n, d: (
        drawn(d, b, n, HEADS, 16),
        drawn(d, b, n, HEADS, 8),
        drawn(d, b, n, 32),
        drawn(d, b, n, 8),
        drawn(d, HEADS, 16, 32),
        drawn(d, HEADS, 16, 32),
    )
)
def mla_absorbed(qn: Tensor, qr: Tensor, c: Tensor, kr: Tensor, wk: Tensor, wv: Tensor) -> Any:
    q = torch.einsum("bshd,hdc->bshc", qn, wk) * 0.2
    s = (torch.einsum("bshc,btc->bsht", q, c) + torch.einsum("bshr,btr->bsht", qr, kr)) * 0.1
    n = c.shape[1]
    s = s + torch.full((n, n), float("-inf"), dtype=s.dtype).triu(1).unsqueeze(1)
    s = s.softmax(-1, dtype=torch.float32).type_as(c)
    o = torch.einsum("bsht,btc->bshc", s, c)
    return torch.einsum("bshc,hdc->bshd", o, wv)


@form()
def gemma_softcap(q: Tensor, k: Tensor, v: Tensor) -> Any:
    s = q @ k.mT * 0.25
    s = s / 5.0
    s = torch.tanh(s)
    s = s * 5.0
    n = q.shape[-2]
    i = torch.arange(n)
    m = (i[:, None] >= i) & (i[:, None] - i < 4)
    s = torch.where(m, s, torch.finfo(s.dtype).min)
    return F.softmax(s, -1, dtype=torch.float32).to(v.dtype) @ v


@form(
    lambda b, n, d: (
        drawn(d, b, HEADS, 1, DEPTH),
        torch.randn(b, HEADS, 32, DEPTH).to(d),
        torch.randn(b, HEADS, 32, DEPTH).to(d),
        drawn(d, b, HEADS, 1, DEPTH),
        torch.tensor([n]),
    )
)
def static_cache(q: Tensor, kc: Tensor, vc: Tensor, knew: Tensor, pos: Tensor) -> Any:
    k = kc.index_copy(2, pos, knew)
    v = vc.index_copy(2, pos, knew)
    m = torch.arange(32)[None, :] <= pos[:, None]
    s = (q @ k.mT) * 0.25
    s = s.masked_fill(~m, torch.finfo(s.dtype).min)
    return s.softmax(-1) @ v


@form(
    lambda b, n, d: (
        drawn(d, b, HEADS, 1, DEPTH).detach(),
        torch.randn(b, HEADS, 32, DEPTH).to(d),
        torch.randn(b, HEADS, 32, DEPTH).to(d),
        drawn(d, b, HEADS, 1, DEPTH).detach(),
        torch.tensor([n]),
    )
)
def static_cache_inplace(q: Tensor, kc: Tensor, vc: Tensor, knew: Tensor, pos: Tensor) -> Any:
    kc = kc.clone()
    vc = vc.clone()
    kc.index_copy_(2, pos, knew)
    vc[:, :, pos] = knew
    m = torch.arange(32)[None, :] <= pos[:, None]
    s = (q @ kc.mT) * 0.25 + torch.where(m, 0.0, -math.inf).to(q.dtype)
    return s.softmax(-1) @ vc


@form(lambda b, n, d: (*heads(b, n, d), torch.tensor([3] * b)))
def prefix_lm(q: Tensor, k: Tensor, v: Tensor, p: Tensor) -> Any:
    n = q.shape[-2]
    i = torch.arange(n)
    m = (i[:, None] >= i)[None] | (i[None, None, :] < p[:, None, None])
    s = (q @ k.mT * 0.25).masked_fill(~m[:, None], -1e4)
    return s.softmax(-1) @ v


@form(
    lambda b, n, d: (
        *(drawn(d, b, n, HEADS, DEPTH) for _ in range(3)),
        torch.arange(n).div(4, rounding_mode="floor")[None].repeat(b, 1),
    )
)
def packed(q: Tensor, k: Tensor, v: Tensor, seg: Tensor) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    m = (seg[:, :, None] == seg[:, None, :]) & torch.ones(
        q.shape[2], q.shape[2], dtype=torch.bool
    ).tril()
    bias = torch.zeros_like(m, dtype=q.dtype).masked_fill(~m, torch.finfo(q.dtype).min)[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


@form(
    lambda b, n, d: (
        *heads(b, n, d),
        drawn(d, HEADS, 2 * n - 1, DEPTH),
        drawn(d, HEADS, DEPTH),
        drawn(d, HEADS, DEPTH),
    )
)
def conformer_relshift(q: Tensor, k: Tensor, v: Tensor, p: Tensor, u: Tensor, w: Tensor) -> Any:
    n = q.shape[-2]
    ac = (q + u[:, None]) @ k.mT
    bd = (q + w[:, None]) @ p.mT
    b, h, t1, t2 = bd.shape
    z = torch.zeros((b, h, t1, 1), dtype=bd.dtype)
    bd = torch.cat([z, bd], -1).view(b, h, t2 + 1, t1)[:, :, 1:].view_as(bd)[:, :, :, :n]
    return ((ac + bd) / 4).softmax(-1) @ v


@form(
    lambda b, n, d: (
        *heads(b, n, d),
        drawn(d, HEADS, n, DEPTH),
        drawn(d, HEADS, DEPTH),
        drawn(d, HEADS, DEPTH),
    )
)
def transformer_xl(q: Tensor, k: Tensor, v: Tensor, r: Tensor, u: Tensor, w: Tensor) -> Any:
    ac = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    bd = torch.einsum("bhid,hjd->bhij", q + w[:, None], r)
    b, h, i, j = bd.shape
    bd = F.pad(bd, (1, 0)).view(b, h, j + 1, i)[:, :, 1:].view(b, h, i, j)
    s = (ac + bd) * 0.25
    m = torch.ones(i, j, dtype=torch.bool).triu(1)
    return s.masked_fill(m, -1e30).softmax(-1) @ v


@form(lambda b, n, d: (*rows(b, n, d), drawn(d, HEADS, 8, DEPTH), drawn(d, HEADS, 8, DEPTH)))
def deberta(q: Tensor, k: Tensor, v: Tensor, pk: Tensor, pq: Tensor) -> Any:
    n = q.shape[1]
    sc = math.sqrt(DEPTH * 3)
    s = torch.bmm(q, k.transpose(-1, -2) / sc)
    i = torch.arange(n)
    rel = (i[:, None] - i[None]).clamp(-4, 3) + 4
    rel = rel[None].expand(q.shape[0], -1, -1)
    pk = pk.repeat(q.shape[0] // HEADS, 1, 1)
    pq = pq.repeat(q.shape[0] // HEADS, 1, 1)
    c2p = torch.gather(torch.bmm(q, pk.transpose(-1, -2)), -1, rel) / sc
    p2c = torch.gather(torch.bmm(k, pq.transpose(-1, -2)), -1, rel).transpose(-1, -2) / sc
    return (s + c2p + p2c).softmax(-1) @ v


@form(lambda b, n, d: (*heads(b, n, d), drawn(d, 8, HEADS)))
def t5(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Any:
    n = q.shape[-2]
    s = q @ k.transpose(3, 2)
    i = torch.arange(n)
    r = -(i[None] - i[:, None]).clamp(max=0)
    r = torch.where(
        r < 4, r, 4 + (torch.log(r.float().clamp(min=1) / 4) / math.log(4) * 4).long().clamp(max=3)
    )
    bias = F.embedding(r, table).permute(2, 0, 1).unsqueeze(0)
    s = s * 0.1 + bias
    return F.softmax(s.float(), -1).type_as(s) @ v


@form(lambda b, n, d: (*heads(b, 8, d),))
def blocked_local(q: Tensor, k: Tensor, v: Tensor) -> Any:
    b, h, n, dd = q.shape
    q, k, v = (x.view(b, h, n // 4, 4, dd) for x in (q, k, v))
    return ((q @ k.mT * 0.25).softmax(-1) @ v).view(b, h, n, dd)


@form(lambda b, n, d: (*heads(b, 8, d),))
def local_with_previous(q: Tensor, k: Tensor, v: Tensor) -> Any:
    b, h, n, dd = q.shape
    q, k, v = (x.view(b, h, n // 4, 4, dd) for x in (q, k, v))
    k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 1, -1)), x], -2) for x in (k, v))
    i = torch.arange(4)
    m = i[:, None] + 4 >= torch.arange(8)
    s = (q @ k.mT * 0.25).masked_fill(~m, -1e9)
    return (s.softmax(-1) @ v).view(b, h, n, dd)
